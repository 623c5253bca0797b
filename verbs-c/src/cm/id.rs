//! Ids: from their birth to listening.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint, c_void};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ferroce::cm::{CmEvent, CmEventType, CmId, CmIdInfo, EventChannel, PortSpace};
use ferroce::{EceAttr, Gid, QpType};
use nix::errno::Errno;
use nix::libc::sockaddr;

use super::abi::*;
use super::address;
use super::channel::{ChannelObject, rdma_ack_cm_event};
use super::devices::{self, Device};
use super::event::EventObject;
use crate::abi::*;
use crate::entry::{self, Failure};
use crate::events::{Unacknowledged, lock};
use crate::kern::ibv_sa_path_rec;
use crate::qp::{IdLink, QpObject};

/// An id.
#[repr(C)]
pub(crate) struct IdObject {
    /// The program reads and writes it whenever it likes.
    abi: UnsafeCell<rdma_cm_id>,
    /// Who made it.
    pid: u32,
    port_space: PortSpace,
    pub(super) events: Unacknowledged,
    /// Lets the QP go when the program destroys that first.
    pub(super) link: IdLink,
    pub(super) state: Mutex<IdState>,
}

/// What may change. Never locked while a request is on its way.
#[derive(Default)]
pub(super) struct IdState {
    /// On no device at first; a listener on all addresses is on each, everything else on one.
    ends: Vec<(Arc<Device>, CmId)>,
    /// Its calls wait: its channel is its own.
    is_sync: bool,
    disconnected: bool,
    traffic_class: Option<u8>,
    ack_timeout: Option<u8>,
    /// Responder resources and initiator depth that suit the peer who asked.
    pub(super) answer: Option<(u8, u8)>,
    /// Private data to connect with, of `rdma_addrinfo`.
    pub(super) connect: Vec<u8>,
    /// What the QPs of requests are to be (`rdma_create_ep`).
    pub(super) qp_of_requests: Option<ibv_qp_init_attr>,
    /// Groups, and what the program calls them.
    pub(super) groups: Vec<(IpAddr, *mut c_void)>,
    path: Option<Box<ibv_sa_path_rec>>,
    local_ece: Option<EceAttr>,
    /// What the peer said of enhanced connection establishment.
    pub(super) remote_ece: EceAttr,
}

impl IdObject {
    fn new(port_space: PortSpace, context: *mut c_void, channel: *mut rdma_event_channel, is_sync: bool) -> Self {
        let qp_type = if port_space == PortSpace::Udp { QpType::Ud } else { QpType::Rc };
        let addr =
            rdma_addr { src_storage: address::none(), dst_storage: address::none(), ibaddr: rdma_ib_addr::default() };
        let abi = rdma_cm_id {
            verbs: ptr::null_mut(),
            channel,
            context,
            qp: ptr::null_mut(),
            route: rdma_route { addr, path_rec: ptr::null_mut(), num_paths: 0 },
            ps: c_uint::from(port_space.code()),
            port_num: 0,
            event: ptr::null_mut(),
            send_cq_channel: ptr::null_mut(),
            send_cq: ptr::null_mut(),
            recv_cq_channel: ptr::null_mut(),
            recv_cq: ptr::null_mut(),
            srq: ptr::null_mut(),
            pd: ptr::null_mut(),
            qp_type: c_uint::from(qp_type.code()),
        };
        let state = IdState { is_sync, ..IdState::default() };
        Self {
            abi: UnsafeCell::new(abi),
            pid: std::process::id(),
            port_space,
            events: Unacknowledged::default(),
            link: IdLink::default(),
            state: Mutex::new(state),
        }
    }

