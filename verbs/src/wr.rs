//! Work requests and completions.

use shm::layout::{Cqe, SendWqe, Sge};
use shm::ring::Body;
use wire::Qpn;

use crate::{
    AddressHandle, MemoryWindow, MwBind, NetworkHeader, PostError, SendFlags, WcFlags, WcOpcode, WcStatus, WrOpcode,
};

/// The data of a send work request, borrowed until it is posted.
#[derive(Clone, Copy, Debug)]
enum Payload<'a> {
    Sges(&'a [Sge]),
    Inline(&'a [u8]),
    Pieces(&'a [&'a [u8]]),
}

/// A send work request, built in one expression and posted by [`crate::QueuePair::post_send`]. Borrows its data; makes no
/// allocation.
///
/// ```
/// use ferroce::{SendWr, Sge};
///
/// let sges = [Sge { addr: 0x7000, length: 64, lkey: 1 }];
/// let write = SendWr::write(1, &sges, 0x9000, 77).with_imm(5).signaled();
/// let hello = SendWr::send(2, &[]).inline(b"hello").solicited();
/// # let _ = (write, hello);
/// ```
///
/// What it borrows must live until it is posted:
///
/// ```compile_fail,E0716
/// use ferroce::{SendWr, Sge};
///
/// let wr = SendWr::send(1, &vec![Sge::default()]);
/// drop(wr);
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use = "a work request does nothing until it is posted"]
pub struct SendWr<'a> {
    wqe: SendWqe,
    payload: Payload<'a>,
}

impl<'a> SendWr<'a> {
    fn new(opcode: WrOpcode, wr_id: u64, sges: &'a [Sge]) -> Self {
        let wqe = SendWqe { wr_id, opcode: opcode.code(), ..SendWqe::default() };
        Self { wqe, payload: Payload::Sges(sges) }
    }

    fn remote(mut self, remote_addr: u64, rkey: u32) -> Self {
        self.wqe.remote_addr = remote_addr;
        self.wqe.rkey = rkey;
        self
    }

    fn flag(mut self, flag: SendFlags) -> Self {
        self.wqe.flags |= flag.0;
        self
    }

    /// SEND: the bytes go where the peer's next receive says.
    pub fn send(wr_id: u64, sges: &'a [Sge]) -> Self {
        Self::new(WrOpcode::Send, wr_id, sges)
    }

    /// RDMA WRITE to `remote_addr` in the peer's region `rkey`.
    pub fn write(wr_id: u64, sges: &'a [Sge], remote_addr: u64, rkey: u32) -> Self {
        Self::new(WrOpcode::RdmaWrite, wr_id, sges).remote(remote_addr, rkey)
    }

    /// RDMA READ from `remote_addr` in the peer's region `rkey` to the SGEs.
    pub fn read(wr_id: u64, sges: &'a [Sge], remote_addr: u64, rkey: u32) -> Self {
        Self::new(WrOpcode::RdmaRead, wr_id, sges).remote(remote_addr, rkey)
    }

    /// Compare and swap of the 8 bytes at `remote_addr`, which must be a multiple of 8: they become `swap` if they are
    /// `compare`. What was there before comes to the SGEs (8 bytes in all). Values are in the machine's own order.
    pub fn atomic_cas(wr_id: u64, sges: &'a [Sge], remote_addr: u64, rkey: u32, compare: u64, swap: u64) -> Self {
        let mut wr = Self::new(WrOpcode::AtomicCmpAndSwp, wr_id, sges).remote(remote_addr, rkey);
        wr.wqe.compare_add = compare;
        wr.wqe.swap = swap;
        wr
    }

    /// Fetch and add: as [`SendWr::atomic_cas`], but `add` is added, modulo 2^64.
    pub fn atomic_faa(wr_id: u64, sges: &'a [Sge], remote_addr: u64, rkey: u32, add: u64) -> Self {
        let mut wr = Self::new(WrOpcode::AtomicFetchAndAdd, wr_id, sges).remote(remote_addr, rkey);
        wr.wqe.compare_add = add;
        wr
    }

    /// Binds a memory window: its key becomes `rkey` ([`MemoryWindow::next_rkey`]), which opens to the peer what `bind` says.
    /// Executed in the order of posting, before what is posted after it is sent; completes with `MW_BIND_ERR` if it can't be.
    pub fn bind_mw(wr_id: u64, window: &MemoryWindow, rkey: u32, bind: &MwBind) -> Self {
        let mut wr = Self::new(WrOpcode::BindMw, wr_id, &[]).remote(bind.addr, window.rkey());
        wr.wqe.imm = rkey;
        wr.wqe.compare_add = bind.length;
        wr.wqe.swap = u64::from(bind.lkey) << 32 | u64::from(bind.access.0);
        wr
    }

