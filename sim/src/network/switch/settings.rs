//! What a switch is like, and which values make sense.

use crate::network::classify::Classes;
use crate::network::pause::PRIORITY_COUNT;

/// Most ports of a switch.
pub const PORT_COUNT_MAX: usize = 1_024;
/// Slowest and fastest port, Mbit/s.
pub const RATE_MBPS: std::ops::RangeInclusive<u32> = 1..=1_600_000;

/// How much of the shared buffer one queue may have.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Threshold {
    /// So many bytes.
    Static(u64),
    /// So many times what is free (Choudhury and Hahne's dynamic threshold).
    Dynamic(f64),
}

/// When packets are marked (RED on the queue's present length).
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Marking {
    /// No marks below this, bytes.
    pub kmin_bytes: u64,
    /// Every packet is marked above this, bytes.
    pub kmax_bytes: u64,
    /// Share of packets that are marked at `kmax_bytes`, 0 to 1. It rises in a straight line from `kmin_bytes`.
    pub pmax: f64,
}

/// Which of a port's queues sends next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dequeue {
    /// Before all that are weighted, and before strict ones of lower priority.
    Strict,
    /// In turns, this share of the bytes against the others' shares.
    Weighted(u16),
}

/// Flow control towards whoever sends to the switch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PauseSettings {
    /// Priorities that must not lose a frame.
    pub priorities: [bool; PRIORITY_COUNT],
    /// What each such priority of each port may have on top while its sender is being stopped, bytes.
    pub headroom_bytes: u64,
    /// How far below the threshold a priority must be before its sender may go on, bytes.
    pub xon_offset_bytes: u64,
    /// Length of a pause, in quanta of 512 bit times. It is asked for again before it runs out.
    pub quanta: u16,
}

/// What a switch is like.
#[derive(Clone, PartialEq, Debug)]
pub struct SwitchSettings {
    /// All of its buffer, headroom included.
    pub buffer_bytes: u64,
    /// What one queue may have of it.
    pub threshold: Threshold,
    /// Marking, for each priority that has it.
    pub marking: [Option<Marking>; PRIORITY_COUNT],
    /// Flow control.
    pub pause: PauseSettings,
    /// The order of a port's queues.
    pub dequeue: [Dequeue; PRIORITY_COUNT],
    /// What makes a frame's priority.
    pub classes: Classes,
}

impl Default for SwitchSettings {
    /// 16 MiB for all, no marks, no pauses, strict priorities from the upper bits of the DSCP.
    fn default() -> Self {
        Self {
            buffer_bytes: 16 << 20,
            threshold: Threshold::Dynamic(1.0),
            marking: [None; PRIORITY_COUNT],
            pause: PauseSettings {
                priorities: [false; PRIORITY_COUNT],
                headroom_bytes: 100_000,
                xon_offset_bytes: 20_000,
                quanta: u16::MAX,
            },
            dequeue: [Dequeue::Strict; PRIORITY_COUNT],
            classes: Classes::default(),
        }
    }
}

/// Settings that no switch can have.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum BadSettings {
    /// The headroom is more than there is.
    #[error(
        "the headroom of {ports} ports takes {headroom_bytes} bytes, and the buffer has {buffer_bytes}: it must have more than that"
    )]
    NoSharedBuffer {
        /// Ports.
        ports: usize,
        /// Headroom of all of them.
        headroom_bytes: u64,
        /// The buffer.
        buffer_bytes: u64,
    },
    /// Too many ports, or none.
    #[error("a switch has 1 to {PORT_COUNT_MAX} ports, not {0}")]
    Ports(usize),
    /// A port's rate.
    #[error("a port's rate is {least} to {most} Mbit/s, not {0}", least = RATE_MBPS.start(), most = RATE_MBPS.end())]
    Rate(u32),
    /// A factor of a dynamic threshold.
    #[error("a dynamic threshold is more than 0 and at most 1024 times the free buffer, not {0}")]
    Alpha(f64),
    /// A marking curve.
    #[error("marks need kmin <= kmax and pmax from 0 to 1, not {0:?}")]
    Marking(Marking),
    /// A weight.
    #[error("a weight is 1 to {}, not 0", u16::MAX)]
    Weight,
    /// A priority that a DSCP is mapped to.
    #[error("DSCP {0} is mapped to priority {1}: priorities are 0 to 7")]
    Priority(usize, u8),
    /// The length of a pause.
    #[error("a pause is 2 to {most} quanta long, not {0}", most = u16::MAX)]
    Quanta(u16),
}

impl SwitchSettings {
    /// Bytes that `ports` ports have for headroom.
    pub fn headroom_bytes(&self, ports: usize) -> u64 {
        let lossless = self.pause.priorities.iter().filter(|&&is| is).count();
        self.pause.headroom_bytes.saturating_mul((lossless * ports) as u64)
    }

    /// Looks at every value, for a switch with ports of these rates.
    ///
    /// # Errors
    /// The first that cannot be.
    pub fn check(&self, rates_mbps: &[u32]) -> Result<(), BadSettings> {
        let ports = rates_mbps.len();
        if !(1..=PORT_COUNT_MAX).contains(&ports) {
            return Err(BadSettings::Ports(ports));
        }
        if let Some(&rate) = rates_mbps.iter().find(|rate| !RATE_MBPS.contains(rate)) {
            return Err(BadSettings::Rate(rate));
        }
        let headroom_bytes = self.headroom_bytes(ports);
        if headroom_bytes >= self.buffer_bytes {
            return Err(BadSettings::NoSharedBuffer { ports, headroom_bytes, buffer_bytes: self.buffer_bytes });
        }
        if let Threshold::Dynamic(alpha) = self.threshold
            && !(alpha > 0.0 && alpha <= 1024.0)
        {
            return Err(BadSettings::Alpha(alpha));
        }
        let is_bad = |m: &&Marking| m.kmin_bytes > m.kmax_bytes || !(0.0..=1.0).contains(&m.pmax);
        if let Some(&bad) = self.marking.iter().flatten().find(is_bad) {
            return Err(BadSettings::Marking(bad));
        }
        if self.dequeue.contains(&Dequeue::Weighted(0)) {
            return Err(BadSettings::Weight);
        }
        if let Some((dscp, priority)) = self.classes.bad_entry() {
            return Err(BadSettings::Priority(dscp, priority));
        }
        if self.pause.quanta < 2 {
            return Err(BadSettings::Quanta(self.pause.quanta));
        }
        Ok(())
    }
}
