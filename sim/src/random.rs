//! Randomness, all of it from one seed. Every node and every direction of a link has a stream of its own, so that what one of
//! them draws does not shift the others' luck.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// A stream of random numbers. The same on every machine and in every version.
pub type Stream = ChaCha8Rng;

/// Whose stream it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StreamOf {
    /// Settings of the run.
    Settings,
    /// Memory keys of a host.
    Host(u8),
    /// Faults of the direction that a host sends to.
    Direction(u8),
    /// An application: number of its conversation.
    Conversation(u8),
    /// An application that is no conversation.
    Guest(u8),
    /// Settings of such applications: what they are does not change the rest of the run's settings.
    GuestSettings,
    /// A workload: its number in the scenario.
    Workload(u8),
    /// Memory keys of a host of a network.
    Node(u16),
    /// Faults of one direction of a network's link.
    Line(u16),
    /// A switch: which packets it marks.
    Switch(u16),
    /// What the applications of a network draw: PSNs, bytes.
    Traffic,
    /// How the hosts make up for losses.
    Recovery,
    /// What else the hosts put up with.
    Holds,
    /// Settings of the run of a network.
    NetworkSettings,
}

/// Streams of networks are numbered from here: there are more of a kind.
const NETWORK: u64 = 1 << 32;

impl StreamOf {
    fn number(self) -> u64 {
        let (kind, number) = match self {
            Self::Settings => (0, 0),
            Self::Host(number) => (1, number),
            Self::Direction(number) => (2, number),
            Self::Conversation(number) => (3, number),
            Self::Guest(number) => (4, number),
            Self::GuestSettings => (5, 0),
            Self::Workload(number) => (6, number),
            Self::Node(number) => return NETWORK | u64::from(number),
            Self::Line(number) => return NETWORK | 1 << 16 | u64::from(number),
            Self::Switch(number) => return NETWORK | 2 << 16 | u64::from(number),
            Self::Traffic => return NETWORK | 3 << 16,
            Self::Recovery => (7, 0),
            Self::Holds => (8, 0),
            Self::NetworkSettings => return NETWORK | 4 << 16,
        };
        kind << 8 | u64::from(number)
    }
}

/// The stream of `of` in the run of `seed`.
pub fn stream(seed: u64, of: StreamOf) -> Stream {
    let mut stream = Stream::seed_from_u64(seed);
    stream.set_stream(of.number());
    stream
}

/// True in `ppm` of a million cases. Draws nothing if that is 0, so that a fault that is off leaves the stream alone.
pub fn chance(stream: &mut Stream, ppm: u32) -> bool {
    ppm > 0 && stream.random_range(0..1_000_000) < ppm
}

/// A number from 0 to `max`, each order of magnitude as likely as any other.
pub fn log_uniform(stream: &mut Stream, max: u32) -> u32 {
    let bits = stream.random_range(0..=u32::BITS - max.leading_zeros());
    stream.random_range(0..=(1u64 << bits) - 1).min(u64::from(max)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_of_one_seed_differ_and_repeat() {
        let first = |seed, of| stream(seed, of).random::<u64>();
        assert_eq!(first(1, StreamOf::Host(0)), first(1, StreamOf::Host(0)));
        assert_ne!(first(1, StreamOf::Host(0)), first(1, StreamOf::Direction(0)));
        assert_ne!(first(1, StreamOf::Host(0)), first(2, StreamOf::Host(0)));
    }

    #[test]
    fn log_uniform_reaches_both_ends_and_no_further() {
        let mut stream = stream(7, StreamOf::Settings);
        let drawn: Vec<u32> = (0..2_000).map(|_| log_uniform(&mut stream, 300)).collect();
        assert_eq!((drawn.iter().min(), drawn.iter().max()), (Some(&0), Some(&300)));
    }
}
