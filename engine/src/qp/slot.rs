//! The engine's private copy of a posted work request, kept until it completes: shared memory is read once.

use shm::attr::{QpType, SendFlags, WcStatus, WrOpcode};
use shm::layout::SendWqe;
use wire::{Opcode, Psn};

use crate::cause::ErrorCause;

/// A work request that was found wrong when it was fetched: it completes with this when its turn comes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct WqeError {
    pub(crate) status: WcStatus,
    pub(crate) cause: ErrorCause,
}

impl WqeError {
    /// What a work request completes with whose packet could not be built.
    pub(crate) const fn of_packet(cause: ErrorCause) -> Self {
        let status = match cause {
            ErrorCause::FrameTooLong => WcStatus::GeneralErr,
            ErrorCause::BadWqe => WcStatus::LocQpOpErr,
            _ => WcStatus::LocProtErr,
        };
        Self { status, cause }
    }
}

/// A send work request. One cache line.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct SendSlot {
    pub(crate) wr_id: u64,
    pub(crate) remote_addr: u64,
    pub(crate) compare_add: u64,
    pub(crate) swap: u64,
    pub(crate) rkey: u32,
    /// Immediate data or key, in the wire's byte order.
    pub(crate) imm: u32,
    /// Bytes of the message.
    pub(crate) length: u32,
    /// PSN of its first packet; valid once started.
    pub(crate) first_psn: Psn,
    /// PSNs that it takes; 0 for what never leaves the engine.
    pub(crate) packets: u32,
    pub(crate) opcode: WrOpcode,
    pub(crate) flags: SendFlags,
    pub(crate) sge_count: u8,
    pub(crate) error: Option<WqeError>,
}

const _: () = assert!(size_of::<SendSlot>() == 64);

impl SendSlot {
    /// An empty slot.
    pub(crate) const EMPTY: Self = Self {
        wr_id: 0,
        remote_addr: 0,
        compare_add: 0,
        swap: 0,
        rkey: 0,
        imm: 0,
        length: 0,
        first_psn: Psn::new(0),
        packets: 0,
        opcode: WrOpcode::Send,
        flags: SendFlags::NONE,
        sge_count: 0,
        error: None,
    };

    /// The PSN after its last one.
    #[inline]
    pub(crate) fn end_psn(&self) -> Psn {
        self.first_psn.add(self.packets)
    }

    /// True if its packets carry payload from here.
    #[inline]
    pub(crate) fn sends_payload(&self) -> bool {
        !self.opcode.is_read_or_atomic()
    }

    /// Opcode of packet `packet` of this message: the service's bits over the operation's, which all services share.
    #[inline]
    pub(crate) fn packet_opcode(&self, kind: QpType, packet: u32) -> Opcode {
        Opcode(self.operation(packet).0 | service_bits(kind))
    }

    /// Number of the SRQ that an XRC request is for.
    #[inline]
    pub(crate) fn srqn(&self) -> u32 {
        SendWqe { opcode: self.opcode.code(), imm: self.imm, swap: self.swap, ..SendWqe::default() }.srqn()
    }

    #[inline]
    fn operation(&self, packet: u32) -> Opcode {
        let (first, last) = (packet == 0, packet + 1 == self.packets);
        match self.opcode {
            WrOpcode::RdmaRead => Opcode::RC_READ_REQUEST,
            WrOpcode::AtomicCmpAndSwp => Opcode::RC_CMP_SWAP,
            WrOpcode::AtomicFetchAndAdd => Opcode::RC_FETCH_ADD,
            WrOpcode::RdmaWrite | WrOpcode::RdmaWriteWithImm => {
                let imm = self.opcode == WrOpcode::RdmaWriteWithImm;
                match (first, last, imm) {
                    (true, true, false) => Opcode::RC_WRITE_ONLY,
                    (true, true, true) => Opcode::RC_WRITE_ONLY_IMM,
                    (true, false, _) => Opcode::RC_WRITE_FIRST,
                    (false, false, _) => Opcode::RC_WRITE_MIDDLE,
                    (false, true, false) => Opcode::RC_WRITE_LAST,
                    (false, true, true) => Opcode::RC_WRITE_LAST_IMM,
                }
            }
            _ => match (first, last, self.opcode) {
                (true, false, _) => Opcode::RC_SEND_FIRST,
                (false, false, _) => Opcode::RC_SEND_MIDDLE,
                (true, true, WrOpcode::SendWithImm) => Opcode::RC_SEND_ONLY_IMM,
                (true, true, WrOpcode::SendWithInv) => Opcode::RC_SEND_ONLY_INV,
                (true, true, _) => Opcode::RC_SEND_ONLY,
                (false, true, WrOpcode::SendWithImm) => Opcode::RC_SEND_LAST_IMM,
                (false, true, WrOpcode::SendWithInv) => Opcode::RC_SEND_LAST_INV,
                (false, true, _) => Opcode::RC_SEND_LAST,
            },
        }
    }
}

/// The upper three bits of a service's opcodes. IBTA 9.2.1, A14.
#[inline]
pub(super) const fn service_bits(kind: QpType) -> u8 {
    match kind {
        QpType::Rc => 0x00,
        QpType::Uc => 0x20,
        QpType::Ud => 0x60,
        QpType::XrcSend | QpType::XrcRecv => 0xa0,
    }
}
