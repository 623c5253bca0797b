//! A network of many hosts: switches and links between engines.
//!
//! * [`switch`]: a switch with a shared buffer, marks and pauses, as a state machine that a real device could run as well.
//! * [`headers`]: what a switch reads of a frame, and how it marks it.
//! * [`run`]: a run of all of it.
//! * [`swarm`]: runs that are all drawn from their seeds, and checked.
//! * [`traffic`]: applications, connections and flows.
//! * [`fabric`]: hosts, links and switches on one clock.
//! * [`classify`]: which priority a frame has.
//! * [`topology`]: which hosts and switches there are, and the ways between them.
//! * [`pause`]: a transmitter that obeys pauses.
//! * [`serializer`]: how long a frame takes on a wire.

pub mod classify;
pub mod fabric;
pub mod headers;
mod nic;
pub mod pause;
pub mod run;
pub mod serializer;
pub mod swarm;
pub mod switch;
#[cfg(test)]
pub(crate) mod testing;
pub mod topology;
pub mod traffic;
