//! A deterministic simulator: hosts that run the real engine behind the real rings, clients on the real client library, faulty
//! links and switches between them, one virtual clock, one seed. [`world`] has two hosts and checks everything that can be done
//! with them; [`network`] has many, and carries flows.
//!
//! * [`agenda`]: the clock, one heap of events ordered by time and sequence.
//! * [`random`]: streams of random numbers, one for each node and direction, all from the seed.
//! * [`link`](mod@link): rate, delay, MTU, and faults by chance or by script.
//! * [`frame`]: how frames are stored, which is their owner's affair.
//! * [`host`]: the engine with its control side, driven a turn at a time.
//! * [`app`]: model applications that check every completion and every byte.
//! * [`world`]: what happens in which order.
//! * [`run`]: a run in its phases: faults, then none and everything must come to its end, then silence.
//! * [`flow`]: what workloads ask of a network of many hosts, and what it tells of it.
//! * [`network`]: many hosts, with switches between them.
//! * [`scenario`]: a network, its flows and its faults from a file.
//! * [`workload`]: flows by pattern, by chance and by published distributions.
//! * [`stats`]: completion times, slowdowns, rates, queues and fairness, from what a network tells.
//! * [`report`]: a run as CSV, JSON, charts and a page.
//! * [`papers`]: results that others have published, beside ours.
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
mod counters;
pub mod flow;
pub mod frame;
pub mod host;
mod inspect;
pub mod link;
pub mod network;
pub mod papers;
pub mod random;
pub mod report;
pub mod run;
pub mod scenario;
pub mod shrink;
pub mod stats;
pub mod swarm;
pub mod trace;
mod violation;
pub mod workload;
pub mod world;

/// Virtual time, which whoever runs a switch or a link in real time names as well.
pub use engine::Time;
pub use violation::Violation;
