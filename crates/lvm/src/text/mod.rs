//! LVM's configuration language: text to tree and back.
//!
//! A volume group is described by such a text: sections, numbers, strings, lists of these. LVM writes it in
//! two forms, both of which [`print`](printer) byte for byte as LVM does:
//!
//! | form | where | what it has |
//! |---|---|---|
//! | [`Form::Disk`] | metadata areas | no indentation; who wrote it stands at the end |
//! | [`Form::Backup`] | `/etc/lvm/backup`, `/etc/lvm/archive` | tabs, comments with sizes; who wrote it stands first |
//!
//! Invariants: any bytes give a tree or one error with its line, in time and memory proportional to the
//! bytes ([`MAX_BYTES`], [`MAX_ENTRIES`], [`MAX_DEPTH`]); a text that LVM wrote comes back from its tree
//! byte for byte.
//!
//! Sources: LVM's `libdm/libdm-config.c` (the language), `lib/format_text/export.c` (the forms).

pub mod comments;
pub mod dates;
pub mod error;
mod lexer;
mod parser;
pub mod printer;
pub mod raw;
pub mod tree;

pub use error::{Problem, TextError};
pub use parser::{MAX_BYTES, MAX_DEPTH, MAX_ENTRIES, parse};
pub use printer::{Form, print};
pub use tree::{Array, ArrayStyle, Entry, Node, Order, Scalar, Section};
