//! TIMELY: a rate that follows the gradient of the round trip time.
//!
//! ```text
//! d = rtt - previous rtt; diff = (1-a) diff + a d; grad = diff / min_rtt
//! rtt < t_low       R += delta
//! rtt > t_high      R *= 1 - beta (1 - t_high/rtt)
//! otherwise, as published:   grad <= 0: R += N delta (N = 5 after five in a row, else 1);  grad > 0: R *= 1 - beta grad
//! otherwise, patched:        w = 0 for grad <= -1/4, 1 for grad >= 1/4, else 2 grad + 1/2;  err = (rtt - t_low)/t_low
//!                            R = R (1 - beta w err) + delta (1 - w)
//! ```
//!
//! Published, any split of the link is a fixed point: the gradient is 0 wherever the sum of the rates is the link's. The patch looks
//! at the round trip time itself as well, which all flows share.

use super::params::{Algorithm, ParamId};
use super::settings::Settings;
use super::{real, whole};

/// What TIMELY works with.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct TimelyParams {
    /// Bits a second.
    line: f64,
    min_rate: f64,
    start_rate: f64,
    delta: f64,
    /// Parts of 1.
    ewma: f64,
    beta: f64,
    /// ns.
    t_low: f64,
    t_high: f64,
    min_rtt: f64,
    hai_factor: f64,
    hai_after: u32,
    is_patched: bool,
}

impl TimelyParams {
    /// From settings, for QPs of which none is faster than `line_bps`.
    pub(crate) fn new(settings: &Settings, line_bps: u64) -> Self {
        let value = |id| real(settings.get(id));
        let line = real(line_bps);
        let start_rate = value(ParamId::StartRate);
        let min_rate = value(ParamId::MinRate).min(line);
        Self {
            line,
            min_rate,
            start_rate: if start_rate == 0.0 { line } else { start_rate.clamp(min_rate, line) },
            delta: value(ParamId::Delta) * line / 10e9,
            ewma: value(ParamId::Ewma) / 1000.0,
            beta: value(ParamId::Beta) / 1000.0,
            t_low: value(ParamId::TLow),
            t_high: value(ParamId::THigh),
            min_rtt: value(ParamId::MinRtt),
            hai_factor: value(ParamId::HaiFactor),
            hai_after: u32::try_from(settings.get(ParamId::HaiAfter)).unwrap_or(u32::MAX),
            is_patched: settings.algorithm() == Algorithm::Timely,
        }
    }
}

/// The state of one QP.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Timely {
    /// R, bits a second.
    rate: f64,
    /// ns; 0 before the first sample.
    previous_rtt: f64,
    /// ns.
    diff: f64,
    /// Samples in a row whose gradient was not positive.
    falling: u32,
}

impl Timely {
    /// A QP that has sent nothing yet.
    pub(crate) fn new(params: &TimelyParams) -> Self {
        Self { rate: params.start_rate, previous_rtt: 0.0, diff: 0.0, falling: 0 }
    }

    /// The parameters are others now.
    pub(crate) fn adapt(&mut self, params: &TimelyParams) {
        self.rate = self.rate.clamp(params.min_rate, params.line);
    }

    /// R.
    #[inline]
    pub(crate) fn rate_bps(&self) -> u64 {
        whole(self.rate)
    }

    /// A round trip was measured.
    pub(crate) fn sample(&mut self, rtt_ns: u64, params: &TimelyParams) {
        let rtt = real(rtt_ns);
        let difference = if self.previous_rtt == 0.0 { 0.0 } else { rtt - self.previous_rtt };
        self.previous_rtt = rtt;
        self.diff = (1.0 - params.ewma) * self.diff + params.ewma * difference;
        let gradient = self.diff / params.min_rtt;
        let rate = if rtt < params.t_low {
            self.rate + params.delta
        } else if rtt > params.t_high {
            self.falling = 0;
            self.rate * (1.0 - params.beta * (1.0 - params.t_high / rtt))
        } else if params.is_patched {
            let weight = (2.0 * gradient + 0.5).clamp(0.0, 1.0);
            let error = (rtt - params.t_low) / params.t_low;
            self.rate * (1.0 - params.beta * weight * error) + params.delta * (1.0 - weight)
        } else {
            self.follow_gradient(gradient, params)
        };
        self.rate = rate.clamp(params.min_rate, params.line);
    }

    fn follow_gradient(&mut self, gradient: f64, params: &TimelyParams) -> f64 {
        if gradient > 0.0 {
            self.falling = 0;
            return self.rate * (1.0 - params.beta * gradient);
        }
        self.falling = self.falling.saturating_add(1);
        let factor = if self.falling >= params.hai_after { params.hai_factor } else { 1.0 };
        self.rate + factor * params.delta
    }
}

#[cfg(test)]
mod tests;
