//! Paper files: all of them can be read, and every scenario that they name can be; what is wrong with one is said.

use toml::Table;

use super::*;
use crate::scenario::Scenario;

/// A file with two hosts, a flow, and one check.
fn text(check: &str) -> String {
    format!(
        "id = \"X\"\nclaim = \"c\"\nsource = \"s\"\nscale = \"small\"\n\
         [full]\nscale = \"large\"\nset = {{ \"workload.0.flows\" = [{{ from = 0, to = 1, bytes = 400_000 }}] }}\n\
         [scenario]\ntopology = {{ kind = \"pair\" }}\n\
         workload = [{{ kind = \"flows\", flows = [{{ from = 0, to = 1, bytes = 200_000 }}] }}]\n\
         [case]\nfast = {{ \"link.rate_mbps\" = 40_000 }}\nslow = {{ \"link.rate_mbps\" = 10_000 }}\n\
         [[check]]\nwhat = \"w\"\nmetric = \"goodput\"\npublished = \"p\"\n{check}\n"
    )
}

fn check(check: &str) -> Result<CheckOutcome, PaperError> {
    let paper = Paper::parse(&text(check))?;
    let mut study = Study::new(&paper, false, None);
    Ok(study.check()?.remove(0))
}

#[test]
fn every_file_can_be_read_and_every_case_of_it_is_a_scenario() {
    for (id, text) in ALL {
        let paper = Paper::parse(text).unwrap_or_else(|error| panic!("{id}: {error}"));
        assert_eq!(paper.id, id);
        for case in paper.case.keys() {
            for is_full in [false, true] {
                let scenario = paper.scenario_of(case, is_full, &Table::new()).unwrap();
                Scenario::parse(scenario.to_string(), std::path::Path::new("."))
                    .unwrap_or_else(|error| panic!("{id}, {case}: {error}"));
            }
        }
        let known = |case: &String| assert!(paper.case.contains_key(case), "{id}: {case}");
        paper.check.iter().for_each(|check| known(&check.case));
    }
}

#[test]
fn a_number_passes_within_its_bounds_and_differs_outside() {
    let against = "against = { case = \"slow\", as_a = \"multiple\" }";
    let inside = check(&format!("case = \"fast\"\nlow = 3.0\nhigh = 4.2\n{against}")).unwrap();
    assert!(inside.passes && inside.tolerance == "3.00x to 4.20x", "{inside:?}");
    assert!(!check(&format!("case = \"fast\"\nlow = 4.2\n{against}")).unwrap().passes);
    let outside = check(&format!("case = \"fast\"\nhigh = 3.0\n{against}")).unwrap();
    assert!(!outside.passes && outside.is_surprise());
    let known = check(&format!("case = \"fast\"\nhigh = 3.0\nwhy = \"w\"\n{against}")).unwrap();
    assert!(!known.passes && !known.is_surprise());
    let saving = "against = { case = \"fast\", as_a = \"saving\" }";
    assert!(check(&format!("case = \"slow\"\nlow = 0.6\nhigh = 0.8\n{saving}")).unwrap().passes);
}

#[test]
fn the_same_scenario_is_run_once_and_the_full_scale_is_another() {
    let text = text("case = \"fast\"\nlow = 0.5\nagainst = { as_a = \"part\" }");
    let paper = Paper::parse(&text).unwrap();
    let mut usual = Study::new(&paper, false, None);
    assert_eq!(usual.check().unwrap()[0].ours, "100.0 %");
    let mut full = Study::new(&paper, true, None);
    full.check().unwrap();
    assert_eq!((usual.cost().0, full.cost().0), (1, 1));
    assert!(full.cost().1 > usual.cost().1);
    assert_eq!((usual.scale(), full.scale()), ("small", "large"));
}

#[test]
fn what_is_wrong_with_a_file_is_said() {
    let sentence = |text: &str| check(text).unwrap_err().to_string();
    assert!(sentence("case = \"fast\"").contains("needs `low`, `high` or both"));
    assert!(sentence("case = \"fast\"\nlow = 2\nhigh = 1").contains("needs `low`, `high` or both"));
    assert_eq!(sentence("case = \"quick\"\nlow = 1"), "there is no case `quick`");
    assert!(
        sentence("case = \"fast\"\nlow = 1\nat = { \"workload.7.op\" = \"read\" }")
            .contains("`workload.7.op` is no key")
    );
    assert!(sentence("case = \"fast\"\nlow = 1\nat = { \"link.speed\" = 1 }").contains("unknown field `speed`"));
    assert!(sentence("case = \"fast\"\nlow = 1\nsurprise = 1").contains("unknown field `surprise`"));
}

#[test]
fn several_seeds_give_a_median_and_its_range() {
    let with_loss = text("case = \"fast\"\nlow = 0.0")
        .replace("rate_mbps\" = 40_000", "rate_mbps\" = 40_000, \"faults.loss_ppm\" = 20_000");
    let paper = Paper::parse(&with_loss).unwrap();
    let mut study = Study::new(&paper, false, Some(3));
    let ours = study.check().unwrap().remove(0).ours;
    assert_eq!((study.cost().0, study.seeds()), (3, &[1, 2, 3][..]));
    assert!(ours.contains(" to ") && ours.ends_with(')'), "{ours}");
}
