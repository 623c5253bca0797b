use engine::Time;
use rand::Rng;

use super::*;
use crate::flow::{Flow, FlowOp, NetworkTotals, Observer, QueueSample};
use crate::random::{StreamOf, stream};
use crate::stats::ideal::{Hop, Path as Way};

fn way(_: u16, _: u16) -> Way {
    let hop = Hop { bits_per_s: 100_000_000_000, delay_ns: 1_000 };
    Way { hops: vec![hop; 2], mtu_bytes: 4_096, overhead_bytes: 82 }
}

/// Flows that come one after the other, in the share of the link that chance gives them, with a queue that fills and empties.
fn recorder(flow_count: u32) -> Recorder {
    let mut recorder = Recorder::new(10_000, way);
    let mut stream = stream(3, StreamOf::Settings);
    let mut totals = NetworkTotals::default();
    for id in 0..flow_count {
        let start = Time::from_ns(u64::from(id) * 50_000);
        let flow = Flow { id, src: 1, dst: 0, bytes: stream.random_range(100..2_000_000), op: FlowOp::Write, start };
        recorder.flow_started(start, &flow);
        let ns = flow.bytes / stream.random_range(2..12) + 4_200;
        for part in 1..=4 {
            recorder.flow_progressed(start.add_ns(ns * part / 4), id, flow.bytes / 4);
        }
        recorder.flow_finished(start.add_ns(ns), &flow, true);
        totals.packets += flow.bytes / 4_096 + 1;
        totals.retransmitted += u64::from(id % 7 == 0);
        totals.marked += u64::from(id % 3) * 20;
        let bytes = u64::from((id * 37) % 100) * 4_000;
        let queue = QueueSample { switch: 0, port: 0, priority: 3, bytes, is_paused: false };
        recorder.sampled(start.add_ns(ns), &[queue], &totals);
    }
    recorder
}

fn summary(recorder: &Recorder) -> Summary {
    recorder.summary(Time::from_ns(3_000_000))
}

fn report<'a>(recorder: &'a Recorder, summary: &'a Summary) -> Report<'a> {
    Report {
        name: "two <hosts>",
        scenario: "[topology]\nkind = \"pair\" # <script>alert(1)</script>\n",
        seed: 7,
        replay: "ferroce-sim run two.toml --seed 7",
        trace: 0xfeed_f00d_dead_beef,
        summary,
        recorder,
    }
}

#[test]
fn summary_has_its_fields_and_units() {
    let recorder = recorder(40);
    insta::assert_snapshot!(report(&recorder, &summary(&recorder)).json().unwrap());
}

#[test]
fn page_holds_all_in_itself_and_escapes_what_is_not_ours() {
    let recorder = recorder(40);
    let page = report(&recorder, &summary(&recorder)).html().unwrap();
    assert!(page.contains("&lt;script&gt;alert(1)") && !page.contains("<script"), "the scenario's text is escaped");
    assert!(page.contains("<h1>two &lt;hosts&gt;</h1>"));
    // Nothing is fetched: the only address is the name of SVG.
    assert!(page.matches("http").count() == page.matches("xmlns=\"http://www.w3.org/2000/svg\"").count());
    let charts = figures::charts(&recorder);
    let titles: Vec<&str> = charts.iter().map(|chart| chart.title).collect();
    assert_eq!(page.matches("<svg ").count(), titles.len());
    assert!(titles.iter().all(|title| page.contains(title)));
    assert_eq!(titles.len(), 6, "{titles:?}");
}

#[test]
fn empty_run_has_a_page_without_charts() {
    let recorder = Recorder::new(1_000, way);
    let page = report(&recorder, &summary(&recorder)).html().unwrap();
    assert!(page.contains("No flow was completed.") && !page.contains("<svg"));
}

#[test]
fn files_are_tables_with_names_and_a_row_for_each_thing() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("made/on/demand");
    let recorder = recorder(12);
    report(&recorder, &summary(&recorder)).write(&directory).unwrap();
    let read = |name: &str| std::fs::read_to_string(directory.join(name)).unwrap();
    let table = |name: &str| {
        let text = read(name);
        let lines: Vec<&str> = text.lines().take(3).collect();
        format!("{name}: {} lines\n{}", text.lines().count(), lines.join("\n"))
    };
    assert_eq!(read("summary.json"), report(&recorder, &summary(&recorder)).json().unwrap());
    assert_eq!(read("report.html"), report(&recorder, &summary(&recorder)).html().unwrap());
    let tables = ["flows.csv", "queues.csv", "rates.csv", "counters.csv"].map(table);
    insta::assert_snapshot!(tables.join("\n"), @r"
    flows.csv: 13 lines
    flow,source,destination,operation,bytes,start_us,end,completion_us,ideal_us,slowdown,goodput_bits_per_s
    0,1,0,write,1245972,0.0,complete,627.186,106.026,5.915,15892854751.0
    1,1,0,write,645679,50.0,complete,327.039,57.038,5.734,15794470996.0
    queues.csv: 77 lines
    time_us,switch,port,priority,mean_bytes,max_bytes
    5.0,0,0,3,0.0,0
    15.0,0,0,3,0.0,0
    rates.csv: 332 lines
    time_us,flow,goodput_bits_per_s
    5.0,,15892905431.0
    15.0,,15892905431.0
    counters.csv: 229 lines
    time_us,counter,count
    5.0,packets,305
    15.0,packets,0
    ");
}

