//! Control messages: what a client asks of the daemon on its socket, and what comes back. Verbs that move data never come here.
//!
//! A message is a postcard-encoded [`Request`], [`Reply`] or [`AsyncEvent`], one a SOCK_SEQPACKET datagram of at most
//! [`MESSAGE_BYTES_MAX`]; file descriptors ride along by SCM_RIGHTS. Every value in a request is hostile input to the daemon.

pub mod cm;
pub mod congestion;
mod listing;
pub mod post_mortem;

use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};

use serde::{Deserialize, Serialize};

use crate::attr::{
    AccessFlags, AhAttr, DeviceAttr, EceAttr, GidEntry, MwType, PortAttr, QpAttr, QpAttrMask, QpCap, QpState, QpType,
    RecoveryPolicy, SrqAttr,
};
use crate::layout::QueueShape;
use crate::qos::{PortQos, QosChange};
use crate::segment::BlockAddress;
use crate::vma::Vma;
pub use listing::{MrSummary, MrTier, QpDetail, QpSummary, SessionSummary, Stats};

/// Largest encoded message, bytes.
pub const MESSAGE_BYTES_MAX: usize = 64 << 10;
/// Bytes that one request faults in at most: some tens of milliseconds, so that no client keeps others waiting for long.
pub const POPULATE_BYTES_MAX: u64 = 64 << 20;
/// Bytes of a client's memory that move at a time at most ([`Request::MoveBegin`]); moves do not cross multiples of it.
pub const MOVE_CHUNK_BYTES: u64 = 2 << 20;
/// What lies in one piece of so many bytes of the address space moves at once, or never.
pub const MOVE_CELL_BYTES: u64 = 256 << 10;
/// File descriptors that may ride on one message.
pub const FDS_MAX: usize = 4;
/// Largest file that memory moves into, bytes.
pub const MOVE_FILE_BYTES_MAX: u64 = 64 << 20;
/// Mappings that a region may lie in to be registered anew by [`Request::RenewMr`]: to compare more takes longer than a message.
pub const RENEWED_PARTS_MAX: usize = 24;

