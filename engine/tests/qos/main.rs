//! Quality of service through the engine's public interface: priorities, turns, and pauses both ways.

#[path = "../support/mod.rs"]
mod support;

mod backlog;
mod classes;
mod pauses;
mod settings;
mod watchdog;
mod world;
