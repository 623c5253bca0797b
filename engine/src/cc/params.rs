//! The parameters of congestion control: one table, from which come defaults, validation, `ferroce cc show`, the keys of
//! `[congestion]` and the table of `docs/congestion.md`.

use super::value::Unit;

/// How a QP's rate and window follow from what it sees of the network.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum Algorithm {
    /// Nothing but the limits that the operator sets.
    None,
    /// DCQCN as NVIDIA's adapters are shipped.
    #[default]
    DcqcnNvidia,
    /// DCQCN as published (SIGCOMM 2015).
    DcqcnPaper,
    /// TIMELY with the patch that makes it fair (CoNEXT 2016).
    Timely,
    /// TIMELY as published (SIGCOMM 2015).
    TimelyOriginal,
    /// Swift (SIGCOMM 2020).
    Swift,
}

impl Algorithm {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::None, Self::DcqcnNvidia, Self::DcqcnPaper, Self::Timely, Self::TimelyOriginal, Self::Swift];

    /// Its name in files and commands.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::DcqcnNvidia => "dcqcn-nvidia",
            Self::DcqcnPaper => "dcqcn-paper",
            Self::Timely => "timely",
            Self::TimelyOriginal => "timely-original",
            Self::Swift => "swift",
        }
    }

    /// The algorithm of a name; `dcqcn` is the profile of NVIDIA's adapters.
    pub fn from_name(name: &str) -> Option<Self> {
        let name = if name == "dcqcn" { "dcqcn-nvidia" } else { name };
        Self::ALL.into_iter().find(|algorithm| algorithm.name() == name)
    }
}

/// Which algorithms have a parameter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Users {
    /// All, and also a QP without any: limits, and what the receiver does.
    Everyone,
    /// Both profiles of DCQCN.
    Dcqcn,
    /// Both forms of TIMELY.
    Timely,
    /// The original TIMELY.
    TimelyOriginal,
    /// Swift.
    Swift,
    /// Those that control a rate: DCQCN and TIMELY.
    Rates,
}

impl Users {
    /// Whether an algorithm is one of them.
    pub const fn include(self, algorithm: Algorithm) -> bool {
        let dcqcn = matches!(algorithm, Algorithm::DcqcnNvidia | Algorithm::DcqcnPaper);
        let timely = matches!(algorithm, Algorithm::Timely | Algorithm::TimelyOriginal);
        match self {
            Self::Everyone => true,
            Self::Dcqcn => dcqcn,
            Self::Timely => timely,
            Self::TimelyOriginal => matches!(algorithm, Algorithm::TimelyOriginal),
            Self::Swift => matches!(algorithm, Algorithm::Swift),
            Self::Rates => dcqcn || timely,
        }
    }

    /// How tables name them.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Everyone => "all",
            Self::Dcqcn => "dcqcn",
            Self::Timely => "timely",
            Self::TimelyOriginal => "timely-original",
            Self::Swift => "swift",
            Self::Rates => "dcqcn, timely",
        }
    }
}

/// What there is to know of a parameter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Param {
    /// Which it is.
    pub id: ParamId,
    /// Its name in files and commands.
    pub name: &'static str,
    /// What its value counts.
    pub unit: Unit,
    /// Which algorithms have it.
    pub users: Users,
    /// Value of an algorithm that has no other.
    pub default: u64,
    /// One algorithm's own default.
    pub exception: Option<(Algorithm, u64)>,
    /// Smallest legal value.
    pub min: u64,
    /// Largest legal value.
    pub max: u64,
    /// What 0 stands for, where that is legal apart from the range.
    pub zero: Option<&'static str>,
    /// What it does.
    pub meaning: &'static str,
}

impl Param {
    /// The default of an algorithm.
    pub fn default_of(&self, algorithm: Algorithm) -> u64 {
        self.exception.filter(|&(whose, _)| whose == algorithm).map_or(self.default, |(_, value)| value)
    }

    /// Whether a value may be set.
    pub const fn allows(&self, value: u64) -> bool {
        (self.min <= value && value <= self.max) || (value == 0 && self.zero.is_some())
    }

    /// The legal values, for people.
    pub fn range(&self) -> String {
        if self.unit == Unit::Switch {
            return "on or off".to_owned();
        }
        let range = format!("{} to {}", self.unit.format(self.min), self.unit.format(self.max));
        self.zero.map_or(range.clone(), |zero| format!("{range}, or 0 = {zero}"))
    }

    /// The parameter of a name.
    pub fn from_name(name: &str) -> Option<&'static Self> {
        PARAMS.iter().find(|param| param.name == name)
    }
}

