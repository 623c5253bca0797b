//! Verbs attribute types, with the numeric values of `infiniband/verbs.h`, so that a C ABI over them is a plain copy.

use serde::{Deserialize, Serialize};

use wire::{Gid, MacAddr};

use crate::clock::DeviceClock;

/// Implements the few operations that a set of flag bits needs.
macro_rules! flag_set {
    ($(#[$doc:meta])* $name:ident($repr:ty) { $($(#[$fdoc:meta])* $flag:ident = $value:expr;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
        pub struct $name(pub $repr);
        impl $name {
            $($(#[$fdoc])* pub const $flag: Self = Self($value);)*
            /// Every bit that has a name.
            pub const ALL: Self = Self(0 $(| $value)*);
            /// No bit.
            pub const NONE: Self = Self(0);
            /// True if every bit of `other` is set.
            #[inline]
            pub const fn contains(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }
            /// True if any bit of `other` is set.
            #[inline]
            pub const fn intersects(self, other: Self) -> bool {
                self.0 & other.0 != 0
            }
            /// Both sets together.
            #[inline]
            pub const fn union(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }
            /// The bits of `self` that `other` lacks.
            #[inline]
            pub const fn without(self, other: Self) -> Self {
                Self(self.0 & !other.0)
            }
            /// The names of the bits that are set, in the order of their declaration.
            pub fn names(self) -> impl Iterator<Item = &'static str> {
                [$((Self::$flag, stringify!($flag))),*].into_iter().filter(move |(bit, _)| self.contains(*bit)).map(|(_, name)| name)
            }
        }
        impl core::ops::BitOr for $name {
            type Output = Self;
            fn bitor(self, other: Self) -> Self {
                self.union(other)
            }
        }
    };
}

/// Implements an enum with fixed values, `from_code` and `name`.
macro_rules! coded_enum {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $value:expr, $text:expr;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
        #[repr(u8)]
        pub enum $name {
            $($(#[$vdoc])* $variant = $value,)*
        }
        impl $name {
            /// Every variant, by rising code.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];
            /// The variant with this code, or `None`.
            #[inline]
            pub const fn from_code(code: u8) -> Option<Self> {
                match code {
                    $($value => Some(Self::$variant),)*
                    _ => None,
                }
            }
            /// The code, as in `infiniband/verbs.h`.
            #[inline]
            pub const fn code(self) -> u8 {
                self as u8
            }
            /// The conventional name.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                }
            }
        }
        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

coded_enum! {
    /// How a QP of RC or XRC makes up for lost packets.
    RecoveryPolicy {
        /// Go-back-N, as the specification has it: everything from the first lost packet on is sent again. Any peer can do it.
        GoBackN = 0, "gbn";
        /// Selective repeat: only what is lost is sent again. The peer must do so as well.
        SelectiveRepeat = 1, "sr";
        /// Selective repeat as long as little is lost, go-back-N when the long timer fires or too much is missing.
        Hybrid = 2, "hybrid";
    }
}

impl RecoveryPolicy {
    /// True if it needs selective acknowledgements.
    #[inline]
    pub const fn is_selective(self) -> bool {
        !matches!(self, Self::GoBackN)
    }

    /// The policy of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|policy| policy.name() == name)
    }
}

/// Options of enhanced connection establishment (`ibv_ece`): what the makers of two devices agree on beyond the specification.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct EceAttr {
    /// Whose options they are, 24 bits; 0 = nobody's.
    pub vendor_id: u32,
    /// What that vendor makes of them: ours are [`wire::cm::Ece`]'s.
    pub options: u32,
}

impl From<wire::cm::Ece> for EceAttr {
    fn from(ece: wire::cm::Ece) -> Self {
        Self { vendor_id: ece.vendor_id, options: ece.options }
    }
}

impl From<EceAttr> for wire::cm::Ece {
    fn from(attr: EceAttr) -> Self {
        Self { vendor_id: attr.vendor_id, options: attr.options }
    }
}

coded_enum! {
    /// Transport service of a QP (`ibv_qp_type`).
    QpType {
        /// Reliable connection.
        Rc = 2, "RC";
        /// Unreliable connection.
        Uc = 3, "UC";
        /// Unreliable datagram.
        Ud = 4, "UD";
        /// Extended reliable connection, the end that sends: a requester without a responder. IBTA A14.
        XrcSend = 9, "XRC_SEND";
        /// Extended reliable connection, the end that receives: a responder without a requester, in an XRC domain. IBTA A14.
        XrcRecv = 10, "XRC_RECV";
    }
}

impl QpType {
    /// True if requests are acknowledged, and sent again if they are not.
    #[inline]
    pub const fn is_reliable(self) -> bool {
        matches!(self, Self::Rc | Self::XrcSend | Self::XrcRecv)
    }

    /// True for both ends of an extended reliable connection.
    #[inline]
    pub const fn is_xrc(self) -> bool {
        matches!(self, Self::XrcSend | Self::XrcRecv)
    }
}

coded_enum! {
    /// State of a QP (`ibv_qp_state`). IBTA 10.3.1.
    QpState {
        /// Just created, or reset.
        Reset = 0, "RESET";
        /// Receives may be posted; nothing moves.
        Init = 1, "INIT";
        /// Ready to receive.
        Rtr = 2, "RTR";
        /// Ready to send.
        Rts = 3, "RTS";
        /// Send queue drained: no new send starts.
        Sqd = 4, "SQD";
        /// Send queue error (UC and UD only).
        Sqe = 5, "SQE";
        /// Error: everything posted is flushed.
        Err = 6, "ERR";
    }
}

coded_enum! {
    /// Opcode of a send work request (`ibv_wr_opcode`).
    WrOpcode {
        /// RDMA WRITE.
        RdmaWrite = 0, "RDMA_WRITE";
        /// RDMA WRITE with immediate.
        RdmaWriteWithImm = 1, "RDMA_WRITE_WITH_IMM";
        /// SEND.
        Send = 2, "SEND";
        /// SEND with immediate.
        SendWithImm = 3, "SEND_WITH_IMM";
        /// RDMA READ.
        RdmaRead = 4, "RDMA_READ";
        /// Compare and swap, 8 bytes.
        AtomicCmpAndSwp = 5, "ATOMIC_CMP_AND_SWP";
        /// Fetch and add, 8 bytes.
        AtomicFetchAndAdd = 6, "ATOMIC_FETCH_AND_ADD";
        /// Invalidate a local key.
        LocalInv = 7, "LOCAL_INV";
        /// Bind a memory window.
        BindMw = 8, "BIND_MW";
        /// SEND that invalidates a remote key.
        SendWithInv = 9, "SEND_WITH_INV";
    }
}

impl WrOpcode {
    /// True for what never leaves the engine: binding a window, invalidating a key.
    #[inline]
    pub const fn is_local(self) -> bool {
        matches!(self, Self::LocalInv | Self::BindMw)
    }

    /// True if it names an address of the peer: WRITEs, READs and atomics.
    pub const fn has_remote_addr(self) -> bool {
        matches!(self, Self::RdmaWrite | Self::RdmaWriteWithImm) || self.is_read_or_atomic()
    }

    /// True for READs and atomics: what `max_rd_atomic` bounds and a fence waits for.
    #[inline]
    pub const fn is_read_or_atomic(self) -> bool {
        matches!(self, Self::RdmaRead | Self::AtomicCmpAndSwp | Self::AtomicFetchAndAdd)
    }
}

coded_enum! {
    /// Kind of a memory window (`ibv_mw_type`). IBTA 10.6.7.
    MwType {
        /// Bound for the whole protection domain.
        Type1 = 1, "TYPE_1";
        /// Bound for one QP (IBTA's type 2B), with a key of the application's choice.
        Type2 = 2, "TYPE_2";
    }
}

coded_enum! {
    /// Status of a completion (`ibv_wc_status`). IBTA 11.6.2.
    WcStatus {
        /// Done.
        Success = 0, "SUCCESS";
        /// A local length error: SGEs too short or too long.
        LocLenErr = 1, "LOC_LEN_ERR";
        /// The QP can't do this operation.
        LocQpOpErr = 2, "LOC_QP_OP_ERR";
        /// EE context error (RD only).
        LocEecOpErr = 3, "LOC_EEC_OP_ERR";
        /// A local SGE does not lie in a region with the needed right.
        LocProtErr = 4, "LOC_PROT_ERR";
        /// The QP was in ERR.
        WrFlushErr = 5, "WR_FLUSH_ERR";
        /// Memory window bind error.
        MwBindErr = 6, "MW_BIND_ERR";
        /// An unexpected response.
        BadRespErr = 7, "BAD_RESP_ERR";
        /// A local region lacks remote-write right for incoming data.
        LocAccessErr = 8, "LOC_ACCESS_ERR";
        /// The responder answered: invalid request.
        RemInvReqErr = 9, "REM_INV_REQ_ERR";
        /// The responder answered: access violation.
        RemAccessErr = 10, "REM_ACCESS_ERR";
        /// The responder answered: operation failed.
        RemOpErr = 11, "REM_OP_ERR";
        /// `retry_cnt` used up.
        RetryExcErr = 12, "RETRY_EXC_ERR";
        /// `rnr_retry` used up.
        RnrRetryExcErr = 13, "RNR_RETRY_EXC_ERR";
        /// RDD violation (RD only).
        LocRddViolErr = 14, "LOC_RDD_VIOL_ERR";
        /// Invalid RD request (RD only).
        RemInvRdReqErr = 15, "REM_INV_RD_REQ_ERR";
        /// Aborted by the remote side (RD only).
        RemAbortErr = 16, "REM_ABORT_ERR";
        /// Invalid EE context number (RD only).
        InvEecnErr = 17, "INV_EECN_ERR";
        /// Invalid EE context state (RD only).
        InvEecStateErr = 18, "INV_EEC_STATE_ERR";
        /// The device is gone.
        FatalErr = 19, "FATAL_ERR";
        /// No response in time.
        RespTimeoutErr = 20, "RESP_TIMEOUT_ERR";
        /// Anything else.
        GeneralErr = 21, "GENERAL_ERR";
    }
}

coded_enum! {
    /// What completed (`ibv_wc_opcode`; its values from 128 up say "receive").
    WcOpcode {
        /// A SEND.
        Send = 0, "SEND";
        /// An RDMA WRITE.
        RdmaWrite = 1, "RDMA_WRITE";
        /// An RDMA READ.
        RdmaRead = 2, "RDMA_READ";
        /// A compare and swap.
        CompSwap = 3, "COMP_SWAP";
        /// A fetch and add.
        FetchAdd = 4, "FETCH_ADD";
        /// A memory window bind.
        BindMw = 5, "BIND_MW";
        /// A local invalidate.
        LocalInv = 6, "LOCAL_INV";
        /// A receive.
        Recv = 128, "RECV";
        /// A receive that an RDMA WRITE with immediate consumed.
        RecvRdmaWithImm = 129, "RECV_RDMA_WITH_IMM";
    }
}

impl From<WrOpcode> for WcOpcode {
    fn from(opcode: WrOpcode) -> Self {
        match opcode {
            WrOpcode::RdmaWrite | WrOpcode::RdmaWriteWithImm => Self::RdmaWrite,
            WrOpcode::Send | WrOpcode::SendWithImm | WrOpcode::SendWithInv => Self::Send,
            WrOpcode::RdmaRead => Self::RdmaRead,
            WrOpcode::AtomicCmpAndSwp => Self::CompSwap,
            WrOpcode::AtomicFetchAndAdd => Self::FetchAdd,
            WrOpcode::LocalInv => Self::LocalInv,
            WrOpcode::BindMw => Self::BindMw,
        }
    }
}

coded_enum! {
    /// The network header that a datagram came with (IBTA A17.4.5.1). It is the first 40 bytes of the receive: an IPv4 header is the
    /// last 20 of them. Codes are the kernel's (`rdma_network_type`).
    NetworkHeader {
        /// No datagram.
        None = 0, "none";
        /// RoCE v1: a GRH.
        Grh = 1, "GRH";
        /// RoCE v2 over IPv4.
        Ipv4 = 2, "IPv4";
        /// RoCE v2 over IPv6.
        Ipv6 = 3, "IPv6";
    }
}

flag_set! {
    /// Flags of a completion (`ibv_wc_flags`).
    WcFlags(u16) {
        /// The first 40 bytes of a UD receive are a GRH.
        GRH = 1;
        /// `imm_data` is valid.
        WITH_IMM = 2;
        /// `imm_data` holds the key that was invalidated.
        WITH_INV = 8;
    }
}

flag_set! {
    /// Flags of a send work request (`ibv_send_flags`).
    SendFlags(u8) {
        /// Wait for all earlier READs and atomics.
        FENCE = 1;
        /// Make a completion.
        SIGNALED = 2;
        /// Raise a solicited event at the receiver.
        SOLICITED = 4;
        /// The data is in the work request itself.
        INLINE = 8;
    }
}

flag_set! {
    /// Access rights of a region or QP (`ibv_access_flags`).
    AccessFlags(u32) {
        /// The engine may write for local operations (receives, READ responses).
        LOCAL_WRITE = 1;
        /// A peer may WRITE.
        REMOTE_WRITE = 2;
        /// A peer may READ.
        REMOTE_READ = 4;
        /// A peer may do atomics.
        REMOTE_ATOMIC = 8;
        /// Memory windows may be bound to it.
        MW_BIND = 16;
        /// Addresses are offsets from the region's start.
        ZERO_BASED = 32;
        /// Accepted as a hint, no effect.
        RELAXED_ORDERING = 1 << 20;
    }
}

flag_set! {
    /// Which attributes a `modify_qp` sets (`ibv_qp_attr_mask`).
    QpAttrMask(u32) {
        /// `qp_state`.
        STATE = 1;
        /// `cur_qp_state`.
        CUR_STATE = 1 << 1;
        /// `en_sqd_async_notify`.
        EN_SQD_ASYNC_NOTIFY = 1 << 2;
        /// `qp_access_flags`.
        ACCESS_FLAGS = 1 << 3;
        /// `pkey_index`.
        PKEY_INDEX = 1 << 4;
        /// `port_num`.
        PORT = 1 << 5;
        /// `qkey`.
        QKEY = 1 << 6;
        /// `ah_attr`.
        AV = 1 << 7;
        /// `path_mtu`.
        PATH_MTU = 1 << 8;
        /// `timeout`.
        TIMEOUT = 1 << 9;
        /// `retry_cnt`.
        RETRY_CNT = 1 << 10;
        /// `rnr_retry`.
        RNR_RETRY = 1 << 11;
        /// `rq_psn`.
        RQ_PSN = 1 << 12;
        /// `max_rd_atomic`.
        MAX_QP_RD_ATOMIC = 1 << 13;
        /// `alt_ah_attr` and what belongs to it.
        ALT_PATH = 1 << 14;
        /// `min_rnr_timer`.
        MIN_RNR_TIMER = 1 << 15;
        /// `sq_psn`.
        SQ_PSN = 1 << 16;
        /// `max_dest_rd_atomic`.
        MAX_DEST_RD_ATOMIC = 1 << 17;
        /// `path_mig_state`.
        PATH_MIG_STATE = 1 << 18;
        /// `cap`.
        CAP = 1 << 19;
        /// `dest_qp_num`.
        DEST_QPN = 1 << 20;
        /// `rate_limit`.
        RATE_LIMIT = 1 << 25;
    }
}

/// An address vector: where a QP or an address handle sends to (`ibv_ah_attr` with its GRH; RoCE always has one).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct AhAttr {
    /// The peer's GID.
    #[serde(with = "gid_bytes")]
    pub dgid: Gid,
    /// Index of our GID in the port's table.
    pub sgid_index: u8,
    /// 20 bits; 0 = derive the UDP source port from the QPNs.
    pub flow_label: u32,
    /// Time to live of the packets; 0 is taken as 64.
    pub hop_limit: u8,
    /// IP ToS / traffic class: DSCP in the upper six bits.
    pub traffic_class: u8,
    /// Service level: the 802.1p priority on a tagged network.
    pub sl: u8,
    /// No more than this rate is sent to the peer: a code of `ibv_rate`, see [`static_rate_mbps`]; 0 = as fast as the port is.
    pub static_rate: u8,
    /// Port, from 1.
    pub port_num: u8,
}

/// Largest code of a static rate.
pub const STATIC_RATE_MAX: u8 = 24;

/// Mbit/s of a static rate, as it is named: `IBV_RATE_25_GBPS` is 25,000. `None` for 0 and for codes that name no rate.
pub const fn static_rate_mbps(code: u8) -> Option<u32> {
    Some(match code {
        2 => 2_500,
        3 => 10_000,
        4 => 30_000,
        5 => 5_000,
        6 => 20_000,
        7 => 40_000,
        8 => 60_000,
        9 => 80_000,
        10 => 120_000,
        11 => 14_000,
        12 => 56_000,
        13 => 112_000,
        14 => 168_000,
        15 => 25_000,
        16 => 100_000,
        17 => 200_000,
        18 => 300_000,
        19 => 28_000,
        20 => 50_000,
        21 => 400_000,
        22 => 600_000,
        23 => 800_000,
        24 => 1_200_000,
        _ => return None,
    })
}

/// Depths and sizes of a QP's queues (`ibv_qp_cap`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct QpCap {
    /// Send work requests outstanding at most.
    pub max_send_wr: u32,
    /// Receive work requests outstanding at most.
    pub max_recv_wr: u32,
    /// SGEs in a send work request at most.
    pub max_send_sge: u32,
    /// SGEs in a receive work request at most.
    pub max_recv_sge: u32,
    /// Inline bytes in a send work request at most.
    pub max_inline_data: u32,
}

