//! Integration tests of the simulator, in one program: a module for each subject.

mod crash;
mod links;
mod modelled;
mod simulator;
