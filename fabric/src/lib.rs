//! `ferroce-fabric`: a software switch in a process of its own, between DPDK ports.
//!
//! It is the switch of the simulator (crate `sim`), with the same links, marks, pauses and faults, driven by the time-stamp counter
//! in place of a virtual clock.
//!
//! * [`config`]: files and flags.
//! * [`model`]: the switch and its links; frames and time go in, frames come out.
//! * [`stations`]: who is behind which port.
//! * [`device`]: ports of DPDK's, and frames in their buffers.
//! * [`control`]: commands to a fabric that runs.
//! * [`run`]: turns in real time.
//! * [`report`]: what came of it, as tables or JSON.
#![forbid(unsafe_code)]

mod carried;
pub mod config;
pub mod control;
pub mod device;
mod flaps;
pub mod model;
pub mod report;
pub mod run;
pub mod stations;

pub use carried::Carried;
pub use flaps::Flaps;
