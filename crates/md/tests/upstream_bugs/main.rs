//! Bugs that the kernel's md has had, or is suspected to have: for each the test here that has its name, or
//! why it cannot occur. The list is [`register`]; tests that belong with others are there, by their path.

#[path = "../common/mod.rs"]
mod common;
mod discards;
mod metadata;
mod pending;
mod reads;
mod register;
mod syncs;
#[allow(dead_code, reason = "shared with the tests of changes, which use more of it")]
#[path = "../manage/world.rs"]
mod world;
mod writes;
