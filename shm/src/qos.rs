//! Quality of service of a port: which packets have which priority, how priorities share the port, and which of them obey and
//! send priority flow control (IEEE 802.1Qbb, 802.1Qaz). In the spirit, and with the words, of `mlnx_qos`.

use std::fmt;
use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

/// Priorities of a link, and traffic classes of a port.
pub const PRIORITY_COUNT: usize = 8;
/// Code points of the DS field (RFC 2474).
pub const DSCP_COUNT: usize = 64;

/// Where a packet's priority is read from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Trust {
    /// From the IP header's DSCP, by [`QosSettings::dscp_to_priority`].
    #[default]
    Dscp,
    /// From the VLAN tag's PCP; untagged frames have priority 0.
    Pcp,
}

impl Trust {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Dscp, Self::Pcp];

    /// The operator's word for it.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Dscp => "dscp",
            Self::Pcp => "pcp",
        }
    }
}

/// How a traffic class takes its turn (`mlnx_qos --tsa`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Tsa {
    /// Before all others; of several, the class of the highest number first.
    Strict,
    /// With its weight's share of what strict classes leave.
    #[default]
    Ets,
}

impl Tsa {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Strict, Self::Ets];

    /// The operator's word for it.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Strict => "strict",
            Self::Ets => "ets",
        }
    }
}

/// The priority of each DSCP.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DscpMap([[u8; 8]; 8]);

impl DscpMap {
    /// The priority of a DSCP; bits above its six are left out.
    pub fn priority(&self, dscp: u8) -> u8 {
        let [row, column] = [usize::from(dscp >> 3 & 7), usize::from(dscp & 7)];
        self.0.get(row).and_then(|row| row.get(column)).copied().unwrap_or(0)
    }

    /// The priority of each DSCP, in their order.
    pub fn iter(&self) -> impl Iterator<Item = u8> + '_ {
        self.0.iter().flatten().copied()
    }

    fn set(&mut self, dscp: u8, priority: u8) {
        if let Some(place) = self.0.get_mut(usize::from(dscp >> 3)).and_then(|row| row.get_mut(usize::from(dscp & 7))) {
            *place = priority;
        }
    }
}

impl Default for DscpMap {
    /// The class selector's three bits (RFC 2474 4.2.2).
    fn default() -> Self {
        Self([[0; 8], [1; 8], [2; 8], [3; 8], [4; 8], [5; 8], [6; 8], [7; 8]])
    }
}

/// Declares the settings that are numbers: one table for the configuration file, the command line, checks and documents.
macro_rules! numbers {
    ($($(#[doc = $meaning:literal])* $variant:ident $key:ident: $default:literal in $range:expr,)*) => {
        /// A setting that is a number.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
        pub enum QosNumber {
            $($(#[doc = $meaning])* $variant,)*
        }

        impl QosNumber {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// Its key.
            pub const fn key(self) -> &'static str {
                match self { $(Self::$variant => stringify!($key),)* }
            }

            /// What it means.
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$variant => concat!($($meaning),*),)* }
            }

            /// Its legal values.
            pub const fn range(self) -> RangeInclusive<u32> {
                match self { $(Self::$variant => $range,)* }
            }
        }

        /// The settings that are numbers.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
        pub struct QosNumbers {
            $($(#[doc = $meaning])* pub $key: u32,)*
        }

        impl QosNumbers {
            /// The value of one.
            pub const fn get(&self, number: QosNumber) -> u32 {
                match number { $(QosNumber::$variant => self.$key,)* }
            }

            const fn set(&mut self, number: QosNumber, value: u32) {
                match number { $(QosNumber::$variant => self.$key = value,)* }
            }
        }

        impl Default for QosNumbers {
            fn default() -> Self {
                Self { $($key: $default,)* }
            }
        }
    };
}

numbers! {
    /// Frames of a priority that wait to be received, of which on its peer is told to pause.
    XoffFrames pfc_xoff_frames: 256 in 1..=65_535,
    /// Frames of a priority that still wait when its peer is told to go on; fewer than `pfc_xoff_frames`.
    XonFrames pfc_xon_frames: 64 in 0..=65_534,
    /// Free slots of a receive queue, below which all priorities with flow control are told to pause: room for what is under way.
    HeadroomFrames pfc_headroom_frames: 128 in 0..=65_535,
    /// How long each pause is that we ask for, in quanta of 512 bit times; it is asked for again at half of it.
    PauseQuanta pfc_pause_quanta: 65535 in 1..=65_535,
    /// Milliseconds without an end to a pause that are a storm; without any frame either way, if we pause the peer too, a suspected deadlock. 0 = nobody looks.
    WatchdogMs pfc_watchdog_ms: 400 in 0..=60_000,
    /// Milliseconds for which pauses of a priority are ignored after a storm of it. 0 = they are obeyed all the same.
    IgnoreMs pfc_watchdog_ignore_ms: 0 in 0..=60_000,
}

/// All settings of a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct QosSettings {
    /// Where a packet's priority is read from.
    pub trust: Trust,
    /// Priority of each DSCP.
    pub dscp_to_priority: DscpMap,
    /// Traffic class of each priority.
    pub priority_to_class: [u8; PRIORITY_COUNT],
    /// How each traffic class takes its turn.
    pub tsa: [Tsa; PRIORITY_COUNT],
    /// Weight of each traffic class: per cent, if they add up to 100. Of no meaning where it is strict.
    pub weights: [u8; PRIORITY_COUNT],
    /// Priorities that obey and send PFC frames.
    pub pfc: [bool; PRIORITY_COUNT],
    /// The rest.
    pub numbers: QosNumbers,
}

impl Default for QosSettings {
    /// Each priority a class of its own, equal shares, no flow control.
    fn default() -> Self {
        Self {
            trust: Trust::default(),
            dscp_to_priority: DscpMap::default(),
            priority_to_class: [0, 1, 2, 3, 4, 5, 6, 7],
            tsa: [Tsa::Ets; PRIORITY_COUNT],
            weights: [13, 13, 13, 13, 12, 12, 12, 12],
            pfc: [false; PRIORITY_COUNT],
            numbers: QosNumbers::default(),
        }
    }
}

/// A change of settings: what is `None` or empty stays as it is.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct QosChange {
    /// Where a packet's priority is read from.
    pub trust: Option<Trust>,
    /// Every DSCP gets its usual priority first.
    pub reset_dscp: bool,
    /// DSCPs and their priorities.
    pub dscp_to_priority: Vec<(u8, u8)>,
    /// Traffic class of each priority.
    pub priority_to_class: Option<[u8; PRIORITY_COUNT]>,
    /// How each traffic class takes its turn.
    pub tsa: Option<[Tsa; PRIORITY_COUNT]>,
    /// Weight of each traffic class.
    pub weights: Option<[u8; PRIORITY_COUNT]>,
    /// Priorities with flow control.
    pub pfc: Option<[bool; PRIORITY_COUNT]>,
    /// Numbers.
    pub numbers: Vec<(QosNumber, u32)>,
}

