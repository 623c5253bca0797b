//! Base transport header (IBTA 9.2), the start of every packet.
//!
//! ```text
//!  0               1               2               3
//! +---------------+-+-+---+-------+-------------------------------+
//! | opcode        |S|M|pad| TVer  | P_Key                         |
//! +-+-+-----------+-+-+---+-------+-------------------------------+
//! |F|B| reserved  | destination QP                                |
//! +-+-+-----------+-----------------------------------------------+
//! |A| reserved    | PSN                                           |
//! +-+-------------+-----------------------------------------------+
//! ```
//!
//! S solicited event, M migration request, F FECN, B BECN, A acknowledge request. Byte 4 is not covered by the ICRC.

use crate::field::{Fields, fixed_length_header};
use crate::{Opcode, Pkey, Psn, Qpn};

mod field {
    pub(super) const OPCODE: usize = 0;
    pub(super) const FLAGS: usize = 1;
    pub(super) const PKEY: usize = 2;
    pub(super) const CONGESTION: usize = 4;
    pub(super) const DEST_QPN: usize = 5;
    pub(super) const ACK_REQ: usize = 8;
    pub(super) const PSN: usize = 9;
}

const SOLICITED: u8 = 0x80;
const MIG_REQ: u8 = 0x40;
const PAD_COUNT_SHIFT: u32 = 4;
const TVER: u8 = 0x0f;
const FECN: u8 = 0x80;
const BECN: u8 = 0x40;
const ACK_REQ: u8 = 0x80;

/// The base transport header. Reserved bits are neither kept nor checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bth {
    /// What the packet is.
    pub opcode: Opcode,
    /// Solicited event: the responder should raise a completion event.
    pub solicited: bool,
    /// The sender's path migration state is Migrated.
    pub mig_req: bool,
    /// Pad bytes between payload and ICRC, 0..=3.
    pub pad_count: u8,
    /// Transport header version, 0..=15; 0 is the only one there is.
    pub tver: u8,
    /// The sender's partition key.
    pub pkey: Pkey,
    /// Forward congestion notification; RoCEv2 uses the IP header's ECN instead.
    pub fecn: bool,
    /// Backward congestion notification: set in a CNP.
    pub becn: bool,
    /// The queue pair this packet is for.
    pub dest_qpn: Qpn,
    /// The sender wants an acknowledgement.
    pub ack_req: bool,
    /// The packet's sequence number.
    pub psn: Psn,
}

impl Bth {
    /// Length in bytes.
    pub const LEN: usize = 12;
    /// Offset of the byte with FECN and BECN, which switches may change and the ICRC leaves out.
    pub const CONGESTION_OFFSET: usize = field::CONGESTION;

    /// A header as a queue pair without an alternate path sends it: migrated, default P_Key, all else zero.
    #[inline]
    #[must_use]
    pub const fn new(opcode: Opcode, dest_qpn: Qpn, psn: Psn) -> Self {
        Self {
            opcode,
            solicited: false,
            mig_req: true,
            pad_count: 0,
            tver: 0,
            pkey: Pkey::DEFAULT,
            fecn: false,
            becn: false,
            dest_qpn,
            ack_req: false,
            psn,
        }
    }

    /// Decodes the header.
    #[inline]
    #[must_use]
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Self {
        let flags = bytes.be8::<{ field::FLAGS }>();
        let congestion = bytes.be8::<{ field::CONGESTION }>();
        Self {
            opcode: Opcode(bytes.be8::<{ field::OPCODE }>()),
            solicited: flags & SOLICITED != 0,
            mig_req: flags & MIG_REQ != 0,
            pad_count: flags >> PAD_COUNT_SHIFT & 3,
            tver: flags & TVER,
            pkey: Pkey(bytes.be16::<{ field::PKEY }>()),
            fecn: congestion & FECN != 0,
            becn: congestion & BECN != 0,
            dest_qpn: Qpn::new(bytes.be24::<{ field::DEST_QPN }>()),
            ack_req: bytes.be8::<{ field::ACK_REQ }>() & ACK_REQ != 0,
            psn: Psn::new(bytes.be24::<{ field::PSN }>()),
        }
    }

    /// Encodes the header.
    #[inline]
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        let flags = if self.solicited { SOLICITED } else { 0 }
            | if self.mig_req { MIG_REQ } else { 0 }
            | (self.pad_count & 3) << PAD_COUNT_SHIFT
            | self.tver & TVER;
        let congestion = if self.fecn { FECN } else { 0 } | if self.becn { BECN } else { 0 };
        bytes.put::<{ field::OPCODE }, 2>([self.opcode.0, flags]);
        bytes.put_be16::<{ field::PKEY }>(self.pkey.0);
        bytes.put::<{ field::CONGESTION }, 1>([congestion]);
        bytes.put_be24::<{ field::DEST_QPN }>(self.dest_qpn.value());
        bytes.put::<{ field::ACK_REQ }, 1>([if self.ack_req { ACK_REQ } else { 0 }]);
        bytes.put_be24::<{ field::PSN }>(self.psn.value());
        bytes
    }
}

fixed_length_header!(Bth);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bth_captured_header_decodes() {
        // RC SEND Only of an rxe host, acknowledge request set.
        let bytes = [0x04, 0x00, 0xff, 0xff, 0x00, 0x00, 0x00, 0x27, 0x80, 0x0a, 0x00, 0x00];
        let mut bth = Bth::new(Opcode::RC_SEND_ONLY, Qpn::new(0x27), Psn::new(0xa_0000));
        bth.ack_req = true;
        bth.mig_req = false;
        assert_eq!(Bth::from_bytes(&bytes), bth);
        assert_eq!(bth.to_bytes(), bytes);
    }

    #[test]
    fn bth_each_bit_is_a_field_or_reserved() {
        let reserved = |bit: usize| (34..40).contains(&bit) || (65..72).contains(&bit);
        for bit in 0..Bth::LEN * 8 {
            let mut bytes = [0; Bth::LEN];
            bytes[bit / 8] = 0x80 >> (bit % 8);
            let expected = if reserved(bit) { [0; Bth::LEN] } else { bytes };
            assert_eq!(Bth::from_bytes(&bytes).to_bytes(), expected, "bit {bit}");
        }
    }

    #[test]
    fn bth_short_buffer_is_refused() {
        let bth = Bth::new(Opcode::CNP, Qpn::GSI, Psn::new(0));
        assert_eq!(Bth::parse(&[0; Bth::LEN - 1]), None);
        assert_eq!(bth.emit(&mut [0; Bth::LEN - 1]), None);
        assert_eq!(bth.emit(&mut [0; Bth::LEN + 2]).map(|rest| rest.len()), Some(2));
    }
}