    /// Makes the id of a request to connect; where the listener's calls wait, the new id's do so too.
    pub(super) fn of_request(
        device: &Arc<Device>,
        id: &CmId,
        listener: &Self,
        info: &CmIdInfo,
        answer: (u8, u8),
    ) -> Result<NonNull<Self>, Failure> {
        let (context, mut channel) = listener.read(|abi| (abi.context, abi.channel));
        let is_sync = listener.is_sync();
        if is_sync {
            channel = own_channel(|own| Ok(id.migrate(&own.on(device)?)?))?;
        }
        let object = Self::new(listener.port_space, context, channel, is_sync);
        lock(&object.state).answer = Some(answer);
        object.bind_to(device);
        object.learn(info);
        let object = NonNull::from(Box::leak(Box::new(object)));
        // SAFETY: just made, and nobody else has it.
        unsafe { object.as_ref() }.add_end(device, id.clone(), object);
        Ok(object)
    }

    /// The object of an id.
    ///
    /// # Safety
    /// `id` is an id of ours that lives as long as the reference is used, or NULL.
    pub(super) unsafe fn of<'a>(id: *mut rdma_cm_id) -> Result<&'a Self, Failure> {
        // SAFETY: the caller's promise.
        unsafe { id.cast::<Self>().as_ref() }.ok_or(entry::INVALID)
    }

    /// As the program has it.
    pub(super) const fn as_ptr(&self) -> *mut rdma_cm_id {
        self.abi.get()
    }

    /// Reads what the program sees.
    pub(super) fn read<T>(&self, read: impl FnOnce(&rdma_cm_id) -> T) -> T {
        // SAFETY: it lives as we do; programs change it between calls at most.
        read(unsafe { &*self.abi.get() })
    }

    /// Changes what the program sees.
    pub(super) fn change(&self, change: impl FnOnce(&mut rdma_cm_id)) {
        // SAFETY: it lives as we do; only one thread at a time changes an id, by a call or by its event, and programs only read
        // what we change. No change begins another.
        change(unsafe { &mut *self.abi.get() });
    }

    fn add_end(&self, device: &Arc<Device>, id: CmId, this: NonNull<Self>) {
        device.ids.add(id.handle(), this);
        let mut state = lock(&self.state);
        id.set_path(state.traffic_class, state.ack_timeout);
        id.set_local_ece(state.local_ece);
        state.ends.push((Arc::clone(device), id));
    }

    /// Sets what is not `None` of the path that its QP will have.
    pub(super) fn set_path(&self, traffic_class: Option<u8>, ack_timeout: Option<u8>) {
        let mut state = lock(&self.state);
        state.traffic_class = traffic_class.or(state.traffic_class);
        state.ack_timeout = ack_timeout.or(state.ack_timeout);
        for (_, id) in &state.ends {
            id.set_path(state.traffic_class, state.ack_timeout);
        }
    }

    /// Chooses what the next request or acceptance offers.
    pub(super) fn set_local_ece(&self, ece: EceAttr) {
        let mut state = lock(&self.state);
        state.local_ece = Some(ece);
        for (_, id) in &state.ends {
            id.set_local_ece(Some(ece));
        }
    }

    /// True if the library has made its QP.
    pub(super) fn has_qp(&self) -> bool {
        self.read(|abi| !abi.qp.is_null())
    }

    /// Its part on its device.
    ///
    /// # Errors
    /// `EINVAL` if it has no device yet, or listens on several.
    pub(super) fn end(&self) -> Result<(Arc<Device>, CmId), Failure> {
        match lock(&self.state).ends.as_slice() {
            [(device, id)] => Ok((Arc::clone(device), id.clone())),
            _ => Err(entry::INVALID),
        }
    }

    /// Its part on a device, made if there is none.
    fn end_on(&self, device: &Arc<Device>) -> Result<CmId, Failure> {
        let known = lock(&self.state).ends.iter().find(|(on, _)| Arc::ptr_eq(on, device)).map(|(_, id)| id.clone());
        if let Some(id) = known {
            return Ok(id);
        }
        // SAFETY: the channel outlives its ids, as the program promised.
        let channel = unsafe { ChannelObject::of(self.read(|abi| abi.channel)) }?;
        let id = channel.on(device)?.create_id(self.port_space)?;
        self.add_end(device, id.clone(), NonNull::from(self));
        Ok(id)
    }

