//! Rare interleavings: a change of the array, a write, a flush, a sync or a stop that meets another one
//! halfway, and what a power cut then leaves.

mod behind;
mod bitmaps;
mod flushes;
mod reads;
mod recording;
mod stopping;
mod syncs;
mod world;
