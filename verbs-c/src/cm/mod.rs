//! The connection manager, by the C ABI of librdmacm.
//!
//! The code is in `libibverbs.so.1`, under names of its own (`ferroce_rdma_*`): it needs the objects of the verbs.
//! `librdmacm.so.1` is a jump for each name of the header.
//!
//! * [`abi`]: the structures of `rdma/rdma_cma.h`.
//! * `devices`: every daemon's device, opened once for the whole process, as librdmacm does.
//! * `channel`, `event`: event channels over several devices, and events that programs acknowledge.
//! * `id`: ids, from their birth to listening; `connect`: from there to the end; `qp`: the queues of an id.
//! * `endpoint`: `rdma_getaddrinfo` and ids made of its results; `multicast`; `option`.
//! * `ece`: options of connections whose QPs the program connects itself.
//! * `later`: calls of later headers, which are not offered.
//!
//! An id without a channel waits in each call for its event, which it keeps until the next call (`id->event`).

pub mod abi;
pub(crate) mod address;
pub mod channel;
pub mod connect;
pub mod devices;
pub mod ece;
pub mod endpoint;
mod event;
pub mod id;
pub mod later;
pub mod multicast;
pub mod option;
pub mod qp;