    /// Lets all parts go but the one on a device.
    fn keep_only(&self, device: Option<&Arc<Device>>) {
        let is_kept = |on: &Arc<Device>| device.is_some_and(|kept| Arc::ptr_eq(on, kept));
        let ends = std::mem::take(&mut lock(&self.state).ends);
        let (kept, gone): (Vec<_>, Vec<_>) = ends.into_iter().partition(|(on, _)| is_kept(on));
        lock(&self.state).ends = kept;
        for (on, id) in gone {
            on.ids.remove(id.handle());
            drop(id);
        }
    }

    fn is_sync(&self) -> bool {
        lock(&self.state).is_sync
    }

    /// True if its peer is gone, and was told to be.
    pub(super) fn is_disconnected(&self) -> bool {
        lock(&self.state).disconnected
    }

    /// Tells the program which device it is on.
    fn bind_to(&self, device: &Device) {
        self.change(|abi| {
            abi.verbs = device.verbs;
            if abi.pd.is_null() {
                abi.pd = device.pd;
            }
        });
    }

    /// Tells the program what the daemon says of it.
    fn learn(&self, info: &CmIdInfo) {
        let gid = |addr: SocketAddr| ibv_gid { raw: Gid::from_ip(addr.ip()).0 };
        let path = info.path.filter(|_| info.path_mtu != 0).map(|path| {
            Box::new(ibv_sa_path_rec {
                dgid: ibv_gid { raw: path.dgid.0 },
                sgid: info.local.map(gid).unwrap_or_default(),
                flow_label: path.flow_label.to_be(),
                hop_limit: path.hop_limit,
                traffic_class: path.traffic_class,
                reversible: 1,
                numb_path: 1,
                pkey: u16::MAX,
                sl: path.sl,
                mtu_selector: 2,
                mtu: info.path_mtu,
                ..ibv_sa_path_rec::default()
            })
        });
        let mut state = lock(&self.state);
        self.change(|abi| {
            if let Some(local) = info.local {
                abi.route.addr.src_storage = address::storage(local);
                abi.route.addr.ibaddr.sgid = gid(local);
            }
            if let Some(peer) = info.peer {
                abi.route.addr.dst_storage = address::storage(peer);
                abi.route.addr.ibaddr.dgid = gid(peer);
            }
            abi.route.addr.ibaddr.pkey = u16::MAX;
            abi.port_num = info.port_num;
            if let Some(mut path) = path {
                abi.route.path_rec = &raw mut *path;
                abi.route.num_paths = 1;
                state.path = Some(path);
            }
        });
    }

    /// What an event changes, before the program sees it.
    pub(super) fn note(&self, event: &CmEvent) {
        if event.error().is_none() {
            self.learn(event.info());
        }
        if event.event_type() == CmEventType::Disconnected {
            lock(&self.state).disconnected = true;
        }
        if let Some(ece) = event.param().ece {
            lock(&self.state).remote_ece = ece;
        }
        self.note_qp();
    }

    /// Writes the QP's state where the program looks for it: the connection manager changes it.
    pub(super) fn note_qp(&self) {
        // The link is there only as long as the QP.
        let linked = lock(&self.link);
        if linked.is_some()
            && let Ok(qp) = self.read(|abi| {
                // SAFETY: the QP of an id that has it lives: destroying it takes the link first.
                unsafe { QpObject::of(abi.qp) }
            })
            && let Ok(queues) = qp.queues()
        {
            qp.note_state(queues.state());
        }
    }

    /// The program's name for a group.
    pub(super) fn context_of_group(&self, group: Option<IpAddr>) -> *const c_void {
        let state = lock(&self.state);
        let found = state.groups.iter().find(|(known, _)| group.is_none_or(|group| *known == group));
        found.map_or(ptr::null(), |(_, context)| context.cast_const())
    }

    /// Acknowledges the event of the last call.
    pub(super) fn acknowledge_last(&self) {
        let last = self.read(|abi| abi.event);
        self.change(|abi| abi.event = ptr::null_mut());
        if !last.is_null() {
            // SAFETY: an event of ours that the id kept; programs leave it alone.
            unsafe { rdma_ack_cm_event(last) };
        }
    }

