//! What is measured: the settings of one run, the same on both sides.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use shm::attr::RecoveryPolicy;
use shm::layout::MAX_INLINE;
use wire::PathMtu;

use crate::error::{PerfError, Result};
use crate::memory::MemoryKind;

/// Smallest area that messages of a QP go through, as in perftest: small messages don't all hit one cache line.
const FOOTPRINT_BYTES_MIN: u32 = 4096;
/// Messages begin on cache lines.
const STRIDE_BYTES: u32 = 64;
/// An atomic's operand.
const ATOMIC_BYTES: u32 = 8;
/// What a datagram's receive buffer begins with.
const GRH_BYTES: u32 = 40;
/// A datagram is one packet.
pub(crate) const DATAGRAM_BYTES_MAX: u32 = 4096;
/// Memory of one side at most.
const POOL_BYTES_MAX: u64 = 8 << 30;
/// In a latency test one completion in so many frees the send queue.
pub(crate) const LATENCY_CQ_MOD: u32 = 16;

const SIZE: RangeInclusive<u32> = 1..=1 << 31;
const ITERATIONS: RangeInclusive<u64> = 1..=(1 << 40) - 1;
const DURATION_S: RangeInclusive<f64> = 0.001..=86_400.0;
const QPS: RangeInclusive<u32> = 1..=16_384;
const DEPTH: RangeInclusive<u32> = 1..=16_384;
const OUTSTANDING: RangeInclusive<u8> = 1..=16;

/// What moves the data.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verb {
    /// RDMA WRITE.
    Write,
    /// RDMA READ.
    Read,
    /// SEND to posted receives.
    Send,
    /// Fetch and add of 8 bytes.
    Atomic,
}

/// What is measured of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Metric {
    /// Messages and bytes per second, many messages under way.
    Bandwidth,
    /// The time of one message, one under way.
    Latency,
}

/// The service that the QPs give, in perftest's words.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "UPPERCASE")]
pub(crate) enum Connection {
    /// Reliable connection.
    #[default]
    #[value(name = "RC")]
    Rc,
    /// Unreliable connection: SEND and WRITE, no acknowledgements.
    #[value(name = "UC")]
    Uc,
    /// Unreliable datagram: SENDs of one packet.
    #[value(name = "UD")]
    Ud,
}

impl fmt::Display for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Ud => "UD",
        })
    }
}

/// A test, such as `write_bw`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Test {
    /// What moves the data.
    pub(crate) verb: Verb,
    /// What is measured.
    pub(crate) metric: Metric,
}

impl Test {
    /// A test of throughput.
    pub(crate) const fn bandwidth(verb: Verb) -> Self {
        Self { verb, metric: Metric::Bandwidth }
    }

    /// A test of latency.
    pub(crate) const fn latency(verb: Verb) -> Self {
        Self { verb, metric: Metric::Latency }
    }
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = match self.verb {
            Verb::Write => "write",
            Verb::Read => "read",
            Verb::Send => "send",
            Verb::Atomic => "atomic",
        };
        let metric = match self.metric {
            Metric::Bandwidth => "bw",
            Metric::Latency => "lat",
        };
        write!(f, "{verb}_{metric}")
    }
}

/// When a run is over.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Stop {
    /// After so many messages of each QP.
    Iterations(u64),
    /// After so many seconds.
    Seconds(f64),
}

