//! One side of any test, advanced step by step: so that one thread can be both sides.

use crate::bandwidth::Bandwidth;
use crate::error::Result;
use crate::latency::PingPong;
use crate::params::{Metric, Verb};
use crate::side::{Role, Side};
use crate::stats::Round;

/// What a side does in a test.
pub(crate) enum Actor<'a> {
    /// Its part of a throughput test.
    Bandwidth(Box<Bandwidth<'a>>),
    /// Its part of a latency test.
    PingPong(Box<PingPong<'a>>),
}

impl<'a> Actor<'a> {
    /// The part of `side` in its test.
    ///
    /// # Errors
    /// What posting receives says.
    pub(crate) fn new(side: &'a Side) -> Result<Self> {
        let params = &side.params;
        Ok(match params.test.metric {
            Metric::Latency => Self::PingPong(Box::new(PingPong::new(side)?)),
            Metric::Bandwidth => {
                let sends = side.role() == Role::Client || params.bidirectional;
                let receives = side.role() == Role::Server || params.bidirectional;
                Self::Bandwidth(Box::new(Bandwidth::new(side, sends, receives)?))
            }
        })
    }

    /// True if this side has nothing to do but to let its engine answer.
    pub(crate) fn is_passive(side: &Side) -> bool {
        let params = &side.params;
        let answers_itself = match params.test.metric {
            Metric::Bandwidth => params.test.verb != Verb::Send && !params.bidirectional,
            Metric::Latency => matches!(params.test.verb, Verb::Read | Verb::Atomic),
        };
        side.role() == Role::Server && answers_itself
    }

    /// One step. True once everything is done.
    ///
    /// # Errors
    /// A message failed, or nothing arrives any more.
    #[inline]
    pub(crate) fn step(&mut self) -> Result<bool> {
        match self {
            Self::Bandwidth(bandwidth) => bandwidth.step(),
            Self::PingPong(ping_pong) => ping_pong.step(),
        }
    }

    /// True once this side has sent its last message, and knows it arrived.
    pub(crate) fn has_sent(&self) -> bool {
        match self {
            Self::Bandwidth(bandwidth) => bandwidth.has_sent(),
            Self::PingPong(ping_pong) => ping_pong.has_sent(),
        }
    }

    /// Messages sent, of each QP.
    pub(crate) fn sent(&self) -> Vec<u64> {
        match self {
            Self::Bandwidth(bandwidth) => bandwidth.sent(),
            Self::PingPong(ping_pong) => ping_pong.sent(),
        }
    }

    /// Messages received, of each QP that completes receives.
    pub(crate) fn received(&self) -> Vec<u64> {
        match self {
            Self::Bandwidth(bandwidth) => bandwidth.received(),
            Self::PingPong(ping_pong) => ping_pong.received(),
        }
    }

    /// The peer has sent so many messages on each QP, and sends no more.
    pub(crate) fn expect(&mut self, messages: &[u64]) {
        match self {
            Self::Bandwidth(bandwidth) => bandwidth.expect(messages),
            Self::PingPong(ping_pong) => ping_pong.expect(messages),
        }
    }

    /// What this side has measured.
    pub(crate) fn round(self) -> Round {
        match self {
            Self::Bandwidth(bandwidth) => bandwidth.round(),
            Self::PingPong(ping_pong) => ping_pong.round(),
        }
    }
}
