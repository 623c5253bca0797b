//! What came of it: a table for people, JSON for programs.

use std::fmt::Write as _;

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use crate::device::Device;
use crate::model::{Balance, Fabric};
use crate::run::Runner;
use sim::frame::FrameStorage;
use sim::link::LinkCounters;

/// Everything that is counted, from the start on.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Report {
    /// Time since the start, ns.
    pub time_ns: u64,
    /// Every port.
    pub ports: Vec<PortReport>,
    /// The switch.
    pub switch: SwitchReport,
    /// Where all frames are.
    pub balance: BalanceReport,
    /// How the machine kept up.
    pub pace: PaceReport,
}

/// A port.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
#[expect(missing_docs, reason = "docs/fabric.md says what each is; names are those of the counters behind them")]
pub struct PortReport {
    pub name: String,
    pub rx_frames: u64,
    pub rx_bytes: u64,
    pub tx_frames: u64,
    pub tx_bytes: u64,
    pub queued_frames: usize,
    pub queued_bytes: u64,
    pub queue_peak_bytes: u64,
    pub held: u64,
    pub is_up: bool,
    pub flaps: u64,
    pub paused_ns: u64,
    pub lost: u64,
    pub lost_in_flaps: u64,
    pub duplicated: u64,
    pub reordered: u64,
    pub corrupted: u64,
    pub truncated: u64,
    pub delayed: u64,
    pub oversize: u64,
    pub device_missed: u64,
    pub device_unsent: u64,
}

/// The switch.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
#[expect(missing_docs, reason = "as of a port")]
pub struct SwitchReport {
    pub marked: u64,
    pub pauses_sent: u64,
    pub resumes_sent: u64,
    pub pauses_received: u64,
    pub copies: u64,
    pub dropped_queue: u64,
    pub dropped_headroom: u64,
    pub dropped_unknown: u64,
    pub dropped_local: u64,
    pub dropped_oversize: u64,
    pub dropped_down: u64,
    pub dropped_malformed: u64,
    pub buffer_peak_bytes: u64,
    pub stations: usize,
    pub stations_learned: u64,
    pub stations_moved: u64,
    pub stations_aged: u64,
    pub stations_unlearned: u64,
}

/// [`Balance`], and whether it is even.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
#[expect(missing_docs, reason = "as of a port")]
pub struct BalanceReport {
    pub received: u64,
    pub made: u64,
    pub sent: u64,
    pub lost: u64,
    pub dropped: u64,
    pub obeyed: u64,
    pub inside: u64,
    pub is_even: bool,
}

/// How the machine kept up.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
#[expect(missing_docs, reason = "as of a port")]
pub struct PaceReport {
    pub turns: u64,
    pub late_turns: u64,
    pub late_ns: u64,
    pub longest_turn_ns: u64,
}

impl Report {
    /// What a running fabric has counted.
    pub fn of(runner: &Runner) -> Self {
        let (fabric, pace) = (runner.fabric(), runner.pace());
        let ports =
            runner.devices().iter().zip(0..).map(|(device, port)| with_device(port_report(fabric, port), device));
        Self {
            time_ns: runner.now_ns(),
            ports: ports.collect(),
            switch: switch_report(fabric),
            balance: balance_report(fabric.balance()),
            pace: PaceReport {
                turns: pace.turns,
                late_turns: pace.late_turns,
                late_ns: pace.late_ns,
                longest_turn_ns: pace.longest_ns,
            },
        }
    }

    /// One line.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// A table, and sentences.
    pub fn to_text(&self) -> String {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        table.set_header([
            "port",
            "link",
            "rx frames",
            "rx Mbit/s",
            "tx frames",
            "tx Mbit/s",
            "queued B",
            "peak B",
            "lost",
            "dup",
            "reord",
            "corrupt",
            "paused ms",
            "held",
            "missed",
            "unsent",
        ]);
        table.column_iter_mut().skip(2).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
        let mbps = |bytes: u64| format!("{:.1}", bytes as f64 * 8e3 / self.time_ns.max(1) as f64);
        for port in &self.ports {
            table.add_row([
                port.name.clone(),
                if port.is_up { "up" } else { "down" }.to_owned(),
                port.rx_frames.to_string(),
                mbps(port.rx_bytes),
                port.tx_frames.to_string(),
                mbps(port.tx_bytes),
                port.queued_bytes.to_string(),
                port.queue_peak_bytes.to_string(),
                (port.lost + port.lost_in_flaps + port.oversize).to_string(),
                port.duplicated.to_string(),
                port.reordered.to_string(),
                (port.corrupted + port.truncated).to_string(),
                format!("{:.1}", port.paused_ns as f64 / 1e6),
                port.held.to_string(),
                port.device_missed.to_string(),
                port.device_unsent.to_string(),
            ]);
        }
        let mut text = format!("after {:.3} s\n{table}\n", self.time_ns as f64 / 1e9);
        self.write_sentences(&mut text);
        text
    }

