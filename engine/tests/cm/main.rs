//! Connection management: clients of two engines who connect by ids, and the connection manager in the place of Linux's.

#[path = "../support/mod.rs"]
mod support;

mod captures;
mod clients;
mod ece;
mod limits;
mod world;
