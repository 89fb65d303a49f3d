//! Bugs that the kernel's md had, or is suspected to have: for each a test named after it, or why it cannot
//! occur. The list is [`register`]; it names tests in other files by their path.

mod discards;
mod metadata;
mod pending;
mod reads;
mod register;
mod syncs;
mod writes;