/// Attributes of a QP (`ibv_qp_attr`). What `modify_qp` takes and `query_qp` returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct QpAttr {
    /// The state to go to.
    pub qp_state: QpState,
    /// The state that the caller takes the QP to be in.
    pub cur_qp_state: QpState,
    /// IB code of the path MTU: 1 = 256 .. 5 = 4096 bytes.
    pub path_mtu: u8,
    /// 0 = migrated, 1 = rearm, 2 = armed.
    pub path_mig_state: u8,
    /// Q_Key of a UD QP.
    pub qkey: u32,
    /// First PSN to receive, 24 bits.
    pub rq_psn: u32,
    /// First PSN to send, 24 bits.
    pub sq_psn: u32,
    /// The peer's QPN, 24 bits.
    pub dest_qp_num: u32,
    /// What the peer may do.
    pub qp_access_flags: AccessFlags,
    /// Queue sizes (query only).
    pub cap: QpCap,
    /// The primary path.
    pub ah_attr: AhAttr,
    /// Index into the port's P_Key table.
    pub pkey_index: u16,
    /// 1 = raise an event when the send queue has drained.
    pub en_sqd_async_notify: u8,
    /// 1 while the send queue drains (query only).
    pub sq_draining: u8,
    /// READs and atomics outstanding as requester.
    pub max_rd_atomic: u8,
    /// READs and atomics outstanding as responder.
    pub max_dest_rd_atomic: u8,
    /// RNR NAK timer code, 0..31.
    pub min_rnr_timer: u8,
    /// Port, from 1.
    pub port_num: u8,
    /// Local ACK timeout code: 4.096 us * 2^n, 0 = never.
    pub timeout: u8,
    /// Retries after timeouts and sequence NAKs, 0..7.
    pub retry_cnt: u8,
    /// Retries after RNR NAKs, 0..7; 7 = for ever.
    pub rnr_retry: u8,
    /// Sending rate limit, kbit/s; 0 = none.
    pub rate_limit: u32,
}

