//! Sockets over RDMA (`rsocket(7)`): the calls of sockets with an `r` before their names, over connections of the connection manager.
//!
//! The protocol is that of rdma-core (`docs/rsocket` there), so that the peer may be either. Each side shows the other the two halves
//! of its receive memory, one after the other; data is written into them, and each write carries a word that says how many bytes came. A half
//! that was read is shown again, by a write into a table of the sender's. Credits keep writers from using more receives than there are.
//!
//! * `wire`: what is said. `flow`: what may be said. `memory`: where it is. `stream`: a connection, of those three and a QP.
//! * `socket`: what a socket is, and waiting for it. `connect`, `close`: how it comes and goes. `options`.
//! * `transfer`, `iomap`, `poll`: what programs do with it. `vectors`: their buffers.
//! * `datagram`: messages instead of a stream, over UD queue pairs.
//! * [`calls`]: the entries from C.
//!
//! Connections do not survive `fork()`: a child has to open its own sockets.

pub mod calls;
mod close;
mod connect;
mod datagram;
mod flow;
mod iomap;
mod memory;
mod options;
mod poll;
mod socket;
mod stream;
mod transfer;
mod vectors;
mod wire;
