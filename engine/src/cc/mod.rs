//! Congestion control: how fast a QP may send, and how much it may have in flight.
//!
//! Each algorithm is a state machine without a clock: what happened, and when, goes in; a rate and a window come out. A QP's own
//! is a `Controller`; the numbers that it works with are in a `Profile`, which all QPs of a port share that have no settings of
//! their own. `qp::congestion` feeds the one and obeys the other; `pacer` spaces packets out.
//!
//! Sources: DCQCN (SIGCOMM 2015) with the extensions of NVIDIA's adapters, TIMELY (SIGCOMM 2015) and its patch (CoNEXT 2016),
//! Swift (SIGCOMM 2020). `docs/congestion.md` has formulas and parameters.

mod dcqcn;
mod params;
mod settings;
mod swift;
mod timely;
mod value;
mod window;

pub use params::{Algorithm, PARAMS, Param, ParamId, Users};
pub use settings::{SettingError, Settings};
pub use value::Unit;

use dcqcn::{Dcqcn, DcqcnParams};
use swift::{Swift, SwiftParams};
use timely::{Timely, TimelyParams};
pub(crate) use window::bdp_packets;

use crate::time::Time;

/// Speed of a port that does not say its own: the fastest that there is.
const SPEED_BPS_MAX: u64 = 400_000_000_000;

/// What a QP may do now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Limit {
    /// Bits a second; `None` = as fast as it goes.
    pub(crate) rate_bps: Option<u64>,
    /// Packets in flight; `u32::MAX` = no limit.
    pub(crate) window_packets: u32,
}

/// Settings of a port or a QP in the form in which packets use them.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Profile {
    settings: Settings,
    /// No QP is faster: the port's speed, the operator's limit, or the static rate of the path.
    line_bps: u64,
    /// It is one of the latter two: it holds where the algorithm sets none.
    has_rate_limit: bool,
    law: Law,
}

/// The parameters of an algorithm.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Law {
    None,
    Dcqcn(DcqcnParams),
    Timely(TimelyParams),
    Swift(SwiftParams),
}

impl Profile {
    /// Settings as they work out on a port of this speed, Mbit/s (0 = unknown).
    pub(crate) fn new(settings: Settings, speed_mbps: u32) -> Self {
        Self::for_path(settings, speed_mbps, None)
    }

    /// The same for a QP whose path has a static rate, bits a second.
    pub(crate) fn for_path(settings: Settings, speed_mbps: u32, static_rate_bps: Option<u64>) -> Self {
        let speed_bps = match u64::from(speed_mbps) * 1_000_000 {
            0 => SPEED_BPS_MAX,
            speed => speed.min(SPEED_BPS_MAX),
        };
        let of_operator = Some(settings.get(ParamId::RateLimit)).filter(|&limit| limit != 0);
        let limit = of_operator.into_iter().chain(static_rate_bps).min();
        let line_bps = limit.unwrap_or(speed_bps).min(speed_bps);
        let law = match settings.algorithm() {
            Algorithm::None => Law::None,
            Algorithm::DcqcnNvidia | Algorithm::DcqcnPaper => Law::Dcqcn(DcqcnParams::new(&settings, line_bps)),
            Algorithm::Timely | Algorithm::TimelyOriginal => Law::Timely(TimelyParams::new(&settings, line_bps)),
            Algorithm::Swift => Law::Swift(SwiftParams::new(&settings)),
        };
        Self { settings, line_bps, has_rate_limit: limit.is_some(), law }
    }

    /// What was set.
    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Fastest that a QP may send, bits a second.
    pub(crate) fn line_bps(&self) -> u64 {
        self.line_bps
    }

    /// That is a limit of the operator's or the path's, and not the port's speed.
    pub(crate) fn has_rate_limit(&self) -> bool {
        self.has_rate_limit
    }

    /// The value of a parameter.
    #[inline]
    pub(crate) fn get(&self, id: ParamId) -> u64 {
        self.settings.get(id)
    }

    /// Whoever requests a READ limits its responses, because only the requester measures anything.
    #[inline]
    pub(crate) fn meters_reads(&self) -> bool {
        matches!(self.law, Law::Timely(_) | Law::Swift(_))
    }

    /// The cap of what is in flight, packets, with the shortest round trip time measured so far (0 = none).
    pub(crate) fn window_cap(&self, measured_rtt_ns: u64, mtu_bytes: u32) -> u32 {
        let percent = self.get(ParamId::WindowBdp);
        let rtt_ns = match self.get(ParamId::BaseRtt) {
            0 => measured_rtt_ns,
            set => set,
        };
        if percent == 0 || rtt_ns == 0 {
            return u32::MAX;
        }
        bdp_packets(self.line_bps, rtt_ns, mtu_bytes, percent)
    }
}

/// What one QP knows of the network.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Controller {
    /// Nothing.
    None,
    /// See [`dcqcn`].
    Dcqcn(Dcqcn),
    /// See [`timely`].
    Timely(Timely),
    /// See [`swift`].
    Swift(Swift),
}

