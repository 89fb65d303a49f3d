//! Labels of ZFS: golden pools that libzpool made, `zdb`'s word for them, pools made by hand, and hostile bytes.

mod golden;
mod hostile;
mod pools;
mod support;
