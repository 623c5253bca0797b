//! `ferroce res`: clients of the daemon and what each of them holds; `ferroce res mr`: their memory regions.

use std::io::Write;

use clap::ValueEnum;
use serde::Serialize;
use shm::attr::AccessFlags;
use shm::control::{MrSummary, SessionSummary};

use crate::client::Client;
use crate::outcome::{CommandError, Outcome};
use crate::report::{printable, table, write_json, write_table};

const HEADER: [&str; 9] = ["SESSION", "CLIENT", "PID", "UID", "QPS", "CQS", "MRS", "MEMORY_BYTES", "RING_BYTES"];
const NUMERIC: [usize; 8] = [0, 2, 3, 4, 5, 6, 7, 8];

const MR_HEADER: [&str; 9] = ["SESSION", "MR", "PID", "PD", "ADDR", "BYTES", "ACCESS", "TIER", "MAPPED_BYTES"];
const MR_NUMERIC: [usize; 6] = [0, 1, 2, 3, 5, 8];

/// Options of `ferroce res`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// `mr`: the memory regions of all clients, a line each.
    object: Option<Object>,
}

/// What is listed.
#[derive(Clone, Copy, ValueEnum)]
enum Object {
    /// Memory regions.
    Mr,
}

#[derive(Serialize)]
struct Sessions {
    sessions: Vec<SessionSummary>,
}

#[derive(Serialize)]
struct Regions {
    mrs: Vec<MrSummary>,
}

/// Asks, and prints a line for each session or region; the asking session itself is among them.
pub(crate) fn run(client: &Client, args: &Args, json: bool, out: &mut impl Write) -> Result<Outcome, CommandError> {
    if let Some(Object::Mr) = args.object {
        return regions(client, json, out);
    }
    let sessions = client.sessions()?;
    if json {
        write_json(out, &Sessions { sessions })?;
    } else {
        write_table(out, &table(&HEADER, &NUMERIC, sessions.iter().map(row)), "")?;
    }
    Ok(Outcome::Good)
}

fn regions(client: &Client, json: bool, out: &mut impl Write) -> Result<Outcome, CommandError> {
    let mrs = client.mrs()?;
    if json {
        write_json(out, &Regions { mrs })?;
    } else {
        write_table(out, &table(&MR_HEADER, &MR_NUMERIC, mrs.iter().map(mr_row)), "")?;
    }
    Ok(Outcome::Good)
}

fn mr_row(mr: &MrSummary) -> Vec<String> {
    let rights = [
        (AccessFlags::LOCAL_WRITE, "local_write"),
        (AccessFlags::REMOTE_WRITE, "remote_write"),
        (AccessFlags::REMOTE_READ, "remote_read"),
        (AccessFlags::REMOTE_ATOMIC, "remote_atomic"),
    ];
    let granted: Vec<&str> =
        rights.iter().filter(|(right, _)| mr.access.contains(*right)).map(|(_, name)| *name).collect();
    vec![
        mr.session.to_string(),
        mr.number.to_string(),
        mr.pid.to_string(),
        mr.pd.to_string(),
        format!("{:#x}", mr.addr),
        mr.length.to_string(),
        if granted.is_empty() { "-".to_owned() } else { granted.join(",") },
        mr.tier.name().to_owned(),
        mr.mapped_bytes.to_string(),
    ]
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