    /// The next event, where calls wait for theirs; kept as `id->event`.
    ///
    /// # Errors
    /// As the channel.
    pub(super) fn wait_for_any(&self) -> Result<&EventObject, Failure> {
        self.acknowledge_last();
        // SAFETY: an id has a channel, which outlives it.
        let event = unsafe { ChannelObject::of(self.read(|abi| abi.channel)) }?.next()?;
        self.change(|abi| abi.event = event.as_ptr().cast());
        // SAFETY: kept until the next call.
        Ok(unsafe { &*event.as_ptr() })
    }

    /// Where calls wait: until the event that answers this one.
    ///
    /// # Errors
    /// What the event says; `ECONNREFUSED` if the peer rejects.
    pub(super) fn complete(&self, wanted: CmEventType) -> Result<(), Failure> {
        if !self.is_sync() {
            return Ok(());
        }
        loop {
            let event = self.wait_for_any()?;
            let is = |kind: CmEventType| event.event() == c_uint::from(kind.code());
            // News of the path, and the end of an earlier connection's time wait, answer nothing.
            if is(CmEventType::AddrChange) || is(CmEventType::TimewaitExit) {
                continue;
            }
            return match event.status() {
                _ if is(CmEventType::Rejected) => Err(Errno::ECONNREFUSED.into()),
                0 if is(wanted) => Ok(()),
                0 if is(CmEventType::Disconnected) => Err(Errno::ECONNRESET.into()),
                0 => Err(Errno::EIO.into()),
                status if status < 0 => Err(Failure(status.saturating_neg())),
                _ => Err(Errno::ECONNREFUSED.into()),
            };
        }
    }

    /// True if it can serve `rdma_get_request`.
    pub(super) fn waits(&self) -> bool {
        self.is_sync()
    }
}

/// A channel of an id whose calls wait, if what is to be done with it first succeeds.
fn own_channel(first: impl FnOnce(&ChannelObject) -> Result<(), Failure>) -> Result<*mut rdma_event_channel, Failure> {
    let channel = ChannelObject::create()?;
    // SAFETY: just made.
    let done = first(unsafe { channel.as_ref() });
    let channel: *mut rdma_event_channel = channel.as_ptr().cast();
    if let Err(failure) = done {
        // SAFETY: nobody else has it.
        unsafe { ChannelObject::destroy(channel) };
        return Err(failure);
    }
    Ok(channel)
}

/// A new id, on no device yet. Without a channel its calls wait for their events.
///
/// # Safety
/// `channel` is a channel of ours or NULL, `id` may be written.
#[unsafe(export_name = "ferroce_rdma_create_id")]
pub unsafe extern "C" fn rdma_create_id(
    channel: *mut rdma_event_channel,
    id: *mut *mut rdma_cm_id,
    context: *mut c_void,
    ps: c_uint,
) -> c_int {
    entry::number(|| {
        // SAFETY: the caller's promise.
        let id = unsafe { id.as_mut() }.ok_or(entry::INVALID)?;
        let known = [PortSpace::Tcp, PortSpace::Udp, PortSpace::Ib];
        let port_space = known.into_iter().find(|known| c_uint::from(known.code()) == ps);
        let port_space = port_space.ok_or(entry::NOT_OFFERED)?;
        devices::all()?;
        let is_sync = channel.is_null();
        let channel = if is_sync { own_channel(|_| Ok(()))? } else { channel };
        let object = IdObject::new(port_space, context, channel, is_sync);
        *id = Box::into_raw(Box::new(object)).cast();
        Ok(0)
    })
}

