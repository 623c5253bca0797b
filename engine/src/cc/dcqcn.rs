//! DCQCN, the sender's side (its reaction point).
//!
//! Current rate Rc, target rate Rt, and alpha, the estimate of how much is congested:
//!
//! ```text
//! on a CNP                    Rt = Rc; Rc *= 1 - alpha/2; counters T = BC = 0, and the timer starts anew
//! every alpha period          alpha = (1-g) alpha + (CNP seen in it ? g : 0)
//! every increase timer T += 1, every byte counter BC += 1, and then
//!    max(T, BC) < F           fast recovery       Rc = (Rt + Rc)/2
//!    min(T, BC) > F           hyper increase      i += 1; Rt += i Rhai; Rc = (Rt + Rc)/2
//!    otherwise                additive increase   Rt += Rai; Rc = (Rt + Rc)/2
//! ```
//!
//! A QP starts at line rate, without state; the first CNP makes it, and it goes when Rc is back. As published, alpha moves at the
//! CNP itself and its period starts anew with each; in adapters the period runs free.
//!
//! Nothing here needs a timer of its own: [`Dcqcn::advance`] makes up for the time that has passed, in bounded work however
//! long that was.

use super::params::ParamId;
use super::settings::Settings;
use super::{real, whole};
use crate::time::Time;

/// Steps of the increase timer that are gone through one by one; a longer absence is made up for in one go.
const STEPS_AT_ONCE: u32 = 64;

/// Of the line rate, what counts as being back there: Rc comes ever nearer and never arrives.
const BACK_AT_LINE: f64 = 1023.0 / 1024.0;

/// What DCQCN works with.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct DcqcnParams {
    /// Bits a second.
    line: f64,
    min_rate: f64,
    rai: f64,
    rhai: f64,
    /// Parts of 1.
    g: f64,
    initial_alpha: f64,
    max_cut: f64,
    alpha_period_ns: u64,
    cut_window_ns: u64,
    increase_timer_ns: u64,
    byte_counter: u64,
    fast_steps: u32,
    is_free_running: bool,
    clamps_target: bool,
    clamps_target_after_timer: bool,
}

impl DcqcnParams {
    /// From settings, for QPs of which none is faster than `line_bps`.
    pub(crate) fn new(settings: &Settings, line_bps: u64) -> Self {
        let get = |id| settings.get(id);
        Self {
            line: real(line_bps),
            min_rate: real(get(ParamId::MinRate).min(line_bps)),
            rai: real(get(ParamId::Rai)),
            rhai: real(get(ParamId::Rhai)),
            g: real(get(ParamId::G)) / 1024.0,
            initial_alpha: real(get(ParamId::InitialAlpha)) / 1024.0,
            max_cut: real(get(ParamId::MaxCut)) / 100.0,
            alpha_period_ns: get(ParamId::AlphaPeriod),
            cut_window_ns: get(ParamId::CutWindow),
            increase_timer_ns: get(ParamId::IncreaseTimer),
            byte_counter: get(ParamId::ByteCounter),
            fast_steps: u32::try_from(get(ParamId::FastSteps)).unwrap_or(u32::MAX),
            is_free_running: get(ParamId::AlphaFreeRunning) != 0,
            clamps_target: get(ParamId::ClampTarget) != 0,
            clamps_target_after_timer: get(ParamId::ClampTargetTimer) != 0,
        }
    }
}

/// The state of one QP.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Dcqcn {
    /// Rc and Rt, bits a second.
    rate: f64,
    target: f64,
    alpha: f64,
    /// T, BC and i.
    timer_steps: u32,
    byte_steps: u32,
    hyper_steps: u32,
    /// Sent since the last step of the byte counter.
    bytes: u64,
    /// When the increase timer fires; [`Time::NEVER`] while the QP is not limited.
    next_step: Time,
    /// When the alpha period ends.
    next_alpha: Time,
    /// A CNP came in this alpha period.
    has_cnp: bool,
    last_cut: Time,
}

impl Dcqcn {
    /// A QP at line rate.
    pub(crate) fn new(params: &DcqcnParams) -> Self {
        Self {
            rate: params.line,
            target: params.line,
            alpha: params.initial_alpha,
            timer_steps: 0,
            byte_steps: 0,
            hyper_steps: 0,
            bytes: 0,
            next_step: Time::NEVER,
            next_alpha: Time::NEVER,
            has_cnp: false,
            last_cut: Time::ZERO,
        }
    }

    /// The parameters are others now.
    pub(crate) fn adapt(&mut self, params: &DcqcnParams) {
        if !self.is_limited() {
            *self = Self::new(params);
            return;
        }
        self.rate = self.rate.clamp(params.min_rate, params.line);
        self.target = self.target.clamp(self.rate, params.line);
        self.release_at_line(params);
    }

    /// False at line rate.
    #[inline]
    pub(crate) fn is_limited(&self) -> bool {
        self.next_step != Time::NEVER
    }

    /// Rc; `None` at line rate.
    #[inline]
    pub(crate) fn rate_bps(&self) -> Option<u64> {
        self.is_limited().then(|| whole(self.rate))
    }

