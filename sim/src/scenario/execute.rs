//! A scenario's run, from its first flow to its last.

use crate::capture::Capture;
use crate::network::fabric::Fabric;
use crate::network::run::Run;
use crate::network::traffic::FlowCounts;
use crate::run::Failure;
use crate::stats::{Recorder, Summary};
use crate::violation::Violation;

use super::Scenario;

/// What a run came to.
pub struct Outcome {
    /// What was written down.
    pub recorder: Recorder,
    /// The same in numbers.
    pub summary: Summary,
    /// Counts of flows.
    pub flows: FlowCounts,
    /// Flows that were not done in time, in words; empty if all were.
    pub unfinished: String,
    /// Hash of all frames and times: the same for the same seed.
    pub trace: u64,
    /// Things that happened.
    pub event_count: u64,
    /// Of these, frames put on a link or come to its end.
    pub packet_events: u64,
    /// Frames that hosts sent and got, as a pcapng file, if they were captured.
    pub capture: Option<Vec<u8>>,
}

/// Runs a scenario. `captures`: frames that hosts send and get are kept.
///
/// # Errors
/// What went wrong: nothing that a scenario may do on purpose. `at_end` sees the network before it is taken down, either way.
pub fn execute(
    scenario: &Scenario,
    seed: u64,
    captures: bool,
    at_end: impl FnOnce(&Fabric),
) -> Result<Outcome, Failure> {
    let failed = |violation| Failure { violation, capture: None };
    let say = |what: String| failed(Violation { at: engine::Time::ZERO, what });
    let mut workload = scenario.workload(seed).map_err(|error| say(error.to_string()))?;
    let paths = scenario.clone();
    let mut recorder = Recorder::new(scenario.network.sample_ns, move |from, to| paths.path(from, to));
    let mut run = Run::new(seed, &scenario.network, captures).map_err(failed)?;
    let ran = run.run_until_done(scenario.end, &mut workload, &mut recorder);
    at_end(run.fabric());
    let frames = |fabric: &Fabric| fabric.capture().map(Capture::bytes).map(<[u8]>::to_vec);
    let is_done = ran.map_err(|violation| Failure { violation, capture: frames(run.fabric()) })?;
    let now = run.fabric().now();
    recorder.close(now);
    Ok(Outcome {
        summary: recorder.summary(now),
        recorder,
        flows: run.flow_counts(),
        unfinished: if is_done { String::new() } else { run.unfinished() },
        trace: run.fabric().trace(),
        event_count: run.fabric().event_count(),
        packet_events: run.fabric().packet_events(),
        capture: frames(run.fabric()),
    })
}