/// Destroys an id, whatever its state. Waits until all of its events are acknowledged. Its QP stays.
///
/// # Safety
/// `id` is an id of ours that nobody uses any more.
#[unsafe(export_name = "ferroce_rdma_destroy_id")]
pub unsafe extern "C" fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int {
    entry::number(|| {
        // SAFETY: the caller's promise.
        let object = unsafe { IdObject::of(id) }?;
        if object.pid != std::process::id() {
            // A copy of the parent's id, whose events the parent acknowledges.
            return Ok(0);
        }
        lock(&object.link).take();
        object.keep_only(None);
        object.acknowledge_last();
        object.events.wait();
        let own = object.is_sync().then(|| object.read(|abi| abi.channel));
        // SAFETY: it was made from a box, the program gives it back, and no table has it any more.
        drop(unsafe { Box::from_raw(id.cast::<IdObject>()) });
        // SAFETY: the channel was the id's alone.
        unsafe { ChannelObject::destroy(own.unwrap_or(ptr::null_mut())) };
        Ok(0)
    })
}

/// Binds an id to an address and port; an unspecified address is all of them, on every device, and so is, as with Linux, the
/// host's loopback address. Port 0: a free one.
///
/// # Errors
/// `EADDRNOTAVAIL` if no device has the address, `EADDRINUSE` if the port is taken.
///
/// # Safety
/// `id` is an id of ours, `addr` an address as long as its family has it.
#[unsafe(export_name = "ferroce_rdma_bind_addr")]
pub unsafe extern "C" fn rdma_bind_addr(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int {
    entry::number(|| {
        // SAFETY: the caller's promise.
        let object = unsafe { IdObject::of(id) }?;
        // SAFETY: the caller's promise.
        bind(object, unsafe { address::read_some(addr) }?)?;
        Ok(0)
    })
}

fn bind(object: &IdObject, wanted: SocketAddr) -> Result<(), Failure> {
    let mut addr = address::of_daemons(wanted);
    if !lock(&object.state).ends.is_empty() {
        return Err(entry::INVALID);
    }
    let done = devices::all()?.iter().try_fold(None, |bound, device| {
        if bound.is_some() && !addr.ip().is_unspecified() {
            return Ok(bound);
        }
        match object.end_on(device)?.bind_addr(addr) {
            Ok(info) => {
                // The same port on every device.
                addr.set_port(info.local.map_or(0, |local| local.port()));
                Ok(Some((Arc::clone(device), info)))
            }
            Err(error) if error.errno() == Errno::EADDRNOTAVAIL as c_int => Ok(bound),
            Err(error) => Err(Failure::from(error)),
        }
    });
    match done {
        Ok(Some((_, info))) if addr.ip().is_unspecified() => {
            // As the program has named it.
            let local = info.local.map(|local| SocketAddr::new(wanted.ip(), local.port()));
            object.learn(&CmIdInfo { local, ..info });
        }
        Ok(Some((device, info))) => {
            object.keep_only(Some(&device));
            object.bind_to(&device);
            object.learn(&info);
        }
        Ok(None) => {
            object.keep_only(None);
            return Err(Errno::EADDRNOTAVAIL.into());
        }
        Err(failure) => {
            object.keep_only(None);
            return Err(failure);
        }
    }
    Ok(())
}

/// Finds the device, the local address and the neighbour for a destination: `ADDR_RESOLVED` or `ADDR_ERROR`.
///
/// # Safety
/// `id` is an id of ours; the addresses are as long as their families have them, `src_addr` may be NULL.
#[unsafe(export_name = "ferroce_rdma_resolve_addr")]
pub unsafe extern "C" fn rdma_resolve_addr(
    id: *mut rdma_cm_id,
    src_addr: *mut sockaddr,
    dst_addr: *mut sockaddr,
    timeout_ms: c_int,
) -> c_int {
    entry::number(|| {
        // SAFETY: the caller's promise.
        let object = unsafe { IdObject::of(id) }?;
        // SAFETY: the caller's promise.
        let src = unsafe { address::read(src_addr) }?;
        // SAFETY: the caller's promise.
        let dst = unsafe { address::read_some(dst_addr) }?;
        let device = match object.end() {
            Ok((device, _)) => device,
            Err(_) => devices::towards(src, dst)?,
        };
        let end = object.end_on(&device)?;
        object.keep_only(Some(&device));
        object.change(|abi| abi.route.addr.dst_storage = address::storage(dst));
        object.bind_to(&device);
        end.resolve_addr(src, dst, milliseconds(timeout_ms))?;
        object.complete(CmEventType::AddrResolved)?;
        Ok(0)
    })
}

/// Finds the path: `ROUTE_RESOLVED` or `ROUTE_ERROR`.
///
/// # Safety
/// `id` is an id of ours.
#[unsafe(export_name = "ferroce_rdma_resolve_route")]
pub unsafe extern "C" fn rdma_resolve_route(id: *mut rdma_cm_id, timeout_ms: c_int) -> c_int {
    entry::number(|| {
        // SAFETY: the caller's promise.
        let object = unsafe { IdObject::of(id) }?;
        object.end()?.1.resolve_route(milliseconds(timeout_ms))?;
        object.complete(CmEventType::RouteResolved)?;
        Ok(0)
    })
}

fn milliseconds(timeout_ms: c_int) -> Duration {
    Duration::from_millis(u64::try_from(timeout_ms).unwrap_or(0))
}

/// Listens: each request comes as an event with an id of its own. Unless it is bound, on all addresses and a free port. A backlog
/// of 0 is the most that there may be.
///
/// # Safety
/// `id` is an id of ours.
#[unsafe(export_name = "ferroce_rdma_listen")]
pub unsafe extern "C" fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int {
    entry::number(|| {
        // SAFETY: the caller's promise.
        let object = unsafe { IdObject::of(id) }?;
        if lock(&object.state).ends.is_empty() {
            bind(object, (Ipv4Addr::UNSPECIFIED, 0).into())?;
        }
        let ends = lock(&object.state).ends.clone();
        for (_, end) in &ends {
            end.listen(u32::try_from(backlog).unwrap_or(0))?;
        }
        Ok(0)
    })
}

/// Moves an id to another channel, with the events that wait for it; without one its calls wait from now on. Events that were
/// handed out have to be acknowledged first: it waits for that.
///
/// # Safety
/// `id` is an id of ours, `channel` a channel of ours or NULL.
#[unsafe(export_name = "ferroce_rdma_migrate_id")]
pub unsafe extern "C" fn rdma_migrate_id(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> c_int {
    entry::number(|| {
        // SAFETY: the caller's promise.
        let object = unsafe { IdObject::of(id) }?;
        let ends = lock(&object.state).ends.clone();
        let migrate = |to: &ChannelObject| -> Result<(), Failure> {
            let each = |(device, end): &(Arc<Device>, CmId)| {
                let channel: EventChannel = to.on(device)?;
                Ok(end.migrate(&channel)?)
            };
            ends.iter().try_for_each(each)
        };
        let is_sync = channel.is_null();
        let to = if is_sync {
            own_channel(migrate)?
        } else {
            // SAFETY: the caller's promise.
            migrate(unsafe { ChannelObject::of(channel) }?)?;
            channel
        };
        object.acknowledge_last();
        object.events.wait();
        let before = object.read(|abi| abi.channel);
        object.change(|abi| abi.channel = to);
        if std::mem::replace(&mut lock(&object.state).is_sync, is_sync) {
            // SAFETY: the channel before was the id's alone.
            unsafe { ChannelObject::destroy(before) };
        }
        Ok(0)
    })
}

/// The local port, in network order; 0 if there is none.
///
/// # Safety
/// `id` is an id of ours.
#[unsafe(export_name = "ferroce_rdma_get_src_port")]
pub unsafe extern "C" fn rdma_get_src_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: the caller's promise.
    unsafe { IdObject::of(id) }.map_or(0, |object| object.read(|abi| address::port(&abi.route.addr.src_storage)))
}

/// The peer's port, in network order; 0 if there is none.
///
/// # Safety
/// `id` is an id of ours.
#[unsafe(export_name = "ferroce_rdma_get_dst_port")]
pub unsafe extern "C" fn rdma_get_dst_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: the caller's promise.
    unsafe { IdObject::of(id) }.map_or(0, |object| object.read(|abi| address::port(&abi.route.addr.dst_storage)))
}
