//! From settings as they are written to patterns that can run, or a sentence that says why not.

use engine::Time;

use super::arrivals::{Chooser, ClosedLoop, Poisson};
use super::ring::RingAllReduce;
use super::rounds::{RoundFlow, Rounds, Spacing};
use super::settings::{
    AllToAllSettings, ClosedLoopSettings, FlowsSettings, IncastSettings, PoissonSettings, RingAllReduceSettings,
    RoundsSettings,
};
use super::sizes::MAX_FLOW_BYTES;
use super::{MAX_FLOWS, MAX_WORKLOADS, Pattern, Refusal, SizeDistribution, Surroundings, WorkloadSettings};
use crate::random::{Stream, StreamOf, stream};

/// No time of a scenario is longer: an hour.
const MAX_US: u64 = 3_600_000_000;
const MAX_ROUNDS: u64 = 1_000_000;
const MAX_LOAD_PERCENT: f64 = 200.0;

type Checked<T> = Result<T, Refusal>;

fn range(key: &'static str, value: impl Into<u64>, min: u64, max: u64) -> Checked<u64> {
    let value = value.into();
    if (min..=max).contains(&value) { Ok(value) } else { Err(Refusal::Range { key, value, min, max }) }
}

fn ns(key: &'static str, us: u64) -> Checked<u64> {
    Ok(range(key, us, 0, MAX_US)? * 1_000)
}

/// The pattern that workload `number` asks for.
pub(super) fn pattern(
    number: usize,
    settings: &WorkloadSettings,
    surroundings: &Surroundings<'_>,
    seed: u64,
) -> Checked<Pattern> {
    range("number of workloads", number as u64 + 1, 1, MAX_WORKLOADS as u64)?;
    // Below MAX_WORKLOADS, as was checked.
    let stream = || stream(seed, StreamOf::Workload(number as u8));
    match settings {
        WorkloadSettings::Flows(it) => flows(it, surroundings).map(Pattern::Rounds),
        WorkloadSettings::Incast(it) => incast(it, surroundings).map(Pattern::Rounds),
        WorkloadSettings::AllToAll(it) => all_to_all(it, surroundings).map(Pattern::Rounds),
        WorkloadSettings::RingAllReduce(it) => ring(it, surroundings).map(Pattern::Ring),
        WorkloadSettings::Poisson(it) => poisson(it, surroundings, stream()).map(Pattern::Poisson),
        WorkloadSettings::ClosedLoop(it) => closed_loop(it, surroundings, stream()).map(Pattern::ClosedLoop),
    }
}

fn check_host(key: &'static str, host: u16, surroundings: &Surroundings<'_>) -> Checked<u16> {
    range(key, host, 0, surroundings.host_count.saturating_sub(1).into())?;
    Ok(host)
}

/// The hosts of a list, each once; all if there is none.
fn hosts(key: &'static str, list: Option<&[u16]>, min: u64, surroundings: &Surroundings<'_>) -> Checked<Vec<u16>> {
    let hosts = list.map_or_else(|| (0..surroundings.host_count).collect(), <[u16]>::to_vec);
    range("number of hosts", hosts.len() as u64, min, surroundings.host_count.into())?;
    for (position, &host) in hosts.iter().enumerate() {
        check_host(key, host, surroundings)?;
        if hosts[..position].contains(&host) {
            return Err(Refusal::Twice(host, key));
        }
    }
    Ok(hosts)
}

fn check_rounds(rounds: &RoundsSettings) -> Checked<(Time, u32, Spacing)> {
    range("rounds.count", rounds.count, 1, MAX_ROUNDS)?;
    let first = Time::from_ns(ns("rounds.start_us", rounds.start_us)?);
    let spacing = match (rounds.gap_us, rounds.period_us) {
        (Some(_), Some(_)) => return Err(Refusal::Both("rounds.gap_us", "rounds.period_us")),
        (gap_us, None) => Spacing::GapNs(ns("rounds.gap_us", gap_us.unwrap_or(0))?),
        (None, Some(period_us)) => {
            range("rounds.period_us", period_us, 1, MAX_US)?;
            Spacing::PeriodNs(period_us * 1_000)
        }
    };
    Ok((first, rounds.count, spacing))
}

fn check_flow_count(count: u64) -> Checked<()> {
    if count > MAX_FLOWS { Err(Refusal::TooMany(count)) } else { Ok(()) }
}

fn rounds_of(pairs: Vec<(u16, u16)>, bytes: u64, rounds: &RoundsSettings) -> Checked<Rounds> {
    range("bytes", bytes, 1, MAX_FLOW_BYTES)?;
    let (first, left, spacing) = check_rounds(rounds)?;
    check_flow_count(pairs.len() as u64 * u64::from(left))?;
    let flows = pairs.into_iter().map(|hosts| RoundFlow { hosts, bytes, offset_ns: 0 }).collect();
    Ok(Rounds { flows, first, left, spacing, unfinished: 0 })
}