#[test]
fn folder_that_cannot_be_made_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let recorder = recorder(1);
    let error = report(&recorder, &summary(&recorder)).write(&file.join("below")).unwrap_err().to_string();
    assert!(error.contains("file/below"), "{error}");
}

fn comparison(series_count: usize) -> Chart<'static> {
    let series = (0..series_count).map(|number| Series {
        name: format!("series {number}"),
        look: [Look::Measured, Look::Published, Look::Line][number % 3],
        points: vec![(1e-5, 9e10), (1e-3, 5e10), (0.0, 1e9)],
    });
    Chart {
        title: "Goodput under loss",
        x: Axis::log("Loss rate", Unit::Number),
        y: Axis::linear("Goodput", Unit::BitsPerS),
        series: series.collect(),
    }
}

#[test]
fn comparison_is_a_file_with_all_its_names() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("loss.svg");
    comparison(MAX_SERIES).write_svg(&path).unwrap();
    let svg = std::fs::read_to_string(path).unwrap();
    for name in ["Goodput under loss", "Loss rate", "Goodput (Gb/s)", "series 0", "series 13", "1e-4"] {
        assert!(svg.contains(name), "{name}");
    }
    assert!(svg.starts_with("<svg ") && svg.trim_end().ends_with("</svg>"));
}

#[test]
fn chart_of_nothing_or_of_too_much_is_refused() {
    let mut nothing = comparison(2);
    // Only what a logarithmic axis cannot show.
    nothing.series.iter_mut().for_each(|series| series.points = vec![(0.0, 1.0), (-1.0, 1.0), (f64::NAN, 1.0)]);
    let said =
        [nothing.svg(), comparison(0).svg(), comparison(MAX_SERIES + 1).svg()].map(|svg| svg.unwrap_err().to_string());
    insta::assert_snapshot!(said.join("\n"), @r"
    the chart `Goodput under loss` has 2 series with 0 points; it takes 1 to 14, and a point
    the chart `Goodput under loss` has 0 series with 0 points; it takes 1 to 14, and a point
    the chart `Goodput under loss` has 15 series with 30 points; it takes 1 to 14, and a point
    ");
}

/// Runs a scenario that is shipped, and makes its report.
fn shipped(name: &str) -> (crate::scenario::Outcome, String) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios").join(name);
    let scenario = crate::scenario::Scenario::read(&path).unwrap();
    let outcome = crate::scenario::execute(&scenario, 1, false, |_| {}).unwrap();
    let report = Report {
        name,
        scenario: &scenario.text,
        seed: 1,
        replay: "",
        trace: outcome.trace,
        summary: &outcome.summary,
        recorder: &outcome.recorder,
    };
    let page = report.html().unwrap();
    (outcome, page)
}

#[test]
fn shipped_incast_takes_as_long_as_its_bytes_and_has_its_charts() {
    let (outcome, page) = shipped("incast.toml");
    let Summary { flows, totals, fairness, goodput_bits_per_s, completions, .. } = outcome.summary;
    assert_eq!((flows.complete, flows.started, totals.dropped, totals.retransmitted), (160, 160, 0, 0));
    assert!(totals.pauses > 0 && fairness.unwrap() > 0.8, "{totals:?} {fairness:?}");
    // 4096 of 4178 bytes of each packet are payload.
    assert!((96e9..98.1e9).contains(&goodput_bits_per_s), "{goodput_bits_per_s}");
    // Sixteen share what one would have alone; those that begin first have less to share with.
    let slowdown = completions.last().unwrap().slowdown;
    assert!((14.0..16.0).contains(&slowdown.p50), "{slowdown:?}");
    assert_eq!(page.matches("<svg ").count(), 5);
}

#[test]
fn shipped_all_reduce_is_hardly_slower_than_its_links() {
    let (outcome, _) = shipped("all_reduce.toml");
    let Summary { flows, completions, .. } = outcome.summary;
    assert_eq!((flows.complete, flows.unfinished), (4 * 8 * 14, 0));
    // Every host has a link to itself at each step: what the network takes is what the ideal time says, and the hosts' turns.
    let slowdown = completions.last().unwrap().slowdown;
    assert!(slowdown.p50 >= 1.0 && slowdown.max < 1.1, "{slowdown:?}");
}

#[test]
fn shipped_mix_and_lossy_link_complete_every_flow() {
    let (mix, _) = shipped("web_search.toml");
    assert_eq!((mix.summary.flows.complete, mix.summary.totals.retransmitted), (400, 0));
    let (lossy, _) = shipped("lossy_pair.toml");
    assert_eq!(lossy.summary.flows.complete, 1);
    assert!(lossy.summary.totals.lost > 0 && lossy.summary.totals.retransmitted > 0);
}
