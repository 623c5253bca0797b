//! The bytes that both processes read and write, drawn once. All integers are little endian in the machine's own order
//! (both sides run on one host).
//!
//! ```text
//! QP block                              CQ block                            SRQ block
//! +0    u32 sq_producer   client        +0    u32 consumer       client     +0    u32 producer  client
//! +4    u32 rq_producer   client        +4    u32 arm            client     +64   u32 consumer  engine
//! +64   u32 sq_consumer   engine        +64   u32 notify_count   engine     +128  slots
//! +68   u32 rq_consumer   engine        +68   u32 overrun        engine
//! +72   u32 error         engine        +128  CQEs, 64 bytes each
//! +128  SQ slots, then RQ slots
//!
//! send WQE, a multiple of 64 bytes      receive WQE, a multiple of 32        CQE, 64 bytes
//! +0    u64 wr_id                       +0    u64 wr_id                      +0    u64 wr_id
//! +8    u8  opcode                      +8    u32 sge_count                  +8    u8  status
//! +9    u8  flags                       +12   u32 zero                       +9    u8  opcode
//! +10   u16 sge_count                   +16   SGEs                           +10   u16 flags
//! +12   u32 imm (big endian) or key                                          +12   u32 byte_len
//! +16   u64 remote_addr                 SGE, 16 bytes                        +16   u32 imm or key
//! +24   u32 rkey                        +0    u64 addr                       +20   u32 qpn
//! +28   u32 inline_bytes                +8    u32 length, bytes              +24   u32 src_qpn
//! +32   u64 compare_add                 +12   u32 lkey                       +28   u32 vendor_err
//! +40   u64 swap                                                             +32   u64 timestamp_ns
//! +48   SGEs or inline data                                                  +40   u16 pkey_index, u8 sl, u8 network, 4 zero
//!                                                                            +48   u64 zero
//!                                                                            +56   u32 zero
//!                                                                            +60   u32 sequence
//! ```
//!
//! Indices count from 0 and wrap at 2^32; a slot is `index & (depth - 1)`, depths are powers of two. A CQE at index `i` is
//! there when its `sequence` is `i + 1`: the word turns on every pass, so no producer index is shared. For UD, `rkey` is the
//! remote QPN, `remote_addr` the remote Q_Key and `compare_add` the address handle.
//!
//! BIND_MW: `rkey` is any key of the window (its upper 24 bits say which), `imm` the key that it gets (the lower 8 bits are
//! new), `remote_addr` and `compare_add` the first address and the length in bytes of what it opens in the region whose key is
//! the upper half of `swap`; the lower half are the rights, raw [`crate::attr::AccessFlags`]. LOCAL_INV: `imm` is the key.
//! Neither has SGEs or inline data.
//!
//! XRC: the number of the SRQ that the request is for ([`SendWqe::srqn`]) are the lower 24 bits of `swap`; of an atomic compare
//! and swap, which needs that itself, of `imm`.

use crate::attr::WrOpcode;

/// Offset of the producer index (client) in every queue block; for a QP that of its send queue.
pub const PRODUCER: u64 = 0;
/// Offset of a QP's receive producer index (client).
pub const RQ_PRODUCER: u64 = 4;
/// Offset of the consumer index (engine) in every queue block; for a QP that of its send queue.
pub const CONSUMER: u64 = 64;
/// Offset of a QP's receive consumer index (engine).
pub const RQ_CONSUMER: u64 = 68;
/// Offset of a QP's error word (engine): 1 once the QP is in ERR.
pub const QP_ERROR: u64 = 72;
/// Offset of a CQ's consumer index (client).
pub const CQ_CONSUMER: u64 = 0;
/// Offset of a CQ's arm word (client): see [`Arm`].
pub const CQ_ARM: u64 = 4;
/// Offset of a CQ's notification count (engine).
pub const CQ_NOTIFY_COUNT: u64 = 64;
/// Offset of a CQ's overrun word (engine).
pub const CQ_OVERRUN: u64 = 68;
/// Offset of the first slot in every block.
pub const SLOTS: u64 = 128;
/// Bytes of a CQE.
pub const CQE_BYTES: u64 = 64;
/// Bytes of an SGE.
pub const SGE_BYTES: u64 = 16;
/// Bytes of a send WQE before its SGEs or inline data.
pub const SEND_HEADER_BYTES: u64 = 48;
/// Bytes of a receive WQE before its SGEs.
pub const RECV_HEADER_BYTES: u64 = 16;
/// Most SGEs of one work request that any engine takes.
pub const MAX_SGE: u32 = 32;
/// Most inline bytes of one work request that any engine takes.
pub const MAX_INLINE: u32 = 1024;