/// Declares the table: identifier, name, unit, users, default (and one algorithm's own), range (and what 0 is apart from it),
/// meaning.
macro_rules! params {
    ($($id:ident $name:literal $unit:ident $users:ident = $default:literal $([$whose:ident = $own:literal])?
        in $min:literal .. $max:literal $((0 = $zero:literal))?: $meaning:literal;)*) => {
        /// Names a parameter of [`PARAMS`].
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(u8)]
        pub enum ParamId {
            $(#[doc = $meaning] $id,)*
        }

        /// All parameters, in the order of [`ParamId`].
        pub const PARAMS: &[Param] = &[$(Param {
            id: ParamId::$id,
            name: $name,
            unit: Unit::$unit,
            users: Users::$users,
            default: $default,
            exception: params!(@own $($whose $own)?),
            min: $min,
            max: $max,
            zero: params!(@zero $($zero)?),
            meaning: $meaning,
        },)*];
    };
    (@own) => { None };
    (@own $whose:ident $own:literal) => { Some((Algorithm::$whose, $own)) };
    (@zero) => { None };
    (@zero $zero:literal) => { Some($zero) };
}

params! {
    RateLimit "rate_limit" Rate Everyone = 0 in 1_000_000 .. 400_000_000_000 (0 = "the port's speed"):
        "fastest that a QP may send";
    Burst "burst" Bytes Everyone = 32_768 in 0 .. 1_048_576:
        "bytes that a QP with a rate may send at once after it was idle, or late";
    WindowBdp "window_bdp" Percent Everyone = 0 in 10 .. 1_000 (0 = "no cap"):
        "cap of what is in flight, in parts of one bandwidth-delay product";
    BaseRtt "base_rtt" Time Everyone = 0 in 100 .. 1_000_000_000 (0 = "the shortest measured"):
        "round trip time for that product";
    Ect "ect" Switch Everyone = 1 [None = 0] in 0 .. 1:
        "requests and READ responses are sent ECT(0), so that switches mark them";
    CnpInterval "cnp_interval" Time Everyone = 4_000 [DcqcnPaper = 50_000] in 0 .. 1_000_000_000:
        "at most one CNP to the peer of a QP in this time";
    CnpDscp "cnp_dscp" Count Everyone = 48 in 0 .. 63:
        "DSCP of CNPs";
    CnpPcp "cnp_pcp" Count Everyone = 6 in 0 .. 7:
        "802.1p priority of CNPs, where frames are tagged";
    MinRate "min_rate" Rate Rates = 1_000_000 in 1_000_000 .. 400_000_000_000:
        "slowest that the algorithm goes";
    G "g" Per1024 Dcqcn = 5 [DcqcnPaper = 4] in 1 .. 1_024:
        "weight of the newest period in alpha";
    AlphaPeriod "alpha_period" Time Dcqcn = 1_000 [DcqcnPaper = 55_000] in 100 .. 1_000_000_000:
        "alpha is updated so often";
    AlphaFreeRunning "alpha_free_running" Switch Dcqcn = 1 [DcqcnPaper = 0] in 0 .. 1:
        "on: a CNP counts when its period ends; off: a CNP raises alpha at once and starts the period anew";
    InitialAlpha "initial_alpha" Per1024 Dcqcn = 1_023 [DcqcnPaper = 1_024] in 0 .. 1_024:
        "alpha of a QP that was not limited before";
    CutWindow "cut_window" Time Dcqcn = 4_000 [DcqcnPaper = 0] in 0 .. 1_000_000_000:
        "CNPs so soon after a cut are part of it";
    MaxCut "max_cut" Percent Dcqcn = 50 in 1 .. 99:
        "a cut takes no more of the rate than this";
    IncreaseTimer "increase_timer" Time Dcqcn = 300_000 [DcqcnPaper = 55_000] in 1_000 .. 1_000_000_000:
        "one step up each time that so long has passed";
    ByteCounter "byte_counter" Bytes Dcqcn = 2_097_088 [DcqcnPaper = 10_000_000] in 1_024 .. 1_073_741_824:
        "one step up each time that so much was sent";
    FastSteps "fast_steps" Count Dcqcn = 1 [DcqcnPaper = 5] in 1 .. 31:
        "steps of timer or counter from which the target rate rises; more of both: it rises faster each time";
    Rai "rai" Rate Dcqcn = 5_000_000 [DcqcnPaper = 40_000_000] in 1_000_000 .. 100_000_000_000:
        "additive increase of the target rate";
    Rhai "rhai" Rate Dcqcn = 50_000_000 [DcqcnPaper = 400_000_000] in 1_000_000 .. 100_000_000_000:
        "hyper increase of the target rate";
    ClampTarget "clamp_target" Switch Dcqcn = 0 [DcqcnPaper = 1] in 0 .. 1:
        "every cut makes the rate before it the target; off: only after a step up by the byte counter";
    ClampTargetTimer "clamp_target_timer" Switch Dcqcn = 1 in 0 .. 1:
        "or by the timer";
    StartRate "start_rate" Rate Timely = 0 in 1_000_000 .. 400_000_000_000 (0 = "the port's speed"):
        "rate of a new QP";
    Ewma "ewma" Ratio Timely = 875 in 1 .. 1_000:
        "weight of the newest difference of two round trip times";
    Beta "beta" Ratio Timely = 8 [TimelyOriginal = 800] in 1 .. 1_000:
        "multiplicative decrease";
    TLow "t_low" Time Timely = 50_000 in 1_000 .. 100_000_000:
        "faster below this round trip time";
    THigh "t_high" Time Timely = 500_000 in 1_000 .. 1_000_000_000:
        "slower above this round trip time";
    MinRtt "min_rtt" Time Timely = 20_000 in 1_000 .. 100_000_000:
        "round trip time to which differences are compared";
    Delta "delta" Rate Timely = 10_000_000 in 100_000 .. 10_000_000_000:
        "additive increase of a port of 10 Gb/s; that of others is in proportion";
    HaiAfter "hai_after" Count TimelyOriginal = 5 in 1 .. 1_000:
        "falling round trip times in a row from which the increase is larger";
    HaiFactor "hai_factor" Count TimelyOriginal = 5 in 1 .. 100:
        "and by how much";
    BaseTarget "base_target" Time Swift = 25_000 in 1_000 .. 100_000_000:
        "delay to aim at, of a path without hops";
    PerHop "per_hop" Time Swift = 1_000 in 0 .. 10_000_000:
        "more delay to aim at for each hop";
    Hops "hops" Count Swift = 5 in 0 .. 255:
        "hops of the path";
    FsMax "fs_max" Time Swift = 100_000 in 0 .. 100_000_000:
        "most that a small window adds to the delay to aim at";
    FsMinCwnd "fs_min_cwnd" Packets Swift = 100 in 1 .. 1_000_000:
        "window at which that is added";
    FsMaxCwnd "fs_max_cwnd" Packets Swift = 100_000 in 2 .. 10_000_000:
        "window from which nothing is added";
    Ai "ai" Packets Swift = 1_000 in 1 .. 100_000:
        "additive increase a round trip";
    Mdf "mdf" Ratio Swift = 800 in 1 .. 1_000:
        "multiplicative decrease for each part of the delay that is too much";
    MaxMdf "max_mdf" Ratio Swift = 500 in 1 .. 999:
        "most of the window that goes in one round trip";
    StartCwnd "start_cwnd" Packets Swift = 16_000 in 1 .. 1_000_000:
        "window of a new QP";
    MinCwnd "min_cwnd" Packets Swift = 1 in 1 .. 1_000_000:
        "smallest window; below 1, one packet is in flight and the next one waits";
    MaxCwnd "max_cwnd" Packets Swift = 256_000 in 1_000 .. 8_192_000:
        "largest window";
}

