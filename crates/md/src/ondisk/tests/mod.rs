//! Tests of the on-disk formats.