/// When a CQ is to ring its completion channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Arm {
    /// Not at all.
    Off = 0,
    /// At the next completion.
    Any = 1,
    /// At the next solicited or failed completion.
    Solicited = 2,
}

/// A scatter/gather element.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct Sge {
    /// Virtual address, in the address space the region was registered with.
    pub addr: u64,
    /// Bytes.
    pub length: u32,
    /// Key of the region.
    pub lkey: u32,
}

impl Sge {
    /// From the two words of shared memory.
    #[inline]
    pub const fn from_words(addr: u64, rest: u64) -> Self {
        Self { addr, length: rest as u32, lkey: (rest >> 32) as u32 }
    }

    /// To the two words of shared memory.
    #[inline]
    pub const fn to_words(self) -> [u64; 2] {
        [self.addr, self.length as u64 | (self.lkey as u64) << 32]
    }
}

/// The fixed part of a send WQE. The opcode and flags are raw here: the engine validates its copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SendWqe {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// Raw [`crate::attr::WrOpcode`].
    pub opcode: u8,
    /// Raw [`crate::attr::SendFlags`].
    pub flags: u8,
    /// SGEs that follow (0 with inline data).
    pub sge_count: u16,
    /// Immediate data as it goes on the wire (big endian in memory), or the key to invalidate.
    pub imm: u32,
    /// Remote virtual address.
    pub remote_addr: u64,
    /// Remote key.
    pub rkey: u32,
    /// Inline bytes that follow.
    pub inline_bytes: u32,
    /// Atomics: the value to compare with, or to add.
    pub compare_add: u64,
    /// Atomics: the value to store.
    pub swap: u64,
}

impl SendWqe {
    /// The same for an SRQ: XRC only. The opcode must be set.
    #[inline]
    #[must_use]
    pub const fn to_srq(mut self, srqn: u32) -> Self {
        if self.opcode == WrOpcode::AtomicCmpAndSwp as u8 {
            self.imm = srqn;
        } else {
            self.swap = srqn as u64;
        }
        self
    }

    /// Number of the SRQ that an XRC request is for, 24 bits.
    #[inline]
    pub const fn srqn(&self) -> u32 {
        let raw = if self.opcode == WrOpcode::AtomicCmpAndSwp as u8 { self.imm } else { self.swap as u32 };
        raw & 0xff_ffff
    }

    /// From the six words of shared memory.
    #[inline]
    pub const fn from_words(w: [u64; 6]) -> Self {
        Self {
            wr_id: w[0],
            opcode: w[1] as u8,
            flags: (w[1] >> 8) as u8,
            sge_count: (w[1] >> 16) as u16,
            imm: (w[1] >> 32) as u32,
            remote_addr: w[2],
            rkey: w[3] as u32,
            inline_bytes: (w[3] >> 32) as u32,
            compare_add: w[4],
            swap: w[5],
        }
    }

    /// To the six words of shared memory.
    #[inline]
    pub const fn to_words(self) -> [u64; 6] {
        [
            self.wr_id,
            self.opcode as u64 | (self.flags as u64) << 8 | (self.sge_count as u64) << 16 | (self.imm as u64) << 32,
            self.remote_addr,
            self.rkey as u64 | (self.inline_bytes as u64) << 32,
            self.compare_add,
            self.swap,
        ]
    }
}

