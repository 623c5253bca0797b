//! The CSV files of a report: times in microseconds, sizes in bytes, rates in bits a second.

use std::path::Path;

use serde::Serialize;

use super::ReportError;
use crate::stats::{FlowEnd, Recorder};

#[derive(Serialize)]
struct FlowRow<'a> {
    flow: u32,
    source: u16,
    destination: u16,
    operation: &'a str,
    bytes: u64,
    start_us: f64,
    end: FlowEnd,
    completion_us: f64,
    ideal_us: f64,
    slowdown: f64,
    goodput_bits_per_s: f64,
}

#[derive(Serialize)]
struct QueueRow {
    time_us: f64,
    switch: u16,
    port: u16,
    priority: u8,
    mean_bytes: f64,
    max_bytes: u64,
}

#[derive(Serialize)]
struct RateRow {
    time_us: f64,
    /// Empty: all flows together.
    flow: Option<u32>,
    goodput_bits_per_s: f64,
}

#[derive(Serialize)]
struct CounterRow<'a> {
    time_us: f64,
    counter: &'a str,
    count: u64,
}

/// Nanoseconds of a time in microseconds, as far as anything is known.
fn rounded(value: f64) -> f64 {
    (value * 1_000.0).round() / 1_000.0
}

fn write<R: Serialize>(path: &Path, rows: impl Iterator<Item = R>) -> Result<(), ReportError> {
    let failed = |error: csv::Error| ReportError::File { path: path.to_owned(), what: error.to_string() };
    let mut writer = csv::Writer::from_path(path).map_err(failed)?;
    for row in rows {
        writer.serialize(row).map_err(failed)?;
    }
    writer.flush().map_err(|error| failed(error.into()))
}

/// Writes all of them.
pub(super) fn write_all(recorder: &Recorder, directory: &Path) -> Result<(), ReportError> {
    let flows = recorder.flows().iter().map(|record| FlowRow {
        flow: record.flow.id,
        source: record.flow.src,
        destination: record.flow.dst,
        operation: record.flow.op.name(),
        bytes: record.flow.bytes,
        start_us: record.flow.start.as_ns() as f64 / 1_000.0,
        end: record.end,
        completion_us: record.completion_ns() as f64 / 1_000.0,
        ideal_us: rounded(record.ideal_ns / 1_000.0),
        slowdown: rounded(record.slowdown()),
        goodput_bits_per_s: record.goodput_bits_per_s().round(),
    });
    write(&directory.join("flows.csv"), flows)?;

    let queues = recorder.queues().into_iter().flat_map(|queue| {
        let (switch, port, priority) = (queue.switch, queue.port, queue.priority);
        let row =
            move |(time_us, mean_bytes, max_bytes)| QueueRow { time_us, switch, port, priority, mean_bytes, max_bytes };
        queue.points.into_iter().map(row)
    });
    write(&directory.join("queues.csv"), queues)?;

    let row = |flow| move |(time_us, rate): (f64, f64)| RateRow { time_us, flow, goodput_bits_per_s: rate.round() };
    let all = recorder.goodput().into_iter().map(row(None));
    let each = recorder.rates().into_iter().flat_map(|rate| rate.points.into_iter().map(row(Some(rate.flow))));
    write(&directory.join("rates.csv"), all.chain(each))?;

    let counters = recorder.counters();
    let counted = counters.iter().flat_map(|counter| {
        counter.points.iter().map(|&(time_us, count)| CounterRow { time_us, counter: counter.name, count })
    });
    write(&directory.join("counters.csv"), counted)
}
