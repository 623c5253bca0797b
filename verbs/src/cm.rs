//! Connecting by address and port: the connection manager, with the words and the meaning of librdmacm.
//!
//! A [`CmId`] is one end of a connection (or a listener), an [`EventChannel`] is where things happen to ids are told. The steps of
//! a client are [`CmId::resolve_addr`], [`CmId::resolve_route`], [`CmId::create_qp`], [`CmId::connect`]; those of a server
//! [`CmId::bind_addr`], [`CmId::listen`], then for each request [`CmId::create_qp`] and [`CmId::accept`] or [`CmId::reject`].
//! Each of the client's steps is answered by an event; the channel's descriptor is readable while there is one, so that one
//! thread can `poll` channels along with everything else. Who would rather wait takes a [`SyncId`], whose calls return when
//! their event has come.
//!
//! The QP of an id ([`CmId::create_qp`], [`CmId::use_qp`]) is taken through its states by this library: to INIT at once, to RTS
//! on the way to `ESTABLISHED`, to ERR by [`CmId::disconnect`] and when the peer rejects. An id without one leaves that to the
//! application: its peer's answer comes as `CONNECT_RESPONSE`, [`CmId::init_qp_attr`] has the attributes and
//! [`CmId::establish`] ends the handshake.
//!
//! # Example
//!
//! A server, event by event:
//!
//! ```no_run
//! use ferroce::cm::{CmEventType, ConnParam, EventChannel, PortSpace};
//! use ferroce::{Context, CqInit, DEFAULT_SOCKET, QpInit};
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let context = Context::connect(DEFAULT_SOCKET)?;
//!     let pd = context.alloc_pd()?;
//!     let cq = context.create_cq(&CqInit { cqe: 16, ..CqInit::default() })?;
//!     let channel = EventChannel::new(&context)?;
//!     let listener = channel.create_id(PortSpace::Tcp)?;
//!     listener.bind_addr("0.0.0.0:7471".parse()?)?;
//!     listener.listen(8)?;
//!     let mut clients = Vec::new();
//!     while let Some(event) = channel.get_event(None)? {
//!         match event.event_type() {
//!             CmEventType::ConnectRequest => {
//!                 println!("{:?} says {:?}", event.info().peer, event.private_data());
//!                 let qp = event.id().create_qp(&pd, &QpInit::rc(&cq))?;
//!                 // Post receives before this: the peer may send as soon as it is accepted.
//!                 event.id().accept(&ConnParam { private_data: b"welcome".to_vec(), ..event.answer() })?;
//!                 // An id lives as long as a handle to it.
//!                 clients.push((event.id().clone(), qp));
//!             }
//!             CmEventType::Disconnected => {
//!                 event.id().disconnect()?;
//!                 clients.retain(|(id, _)| id != event.id());
//!             }
//!             _ => {}
//!         }
//!     }
//!     Ok(())
//! }
//! ```
//!
//! # Lifetimes
//!
//! An event holds its id: [`CmId::destroy`] fails with `EBUSY` until the event is dropped, which is what acknowledging one
//! means here. A request whose event is dropped with no handle to its id left is rejected.

mod channel;
mod event;
mod id;
mod qp;
mod sync;

pub use channel::EventChannel;
pub use event::{CmError, CmEvent};
pub use id::CmId;
pub use sync::SyncId;

pub use shm::control::cm::{CmEventType, CmIdInfo, ConnParam, PRIVATE_DATA_MAX, PortSpace};

pub(crate) use channel::Registry;