/// A completion. Status, opcode and flags are raw numbers of [`crate::attr`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cqe {
    /// The work request's own number.
    pub wr_id: u64,
    /// Raw [`crate::attr::WcStatus`].
    pub status: u8,
    /// Raw [`crate::attr::WcOpcode`].
    pub opcode: u8,
    /// Raw [`crate::attr::WcFlags`].
    pub flags: u16,
    /// Bytes received (or READ).
    pub byte_len: u32,
    /// Immediate data as it came on the wire, or the key that was invalidated.
    pub imm: u32,
    /// Our QP.
    pub qpn: u32,
    /// The sender's QP (UD).
    pub src_qpn: u32,
    /// Cause of a failure: see `docs/errors.md`.
    pub vendor_err: u32,
    /// When the engine made it, ns of its clock.
    pub timestamp_ns: u64,
    /// Index of the P_Key (UD).
    pub pkey_index: u16,
    /// Service level.
    pub sl: u8,
    /// Raw [`crate::attr::NetworkHeader`] (UD).
    pub network: u8,
}

impl Cqe {
    /// From the eight words of shared memory (the last holds only the sequence).
    #[inline]
    pub const fn from_words(w: [u64; 8]) -> Self {
        Self {
            wr_id: w[0],
            status: w[1] as u8,
            opcode: (w[1] >> 8) as u8,
            flags: (w[1] >> 16) as u16,
            byte_len: (w[1] >> 32) as u32,
            imm: w[2] as u32,
            qpn: (w[2] >> 32) as u32,
            src_qpn: w[3] as u32,
            vendor_err: (w[3] >> 32) as u32,
            timestamp_ns: w[4],
            pkey_index: w[5] as u16,
            sl: (w[5] >> 16) as u8,
            network: (w[5] >> 24) as u8,
        }
    }

    /// To the eight words of shared memory.
    #[inline]
    pub const fn to_words(self, sequence: u32) -> [u64; 8] {
        [
            self.wr_id,
            self.status as u64 | (self.opcode as u64) << 8 | (self.flags as u64) << 16 | (self.byte_len as u64) << 32,
            self.imm as u64 | (self.qpn as u64) << 32,
            self.src_qpn as u64 | (self.vendor_err as u64) << 32,
            self.timestamp_ns,
            self.pkey_index as u64 | (self.sl as u64) << 16 | (self.network as u64) << 24,
            0,
            (sequence as u64) << 32,
        ]
    }
}

/// Depth and entry size of a work queue, agreed on the control socket and private to each side after that.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct QueueShape {
    /// Slots, a power of two; 0 = no such queue.
    pub depth: u32,
    /// Bytes of a slot.
    pub stride: u32,
    /// SGEs in a work request at most.
    pub max_sge: u32,
    /// Inline bytes in a work request at most (send queues).
    pub max_inline: u32,
}

impl QueueShape {
    /// Shape of a send queue for at least these numbers; slots are multiples of 64 bytes.
    pub const fn send(wr: u32, sge: u32, inline: u32) -> Self {
        let body = if sge as u64 * SGE_BYTES > inline as u64 { sge as u64 * SGE_BYTES } else { inline as u64 };
        let stride = (SEND_HEADER_BYTES + body).next_multiple_of(64) as u32;
        // What the slot has room for anyway is granted.
        let room = stride - SEND_HEADER_BYTES as u32;
        Self { depth: depth_for(wr), stride, max_sge: room / SGE_BYTES as u32, max_inline: room }
    }

    /// Shape of a receive queue for at least these numbers; slots are multiples of 32 bytes.
    pub const fn recv(wr: u32, sge: u32) -> Self {
        if wr == 0 {
            return Self { depth: 0, stride: 0, max_sge: 0, max_inline: 0 };
        }
        let stride = (RECV_HEADER_BYTES + sge as u64 * SGE_BYTES).next_multiple_of(32) as u32;
        let max_sge = (stride - RECV_HEADER_BYTES as u32) / SGE_BYTES as u32;
        Self { depth: depth_for(wr), stride, max_sge, max_inline: 0 }
    }

    /// Bytes of all slots.
    pub const fn bytes(self) -> u64 {
        self.depth as u64 * self.stride as u64
    }
}

const fn depth_for(wr: u32) -> u32 {
    if wr <= 1 { 1 } else { wr.next_power_of_two() }
}

const _: () = assert!(size_of::<Sge>() == SGE_BYTES as usize);
