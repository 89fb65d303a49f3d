//! Integration tests of what disks hold and what is made of it, in one program: a module for each subject.

mod common;
mod nesting;
mod partitions;
mod signatures;
mod volume_groups;
mod zpools;