/// The settings of a run, traded by the two sides.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Params {
    /// What is measured.
    pub(crate) test: Test,
    /// What kind of QP.
    pub(crate) connection: Connection,
    /// Bytes of a message.
    pub(crate) size: u32,
    /// When a round is over.
    pub(crate) stop: Stop,
    /// QPs of each side.
    pub(crate) qps: u32,
    /// Send work requests of a QP under way at most.
    pub(crate) tx_depth: u32,
    /// Receives posted ahead.
    pub(crate) rx_depth: u32,
    /// One send in so many makes a completion.
    pub(crate) cq_mod: u32,
    /// Sends posted with one doorbell.
    pub(crate) post_list: u32,
    /// Messages up to this size are posted inline.
    pub(crate) inline: u32,
    /// Both sides send.
    pub(crate) bidirectional: bool,
    /// Path MTU asked for, bytes; `None` = what both ports have.
    pub(crate) mtu: Option<u32>,
    /// How lost packets are made up for; `None` = as the daemon has it.
    pub(crate) recovery: Option<RecoveryPolicy>,
    /// READs and atomics of a QP under way at most.
    pub(crate) outstanding: u8,
    /// Congestion control of the QPs; `None` = their ports'.
    pub(crate) cc: Option<String>,
    /// Bits a second that a QP may send, with its unit.
    pub(crate) rate: Option<String>,
    /// The memory of both sides.
    pub(crate) memory: MemoryKind,
}

fn check<T: PartialOrd + fmt::Display>(name: &'static str, value: T, range: &RangeInclusive<T>) -> Result<()> {
    if range.contains(&value) {
        return Ok(());
    }
    Err(PerfError::Setting { name, value: value.to_string(), legal: format!("{} to {}", range.start(), range.end()) })
}

impl Params {
    /// Refuses what can't be run. Called on our own settings and on those that a peer sends.
    ///
    /// # Errors
    /// [`PerfError::Setting`] and [`PerfError::Conflict`], sentences for the operator.
    pub(crate) fn check(&self) -> Result<()> {
        check("-s (--size)", self.size, &SIZE)?;
        match self.stop {
            Stop::Iterations(count) => check("-n (--iters)", count, &ITERATIONS)?,
            Stop::Seconds(seconds) => check("-D (--duration)", seconds, &DURATION_S)?,
        }
        check("-q (--qps)", self.qps, &QPS)?;
        check("-t (--tx-depth)", self.tx_depth, &DEPTH)?;
        check("-r (--rx-depth)", self.rx_depth, &DEPTH)?;
        check("-Q (--cq-mod)", self.cq_mod, &(1..=self.tx_depth))?;
        check("-l (--post-list)", self.post_list, &(1..=self.tx_depth))?;
        check("-I (--inline)", self.inline, &(0..=MAX_INLINE))?;
        check("-o (--outs)", self.outstanding, &OUTSTANDING)?;
        if let Some(mtu) = self.mtu {
            self.check_mtu(mtu)?;
        }
        self.check_combination()?;
        let bytes = u64::from(self.qps) * 2 * u64::from(self.footprint());
        check("memory of one side (QPs x 2 x message size), bytes", bytes, &(0..=POOL_BYTES_MAX))
    }

    fn check_mtu(&self, mtu: u32) -> Result<()> {
        let legal = || "256, 512, 1024, 2048 or 4096".to_owned();
        PathMtu::from_bytes(mtu).map(drop).ok_or_else(|| PerfError::Setting {
            name: "-m (--mtu)",
            value: mtu.to_string(),
            legal: legal(),
        })
    }

    fn check_combination(&self) -> Result<()> {
        let Test { verb, metric } = self.test;
        self.check_connection()?;
        if self.connection == Connection::Ud && (self.cc.is_some() || self.rate.is_some()) {
            return Err(PerfError::Conflict("-c UD: datagrams have no congestion control, so no --cc and no --rate"));
        }
        if verb == Verb::Atomic && self.size != ATOMIC_BYTES {
            let value = self.size.to_string();
            return Err(PerfError::Setting { name: "-s (--size)", value, legal: "an atomic has 8 bytes".to_owned() });
        }
        if self.inline > 0 && matches!(verb, Verb::Read | Verb::Atomic) {
            return Err(PerfError::Conflict("--inline: READs and atomics bring data in, so they have none to inline"));
        }
        if metric == Metric::Latency && (self.qps != 1 || self.bidirectional) {
            return Err(PerfError::Conflict("a latency test has one QP and one message under way: no -q, no -b"));
        }
        if self.bidirectional && verb == Verb::Atomic {
            return Err(PerfError::Conflict("-b: atomics answer with data, they go both ways already"));
        }
        Ok(())
    }

