//! `ferroce res`: clients of the daemon and what each of them holds.

use std::io::Write;

use serde::Serialize;
use shm::control::SessionSummary;

use crate::client::Client;
use crate::outcome::{CommandError, Outcome};
use crate::report::{printable, table, write_json, write_table};

const HEADER: [&str; 9] = ["SESSION", "CLIENT", "PID", "UID", "QPS", "CQS", "MRS", "MEMORY_BYTES", "RING_BYTES"];
const NUMERIC: [usize; 8] = [0, 2, 3, 4, 5, 6, 7, 8];

#[derive(Serialize)]
struct Sessions {
    sessions: Vec<SessionSummary>,
}

/// Asks for the sessions and prints a line each; the asking session itself is among them.
pub(crate) fn run(client: &Client, json: bool, out: &mut impl Write) -> Result<Outcome, CommandError> {
    let sessions = client.sessions()?;
    if json {
        write_json(out, &Sessions { sessions })?;
    } else {
        write_table(out, &table(&HEADER, &NUMERIC, sessions.iter().map(row)), "")?;
    }
    Ok(Outcome::Good)
}

fn row(session: &SessionSummary) -> Vec<String> {
    vec![
        session.session.to_string(),
        printable(&session.client_name),
        session.pid.to_string(),
        session.uid.to_string(),
        session.qp_count.to_string(),
        session.cq_count.to_string(),
        session.mr_count.to_string(),
        session.memory_bytes.to_string(),
        session.ring_bytes.to_string(),
    ]
}