    fn write_sentences(&self, text: &mut String) {
        let Self { switch, balance, pace, .. } = self;
        let _ = writeln!(
            text,
            "switch: {} marked; pauses: {} sent, {} ended, {} obeyed; dropped: {} queue, {} headroom, {} unknown, {} local, {} oversize, {} \
             link down, {} malformed; buffer peak {} B",
            switch.marked,
            switch.pauses_sent,
            switch.resumes_sent,
            switch.pauses_received,
            switch.dropped_queue,
            switch.dropped_headroom,
            switch.dropped_unknown,
            switch.dropped_local,
            switch.dropped_oversize,
            switch.dropped_down,
            switch.dropped_malformed,
            switch.buffer_peak_bytes,
        );
        let _ = writeln!(
            text,
            "stations: {} known, {} learned, {} moved, {} aged, {} frames of others",
            switch.stations,
            switch.stations_learned,
            switch.stations_moved,
            switch.stations_aged,
            switch.stations_unlearned,
        );
        let _ = writeln!(
            text,
            "frames: {} in + {} made = {} out + {} lost + {} dropped + {} obeyed + {} inside{}",
            balance.received,
            balance.made,
            balance.sent,
            balance.lost,
            balance.dropped,
            balance.obeyed,
            balance.inside,
            if balance.is_even { "" } else { ": THEY DO NOT ADD UP" },
        );
        let _ = writeln!(
            text,
            "machine: {} turns, {} of them more than 1 ms late, by {:.1} % of the time, the longest after {:.3} ms",
            pace.turns,
            pace.late_turns,
            pace.late_ns as f64 * 100.0 / self.time_ns.max(1) as f64,
            pace.longest_turn_ns as f64 / 1e6,
        );
    }
}

/// What the model has counted for a port.
fn port_report<F: FrameStorage>(fabric: &Fabric<F>, port: u16) -> PortReport {
    let moved = fabric.port_counters(port);
    let both = |count: fn(&LinkCounters) -> u64| fabric.link_counters(port).into_iter().map(count).sum::<u64>();
    let (queued_frames, queued_bytes) = fabric.switch().waiting(port);
    PortReport {
        rx_frames: moved.rx_frames,
        rx_bytes: moved.rx_bytes,
        tx_frames: moved.tx_frames,
        tx_bytes: moved.tx_bytes,
        queued_frames,
        queued_bytes,
        queue_peak_bytes: (0..8).map(|priority| fabric.switch().queue_peak_bytes(port, priority)).sum(),
        held: moved.held,
        is_up: fabric.is_up(port),
        flaps: moved.flaps,
        paused_ns: fabric.paused_ns(port),
        lost_in_flaps: moved.lost_in_flaps,
        lost: both(|link| link.lost + link.lost_in_bursts),
        duplicated: both(|link| link.duplicated),
        reordered: both(|link| link.reordered),
        corrupted: both(|link| link.corrupted + link.corrupted_harmlessly),
        truncated: both(|link| link.truncated),
        delayed: both(|link| link.spikes),
        oversize: both(|link| link.oversize + link.unpadded),
        ..PortReport::default()
    }
}

fn with_device(report: PortReport, device: &Device) -> PortReport {
    let (stats, own) = (device.stats(), device.counters());
    PortReport {
        name: device.name().to_owned(),
        device_missed: stats.imissed + stats.rx_nombuf + stats.ierrors,
        device_unsent: stats.oerrors + own.oversize + own.no_buffer + own.down,
        ..report
    }
}

fn switch_report<F: FrameStorage>(fabric: &Fabric<F>) -> SwitchReport {
    let counters = fabric.switch_counters();
    let (stations, learning) = fabric.stations();
    SwitchReport {
        marked: counters.marked,
        pauses_sent: counters.pauses_sent,
        resumes_sent: counters.resumes_sent,
        pauses_received: counters.pauses_received,
        copies: counters.copies,
        dropped_queue: counters.dropped_queue,
        dropped_headroom: counters.dropped_headroom,
        dropped_unknown: counters.dropped_unknown,
        dropped_local: counters.dropped_local,
        dropped_oversize: counters.dropped_oversize,
        dropped_down: counters.dropped_down,
        dropped_malformed: counters.dropped_malformed,
        buffer_peak_bytes: fabric.switch().buffer_peak_bytes(),
        stations,
        stations_learned: learning.learned,
        stations_moved: learning.moved,
        stations_aged: learning.aged,
        stations_unlearned: learning.unlearned,
    }
}

fn balance_report(balance: Balance) -> BalanceReport {
    let Balance { received, made, sent, lost, dropped, obeyed, inside } = balance;
    BalanceReport { received, made, sent, lost, dropped, obeyed, inside, is_even: balance.is_even() }
}
