//! The charts of a run's report.

use super::axis::{Axis, Unit};
use super::chart::{Chart, Look, MAX_SERIES, Series};
use crate::stats::{QueueSeries, Recorder};

/// Rates of more flows than this are not drawn one by one.
const MAX_DRAWN_FLOWS: usize = 8;
/// The deepest queues.
const MAX_DRAWN_QUEUES: usize = 6;
/// Pieces, of equal numbers of flows, that slowdowns by size are drawn in.
const SIZE_PIECES: usize = 20;

const TIME: Axis<'static> = Axis::linear("Time", Unit::Us);

fn line(name: impl Into<String>, points: Vec<(f64, f64)>) -> Series {
    Series { name: name.into(), look: Look::Line, points }
}

/// All charts that have something to show.
pub(super) fn charts(recorder: &Recorder) -> Vec<Chart<'static>> {
    let all = [
        goodput(recorder),
        fairness(recorder),
        distribution(recorder),
        slowdown(recorder),
        queues(recorder),
        counters(recorder),
    ];
    let has_points = |chart: &Chart<'_>| chart.series.iter().any(|series| !series.points.is_empty());
    all.into_iter().filter(has_points).collect()
}

fn goodput(recorder: &Recorder) -> Chart<'static> {
    let rates = recorder.rates();
    let mut series = Vec::new();
    // Of one flow alone, the sum is its rate.
    if (2..=MAX_DRAWN_FLOWS).contains(&rates.len()) {
        series.extend(rates.into_iter().map(|rate| line(format!("flow {}", rate.flow), rate.points)));
    }
    series.push(line("all flows", recorder.goodput()));
    Chart { title: "Goodput over time", x: TIME, y: Axis::linear("Goodput", Unit::BitsPerS), series }
}

fn fairness(recorder: &Recorder) -> Chart<'static> {
    let series = vec![line("Jain's index", recorder.fairness())];
    Chart {
        title: "Fairness of the first flows, while they run",
        x: TIME,
        y: Axis::linear("Jain's index", Unit::Number),
        series,
    }
}

fn distribution(recorder: &Recorder) -> Chart<'static> {
    let points = recorder.completion_distribution();
    // A single step is no distribution.
    let points = if points.len() < 2 { Vec::new() } else { points };
    Chart {
        title: "Flow completion times, cumulative",
        x: Axis::log("Completion time", Unit::Us),
        y: Axis::linear("Part of the flows", Unit::Part),
        series: vec![line("complete flows", points)],
    }
}

/// Percentiles of the slowdown in pieces of equal numbers of flows, by their size.
fn slowdown(recorder: &Recorder) -> Chart<'static> {
    let complete = recorder.flows().iter().filter(|record| record.end == crate::stats::FlowEnd::Complete);
    let mut flows: Vec<(u64, f64)> = complete.map(|record| (record.flow.bytes, record.slowdown())).collect();
    flows.sort_by(|one, other| one.0.cmp(&other.0).then(one.1.total_cmp(&other.1)));
    let piece = flows.len().div_ceil(SIZE_PIECES).max(1);
    let has_sizes = flows.first().map(|flow| flow.0) != flows.last().map(|flow| flow.0);
    // A percentile of fewer flows than it takes to tell it from the largest is not drawn.
    let percentiles = [("median", 0.5, 2), ("95 %", 0.95, 20), ("99 %", 0.99, 100)];
    let known = percentiles.into_iter().filter(|(_, _, least)| piece >= *least);
    let mut named: Vec<(f64, Series)> = known.map(|(name, part, _)| (part, line(name, Vec::new()))).collect();
    for piece in flows.chunks(piece).filter(|_| has_sizes) {
        let mut slowdowns: Vec<f64> = piece.iter().map(|flow| flow.1).collect();
        slowdowns.sort_by(f64::total_cmp);
        for (part, series) in &mut named {
            // Within the piece, as the part is below 1.
            let at = (slowdowns.len() as f64 * *part) as usize;
            series.points.push((piece[piece.len() / 2].0 as f64, slowdowns[at]));
        }
    }
    let series = named.into_iter().map(|(_, series)| series).collect();
    Chart {
        title: "Slowdown by flow size",
        x: Axis::log("Flow size", Unit::Bytes),
        y: Axis::log("Slowdown against an empty network", Unit::Number),
        series,
    }
}

fn queues(recorder: &Recorder) -> Chart<'static> {
    let mut queues = recorder.queues();
    queues.sort_by_key(|queue| std::cmp::Reverse(queue.max_bytes()));
    let depth = |queue: QueueSeries| {
        let points = queue.points.iter().map(|&(us, _, max_bytes)| (us, max_bytes as f64)).collect();
        line(format!("switch {} port {} prio {}", queue.switch, queue.port, queue.priority), points)
    };
    // The deepest is drawn last, on top.
    let series = queues.into_iter().take(MAX_DRAWN_QUEUES).rev().map(depth).collect();
    Chart {
        title: "Largest depth of the deepest queues",
        x: TIME,
        y: Axis::linear("Egress queue", Unit::Bytes),
        series,
    }
}

fn counters(recorder: &Recorder) -> Chart<'static> {
    // Sums: they never fall back to 0, which a logarithmic axis has not.
    let series = recorder.counters().into_iter().take(MAX_SERIES).map(|counter| {
        let mut sum = 0;
        let so_far = |(us, count): (f64, u64)| {
            sum += count;
            (us, sum as f64)
        };
        line(counter.name, counter.points.into_iter().map(so_far).collect())
    });
    let series: Vec<_> = series.collect();
    // A line alone has no legend.
    let counted = if series.len() == 1 { "Packets" } else { "Events" };
    Chart { title: "Counted since the start", x: TIME, y: Axis::log(counted, Unit::Number), series }
}
