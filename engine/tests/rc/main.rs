//! The RC transport through its public interface: rings on one side, frames on the other, a clock that the test holds.
//!
//! * [`transfer`]: every operation between two engines; [`recovery`]: the same over a wire that loses and repeats.
//! * [`responder`], [`answers`], [`requester`]: one side, its peer played by hand.
//! * [`selective`]: each side of selective repeat by itself, and peers that mean harm by it; [`read_parts`]: its READs.
//! * [`lateness`]: what is late and not lost, to those that go back N.
//! * [`completions`], [`srq`], [`qp_states`], [`work_requests`], [`windows`]: what an application sees.
//! * [`post_mortem`]: what an operator sees.
//! * [`paths`]: address families, VLANs, versions of RoCE.
//! * [`process_memory`]: regions of memory that no engine maps.
//! * [`network`], [`hostile`]: what is none of our business, and what is meant to harm.

#[path = "../support/mod.rs"]
mod support;

mod answers;
mod completions;
mod congestion;
mod documents;
mod hostile;
mod lateness;
mod network;
mod paths;
mod peer;
mod ports;
mod post_mortem;
mod process_memory;
mod qp_states;
mod read_parts;
mod recovery;
mod requester;
mod responder;
mod selective;
mod shares;
mod srq;
mod transfer;
mod windows;
mod work_requests;