/// What a client asks for. Handles are numbers of the session; a handle of another session does not exist.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Request {
    /// The first message: the client's [`crate::ABI_VERSION`] and a name for listings. Answered by [`Reply::Hello`].
    Hello {
        /// [`crate::ABI_VERSION`] of the client.
        abi_version: u32,
        /// Shown by `ferroce res`; cut to 64 bytes.
        client_name: String,
    },
    /// Device attributes: [`Reply::Device`].
    QueryDevice,
    /// A port's state: [`Reply::Port`]. Ports count from 1.
    QueryPort {
        /// Port number.
        port_num: u8,
    },
    /// A port's GID table: [`Reply::Gids`].
    QueryGids {
        /// Port number.
        port_num: u8,
    },
    /// A new protection domain: [`Reply::Handle`].
    AllocPd,
    /// Frees a protection domain that nothing uses.
    DeallocPd {
        /// The domain.
        pd: u32,
    },
    /// Maps a sealed memfd (which rides along) into the daemon: [`Reply::Handle`]. It must have all its pages, and the daemon
    /// seals it so that it keeps them ([`crate::mapping::Mapping::keep_pages`]). Its first [`POPULATE_BYTES_MAX`] bytes are
    /// faulted in; [`Request::PopulateMemory`] does the rest.
    AttachMemory {
        /// Bytes to map, from the file's start.
        bytes: u64,
    },
    /// Faults the next [`POPULATE_BYTES_MAX`] bytes of attached memory in: [`Reply::Populated`]. Regions may lie only in what is
    /// faulted in.
    PopulateMemory {
        /// The memory.
        memory: u32,
    },
    /// Unmaps memory that no region uses.
    DetachMemory {
        /// The memory.
        memory: u32,
    },
    /// Registers a part of attached memory: [`Reply::Mr`].
    RegMr {
        /// Protection domain.
        pd: u32,
        /// Attached memory.
        memory: u32,
        /// Offset of the region in it, bytes.
        offset: u64,
        /// Address at which local and remote users of the region know its first byte.
        addr: u64,
        /// Bytes.
        length: u64,
        /// Rights.
        access: AccessFlags,
    },
    /// Gives the daemon the client's own `/proc/self/mem` (which rides along, opened for reading and writing), for
    /// [`Request::RegProcessMemory`]: see [`crate::process_memory`].
    AttachProcess,
    /// Registers any memory of the client's process: [`Reply::Mr`]. Nothing is mapped or kept: memory that is not there when it
    /// is needed fails the work request (`LOC_PROT_ERR`) or the peer's (NAK 3).
    RegProcessMemory {
        /// Protection domain.
        pd: u32,
        /// Address of its first byte in the client's process.
        addr: u64,
        /// Address at which local and remote users of the region know its first byte.
        iova: u64,
        /// Bytes.
        length: u64,
        /// Rights.
        access: AccessFlags,
        /// Map what of it the client shares with others, if the daemon may; else it is reached by system calls.
        share: bool,
    },
    /// Deregisters as [`Request::DeregMr`], and registers the same range anew, under a key that nobody has yet: [`Reply::RenewedMr`].
    /// For clients that will need it again. [`Reply::Done`] if it was deregistered and no more: memory that is attached, and what lies
    /// in more than [`RENEWED_PARTS_MAX`] mappings.
    ///
    /// What the client unmaps meanwhile the daemon lets go of within seconds, also if the region is in use by then; it is reached by
    /// system calls from then on.
    RenewMr {
        /// The region's key.
        lkey: u32,
        /// Map what of it the client shares with others, as in [`Request::RegProcessMemory`].
        share: bool,
    },
    /// How a region of the client's own memory is reached, and what of it went by system call: [`Reply::MrUse`].
    QueryMr {
        /// The region's key.
        lkey: u32,
    },
    /// Maps a file (which rides along) that parts of the client's own memory move into. It takes the place of the one before.
    MoveOpen {
        /// Bytes to map, from the file's start: whole pages, at most [`MOVE_FILE_BYTES_MAX`].
        bytes: u64,
    },
    /// The pages at `addr` are about to go to `scratch`, for [`Request::MoveCopy`] to copy them to `offset` of the file. Until then
    /// whatever asks for them finds them in either place. `EBUSY` if some of them are on the move or have moved already.
    MoveBegin {
        /// Address of the first page.
        addr: u64,
        /// Bytes: whole pages that no multiple of [`MOVE_CHUNK_BYTES`] lies in between.
        length: u64,
        /// Where they will be.
        scratch: u64,
        /// Where in the file they go.
        offset: u64,
    },
    /// Copies all pages of the move that has begun. Once answered, the engine has them in the file, and the client maps that in
    /// their place.
    MoveCopy,
    /// Gives the move up that has begun, before any page has left: the engine leaves them where they are for good.
    MoveAbandon,
    /// Deregisters. Once answered, no engine touches the memory any more. `EBUSY` while memory windows are bound to it.
    DeregMr {
        /// The region's key.
        lkey: u32,
    },
    /// A memory window, not bound: [`Reply::Mw`]. BIND_MW work requests bind it.
    AllocMw {
        /// Protection domain.
        pd: u32,
        /// Kind.
        mw_type: MwType,
    },
    /// Frees a memory window, bound or not.
    DeallocMw {
        /// The window.
        mw: u32,
    },
    /// A completion channel: [`Reply::Handle`]. Its two ends ride along, the one to read ([`crate::wake::Notifications`]) first.
    CreateChannel,
    /// Destroys a channel that no CQ uses.
    DestroyChannel {
        /// The channel.
        channel: u32,
    },
    /// A CQ: [`Reply::Cq`].
    CreateCq {
        /// Entries at least.
        cqe: u32,
        /// Channel to ring, if any.
        channel: Option<u32>,
        /// Which lcore should serve it, modulo their number; `None` = the least loaded.
        comp_vector: Option<u32>,
    },
    /// Destroys a CQ that no QP uses.
    DestroyCq {
        /// The CQ.
        cq: u32,
    },
    /// An SRQ: [`Reply::Srq`]. It serves QPs whose CQs live on the same lcore as `cq`.
    CreateSrq {
        /// Protection domain.
        pd: u32,
        /// A CQ on the lcore that shall own the SRQ; `None` = the session's first lcore.
        cq: Option<u32>,
        /// Sizes.
        attr: SrqAttr,
    },
    /// Sets an SRQ's limit.
    ModifySrq {
        /// The SRQ.
        srq: u32,
        /// New limit; the event comes once when fewer receives are left.
        srq_limit: u32,
    },
    /// Reads an SRQ's sizes and limit: [`Reply::SrqAttr`].
    QuerySrq {
        /// The SRQ.
        srq: u32,
    },
    /// Destroys an SRQ that no QP uses.
    DestroySrq {
        /// The SRQ.
        srq: u32,
    },
    /// A QP: [`Reply::Qp`].
    CreateQp {
        /// Protection domain.
        pd: u32,
        /// Service.
        qp_type: QpType,
        /// CQ for sends.
        send_cq: u32,
        /// CQ for receives.
        recv_cq: u32,
        /// SRQ, if receives come from one.
        srq: Option<u32>,
        /// Sizes at least.
        cap: QpCap,
        /// Every send makes a completion.
        sq_sig_all: bool,
    },
    /// Changes a QP's state and attributes: all of them or none. Answered by [`Reply::QpModified`].
    ModifyQp {
        /// The QP.
        qpn: u32,
        /// Values.
        attr: QpAttr,
        /// Which of them are meant.
        mask: QpAttrMask,
    },
    /// Reads a QP's attributes: [`Reply::QpAttr`].
    QueryQp {
        /// The QP.
        qpn: u32,
    },
    /// Destroys a QP. Posted work requests vanish without completions.
    DestroyQp {
        /// The QP.
        qpn: u32,
    },
    /// An address handle: [`Reply::Handle`].
    CreateAh {
        /// Protection domain.
        pd: u32,
        /// Where to.
        attr: AhAttr,
    },
    /// Destroys an address handle.
    DestroyAh {
        /// The address handle.
        ah: u32,
    },
    /// Attaches a UD QP to a multicast group: it gets the group's datagrams that carry its Q_Key.
    AttachMcast {
        /// The QP.
        qpn: u32,
        /// The group's GID.
        mgid: [u8; 16],
        /// The group's LID, which RoCE has no use for.
        mlid: u16,
    },
    /// Detaches a QP from a multicast group.
    DetachMcast {
        /// The QP.
        qpn: u32,
        /// The group's GID.
        mgid: [u8; 16],
        /// The group's LID, which RoCE has no use for.
        mlid: u16,
    },
    /// Counters of the whole daemon: [`Reply::Stats`]. Any client may ask.
    Stats,
    /// One line a QP, of all sessions: [`Reply::Qps`].
    ListQps {
        /// Start after this QPN (pages of a long list).
        after: Option<u32>,
    },
    /// All about one QP of any session: [`Reply::QpDetail`].
    QpDetail {
        /// The QP.
        qpn: u32,
    },
    /// Sessions and what they hold: [`Reply::Sessions`].
    ListSessions,
    /// Why the last QP with this number broke: [`Reply::PostMortem`]. For its owner's user, and root; `ENOENT` if none did.
    WhyQp {
        /// The QP, which may be gone.
        qpn: u32,
    },
    /// QPs that broke, the newest first: [`Reply::PostMortems`]. Those of other users are left out, except for root.
    ListPostMortems,
    /// Regions of all sessions: [`Reply::Mrs`].
    ListMrs {
        /// Start after this region of this session (pages of a long list).
        after: Option<(u32, u32)>,
    },
    /// The congestion control of a port or a QP of any session: [`Reply::Congestion`]. Any client may ask.
    ShowCongestion {
        /// Which.
        target: congestion::CongestionTarget,
    },
    /// Changes it, at once: [`Reply::Congestion`] with what it is now. A port for root and the daemon's user, a QP for its own user
    /// too. `EINVAL`, and nothing changed, if anything of it is not legal.
    SetCongestion {
        /// Of which.
        target: congestion::CongestionTarget,
        /// To what.
        change: congestion::CongestionChange,
    },
    /// Gives a QP its port's settings, or a port the daemon's: [`Reply::Congestion`]. For the same.
    ResetCongestion {
        /// Which.
        target: congestion::CongestionTarget,
    },
    /// Connection management: [`Reply::Cm`], or as the request says.
    Cm(cm::CmRequest),
    /// Opens an XRC domain: [`Reply::Xrcd`]. If a file descriptor rides along, it is the domain of that file's inode, the same for
    /// all sessions of the user; else it is the session's own.
    OpenXrcd {
        /// `O_CREAT`: make it if there is none. Without it and a domain, `EAGAIN`.
        create: bool,
        /// `O_EXCL`: `EINVAL` if there is one.
        exclusive: bool,
    },
    /// Closes a session's handle of an XRC domain, which goes with the last one. `EBUSY` while SRQs or QPs of the session are in it.
    CloseXrcd {
        /// The domain.
        xrcd: u32,
    },
    /// An SRQ of an XRC domain: [`Reply::XrcSrq`]. Modified, queried and destroyed as any.
    CreateXrcSrq {
        /// Protection domain: of its receives, and of what requests for it reach by RDMA.
        pd: u32,
        /// XRC domain.
        xrcd: u32,
        /// Where its receives complete: a CQ on the domain's lcore.
        cq: u32,
        /// Sizes.
        attr: SrqAttr,
    },
    /// A QP of an XRC domain that receives ([`QpType::XrcRecv`]): [`Reply::XrcQp`]. It has no queues; requests name the SRQ of the
    /// domain that they are for. Modified, queried and destroyed as any.
    CreateXrcQp {
        /// XRC domain.
        xrcd: u32,
    },
    /// Opens such a QP of another session: [`Reply::XrcQp`]. It lives until all that have it have destroyed it.
    OpenXrcQp {
        /// XRC domain.
        xrcd: u32,
        /// The QP.
        qpn: u32,
    },
    /// Quality of service of a port, or of all: [`Reply::Qos`]. Any client may ask.
    ShowQos {
        /// The port; `None` = all.
        port_num: Option<u8>,
    },
    /// Changes the quality of service of a port, or of all, at once: [`Reply::Qos`] with what it is now. For the daemon's own user
    /// and root; `EINVAL`, and nothing changed, if the change is not legal for all of the ports.
    SetQos {
        /// The port; `None` = all.
        port_num: Option<u8>,
        /// What changes.
        change: Box<QosChange>,
    },
    /// Gives a CQ a new, empty ring: [`Reply::CqRing`]. Completions that are in the old one stay there, and the client takes them before
    /// it makes another request: then the ring's memory may be another object's. What the CQ was armed for it stays armed for.
    ResizeCq {
        /// The CQ.
        cq: u32,
        /// Entries at least.
        cqe: u32,
    },
    /// Changes how a QP makes up for lost packets, in any state: answered by [`Reply::Done`]. For its owner's user, and root. The
    /// peer's QP must do the same: see [`RecoveryPolicy`].
    SetRecovery {
        /// The QP: of RC.
        qpn: u32,
        /// What it does from now on.
        policy: RecoveryPolicy,
    },
    /// Options of enhanced connection establishment of a QP: [`Reply::Ece`]. Once they are agreed upon, what was agreed, until the QP
    /// is reset; before, what it can do.
    QueryEce {
        /// The QP.
        qpn: u32,
    },
    /// Has a QP in RESET or INIT do what its peer can do as well: [`Reply::Ece`] with what it will do. `EINVAL` for the options of
    /// another vendor, and in any other state.
    SetEce {
        /// The QP.
        qpn: u32,
        /// The peer's options.
        ece: EceAttr,
    },
}

