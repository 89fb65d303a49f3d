//! examined