/// Parameters that there are.
pub(crate) const PARAM_COUNT: usize = PARAMS.len();

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_is_legal_and_every_name_is_its_own() {
        for (index, param) in PARAMS.iter().enumerate() {
            assert_eq!(param.id as usize, index);
            assert!(param.min < param.max, "{}", param.name);
            for algorithm in Algorithm::ALL {
                let default = param.default_of(algorithm);
                assert!(param.allows(default), "{} of {}: {default}", param.name, algorithm.name());
            }
            assert_eq!(Param::from_name(param.name).map(|found| found.id), Some(param.id));
        }
    }

    #[test]
    fn the_profiles_of_dcqcn_are_as_published_and_as_shipped() {
        let of = |algorithm, name| Param::from_name(name).unwrap().default_of(algorithm);
        let shipped = [
            ("g", 5),
            ("alpha_period", 1_000),
            ("initial_alpha", 1_023),
            ("cut_window", 4_000),
            ("increase_timer", 300_000),
            ("byte_counter", 32_767 * 64),
            ("fast_steps", 1),
            ("rai", 5_000_000),
            ("rhai", 50_000_000),
            ("min_rate", 1_000_000),
            ("max_cut", 50),
            ("clamp_target", 0),
            ("clamp_target_timer", 1),
            ("cnp_interval", 4_000),
            ("cnp_dscp", 48),
            ("cnp_pcp", 6),
        ];
        for (name, value) in shipped {
            assert_eq!(of(Algorithm::DcqcnNvidia, name), value, "{name}");
        }
        let published = [
            ("g", 1_024 / 256),
            ("alpha_period", 55_000),
            ("initial_alpha", 1_024),
            ("increase_timer", 55_000),
            ("byte_counter", 10_000_000),
            ("fast_steps", 5),
            ("rai", 40_000_000),
            ("clamp_target", 1),
            ("cnp_interval", 50_000),
        ];
        for (name, value) in published {
            assert_eq!(of(Algorithm::DcqcnPaper, name), value, "{name}");
        }
    }

    #[test]
    fn algorithms_are_found_by_name() {
        for algorithm in Algorithm::ALL {
            assert_eq!(Algorithm::from_name(algorithm.name()), Some(algorithm));
        }
        assert_eq!(Algorithm::from_name("dcqcn"), Some(Algorithm::default()));
        assert_eq!(Algorithm::from_name("cubic"), None);
    }
}