    /// How much of what is sent meets congestion, 0 to 1.
    pub(crate) fn alpha(&self) -> f64 {
        if self.is_limited() { self.alpha } else { 0.0 }
    }

    /// When the rate rises next by time alone.
    #[inline]
    pub(crate) fn next_step(&self) -> Time {
        self.next_step
    }

    /// A CNP came.
    pub(crate) fn cnp(&mut self, now: Time, params: &DcqcnParams) {
        self.advance(now, params);
        let is_first = !self.is_limited();
        if is_first {
            *self = Self { next_alpha: now.add_ns(params.alpha_period_ns), ..Self::new(params) };
        }
        self.has_cnp = true;
        if !is_first && now.ns_since(self.last_cut) < params.cut_window_ns {
            return;
        }
        let was_raised = self.byte_steps > 0 || (params.clamps_target_after_timer && self.timer_steps > 0);
        if params.clamps_target || was_raised {
            self.target = self.rate;
        }
        self.rate = (self.rate * (1.0 - (self.alpha / 2.0).min(params.max_cut))).max(params.min_rate);
        if !params.is_free_running {
            self.alpha = (1.0 - params.g) * self.alpha + params.g;
            self.has_cnp = false;
            self.next_alpha = now.add_ns(params.alpha_period_ns);
        }
        (self.timer_steps, self.byte_steps, self.hyper_steps, self.bytes) = (0, 0, 0, 0);
        self.next_step = now.add_ns(params.increase_timer_ns);
        self.last_cut = now;
    }

    /// A frame of so many bytes was sent.
    #[inline]
    pub(crate) fn sent(&mut self, now: Time, bytes: u64, params: &DcqcnParams) {
        self.advance(now, params);
        if !self.is_limited() {
            return;
        }
        self.bytes += bytes;
        while self.bytes >= params.byte_counter && self.is_limited() {
            self.bytes -= params.byte_counter;
            self.byte_steps = self.byte_steps.saturating_add(1);
            self.step(params);
        }
    }

    /// Makes up for the time that has passed.
    #[inline]
    pub(crate) fn advance(&mut self, now: Time, params: &DcqcnParams) {
        if !self.is_limited() {
            return;
        }
        if self.next_alpha <= now {
            self.end_alpha_periods(now, params);
        }
        let mut steps = 0;
        while self.next_step <= now {
            if steps == STEPS_AT_ONCE && self.byte_steps <= params.fast_steps {
                self.step_far(now, params);
                return;
            }
            steps += 1;
            self.next_step = self.next_step.add_ns(params.increase_timer_ns);
            self.timer_steps = self.timer_steps.saturating_add(1);
            self.step(params);
        }
    }

    /// The first of the periods that have ended may have seen a CNP; the others have not.
    fn end_alpha_periods(&mut self, now: Time, params: &DcqcnParams) {
        let more = now.ns_since(self.next_alpha) / params.alpha_period_ns;
        let seen = if self.has_cnp { params.g } else { 0.0 };
        self.alpha = ((1.0 - params.g) * self.alpha + seen) * power(1.0 - params.g, more);
        self.has_cnp = false;
        self.next_alpha = self.next_alpha.add_ns((more + 1) * params.alpha_period_ns);
    }

    fn step(&mut self, params: &DcqcnParams) {
        let (most, least) = (self.timer_steps.max(self.byte_steps), self.timer_steps.min(self.byte_steps));
        if least > params.fast_steps {
            self.hyper_steps = self.hyper_steps.saturating_add(1);
            self.target += f64::from(self.hyper_steps) * params.rhai;
        } else if most >= params.fast_steps {
            self.target += params.rai;
        }
        self.target = self.target.min(params.line);
        self.rate = f64::midpoint(self.rate, self.target);
        self.release_at_line(params);
    }

    /// Many steps of additive increase by the timer, while nothing was sent: from one to the next the distance of Rc to Rt is
    /// halved and grows by Rai, so that after so many steps as were taken before this it is Rai.
    #[cold]
    fn step_far(&mut self, now: Time, params: &DcqcnParams) {
        let steps = now.ns_since(self.next_step) / params.increase_timer_ns + 1;
        self.next_step = self.next_step.add_ns(steps.saturating_mul(params.increase_timer_ns));
        self.timer_steps = self.timer_steps.saturating_add(u32::try_from(steps).unwrap_or(u32::MAX));
        let target = self.target + real(steps) * params.rai;
        self.rate = self.rate.max(target - params.rai).min(params.line);
        self.target = target.min(params.line);
        self.release_at_line(params);
    }

    fn release_at_line(&mut self, params: &DcqcnParams) {
        if self.rate >= params.line * BACK_AT_LINE {
            *self = Self::new(params);
        }
    }
}

/// `base` to the power of `exponent`, by squaring: the same on every machine.
fn power(mut base: f64, mut exponent: u64) -> f64 {
    let mut product = 1.0;
    while exponent > 0 {
        if exponent & 1 == 1 {
            product *= base;
        }
        base *= base;
        exponent >>= 1;
    }
    product
}

#[cfg(test)]
mod tests;