    /// Invalidates a local key: a window of type 2 that is bound for this QP is unbound, a region loses its remote rights. Use
    /// [`SendWr::fence`] if READs or atomics before it need the key.
    pub fn local_inv(wr_id: u64, rkey: u32) -> Self {
        let mut wr = Self::new(WrOpcode::LocalInv, wr_id, &[]);
        wr.wqe.imm = rkey;
        wr
    }

    /// Immediate data for a SEND or WRITE: the peer finds it in its completion. A WRITE with immediate consumes a receive.
    /// No effect on other operations.
    pub fn with_imm(mut self, imm: u32) -> Self {
        let opcode = match WrOpcode::from_code(self.wqe.opcode) {
            Some(WrOpcode::Send) => WrOpcode::SendWithImm,
            Some(WrOpcode::RdmaWrite) => WrOpcode::RdmaWriteWithImm,
            _ => return self,
        };
        self.wqe.opcode = opcode.code();
        self.wqe.imm = imm.to_be();
        self
    }

    /// Makes a SEND invalidate the peer's key `rkey` as well. No effect on other operations.
    pub fn with_invalidate(mut self, rkey: u32) -> Self {
        if self.wqe.opcode == WrOpcode::Send.code() {
            self.wqe.opcode = WrOpcode::SendWithInv.code();
            self.wqe.imm = rkey;
        }
        self
    }

    /// Where a datagram goes, and the Q_Key of its receiver. A `qkey` whose top bit is set stands for that of the sending QP.
    /// Every SEND of a UD QP needs it; one of another QP's must not have it.
    pub fn to(mut self, ah: &AddressHandle, qpn: Qpn, qkey: u32) -> Self {
        self.wqe.compare_add = ah.handle().into();
        self.remote(qkey.into(), qpn.value())
    }

    /// The peer's SRQ that the request is for, by its number ([`crate::SharedReceiveQueue::srqn`]): every request of an XRC QP
    /// needs it, READs and WRITEs as well; one of another QP's must not have it. No effect on what stays here
    /// ([`SendWr::bind_mw`], [`SendWr::local_inv`]).
    pub fn to_srq(mut self, srqn: u32) -> Self {
        if WrOpcode::from_code(self.wqe.opcode).is_some_and(|opcode| !opcode.is_local()) {
            self.wqe = self.wqe.to_srq(srqn);
        }
        self
    }

    /// Asks for a completion. Without it only a failure makes one.
    pub fn signaled(self) -> Self {
        self.flag(SendFlags::SIGNALED)
    }

    /// Starts only after all earlier READs and atomics of this QP are done.
    pub fn fence(self) -> Self {
        self.flag(SendFlags::FENCE)
    }

    /// Makes the peer's completion a solicited one: see [`crate::CompletionQueue::req_notify`].
    pub fn solicited(self) -> Self {
        self.flag(SendFlags::SOLICITED)
    }

    /// Takes the data from here, copied when it is posted, in place of SGEs: no registered memory is needed.
    pub fn inline(mut self, data: &'a [u8]) -> Self {
        self.payload = Payload::Inline(data);
        self
    }

    /// As [`SendWr::inline`], gathered from several pieces.
    pub fn inline_pieces(mut self, pieces: &'a [&'a [u8]]) -> Self {
        self.payload = Payload::Pieces(pieces);
        self
    }

    /// Raw flags, for those who hold them as a number (`ibv_send_flags`); `INLINE` is set by [`SendWr::inline`] only.
    pub fn with_flags(self, flags: SendFlags) -> Self {
        self.flag(flags.without(SendFlags::INLINE))
    }

    /// The caller's own number, which the completion carries.
    pub fn wr_id(&self) -> u64 {
        self.wqe.wr_id
    }

    #[inline]
    pub(crate) fn is_signaled(&self) -> bool {
        SendFlags(self.wqe.flags).contains(SendFlags::SIGNALED)
    }

    /// Hands the parts over to the queue. `signal_all`: every work request of the QP makes a completion.
    #[inline]
    pub(crate) fn put(
        &self,
        signal_all: bool,
        post: impl FnOnce(SendWqe, Body<'_>) -> Result<(), shm::ring::PostError>,
    ) -> Result<(), PostError> {
        let mut wqe = self.wqe;
        if signal_all {
            wqe.flags |= SendFlags::SIGNALED.0;
        }
        let done = match self.payload {
            Payload::Sges(sges) => post(wqe, Body::Sges(sges)),
            Payload::Inline(data) => {
                self.check_inline()?;
                post(wqe, Body::Inline(&[data]))
            }
            Payload::Pieces(pieces) => {
                self.check_inline()?;
                post(wqe, Body::Inline(pieces))
            }
        };
        Ok(done?)
    }

    fn check_inline(&self) -> Result<(), PostError> {
        match WrOpcode::from_code(self.wqe.opcode) {
            Some(opcode) if opcode.is_read_or_atomic() || opcode.is_local() => {
                Err(PostError::InlineNotAllowed { opcode })
            }
            _ => Ok(()),
        }
    }
}

