//! A deterministic simulator: two hosts that run the real engine behind the real rings, clients on the real client library, a
//! faulty link between them, one virtual clock, one seed.
//!
//! * [`agenda`]: the clock, one heap of events ordered by time and sequence.
//! * [`random`]: streams of random numbers, one for each node and direction, all from the seed.
//! * [`link`](mod@link): rate, delay, MTU, and faults by chance or by script.
//! * [`host`]: the engine with its control side, driven a turn at a time.
//! * [`app`]: model applications that check every completion and every byte.
//! * [`world`]: what happens in which order.
//! * [`run`]: a run in its phases: faults, then none and everything must come to its end, then silence.
//! * [`flow`]: what workloads ask of a network of many hosts, and what it tells of it.
//! * [`workload`]: flows by pattern, by chance and by published distributions.
//! * [`stats`]: completion times, slowdowns, rates, queues and fairness, from what a network tells.
//! * [`report`]: a run as CSV, JSON, charts and a page.
//! * [`swarm`]: settings of a run, all drawn from its seed.
//! * [`trace`], [`capture`]: what a run leaves: a hash, and the frames for a sniffer.
//!
//! The same seed gives the same run, frame by frame, on any machine: no wall clock, no address and no hash table's order gets in.
//!
//! ```
//! let report = sim::run::run_seed(1, false).unwrap();
//! assert_eq!(report.trace, sim::run::run_seed(1, false).unwrap().trace);
//! ```
#![forbid(unsafe_code)]

pub mod agenda;
pub mod app;
pub mod capture;
pub mod flow;
pub mod host;
pub mod link;
pub mod network;
pub mod random;
pub mod report;
pub mod run;
pub mod stats;
pub mod swarm;
pub mod trace;
mod violation;
pub mod workload;
pub mod world;

pub use violation::Violation;
