//! Integration tests of LVM2, in one program: a module for each subject.

mod activate;
mod change;
mod formats;
