//! speed.