/// What the daemon answers.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Reply {
    /// Done; nothing to say.
    Done,
    /// Refused. `errno` is what the verb returns, `message` says why in a sentence.
    Refused {
        /// Errno of the verbs' man pages.
        errno: i32,
        /// The sentence.
        message: String,
    },
    /// Answer to `Hello`. Riding along: the event socket; the doorbell segment follows with [`Reply::Qp`].
    Hello {
        /// [`crate::ABI_VERSION`] of the daemon.
        abi_version: u32,
        /// Number of the session, for listings.
        session: u32,
        /// What the device can do.
        device: DeviceAttr,
    },
    /// Device attributes.
    Device(DeviceAttr),
    /// Port state.
    Port(PortAttr),
    /// GID table.
    Gids(Vec<GidEntry>),
    /// The handle of a new object.
    Handle(u32),
    /// How much of attached memory is faulted in.
    Populated {
        /// Bytes from its start.
        bytes: u64,
    },
    /// A new region.
    Mr {
        /// Key for SGEs; also what `DeregMr` takes.
        lkey: u32,
        /// Key for peers.
        rkey: u32,
    },
    /// A region that was registered anew.
    RenewedMr {
        /// Key for SGEs.
        lkey: u32,
        /// Key for peers.
        rkey: u32,
        /// What of it the daemon has mapped. As long as the client has the same there ([`Vma::has`]), the region is right.
        mapped: Vec<Vma>,
    },
    /// How a region is reached.
    MrUse {
        /// The highest tier that any of it has.
        tier: MrTier,
        /// Bytes of it that are not of tier [`MrTier::Process`].
        mapped_bytes: u64,
        /// Bytes that the engine has moved by system call so far.
        copied_bytes: u64,
    },
    /// A new memory window.
    Mw {
        /// Its handle.
        mw: u32,
        /// Its key, of which a bind changes the lower 8 bits.
        rkey: u32,
    },
    /// A new CQ.
    Cq {
        /// Its handle.
        cq: u32,
        /// Its lcore.
        shard: u8,
        /// Entries, a power of two.
        depth: u32,
        /// Its ring. A segment that the client has not seen yet rides along.
        block: BlockAddress,
    },
    /// A new SRQ.
    Srq {
        /// Its handle.
        srq: u32,
        /// Sizes granted.
        attr: SrqAttr,
        /// Shape of its ring.
        shape: QueueShape,
        /// Its ring.
        block: BlockAddress,
    },
    /// A new QP. Segments that the client has not seen yet ride along, lowest number first; then, for the first QP on a shard,
    /// an eventfd of the client's own that wakes the shard.
    Qp {
        /// Its number.
        qpn: u32,
        /// Sizes granted.
        cap: QpCap,
        /// Shape of the send queue.
        sq: QueueShape,
        /// Shape of the receive queue.
        rq: QueueShape,
        /// Its ring block.
        block: BlockAddress,
        /// Its lcore.
        shard: u8,
        /// Doorbell page of that lcore.
        doorbell: BlockAddress,
        /// Its bit in that page.
        doorbell_index: u32,
        /// True if the wake eventfd of the shard rides along.
        wake_fd: bool,
    },
    /// State after a successful `ModifyQp`.
    QpModified {
        /// The state.
        state: QpState,
    },
    /// Attributes of a QP.
    QpAttr(QpAttr),
    /// Attributes of an SRQ.
    SrqAttr(SrqAttr),
    /// Counters.
    Stats(Stats),
    /// QPs, by rising QPN; `more` if the list goes on.
    Qps {
        /// A page of them.
        qps: Vec<QpSummary>,
        /// Ask again with the last QPN.
        more: bool,
    },
    /// One QP in full.
    QpDetail(Box<QpDetail>),
    /// Congestion control of what was asked for.
    Congestion(Box<congestion::CongestionReport>),
    /// Sessions.
    Sessions(Vec<SessionSummary>),
    /// Why a QP broke.
    PostMortem(Box<post_mortem::PostMortem>),
    /// QPs that broke, at most [`post_mortem::PAGE`].
    PostMortems(Vec<post_mortem::PostMortemSummary>),
    /// Regions, by rising session and number; `more` if the list goes on.
    Mrs {
        /// A page of them.
        mrs: Vec<MrSummary>,
        /// Ask again with the last one's session and number.
        more: bool,
    },
    /// Connection management.
    Cm(cm::CmReply),
    /// An XRC domain.
    Xrcd {
        /// Its handle.
        xrcd: u32,
        /// Its lcore: CQs of its SRQs are made with this `comp_vector`.
        shard: u8,
    },
    /// A new SRQ of an XRC domain. A segment that the client has not seen yet rides along.
    XrcSrq {
        /// Its handle.
        srq: u32,
        /// The number that requests name it by.
        srqn: u32,
        /// Sizes granted.
        attr: SrqAttr,
        /// Shape of its ring.
        shape: QueueShape,
        /// Its ring.
        block: BlockAddress,
    },
    /// A receiving QP of an XRC domain.
    XrcQp {
        /// Its number.
        qpn: u32,
        /// Its lcore.
        shard: u8,
    },
    /// Quality of service of the ports asked for.
    Qos(Vec<PortQos>),
    /// A CQ's new ring.
    CqRing {
        /// Entries, a power of two.
        depth: u32,
        /// Where it lies.
        block: BlockAddress,
    },
    /// Options of enhanced connection establishment of a QP.
    Ece(EceAttr),
}

