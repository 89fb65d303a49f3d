//! Integration tests of btrfs in one program, with a module for each subject.

mod backref;
mod files;
mod golden;
mod hostile;
mod inspect;
mod items;
mod occupants;
mod open;
mod scrub;
mod support;
