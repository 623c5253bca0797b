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

fn report(recorder: &Recorder) -> Report<'_> {
    Report {
        name: "two <hosts>",
        scenario: "[topology]\nkind = \"pair\" # <script>alert(1)</script>\n",
        seed: 7,
        replay: "ferroce-sim run two.toml --seed 7",
        trace: 0xfeed_f00d_dead_beef,
        end: Time::from_ns(3_000_000),
        recorder,
    }
}

#[test]
fn summary_has_its_fields_and_units() {
    insta::assert_snapshot!(report(&recorder(40)).json().unwrap());
}

#[test]
fn page_holds_all_in_itself_and_escapes_what_is_not_ours() {
    let recorder = recorder(40);
    let page = report(&recorder).html().unwrap();
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
    let page = report(&recorder).html().unwrap();
    assert!(page.contains("No flow was completed.") && !page.contains("<svg"));
}

#[test]
fn files_are_tables_with_names_and_a_row_for_each_thing() {
    report(&recorder(600)).write("/tmp/simload-report".as_ref()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("made/on/demand");
    let recorder = recorder(12);
    report(&recorder).write(&directory).unwrap();
    let read = |name: &str| std::fs::read_to_string(directory.join(name)).unwrap();
    let table = |name: &str| {
        let text = read(name);
        let lines: Vec<&str> = text.lines().take(3).collect();
        format!("{name}: {} lines\n{}", text.lines().count(), lines.join("\n"))
    };
    assert_eq!(read("summary.json"), report(&recorder).json().unwrap());
    assert_eq!(read("report.html"), report(&recorder).html().unwrap());
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
    let error = report(&recorder(1)).write(&file.join("below")).unwrap_err().to_string();
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
