//! Tests of the array's own I/O beside the code.
