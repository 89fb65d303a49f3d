//! md
pub mod ondisk;
pub mod raid0;
pub mod raid10;
