//! MAC control frames: priority flow control (IEEE 802.1Qbb) and link-level PAUSE (IEEE 802.3 annex 31B).

use crate::MacAddr;
use crate::ethernet::{EtherType, EthernetRepr, MIN_FRAME_BYTES};
use crate::field::Fields;

/// Where these frames go: bridges do not forward this address.
pub const PFC_DESTINATION: MacAddr = MacAddr([0x01, 0x80, 0xc2, 0x00, 0x00, 0x01]);

const OPCODE_PAUSE: u16 = 0x0001;
const OPCODE_PFC: u16 = 0x0101;

/// Offsets after the Ethernet header.
mod field {
    pub(super) const OPCODE: usize = 0;
    pub(super) const CLASSES: usize = 2;
    pub(super) const PAUSE_TIME: usize = 2;
    pub(super) const QUANTA: usize = 4;
}

const PFC_BODY_LEN: usize = 20;

/// What a pause frame asks for. Times are in quanta of 512 bit times at the port's speed; 0 resumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PfcRepr {
    /// Pause time for each priority that the frame names; `None` leaves the priority as it is.
    Priority([Option<u16>; 8]),
    /// Pause time for the whole link.
    Link(u16),
}

impl PfcRepr {
    /// Length of the frame: it is padded to the shortest that Ethernet sends.
    pub const LEN: usize = MIN_FRAME_BYTES;

    /// Decodes a whole frame; `None` if it is anything else. A tag in front is refused: the standard has these frames
    /// untagged.
    #[must_use]
    pub fn parse(frame: &[u8]) -> Option<Self> {
        let ethernet = EthernetRepr::parse(frame)?;
        if ethernet.dst != PFC_DESTINATION || ethernet.ether_type != EtherType::MAC_CONTROL {
            return None;
        }
        let body = frame.get(EthernetRepr::LEN..)?;
        let head: &[u8; 4] = body.first_chunk()?;
        match head.be16::<{ field::OPCODE }>() {
            OPCODE_PAUSE => Some(Self::Link(head.be16::<{ field::PAUSE_TIME }>())),
            OPCODE_PFC => {
                let body: &[u8; PFC_BODY_LEN] = body.first_chunk()?;
                // The high byte of the vector is reserved.
                let [_, classes] = body.array::<{ field::CLASSES }, 2>();
                let times = body.array::<{ field::QUANTA }, 16>();
                let mut quanta = [None; 8];
                for (priority, (quantum, &time)) in quanta.iter_mut().zip(times.as_chunks().0).enumerate() {
                    *quantum = (classes >> priority & 1 == 1).then_some(u16::from_be_bytes(time));
                }
                Some(Self::Priority(quanta))
            }
            _ => None,
        }
    }

    /// Encodes the whole frame, sent by `src`.
    #[must_use]
    pub fn to_bytes(self, src: MacAddr) -> [u8; Self::LEN] {
        let mut frame = [0; Self::LEN];
        let ethernet = EthernetRepr { dst: PFC_DESTINATION, src, ether_type: EtherType::MAC_CONTROL };
        frame.put::<0, { EthernetRepr::LEN }>(ethernet.to_bytes());
        frame.put::<{ EthernetRepr::LEN }, PFC_BODY_LEN>(match self {
            Self::Priority(quanta) => priority_body(quanta),
            Self::Link(time) => link_body(time),
        });
        frame
    }
}

fn priority_body(quanta: [Option<u16>; 8]) -> [u8; PFC_BODY_LEN] {
    let mut classes = 0;
    let mut times = [0; 16];
    for (priority, (quantum, time)) in quanta.into_iter().zip(times.as_chunks_mut().0).enumerate() {
        if let Some(quantum) = quantum {
            classes |= 1 << priority;
            *time = quantum.to_be_bytes();
        }
    }
    let mut body = [0; PFC_BODY_LEN];
    body.put_be16::<{ field::OPCODE }>(OPCODE_PFC);
    body.put_be16::<{ field::CLASSES }>(classes);
    body.put::<{ field::QUANTA }, 16>(times);
    body
}

fn link_body(time: u16) -> [u8; PFC_BODY_LEN] {
    let mut body = [0; PFC_BODY_LEN];
    body.put_be16::<{ field::OPCODE }>(OPCODE_PAUSE);
    body.put_be16::<{ field::PAUSE_TIME }>(time);
    body
}

#[cfg(test)]
mod tests {
    use super::*;

    const SRC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);

    #[test]
    fn pfc_priority_frame_has_the_standards_layout() {
        let mut quanta = [None; 8];
        quanta[3] = Some(0xffff);
        quanta[5] = Some(0);
        let frame = PfcRepr::Priority(quanta).to_bytes(SRC);
        let mut expected = [0; 60];
        expected[..18].copy_from_slice(&[1, 0x80, 0xc2, 0, 0, 1, 2, 0, 0, 0, 0, 1, 0x88, 0x08, 0x01, 0x01, 0x00, 0x28]);
        expected[24..26].copy_from_slice(&[0xff, 0xff]);
        assert_eq!(frame, expected);
        assert_eq!(PfcRepr::parse(&frame), Some(PfcRepr::Priority(quanta)));
    }

    #[test]
    fn pfc_link_pause_round_trips() {
        let frame = PfcRepr::Link(0x1234).to_bytes(SRC);
        assert_eq!(frame[14..18], [0x00, 0x01, 0x12, 0x34]);
        assert_eq!(PfcRepr::parse(&frame), Some(PfcRepr::Link(0x1234)));
    }

    #[test]
    fn pfc_anything_else_is_refused() {
        let frame = PfcRepr::Priority([Some(1); 8]).to_bytes(SRC);
        for at in (0..6).chain(12..16) {
            let mut other = frame;
            other[at] ^= 0x04;
            assert_eq!(PfcRepr::parse(&other), None, "byte {at}");
        }
        for len in 0..34 {
            assert_eq!(PfcRepr::parse(&frame[..len]), None, "{len} bytes");
        }
    }
}
