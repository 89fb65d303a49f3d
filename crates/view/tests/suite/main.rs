//! Integration tests of the texts about devices, in one program: a module for each subject.

#[path = "../../../stack/tests/suite/common/mod.rs"]
mod common;
mod scan;
mod zpools;