/// A receive work request.
#[derive(Clone, Copy, Debug)]
#[must_use = "a work request does nothing until it is posted"]
pub struct RecvWr<'a> {
    /// The caller's own number, which the completion carries.
    pub wr_id: u64,
    /// Where an incoming SEND goes, one after the other. May be empty for WRITEs with immediate.
    pub sges: &'a [Sge],
}

impl<'a> RecvWr<'a> {
    /// A receive.
    pub const fn new(wr_id: u64, sges: &'a [Sge]) -> Self {
        Self { wr_id, sges }
    }
}

/// What became of a work request (`ibv_wc`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WorkCompletion {
    /// The number given when it was posted.
    pub wr_id: u64,
    /// Success, or what went wrong.
    pub status: WcStatus,
    /// What completed.
    pub opcode: WcOpcode,
    /// Which fields below are valid; with `GRH` the first 40 bytes of the receive are the network header.
    pub flags: WcFlags,
    /// Bytes received, or READ. For UD with the 40 bytes of the network header.
    pub byte_len: u32,
    /// Raw immediate data (as on the wire) or invalidated key: see [`WorkCompletion::imm`].
    pub imm_data: u32,
    /// Our QP.
    pub qpn: Qpn,
    /// The sender's QP (UD).
    pub src_qpn: Qpn,
    /// Cause of a failure, in the engine's own numbers.
    pub vendor_err: u32,
    /// When the engine made it, ns of its clock.
    pub timestamp_ns: u64,
    /// Index of the P_Key (UD).
    pub pkey_index: u16,
    /// Service level: of a datagram with a VLAN tag the tag's priority (UD).
    pub sl: u8,
    /// The network header that it came with (UD).
    pub network: NetworkHeader,
}

impl WorkCompletion {
    /// True if the work request succeeded.
    #[inline]
    pub fn is_ok(&self) -> bool {
        self.status == WcStatus::Success
    }

    /// The immediate data that came with it, if any.
    #[inline]
    pub fn imm(&self) -> Option<u32> {
        self.flags.contains(WcFlags::WITH_IMM).then(|| u32::from_be(self.imm_data))
    }

    /// Our key that the peer's SEND invalidated, if it did.
    #[inline]
    pub fn invalidated_rkey(&self) -> Option<u32> {
        self.flags.contains(WcFlags::WITH_INV).then_some(self.imm_data)
    }

    /// True if it is of a receive, false if of a send work request.
    #[inline]
    pub fn is_recv(&self) -> bool {
        self.opcode.code() >= WcOpcode::Recv.code()
    }

    /// What a client makes by itself for work that a daemon left behind.
    pub(crate) fn flushed(wr_id: u64, opcode: WcOpcode, qpn: u32) -> Self {
        Self { wr_id, status: WcStatus::WrFlushErr, opcode, qpn: Qpn::new(qpn), ..Self::default() }
    }
}

impl Default for WorkCompletion {
    /// An empty one, for the array that [`crate::CompletionQueue::poll`] fills.
    fn default() -> Self {
        Self {
            wr_id: 0,
            status: WcStatus::Success,
            opcode: WcOpcode::Send,
            flags: WcFlags::NONE,
            byte_len: 0,
            imm_data: 0,
            qpn: Qpn::new(0),
            src_qpn: Qpn::new(0),
            vendor_err: 0,
            timestamp_ns: 0,
            pkey_index: 0,
            sl: 0,
            network: NetworkHeader::None,
        }
    }
}

impl From<Cqe> for WorkCompletion {
    #[inline]
    fn from(cqe: Cqe) -> Self {
        Self {
            wr_id: cqe.wr_id,
            status: WcStatus::from_code(cqe.status).unwrap_or(WcStatus::GeneralErr),
            opcode: WcOpcode::from_code(cqe.opcode).unwrap_or(WcOpcode::Send),
            flags: WcFlags(cqe.flags),
            byte_len: cqe.byte_len,
            imm_data: cqe.imm,
            qpn: Qpn::new(cqe.qpn),
            src_qpn: Qpn::new(cqe.src_qpn),
            vendor_err: cqe.vendor_err,
            timestamp_ns: cqe.timestamp_ns,
            pkey_index: cqe.pkey_index,
            sl: cqe.sl,
            network: NetworkHeader::from_code(cqe.network).unwrap_or(NetworkHeader::None),
        }
    }
}
