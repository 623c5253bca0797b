//! Swift: a window that keeps the delay at a target.
//!
//! ```text
//! target = base + clamp(0, alpha/sqrt(cwnd) + beta, fs_max) + hops per_hop
//!          alpha = fs_max / (1/sqrt(fs_min_cwnd) - 1/sqrt(fs_max_cwnd)),  beta = -alpha/sqrt(fs_max_cwnd)
//! delay <= target                cwnd += ai acked/cwnd (cwnd >= 1),  cwnd += ai acked (cwnd < 1)
//! otherwise, once a round trip   cwnd *= max(1 - mdf (delay - target)/delay, 1 - max_mdf)
//! loss, once a round trip        cwnd *= 1 - max_mdf
//! ```
//!
//! Below one packet, one is in flight and the next one follows a round trip divided by cwnd later.

use super::params::ParamId;
use super::settings::Settings;
use super::{real, whole};
use crate::time::Time;

/// What Swift works with.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct SwiftParams {
    /// ns: of a path with its hops.
    base: f64,
    fs_max: f64,
    fs_alpha: f64,
    fs_beta: f64,
    /// Packets.
    ai: f64,
    start_cwnd: f64,
    min_cwnd: f64,
    max_cwnd: f64,
    /// Parts of 1.
    mdf: f64,
    max_mdf: f64,
}

impl SwiftParams {
    /// From settings.
    pub(crate) fn new(settings: &Settings) -> Self {
        let value = |id| real(settings.get(id));
        let thousandths = |id| value(id) / 1000.0;
        let fs_max = value(ParamId::FsMax);
        let low = 1.0 / thousandths(ParamId::FsMinCwnd).sqrt();
        let high = 1.0 / thousandths(ParamId::FsMaxCwnd).sqrt();
        // The same window at both ends leaves nothing to scale by.
        let fs_alpha = if low > high { fs_max / (low - high) } else { 0.0 };
        Self {
            base: value(ParamId::BaseTarget) + value(ParamId::Hops) * value(ParamId::PerHop),
            fs_max,
            fs_alpha,
            fs_beta: -fs_alpha * high,
            ai: thousandths(ParamId::Ai),
            start_cwnd: thousandths(ParamId::StartCwnd),
            min_cwnd: thousandths(ParamId::MinCwnd),
            max_cwnd: thousandths(ParamId::MaxCwnd),
            mdf: thousandths(ParamId::Mdf),
            max_mdf: thousandths(ParamId::MaxMdf),
        }
    }

    /// The delay to aim at, ns.
    fn target(&self, cwnd: f64) -> f64 {
        self.base + (self.fs_alpha / cwnd.sqrt() + self.fs_beta).clamp(0.0, self.fs_max)
    }
}

/// The state of one QP.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Swift {
    /// Packets.
    cwnd: f64,
    /// The newest round trip time, ns; 0 before the first.
    delay_ns: u64,
    /// When the window may shrink again.
    next_decrease: Time,
}

impl Swift {
    /// A QP that has sent nothing yet.
    pub(crate) fn new(params: &SwiftParams) -> Self {
        Self { cwnd: params.start_cwnd, delay_ns: 0, next_decrease: Time::ZERO }
    }

    /// The parameters are others now.
    pub(crate) fn adapt(&mut self, params: &SwiftParams) {
        self.cwnd = self.cwnd.clamp(params.min_cwnd, params.max_cwnd);
    }

    /// Packets that may be in flight, and parts of one.
    pub(crate) fn cwnd(&self) -> f64 {
        self.cwnd
    }

    /// So many packets are acknowledged. Those without a round trip time of their own are taken to have had the last one; only a
    /// fresh one makes the window smaller.
    pub(crate) fn acknowledged(&mut self, now: Time, packets: u32, rtt_ns: Option<u64>, params: &SwiftParams) {
        self.delay_ns = rtt_ns.unwrap_or(self.delay_ns);
        if self.delay_ns == 0 {
            return;
        }
        let (delay, target) = (real(self.delay_ns), params.target(self.cwnd));
        if delay <= target {
            let increase = params.ai * f64::from(packets);
            self.cwnd += if self.cwnd >= 1.0 { increase / self.cwnd } else { increase };
        } else if rtt_ns.is_some() && self.may_decrease(now) {
            self.cwnd *= (1.0 - params.mdf * (delay - target) / delay).max(1.0 - params.max_mdf);
        }
        self.cwnd = self.cwnd.clamp(params.min_cwnd, params.max_cwnd);
    }

    /// Something was lost.
    pub(crate) fn lost(&mut self, now: Time, params: &SwiftParams) {
        if self.may_decrease(now) {
            self.cwnd = (self.cwnd * (1.0 - params.max_mdf)).max(params.min_cwnd);
        }
    }

    /// Once a round trip.
    fn may_decrease(&mut self, now: Time) -> bool {
        let may = now >= self.next_decrease;
        if may {
            self.next_decrease = now.add_ns(self.delay_ns);
        }
        may
    }

    /// Rate in bits a second (below one packet only) and window in packets.
    pub(crate) fn limit(&self, mtu_bytes: u32) -> (Option<u64>, u32) {
        if self.cwnd >= 1.0 {
            return (None, u32::try_from(whole(self.cwnd)).unwrap_or(u32::MAX));
        }
        let bits = f64::from(mtu_bytes) * 8.0;
        let rate = (self.delay_ns > 0).then(|| whole(bits * self.cwnd * 1e9 / real(self.delay_ns)).max(1));
        (rate, 1)
    }
}

#[cfg(test)]
mod tests;