fn flows(settings: &FlowsSettings, surroundings: &Surroundings<'_>) -> Checked<Rounds> {
    range("number of flows", settings.flows.len() as u64, 1, MAX_FLOWS)?;
    let mut flows = Vec::with_capacity(settings.flows.len());
    for flow in &settings.flows {
        let hosts = (check_host("from", flow.from, surroundings)?, check_host("to", flow.to, surroundings)?);
        if hosts.0 == hosts.1 {
            return Err(Refusal::ToItself(hosts.0));
        }
        let bytes = range("bytes", flow.bytes, 1, MAX_FLOW_BYTES)?;
        flows.push(RoundFlow { hosts, bytes, offset_ns: ns("start_us", flow.start_us)? });
    }
    Ok(Rounds { flows, first: Time::ZERO, left: 1, spacing: Spacing::GapNs(0), unfinished: 0 })
}

fn incast(settings: &IncastSettings, surroundings: &Surroundings<'_>) -> Checked<Rounds> {
    let to = check_host("to", settings.to, surroundings)?;
    let from = match settings.from.as_deref() {
        Some(list) => hosts("from", Some(list), 1, surroundings)?,
        None => hosts("from", None, 2, surroundings)?.into_iter().filter(|&host| host != to).collect(),
    };
    if from.contains(&to) {
        return Err(Refusal::ToItself(to));
    }
    rounds_of(from.into_iter().map(|from| (from, to)).collect(), settings.bytes, &settings.rounds)
}

fn all_to_all(settings: &AllToAllSettings, surroundings: &Surroundings<'_>) -> Checked<Rounds> {
    let hosts = hosts("hosts", settings.hosts.as_deref(), 2, surroundings)?;
    // By distance: at any moment the first flows of all hosts go to different hosts.
    let pair = |distance: usize, position: usize| (hosts[position], hosts[(position + distance) % hosts.len()]);
    let pairs = (1..hosts.len()).flat_map(|distance| (0..hosts.len()).map(move |position| (distance, position)));
    let pairs = pairs.map(|(distance, position)| pair(distance, position)).collect();
    rounds_of(pairs, settings.bytes, &settings.rounds)
}

fn ring(settings: &RingAllReduceSettings, surroundings: &Surroundings<'_>) -> Checked<RingAllReduce> {
    let hosts = hosts("hosts", settings.hosts.as_deref(), 2, surroundings)?;
    let count = hosts.len() as u64;
    range("bytes", settings.bytes, count, MAX_FLOW_BYTES)?;
    let (first, rounds, spacing) = check_rounds(&settings.rounds)?;
    check_flow_count(count * 2 * (count - 1) * u64::from(rounds))?;
    match spacing {
        Spacing::GapNs(gap_ns) => Ok(RingAllReduce::new(hosts, settings.bytes, first, rounds, gap_ns)),
        Spacing::PeriodNs(_) => Err(Refusal::Meaningless("rounds.period_us")),
    }
}

/// When flows begin at random hosts, and how many: the keys `start_us`, `count` and `duration_us`.
fn check_end(start_us: u64, count: Option<u32>, duration_us: Option<u64>) -> Checked<(Time, u64, Time)> {
    let first = Time::from_ns(ns("start_us", start_us)?);
    if (count, duration_us) == (None, None) {
        return Err(Refusal::NoEnd);
    }
    let left = count.map_or(Ok(MAX_FLOWS), |count| range("count", count, 1, MAX_FLOWS))?;
    let end = match duration_us {
        Some(us) => first.add_ns(range("duration_us", us, 1, MAX_US)? * 1_000),
        None => Time::NEVER,
    };
    Ok((first, left, end))
}

fn distribution(settings: &super::Sizes, surroundings: &Surroundings<'_>) -> Checked<SizeDistribution> {
    Ok(settings.distribution(surroundings.directory)?)
}

fn poisson(settings: &PoissonSettings, surroundings: &Surroundings<'_>, stream: Stream) -> Checked<Poisson> {
    let hosts = hosts("hosts", settings.hosts.as_deref(), 2, surroundings)?;
    let load = settings.load_percent;
    // Not a number is refused as well.
    if !(load > 0.0 && load <= MAX_LOAD_PERCENT) {
        return Err(Refusal::Load(load));
    }
    let sizes = distribution(&settings.sizes, surroundings)?;
    let (first, left, end) = check_end(settings.start_us, settings.count, settings.duration_us)?;
    let bytes_per_ns = surroundings.host_bits_per_s as f64 / 8e9 * hosts.len() as f64 * load / 100.0;
    let mean_gap_ns = sizes.mean_bytes() / bytes_per_ns;
    Ok(Poisson { chooser: Chooser { stream, hosts, sizes, left, end }, first, mean_gap_ns, rest_ns: 0.0 })
}

fn closed_loop(settings: &ClosedLoopSettings, surroundings: &Surroundings<'_>, stream: Stream) -> Checked<ClosedLoop> {
    let hosts = hosts("hosts", settings.hosts.as_deref(), 2, surroundings)?;
    let sizes = distribution(&settings.sizes, surroundings)?;
    let (first, left, end) = check_end(settings.start_us, settings.count, settings.duration_us)?;
    range("outstanding", settings.outstanding, 1, 1024)?;
    let think_ns = ns("think_us", settings.think_us)?;
    let chooser = Chooser { stream, hosts, sizes, left, end };
    Ok(ClosedLoop { chooser, first, outstanding: settings.outstanding, think_ns })
}
