//! Named scenarios: two hosts, a conversation, and one thing that goes wrong, each with the boundary beside it.
//!
//! * [`clean`]: nothing goes wrong, and nothing is done twice.
//! * [`loss`]: one frame is lost, or comes twice, or late; and what that costs exactly.
//! * [`retries`]: retries are used up, or just not.
//! * [`incidents`]: applications that misbehave, die, or write garbage.
//! * [`unreliable`]: UC and UD.
//! * [`connections`]: connections by address.
//! * [`network`]: many hosts and switches.
//! * [`swarm`]: seeds, and that they repeat.

mod clean;
mod connections;
mod incidents;
mod loss;
mod network;
mod reads;
mod retries;
mod scenario;
mod swarm;
mod unreliable;
