//! probing
