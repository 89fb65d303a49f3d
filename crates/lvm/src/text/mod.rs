//! LVM's configuration language: conversion between text and tree.
//!
//! The text describes a volume group: sections, numbers, strings, and lists of these. LVM writes it
//! in two forms, both of which [`print`](printer) produces byte for byte:
//!
//! | form | location | features |
//! |---|---|---|
//! | [`Form::Disk`] | metadata areas | no indentation; the header is at the end |
//! | [`Form::Backup`] | `/etc/lvm/backup`, `/etc/lvm/archive` | tabs, comments with sizes; the header comes first |
//!
//! Invariants: any bytes give a tree or one error with its line, in time and memory proportional to
//! the bytes ([`MAX_BYTES`], [`MAX_ENTRIES`], [`MAX_DEPTH`]); parsing and printing a text from LVM
//! returns it byte for byte.
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
pub use printer::{Form, print, print_inner, print_with};
pub use tree::{Array, ArrayStyle, Entry, Node, Order, Scalar, Section};
