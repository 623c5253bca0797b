//! `libibverbs.so.1` and `librdmacm.so.1` over a Ferroce daemon: the C ABI of rdma-core, so that programs built against Debian's packages run without
//! being built anew.
//!
//! A translation, and no more: every verb of C becomes the verb of the same name in the crate `ferroce`, where the work is done.
//! What is not offered returns `EOPNOTSUPP`, as the manual pages allow.
//!
//! * [`abi`]: the structures, field for field.
//! * [`device`]: the daemons of this host as devices; what they say of themselves.
//! * `context`, `memory`, `cq`, `srq`, `qp`, `ah`, `mw`, `xrc`: one file an object. Each object that a program holds a pointer to begins with
//!   the structure it knows, and goes on with our own fields behind it.
//! * `post`, `builder`: work requests, as lists (`ibv_post_send`) and call by call (`ibv_wr_*`).
//! * [`cm`]: the connection manager, for `librdmacm.so.1`.
//! * [`ece`]: what two of our devices can do beyond the specification, for programs that connect QPs themselves.
//! * [`later`]: verbs of later headers.
//! * [`rsocket`]: sockets over connections, for `librdmacm.so.1` too.
//! * `provider`: symbols that the vendors' own libraries, which come along with many programs, must find.
//!
//! Errors are rdma-core's: functions that return pointers set `errno`, those that return numbers return it. With
//! `FERROCE_VERBOSE=1` in the environment each refusal is explained on standard error.
#![expect(non_camel_case_types, reason = "types of the header keep the header's names")]

pub mod abi;
pub mod ah;
pub mod builder;
pub mod cm;
pub mod context;
pub mod cq;
pub mod device;
pub mod ece;
mod entry;
mod events;
pub mod kern;
pub mod later;
pub mod memory;
pub mod mw;
mod post;
pub mod provider;
pub mod qp;
pub mod query;
pub mod rsocket;
pub mod srq;
pub mod strings;
mod xrc;