impl Default for QpAttr {
    fn default() -> Self {
        Self {
            qp_state: QpState::Reset,
            cur_qp_state: QpState::Reset,
            path_mtu: 0,
            path_mig_state: 0,
            qkey: 0,
            rq_psn: 0,
            sq_psn: 0,
            dest_qp_num: 0,
            qp_access_flags: AccessFlags::NONE,
            cap: QpCap::default(),
            ah_attr: AhAttr::default(),
            pkey_index: 0,
            en_sqd_async_notify: 0,
            sq_draining: 0,
            max_rd_atomic: 0,
            max_dest_rd_atomic: 0,
            min_rnr_timer: 0,
            port_num: 0,
            timeout: 0,
            retry_cnt: 0,
            rnr_retry: 0,
            rate_limit: 0,
        }
    }
}

/// What a device can do (`ibv_device_attr`, the fields that mean something here).
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct DeviceAttr {
    /// Name, such as `ferroce0`.
    pub name: String,
    /// EUI-64 of the first port's MAC.
    pub node_guid: u64,
    /// Version of the daemon.
    pub fw_ver: String,
    /// Largest region, bytes.
    pub max_mr_size: u64,
    /// QPs a client may have.
    pub max_qp: u32,
    /// Work requests in a queue.
    pub max_qp_wr: u32,
    /// SGEs in a work request.
    pub max_sge: u32,
    /// Inline bytes in a work request.
    pub max_inline_data: u32,
    /// CQs a client may have.
    pub max_cq: u32,
    /// Entries in a CQ.
    pub max_cqe: u32,
    /// Regions a client may have.
    pub max_mr: u32,
    /// Protection domains a client may have.
    pub max_pd: u32,
    /// READs and atomics outstanding as responder.
    pub max_qp_rd_atom: u8,
    /// READs and atomics outstanding as requester.
    pub max_qp_init_rd_atom: u8,
    /// SRQs a client may have.
    pub max_srq: u32,
    /// Work requests in an SRQ.
    pub max_srq_wr: u32,
    /// SGEs in an SRQ work request.
    pub max_srq_sge: u32,
    /// Bytes of client memory that may be attached.
    pub max_memory_bytes: u64,
    /// Physical ports.
    pub phys_port_cnt: u8,
    /// Completion vectors: lcores that serve QPs.
    pub num_comp_vectors: u32,
    /// Address handles in the engine.
    pub max_ah: u32,
    /// Attachments of QPs to multicast groups in the engine: one group may have them all.
    pub max_mcast_attach: u32,
    /// What [`crate::layout::Cqe::timestamp_ns`] counts, and how it is read.
    pub clock: DeviceClock,
}

