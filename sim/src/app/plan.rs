//! What applications do: operations, and the settings of a conversation.

use ferroce::{ConnectAttr, PathMtu, QpCap};

use crate::shrink::FaultKind;

/// A kind of operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpKind {
    /// SEND.
    Send,
    /// SEND with immediate.
    SendImm,
    /// SEND that invalidates a key that the receiver made for it.
    SendInv,
    /// RDMA WRITE.
    Write,
    /// RDMA WRITE with immediate.
    WriteImm,
    /// RDMA READ.
    Read,
    /// Compare and swap: of the value that is there, or of another.
    Cas,
    /// Fetch and add.
    Faa,
    /// Fetch and add to a word that all connections of the conversation share.
    SharedFaa,
}

impl OpKind {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Send,
        Self::SendImm,
        Self::SendInv,
        Self::Write,
        Self::WriteImm,
        Self::Read,
        Self::Cas,
        Self::Faa,
        Self::SharedFaa,
    ];

    /// True if it lands in a receive's buffer.
    pub const fn is_send(self) -> bool {
        matches!(self, Self::Send | Self::SendImm | Self::SendInv)
    }

    /// True if it works on 8 bytes.
    pub const fn is_atomic(self) -> bool {
        matches!(self, Self::Cas | Self::Faa | Self::SharedFaa)
    }
}

/// An operation. Where its data lie is drawn when it is posted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Op {
    /// Its kind.
    pub kind: OpKind,
    /// Bytes; 8 for atomics.
    pub length: u32,
    /// It makes a completion. One that must, because the queue would fill up, does so anyway.
    pub signaled: bool,
    /// It waits for READs and atomics before it. Where the order could show, one gets a fence anyway.
    pub fence: bool,
    /// Its data are copied when it is posted, if they are short enough.
    pub inline: bool,
    /// The receiver's completion is a solicited one.
    pub solicited: bool,
}

impl Op {
    /// A signalled operation of `length` bytes (8 for atomics) without further flags.
    pub const fn new(kind: OpKind, length: u32) -> Self {
        let length = if kind.is_atomic() { 8 } else { length };
        Self { kind, length, signaled: true, fence: false, inline: false, solicited: false }
    }
}

/// Something that goes wrong on purpose, on the first connection of a conversation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IncidentKind {
    /// A WRITE or READ with a key that does not exist, or that a SEND has invalidated.
    BadRkey,
    /// A WRITE or READ that ends outside of the region.
    OutOfRange,
    /// A SEND that is longer than the receive.
    TooLong,
    /// A work request whose own SGE is wrong.
    BadLkey,
    /// The peer's region is deregistered in the middle of everything.
    Dereg,
    /// The QP is destroyed in the middle of everything.
    DestroyQp,
    /// The client dies.
    Kill,
    /// The client writes random bytes over its rings and doorbells.
    Garbage,
}

impl IncidentKind {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::BadRkey,
        Self::OutOfRange,
        Self::TooLong,
        Self::BadLkey,
        Self::Dereg,
        Self::DestroyQp,
        Self::Kill,
        Self::Garbage,
    ];

    /// What kind of fault it is.
    pub const fn fault(self) -> FaultKind {
        match self {
            Self::Kill => FaultKind::Death,
            Self::Garbage => FaultKind::Garbage,
            _ => FaultKind::Incident,
        }
    }

    /// True if the connection can't go on after it.
    pub const fn is_final(self) -> bool {
        matches!(self, Self::DestroyQp | Self::Kill | Self::Garbage)
    }
}

/// An incident and its moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Incident {
    /// What.
    pub kind: IncidentKind,
    /// Which side causes it.
    pub side: usize,
    /// After so many operations of that side.
    pub after_ops: usize,
}

/// Two applications that talk to each other, over some connections.
#[derive(Clone, PartialEq, Debug)]
pub struct ConversationSettings {
    /// Where the two applications run.
    pub hosts: [u8; 2],
    /// Operations of each side, for each connection.
    pub ops: Vec<[Vec<Op>; 2]>,
    /// Path MTU.
    pub path_mtu: PathMtu,
    /// Sizes of the queues.
    pub cap: QpCap,
    /// Every send makes a completion.
    pub sq_sig_all: bool,
    /// Receives come from one SRQ for each side.
    pub uses_srq: bool,
    /// Sends and receives complete on one CQ.
    pub uses_one_cq: bool,
    /// Applications sleep on a completion channel.
    pub uses_channel: bool,
    /// Timers, retries, depths.
    pub attr: ConnectAttr,
    /// PSNs start just before the wrap.
    pub starts_near_wrap: bool,
    /// Longest message, bytes.
    pub message_bytes_max: u32,
    /// Longest SEND, and so the length of a receive, bytes.
    pub send_bytes_max: u32,
    /// A receive is posted so long after its predecessor completed, at most, ns.
    pub recv_delay_ns: u64,
    /// An application looks so long after something happened, at most, ns.
    pub step_delay_ns: u64,
    /// What goes wrong.
    pub incident: Option<Incident>,
    /// At the end QPs are moved to ERR and their flush is looked at; else everything is just dropped.
    pub ends_by_flush: bool,
}

impl ConversationSettings {
    /// True if receives need wake nobody unless they are solicited: where all of them are, and sends complete elsewhere.
    pub fn wakes_on_solicited(&self) -> bool {
        self.uses_channel && !self.uses_one_cq && self.ops.iter().flatten().flatten().all(|op| op.solicited)
    }

    /// One connection from host 0 to host 1 with these operations, and comfortable settings.
    pub fn new(ops: [Vec<Op>; 2]) -> Self {
        let longest = |sends: bool| {
            let lengths = ops.iter().flatten().filter(|op| !sends || op.kind.is_send()).map(|op| op.length);
            lengths.max().unwrap_or(0).max(64)
        };
        let (message_bytes_max, send_bytes_max) = (longest(false), longest(true));
        Self {
            hosts: [0, 1],
            ops: vec![ops],
            path_mtu: PathMtu::M1024,
            cap: QpCap { max_send_wr: 64, max_recv_wr: 16, max_send_sge: 4, max_recv_sge: 4, max_inline_data: 64 },
            sq_sig_all: false,
            uses_srq: false,
            uses_one_cq: true,
            uses_channel: false,
            attr: ConnectAttr::default(),
            starts_near_wrap: false,
            message_bytes_max,
            send_bytes_max,
            recv_delay_ns: 0,
            step_delay_ns: 1_000,
            incident: None,
            ends_by_flush: true,
        }
    }
}
