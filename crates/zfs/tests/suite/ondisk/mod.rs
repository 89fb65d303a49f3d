//! ZFS labels: golden pools made by libzpool, `zdb`'s reading of them, hand-made pools, and hostile bytes.

mod golden;
mod hostile;
mod pools;
mod support;