/// State of a port (`ibv_port_attr`, the fields that mean something here).
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PortAttr {
    /// True if the link is up.
    pub active: bool,
    /// Largest path MTU of the device, IB code.
    pub max_mtu: u8,
    /// Largest path MTU that the interface's MTU allows, IB code.
    pub active_mtu: u8,
    /// Entries in the GID table.
    pub gid_tbl_len: u32,
    /// Entries in the P_Key table.
    pub pkey_tbl_len: u16,
    /// Largest message, bytes.
    pub max_msg_sz: u32,
    /// Link speed, Mbit/s; 0 = unknown.
    pub speed_mbps: u32,
    /// MAC address.
    #[serde(with = "mac_bytes")]
    pub mac: MacAddr,
    /// MTU of the interface, bytes of layer 3.
    pub interface_mtu: u16,
    /// What drives the port, such as `net_af_packet`.
    pub driver: String,
    /// The kernel interface that is shared, if any.
    pub kernel_interface: Option<String>,
}

coded_enum! {
    /// Kind of a GID table entry (`ibv_gid_type`, sysfs numbering of RoCE types).
    GidType {
        /// RoCE version 1.
        RoceV1 = 1, "RoCE v1";
        /// RoCE version 2.
        RoceV2 = 2, "RoCE v2";
    }
}