/// Why settings are refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QosError {
    /// A DSCP out of range.
    Dscp(u8),
    /// A priority out of range.
    Priority {
        /// Of this DSCP.
        dscp: u8,
        /// The priority.
        priority: u8,
    },
    /// A traffic class out of range.
    Class {
        /// Of this priority.
        priority: usize,
        /// The class.
        class: u8,
    },
    /// A class that is not strict needs a weight, and none is over 100.
    Weight {
        /// The class.
        class: usize,
        /// The weight.
        weight: u8,
    },
    /// A number out of range.
    Number {
        /// Which.
        number: QosNumber,
        /// Its value.
        value: u32,
    },
    /// A pause that ends where it begins would not end or not begin.
    Thresholds {
        /// `pfc_xoff_frames`.
        xoff: u32,
        /// `pfc_xon_frames`.
        xon: u32,
    },
}

impl fmt::Display for QosError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Dscp(dscp) => write!(f, "DSCP {dscp} does not exist: 0 to 63 do"),
            Self::Priority { dscp, priority } => {
                write!(f, "priority {priority} of DSCP {dscp} does not exist: 0 to 7 do")
            }
            Self::Class { priority, class } => {
                write!(f, "traffic class {class} of priority {priority} does not exist: 0 to 7 do")
            }
            Self::Weight { class, weight } => {
                write!(f, "weight {weight} of traffic class {class}: 1 to 100 are possible, and 0 if it is strict")
            }
            Self::Number { number, value } => {
                let (key, range) = (number.key(), number.range());
                write!(f, "{key} = {value}: {} to {} are possible", range.start(), range.end())
            }
            Self::Thresholds { xoff, xon } => {
                write!(f, "pfc_xon_frames = {xon}: fewer than pfc_xoff_frames, which is {xoff}, are possible")
            }
        }
    }
}

impl std::error::Error for QosError {}

impl QosSettings {
    /// What these settings become by a change.
    ///
    /// # Errors
    /// [`QosError`]: a sentence for the operator.
    pub fn changed(&self, change: &QosChange) -> Result<Self, QosError> {
        let mut new = *self;
        new.trust = change.trust.unwrap_or(new.trust);
        if change.reset_dscp {
            new.dscp_to_priority = DscpMap::default();
        }
        for &(dscp, priority) in &change.dscp_to_priority {
            if usize::from(dscp) >= DSCP_COUNT {
                return Err(QosError::Dscp(dscp));
            }
            if usize::from(priority) >= PRIORITY_COUNT {
                return Err(QosError::Priority { dscp, priority });
            }
            new.dscp_to_priority.set(dscp, priority);
        }
        new.priority_to_class = change.priority_to_class.unwrap_or(new.priority_to_class);
        new.tsa = change.tsa.unwrap_or(new.tsa);
        new.weights = change.weights.unwrap_or(new.weights);
        new.pfc = change.pfc.unwrap_or(new.pfc);
        for &(number, value) in &change.numbers {
            new.numbers.set(number, value);
        }
        new.check()?;
        Ok(new)
    }

