//! Bugs that the kernel's md has had, or is suspected to have: for each the test here that has its name, or
//! why it cannot occur. The list is [`register`]; tests that belong with others are there, by their path.

mod discards;
mod metadata;
mod pending;
mod reads;
mod register;
mod syncs;
mod writes;