/// An asynchronous event (`ibv_async_event`), one a datagram on the event socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum AsyncEvent {
    /// A CQ overran or was corrupted.
    CqErr {
        /// The CQ.
        cq: u32,
    },
    /// A QP went to ERR outside of a completion.
    QpFatal {
        /// The QP.
        qpn: u32,
    },
    /// An invalid request arrived; the QP is in ERR.
    QpReqErr {
        /// The QP.
        qpn: u32,
    },
    /// An access violation arrived; the QP is in ERR.
    QpAccessErr {
        /// The QP.
        qpn: u32,
    },
    /// The first packet came on a QP in RTR.
    CommEst {
        /// The QP.
        qpn: u32,
    },
    /// The send queue has drained.
    SqDrained {
        /// The QP.
        qpn: u32,
    },
    /// A QP in ERR took its last receive from its SRQ.
    QpLastWqeReached {
        /// The QP.
        qpn: u32,
    },
    /// Fewer receives than the limit are left.
    SrqLimitReached {
        /// The SRQ.
        srq: u32,
    },
    /// The SRQ's ring was corrupted.
    SrqErr {
        /// The SRQ.
        srq: u32,
    },
    /// The port came up.
    PortActive {
        /// The port.
        port_num: u8,
    },
    /// The port went down.
    PortErr {
        /// The port.
        port_num: u8,
    },
    /// The GID table changed.
    GidChange {
        /// The port.
        port_num: u8,
    },
    /// The daemon is gone (made by the client library itself when its socket closes).
    DeviceFatal,
}

