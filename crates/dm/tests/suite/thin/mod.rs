//! Thin pools: metadata that `thin_restore` and the kernel made, and such as no program should make.

mod damaged;
mod golden;
mod pools;
mod reads;
mod shapes;
