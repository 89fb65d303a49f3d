//! md
pub mod raid0;
pub mod raid10;