impl Controller {
    /// That of a QP that has sent nothing yet.
    pub(crate) fn new(profile: &Profile) -> Self {
        match &profile.law {
            Law::None => Self::None,
            Law::Dcqcn(params) => Self::Dcqcn(Dcqcn::new(params)),
            Law::Timely(params) => Self::Timely(Timely::new(params)),
            Law::Swift(params) => Self::Swift(Swift::new(params)),
        }
    }

    /// The same after the profile was replaced by this one: what it knows stays if the algorithm is the same.
    pub(crate) fn adapt(self, profile: &Profile) -> Self {
        match (self, &profile.law) {
            (Self::Dcqcn(mut dcqcn), Law::Dcqcn(params)) => {
                dcqcn.adapt(params);
                Self::Dcqcn(dcqcn)
            }
            (Self::Timely(mut timely), Law::Timely(params)) => {
                timely.adapt(params);
                Self::Timely(timely)
            }
            (Self::Swift(mut swift), Law::Swift(params)) => {
                swift.adapt(params);
                Self::Swift(swift)
            }
            _ => Self::new(profile),
        }
    }

    /// Time has passed.
    #[inline]
    pub(crate) fn advance(&mut self, now: Time, profile: &Profile) {
        if let (Self::Dcqcn(dcqcn), Law::Dcqcn(params)) = (self, &profile.law) {
            dcqcn.advance(now, params);
        }
    }

    /// A CNP came. False if the algorithm takes none.
    pub(crate) fn cnp(&mut self, now: Time, profile: &Profile) -> bool {
        if let (Self::Dcqcn(dcqcn), Law::Dcqcn(params)) = (self, &profile.law) {
            dcqcn.cnp(now, params);
            return true;
        }
        false
    }

    /// A frame was sent.
    #[inline]
    pub(crate) fn sent(&mut self, now: Time, bytes: u64, profile: &Profile) {
        if let (Self::Dcqcn(dcqcn), Law::Dcqcn(params)) = (self, &profile.law) {
            dcqcn.sent(now, bytes, params);
        }
    }

    /// So many packets are acknowledged, with a round trip time if one was measured.
    #[inline]
    pub(crate) fn acknowledged(&mut self, now: Time, packets: u32, rtt_ns: Option<u64>, profile: &Profile) {
        match (self, &profile.law) {
            (Self::Timely(timely), Law::Timely(params)) => {
                if let Some(rtt_ns) = rtt_ns {
                    timely.sample(rtt_ns, params);
                }
            }
            (Self::Swift(swift), Law::Swift(params)) => swift.acknowledged(now, packets, rtt_ns, params),
            _ => {}
        }
    }

    /// Something was lost.
    pub(crate) fn lost(&mut self, now: Time, profile: &Profile) {
        if let (Self::Swift(swift), Law::Swift(params)) = (self, &profile.law) {
            swift.lost(now, params);
        }
    }

    /// Whether acknowledgements mean anything to it.
    #[inline]
    pub(crate) fn wants_acknowledgements(&self) -> bool {
        matches!(self, Self::Timely(_) | Self::Swift(_))
    }

    /// When time alone changes the limit next.
    #[inline]
    pub(crate) fn next_event(&self) -> Time {
        match self {
            Self::Dcqcn(dcqcn) => dcqcn.next_step(),
            _ => Time::NEVER,
        }
    }

    /// Its share of DCQCN's cuts, in thousandths; `None` for other algorithms.
    pub(crate) fn alpha_thousandths(&self) -> Option<u64> {
        match self {
            Self::Dcqcn(dcqcn) => Some(whole(dcqcn.alpha() * 1_000.0)),
            _ => None,
        }
    }

    /// Swift's window, in thousandths of a packet; `None` for other algorithms.
    pub(crate) fn cwnd_thousandths(&self) -> Option<u64> {
        match self {
            Self::Swift(swift) => Some(whole(swift.cwnd() * 1_000.0)),
            _ => None,
        }
    }

    /// What the QP may do now.
    #[inline]
    pub(crate) fn limit(&self, mtu_bytes: u32, profile: &Profile) -> Limit {
        let (rate, window_packets) = match self {
            Self::None => (None, u32::MAX),
            Self::Dcqcn(dcqcn) => (dcqcn.rate_bps(), u32::MAX),
            Self::Timely(timely) => (Some(timely.rate_bps()), u32::MAX),
            Self::Swift(swift) => swift.limit(mtu_bytes),
        };
        let rate_bps = match rate {
            Some(rate) if rate < profile.line_bps => Some(rate),
            _ => profile.has_rate_limit.then_some(profile.line_bps),
        };
        Limit { rate_bps, window_packets }
    }
}

/// A whole number of a value that is not negative: rates, windows and times are far below what both types hold exactly.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the cast saturates, and the fraction is not wanted"
)]
pub(crate) fn whole(value: f64) -> u64 {
    value as u64
}

/// The same value: exact up to 2^53, which is beyond every rate, size and time here.
#[expect(clippy::cast_precision_loss, reason = "the values are below 2^53")]
pub(crate) fn real(value: u64) -> f64 {
    value as f64
}
