//! Thin pools: metadata made by `thin_restore` and the kernel, and malformed metadata.

mod damaged;
mod golden;
mod pools;
mod reads;
mod shapes;
