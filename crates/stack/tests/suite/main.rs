//! Integration tests of the contents and assembly of disks, in one program: a module for each subject.

mod common;
mod copies;
mod held;
mod live;
mod live_cuts;
mod live_filling;
mod live_groups;
mod live_load;
mod live_moves;
mod live_put_off;
mod live_restores;
mod nesting;
mod partitions;
mod signatures;
mod silent;
mod unread;
mod volume_groups;
mod zpools;