    /// What each service can do (IBTA table 51).
    fn check_connection(&self) -> Result<()> {
        if self.connection != Connection::Rc && self.recovery.is_some_and(RecoveryPolicy::is_selective) {
            return Err(PerfError::Conflict("--recovery: sr and hybrid are of RC only"));
        }
        match (self.connection, self.test.verb) {
            (Connection::Rc, _) | (Connection::Uc, Verb::Send | Verb::Write) => Ok(()),
            (Connection::Uc, _) => Err(PerfError::Conflict("-c UC: it has SEND and WRITE, no READ and no atomics")),
            (Connection::Ud, Verb::Send) => {
                check("-s (--size) with -c UD", self.size, &(1..=self.mtu.unwrap_or(DATAGRAM_BYTES_MAX)))
            }
            (Connection::Ud, _) => Err(PerfError::Conflict("-c UD: it has SEND only")),
        }
    }

    /// Whether each message arrives or its failure is told.
    pub(crate) const fn is_reliable(&self) -> bool {
        matches!(self.connection, Connection::Rc)
    }

    /// Bytes that a receive begins with before its payload: datagrams bring the GRH.
    pub(crate) const fn grh_bytes(&self) -> u32 {
        if matches!(self.connection, Connection::Ud) { GRH_BYTES } else { 0 }
    }

    /// Bytes from one message to the next, at the sender and at the receiver.
    pub(crate) const fn stride(&self) -> u32 {
        (self.size + self.grh_bytes()).next_multiple_of(STRIDE_BYTES)
    }

    /// Messages that lie side by side before the next one reuses the first one's place.
    pub(crate) const fn slots(&self) -> u32 {
        let slots = FOOTPRINT_BYTES_MIN / self.stride();
        if slots == 0 { 1 } else { slots }
    }

    /// Bytes that a QP sends from, and bytes that it receives to.
    pub(crate) const fn footprint(&self) -> u32 {
        self.slots() * self.stride()
    }

    /// Whether messages go inline.
    pub(crate) const fn is_inline(&self) -> bool {
        self.size <= self.inline
    }

    /// How long a round may take; `None` if messages are counted.
    pub(crate) fn duration(&self) -> Option<Duration> {
        match self.stop {
            Stop::Seconds(seconds) => Some(Duration::from_secs_f64(seconds)),
            Stop::Iterations(_) => None,
        }
    }

