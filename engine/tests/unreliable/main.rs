//! UC, UD and the management datagrams of QP1, through the engine's public interface: rings on one side, frames on the other, a
//! clock that the test holds.

#[path = "../rc/peer.rs"]
mod peer;
#[path = "../support/mod.rs"]
mod support;

mod captures;
mod gsi;
mod mcast;
mod uc;
mod ud;
