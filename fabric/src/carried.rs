//! What a link carries: frames of stations, and the switch's own pauses.

use sim::frame::FrameStorage;
use wire::PfcRepr;

/// A frame on its way.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Carried<F> {
    /// One that came in by a port.
    Frame(F),
    /// A pause, which needs no buffer until a device sends it.
    Pause([u8; PfcRepr::LEN]),
}

impl<F: FrameStorage> FrameStorage for Carried<F> {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Frame(frame) => frame.bytes(),
            Self::Pause(bytes) => bytes,
        }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Frame(frame) => frame.bytes_mut(),
            Self::Pause(bytes) => bytes,
        }
    }

    fn duplicate(&self) -> Option<Self> {
        match self {
            Self::Frame(frame) => frame.duplicate().map(Self::Frame),
            Self::Pause(bytes) => Some(Self::Pause(*bytes)),
        }
    }

    fn resize(&mut self, bytes: usize) -> bool {
        match self {
            Self::Frame(frame) => frame.resize(bytes),
            // It has the one length that it can have.
            Self::Pause(pause) => pause.len() == bytes,
        }
    }
}
