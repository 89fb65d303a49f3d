//! LVM's formats: texts and labels from LVM, damaged and random ones, devices in the simulator.

mod allocation;
mod cases;
mod crashes;
mod damaged;
mod devices;
mod document;
mod golden;
mod groups;
mod random;
