//! What the documents say of numbers and names is what the engine has.

use engine::ErrorCause;
use engine::cc::PARAMS;
use engine::counters::{CmCounters, PortCounters, PriorityCounters, QpCounters, ShardCounters};
use shm::attr::WcStatus;

fn document(name: &str) -> String {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The rows of every table, without heads, cell by cell.
fn rows(document: &str) -> Vec<Vec<String>> {
    let lines: Vec<&str> = document.lines().collect();
    let is_row = |line: &str| line.starts_with('|');
    let body = |i: usize| {
        let start = (0..=i).rev().take_while(|&j| is_row(lines[j])).last().unwrap_or(i);
        is_row(lines[i]) && i > start + 1
    };
    let cells = |line: &str| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect();
    (0..lines.len()).filter(|&i| body(i)).map(|i| cells(lines[i])).collect()
}

#[test]
fn every_error_is_in_its_document() {
    let document = document("errors.md");
    let found: Vec<_> = rows(&document).into_iter().map(|r| (r[0].clone(), r[1].clone(), r[3].clone())).collect();
    let causes = ErrorCause::ALL.iter();
    let expected: Vec<_> = causes.map(|c| (c.code().to_string(), format!("{c:?}"), c.sentence().to_owned())).collect();
    assert_eq!(found, expected);
    for row in rows(&document) {
        let (cause, seen) = (&row[1], &row[2]);
        let is_status = WcStatus::ALL.iter().any(|s| seen.starts_with(&format!("`{s}`")));
        assert!(is_status || seen.starts_with("event") || seen.starts_with("nothing"), "{cause}: {seen}");
    }
}

#[test]
fn error_numbers_rise_and_fit_their_field() {
    assert!(ErrorCause::ALL.is_sorted_by_key(|c| c.code()));
    assert!(ErrorCause::ALL.iter().all(|c| c.code() > 0), "0 says that nothing failed");
}

#[test]
fn every_counter_is_in_its_document() {
    let found: Vec<_> = rows(&document("counters.md")).into_iter().map(|r| (r[0].clone(), r[1].clone())).collect();
    let all = [
        PortCounters::MEANINGS,
        PriorityCounters::MEANINGS,
        ShardCounters::MEANINGS,
        QpCounters::MEANINGS,
        CmCounters::MEANINGS,
    ]
    .concat();
    let expected: Vec<_> = all.iter().map(|(name, meaning)| (format!("`{name}`"), meaning.trim().to_owned())).collect();
    assert_eq!(found, expected);
}

#[test]
fn counters_name_and_add_themselves() {
    let one = ShardCounters { turns: 2, rx_requests: 1, ..ShardCounters::default() };
    let mut sum = one;
    sum.add(&one);
    assert_eq!((sum.turns, sum.rx_requests), (4, 2));
    let names = one.entries().map(|(name, _)| name);
    assert!(names.eq(ShardCounters::MEANINGS.iter().map(|(name, _)| *name)));
    assert_eq!(one.entries().map(|(_, value)| value).sum::<u64>(), 3);
}

#[test]
fn every_parameter_of_congestion_control_is_in_its_document() {
    let found: Vec<_> = rows(&document("congestion.md")).iter().map(|row| row.join(" | ")).collect();
    let expected: Vec<_> = PARAMS
        .iter()
        .map(|param| {
            let default = param.unit.format(param.default);
            let default = match param.exception {
                None => default,
                Some((whose, own)) => format!("{default}; {} {}", whose.name(), param.unit.format(own)),
            };
            let (name, users, unit) = (param.name, param.users.name(), param.unit.name());
            format!("`{name}` | {users} | {unit} | {default} | {} | {}", param.range(), param.meaning)
        })
        .collect();
    assert_eq!(found, expected, "\n| {} |\n", expected.join(" |\n| "));
}