/// One entry of a port's GID table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct GidEntry {
    /// The GID.
    #[serde(with = "gid_bytes")]
    pub gid: Gid,
    /// Its index in the table.
    pub index: u32,
    /// Its kind.
    pub gid_type: GidType,
    /// The VLAN that it belongs to; `None` = untagged frames.
    pub vlan: Option<u16>,
}

/// Depth, SGEs and limit of an SRQ (`ibv_srq_attr`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SrqAttr {
    /// Work requests outstanding at most.
    pub max_wr: u32,
    /// SGEs in a work request at most.
    pub max_sge: u32,
    /// Raise an event when fewer than this many are left; 0 = never.
    pub srq_limit: u32,
}

mod gid_bytes {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use wire::Gid;
    pub(super) fn serialize<S: Serializer>(gid: &Gid, s: S) -> Result<S::Ok, S::Error> {
        gid.0.serialize(s)
    }
    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Gid, D::Error> {
        <[u8; 16]>::deserialize(d).map(Gid)
    }
}

pub(crate) mod mac_bytes {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use wire::MacAddr;
    pub(crate) fn serialize<S: Serializer>(mac: &MacAddr, s: S) -> Result<S::Ok, S::Error> {
        mac.0.serialize(s)
    }
    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<MacAddr, D::Error> {
        <[u8; 6]>::deserialize(d).map(MacAddr)
    }
}