/// Why a control call brought no answer.
#[derive(thiserror::Error, Debug)]
pub enum CallError {
    /// The daemon has gone.
    #[error("the daemon has gone")]
    Disconnected,
    /// The socket failed.
    #[error("control socket: {0}")]
    Io(#[from] std::io::Error),
    /// File descriptors that came with a message could not be taken.
    #[error(
        "a message's file descriptors could not be taken: this process has as many open files as it may (`ulimit -n`)"
    )]
    NoDescriptors,
    /// What came is no message of this version.
    #[error("the daemon's answer can't be understood: is it another version?")]
    Malformed,
    /// Larger than [`MESSAGE_BYTES_MAX`].
    #[error("a message of {bytes} bytes is over the limit of {MESSAGE_BYTES_MAX}")]
    TooLarge {
        /// Its size.
        bytes: usize,
    },
}

/// The way from a client to an engine's control side: a socket to a daemon, or an engine in the same process.
pub trait Endpoint: Send + Sync {
    /// Sends a request and waits for its answer. File descriptors are passed along both ways.
    ///
    /// # Errors
    /// [`CallError`] if there is no answer; a refusal is a [`Reply::Refused`], not an error.
    fn call(&self, request: &Request, fds: &[BorrowedFd<'_>]) -> Result<(Reply, Vec<OwnedFd>), CallError>;

    /// For a move that has begun ([`Request::MoveBegin`] for the piece `moving` was answered): runs something that has the way to the
    /// engine for itself, and gives it the means to have [`Request::MoveCopy`] done, which says whether it was. That takes no lock,
    /// allocates nothing, and touches no memory of `moving`. False, and nothing was run, if there is no such way.
    fn exclusively(&self, _moving: &Range<u64>, _run: &mut dyn FnMut(&mut dyn FnMut() -> bool)) -> bool {
        false
    }

    /// Drives an engine that lives on the caller's own thread by one turn. Where the engine has threads of its own, nothing.
    fn make_progress(&self) {}

    /// True if nobody but [`Endpoint::make_progress`] drives the engine: waiting without calling it would be for ever.
    fn is_polled(&self) -> bool {
        false
    }

    /// True if an engine on another thread may need the core of a client that has long polled in vain. False where it stands still
    /// while the client runs, as on a simulator's clock: there to yield helps nobody, and costs a turn of everything else.
    fn wants_core(&self) -> bool {
        !self.is_polled()
    }
}

/// Encodes a message.
///
/// # Errors
/// [`CallError::TooLarge`].
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, CallError> {
    let bytes = postcard::to_allocvec(message).map_err(|_| CallError::Malformed)?;
    if bytes.len() > MESSAGE_BYTES_MAX { Err(CallError::TooLarge { bytes: bytes.len() }) } else { Ok(bytes) }
}

/// Decodes a message; anything left over is an error.
///
/// # Errors
/// [`CallError::Malformed`].
pub fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, CallError> {
    match postcard::take_from_bytes(bytes) {
        Ok((message, [])) => Ok(message),
        _ => Err(CallError::Malformed),
    }
}