    fn check(&self) -> Result<(), QosError> {
        for (priority, &class) in self.priority_to_class.iter().enumerate() {
            if usize::from(class) >= PRIORITY_COUNT {
                return Err(QosError::Class { priority, class });
            }
        }
        for (class, (&tsa, &weight)) in self.tsa.iter().zip(&self.weights).enumerate() {
            let least = u8::from(tsa == Tsa::Ets);
            if !(least..=100).contains(&weight) {
                return Err(QosError::Weight { class, weight });
            }
        }
        for &number in QosNumber::ALL {
            let value = self.numbers.get(number);
            if !number.range().contains(&value) {
                return Err(QosError::Number { number, value });
            }
        }
        let QosNumbers { pfc_xoff_frames: xoff, pfc_xon_frames: xon, .. } = self.numbers;
        if xon >= xoff { Err(QosError::Thresholds { xoff, xon }) } else { Ok(()) }
    }

    /// Priorities with flow control, as bits.
    pub fn pfc_mask(&self) -> u8 {
        (0..).zip(self.pfc).filter(|&(_, on)| on).fold(0, |mask, (priority, _): (u8, bool)| mask | 1 << priority)
    }
}

/// Who obeys and sends the PFC frames of a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum PfcBy {
    /// No priority has flow control.
    Nobody,
    /// The engine: the device can't.
    Engine,
    /// The device.
    Device,
}

impl PfcBy {
    /// The operator's word for it.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Nobody => "nobody",
            Self::Engine => "engine",
            Self::Device => "device",
        }
    }
}

/// What is known of a priority of a port.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PriorityState {
    /// The peer has it paused.
    pub paused: bool,
    /// We have told the peer to pause it.
    pub pausing: bool,
    /// Pauses of it are ignored for a while, after a storm.
    pub ignoring: bool,
    /// Counters, by name.
    pub counters: Vec<(String, u64)>,
}

/// Quality of service of a port, as it is now.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PortQos {
    /// The port, from 1.
    pub port_num: u8,
    /// What is set.
    pub settings: QosSettings,
    /// Who obeys and sends PFC frames.
    pub pfc_by: PfcBy,
    /// By priority.
    pub priorities: Vec<PriorityState>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(change: QosChange) -> Result<QosSettings, String> {
        QosSettings::default().changed(&change).map_err(|error| error.to_string())
    }

    #[test]
    fn every_dscp_has_its_class_selectors_priority_until_it_is_set() {
        let usual = QosSettings::default();
        assert!((0..64).all(|dscp| usual.dscp_to_priority.priority(dscp) == dscp >> 3));
        let new = changed(QosChange { dscp_to_priority: vec![(26, 5), (63, 0)], ..QosChange::default() }).unwrap();
        for dscp in 0..64 {
            let expected = match dscp {
                26 => 5,
                63 => 0,
                _ => dscp >> 3,
            };
            assert_eq!(new.dscp_to_priority.priority(dscp), expected, "DSCP {dscp}");
        }
        let back = new.changed(&QosChange { reset_dscp: true, ..QosChange::default() }).unwrap();
        assert_eq!(back, usual);
    }

    #[test]
    fn settings_out_of_range_are_refused_with_the_range() {
        let with = |f: fn(&mut QosChange)| {
            let mut change = QosChange::default();
            f(&mut change);
            changed(change).unwrap_err()
        };
        let refused = [
            with(|c| c.dscp_to_priority = vec![(64, 0)]),
            with(|c| c.dscp_to_priority = vec![(1, 8)]),
            with(|c| c.priority_to_class = Some([0, 0, 0, 8, 0, 0, 0, 0])),
            with(|c| c.weights = Some([0, 1, 1, 1, 1, 1, 1, 1])),
            with(|c| c.weights = Some([101, 1, 1, 1, 1, 1, 1, 1])),
            with(|c| c.numbers = vec![(QosNumber::PauseQuanta, 0)]),
            with(|c| c.numbers = vec![(QosNumber::XonFrames, 256)]),
        ];
        assert_eq!(
            refused.map(|sentence| sentence.rsplit_once(": ").map(|(_, legal)| legal.to_owned()).unwrap()),
            [
                "0 to 63 do",
                "0 to 7 do",
                "0 to 7 do",
                "1 to 100 are possible, and 0 if it is strict",
                "1 to 100 are possible, and 0 if it is strict",
                "1 to 65535 are possible",
                "fewer than pfc_xoff_frames, which is 256, are possible",
            ]
        );
    }

    #[test]
    fn a_strict_class_needs_no_weight() {
        let strict_0 = [Tsa::Strict, Tsa::Ets, Tsa::Ets, Tsa::Ets, Tsa::Ets, Tsa::Ets, Tsa::Ets, Tsa::Ets];
        let change =
            QosChange { tsa: Some(strict_0), weights: Some([0, 50, 50, 1, 1, 1, 1, 1]), ..QosChange::default() };
        assert_eq!(changed(change).unwrap().weights[0], 0);
    }

    #[test]
    fn defaults_are_legal() {
        assert_eq!(changed(QosChange::default()), Ok(QosSettings::default()));
    }
}