    /// Messages of each QP, without end if time counts.
    pub(crate) const fn iterations(&self) -> u64 {
        match self.stop {
            Stop::Iterations(count) => count,
            Stop::Seconds(_) => u64::MAX,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Settings that are legal for every test.
    pub(crate) fn params(test: Test) -> Params {
        Params {
            test,
            connection: Connection::Rc,
            size: ATOMIC_BYTES,
            stop: Stop::Iterations(1000),
            qps: 1,
            tx_depth: 128,
            rx_depth: 512,
            cq_mod: 64,
            post_list: 1,
            inline: 0,
            bidirectional: false,
            mtu: None,
            recovery: None,
            outstanding: 16,
            cc: None,
            rate: None,
            memory: MemoryKind::Pool,
        }
    }

    fn refusal(change: impl FnOnce(&mut Params)) -> String {
        let mut params = params(Test::bandwidth(Verb::Write));
        params.check().unwrap();
        change(&mut params);
        params.check().unwrap_err().to_string()
    }

    #[test]
    fn bad_settings_are_refused_by_name_value_and_range() {
        assert_eq!(refusal(|p| p.size = 0), "-s (--size) is 0: 1 to 2147483648");
        assert_eq!(refusal(|p| p.stop = Stop::Iterations(0)), "-n (--iters) is 0: 1 to 1099511627775");
        assert_eq!(refusal(|p| p.stop = Stop::Seconds(f64::NAN)), "-D (--duration) is NaN: 0.001 to 86400");
        assert_eq!(refusal(|p| p.qps = 16_385), "-q (--qps) is 16385: 1 to 16384");
        assert_eq!(refusal(|p| p.tx_depth = 0), "-t (--tx-depth) is 0: 1 to 16384");
        assert_eq!(refusal(|p| p.cq_mod = 129), "-Q (--cq-mod) is 129: 1 to 128");
        assert_eq!(refusal(|p| p.post_list = 0), "-l (--post-list) is 0: 1 to 128");
        assert_eq!(refusal(|p| p.inline = 1025), "-I (--inline) is 1025: 0 to 1024");
        assert_eq!(refusal(|p| p.outstanding = 17), "-o (--outs) is 17: 1 to 16");
        assert_eq!(refusal(|p| p.mtu = Some(1500)), "-m (--mtu) is 1500: 256, 512, 1024, 2048 or 4096");
        assert!(refusal(|p| (p.qps, p.size) = (16_384, 1 << 30)).contains("0 to 8589934592"));
    }

    #[test]
    fn combinations_without_meaning_are_refused() {
        let mut read = params(Test::bandwidth(Verb::Read));
        read.inline = 8;
        assert!(read.check().unwrap_err().to_string().contains("inline"));
        let mut latency = params(Test::latency(Verb::Write));
        latency.qps = 2;
        assert!(latency.check().unwrap_err().to_string().contains("one QP"));
        let mut atomic = params(Test::bandwidth(Verb::Atomic));
        atomic.size = 64;
        assert!(atomic.check().unwrap_err().to_string().contains("8 bytes"));
        (atomic.size, atomic.bidirectional) = (8, true);
        assert!(atomic.check().unwrap_err().to_string().contains("both ways"));
    }

    #[test]
    fn each_service_has_its_verbs_and_a_datagram_is_one_packet() {
        let verbs = [Verb::Write, Verb::Read, Verb::Send, Verb::Atomic];
        let takes = |connection| verbs.map(|verb| Params { connection, ..params(Test::latency(verb)) }.check().is_ok());
        assert_eq!(takes(Connection::Rc), [true; 4]);
        assert_eq!(takes(Connection::Uc), [true, false, true, false]);
        assert_eq!(takes(Connection::Ud), [false, false, true, false]);
        let mut datagram = Params { connection: Connection::Ud, size: 4096, ..params(Test::bandwidth(Verb::Send)) };
        datagram.check().unwrap();
        datagram.mtu = Some(1024);
        assert_eq!(datagram.check().unwrap_err().to_string(), "-s (--size) with -c UD is 4096: 1 to 1024");
        assert_eq!((datagram.grh_bytes(), datagram.stride()), (40, 4160));
    }

    #[test]
    fn messages_lie_on_cache_lines_in_a_page_or_one_by_one() {
        let layout = |size| {
            let params = Params { size, ..params(Test::bandwidth(Verb::Write)) };
            (params.stride(), params.slots(), params.footprint())
        };
        assert_eq!(layout(1), (64, 64, 4096));
        assert_eq!(layout(65), (128, 32, 4096));
        assert_eq!(layout(1000), (1024, 4, 4096));
        assert_eq!(layout(4097), (4160, 1, 4160));
        assert_eq!(layout(1 << 31), (1 << 31, 1, 1 << 31));
    }

    #[test]
    fn settings_survive_the_way_to_the_peer() {
        let params = Params { stop: Stop::Seconds(0.25), mtu: Some(1024), ..params(Test::latency(Verb::Send)) };
        let text = serde_json::to_string(&params).unwrap();
        assert_eq!(serde_json::from_str::<Params>(&text).unwrap(), params);
        assert_eq!(params.test.to_string(), "send_lat");
    }
}
