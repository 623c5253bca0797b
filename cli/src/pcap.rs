//! `ferroce pcap`: decodes a capture, a line a RoCE packet, and checks every ICRC.

mod capture;
mod packet;

use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::path::PathBuf;

use serde::Serialize;

pub(crate) use capture::CaptureError;

use crate::outcome::{CommandError, Outcome};
use crate::report::write_json;
use capture::Capture;
use packet::{Captured, Verdict};

/// Packets that the summary names by number, of each kind.
const NAMED_MAX: usize = 16;

/// Arguments of `ferroce pcap`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The capture, pcap or pcapng of link type Ethernet; - is standard input.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Print only the first N packets; the summary and the exit status are about all of them.
    #[arg(short = 'n', long, value_name = "N")]
    limit: Option<u64>,
    /// Print frames that are not RoCE as well, ARP decoded.
    #[arg(short, long)]
    all: bool,
}

/// Decodes the whole capture. Negative if a RoCE packet is malformed or has a wrong ICRC.
pub(crate) fn run(args: &Args, json: bool, out: &mut impl Write) -> Result<Outcome, CommandError> {
    let is_stdin = args.file.as_os_str() == "-";
    let name = if is_stdin { "standard input".to_owned() } else { args.file.display().to_string() };
    let input: Box<dyn Read> = if is_stdin {
        Box::new(io::stdin().lock())
    } else {
        let file = File::open(&args.file).map_err(|error| CaptureError::unreadable(&name, error))?;
        Box::new(BufReader::new(file))
    };
    let mut capture = Capture::open(name, input)?;
    let mut summary = Summary::default();
    // A damaged file is reported last: what could be read of it is worth having.
    let end = decode(&mut capture, args, json, is_stdin, &mut summary, out)?;
    if json {
        write_json(out, &SummaryLine { summary: &summary })?;
    } else {
        summary.write_text(out)?;
    }
    end?;
    Ok(if summary.is_clean() { Outcome::Good } else { Outcome::Negative })
}

/// Prints packets until the capture ends or is damaged, which is the inner result.
fn decode(
    capture: &mut Capture,
    args: &Args,
    json: bool,
    is_live: bool,
    summary: &mut Summary,
    out: &mut impl Write,
) -> Result<Result<(), CaptureError>, CommandError> {
    let mut printed = 0;
    let mut first_ns = None;
    let mut scratch = Vec::new();
    loop {
        let record = match capture.next_record() {
            Ok(Some(record)) => record,
            Ok(None) => return Ok(Ok(())),
            Err(error) => return Ok(Err(error)),
        };
        let start_ns = *first_ns.get_or_insert(record.timestamp_ns);
        let packet = Captured::new(summary.packets + 1, start_ns, &record, &mut scratch);
        summary.count(&packet);
        let is_wanted = args.all || !matches!(packet.verdict, Verdict::Other(_));
        if !is_wanted || args.limit.is_some_and(|limit| printed >= limit) {
            continue;
        }
        printed += 1;
        if json {
            write_json(out, &packet.fields())?;
        } else {
            writeln!(out, "{packet}")?;
        }
        if is_live {
            out.flush()?;
        }
    }
}

/// What the packets of a capture came to.
#[derive(Default, Serialize)]
struct Summary {
    packets: u64,
    roce: u64,
    icrc_ok: u64,
    icrc_bad: Named,
    malformed: Named,
    /// RoCE packets not all of which was captured: no verdict on their ICRC.
    cut: u64,
    other: u64,
}

/// The last line of JSON.
#[derive(Serialize)]
struct SummaryLine<'a> {
    summary: &'a Summary,
}

/// A count, with the numbers of the first few packets.
#[derive(Default, Serialize)]
struct Named {
    count: u64,
    first: Vec<u64>,
}

impl Named {
    fn add(&mut self, number: u64) {
        self.count += 1;
        if self.first.len() < NAMED_MAX {
            self.first.push(number);
        }
    }

    fn write_text(&self, out: &mut impl Write, what: &str) -> io::Result<()> {
        if self.count == 0 {
            return Ok(());
        }
        let numbers: Vec<String> = self.first.iter().map(u64::to_string).collect();
        let and_more = if self.count > NAMED_MAX as u64 { ", ..." } else { "" };
        writeln!(out, "{what}: packet {}{and_more}", numbers.join(", "))
    }
}

impl Summary {
    fn count(&mut self, packet: &Captured<'_>) {
        self.packets += 1;
        match packet.verdict {
            Verdict::Other(_) => {
                self.other += 1;
                return;
            }
            Verdict::Whole { icrc_ok: true, .. } => self.icrc_ok += 1,
            Verdict::Whole { icrc_ok: false, .. } => self.icrc_bad.add(packet.number),
            Verdict::Cut(_) => self.cut += 1,
            Verdict::Malformed(_) => self.malformed.add(packet.number),
        }
        self.roce += 1;
    }

    fn is_clean(&self) -> bool {
        self.icrc_bad.count == 0 && self.malformed.count == 0
    }

    fn write_text(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(
            out,
            "{} packets, {} RoCE: {} ICRC right, {} ICRC wrong, {} malformed, {} cut short by the capture; {} other",
            self.packets, self.roce, self.icrc_ok, self.icrc_bad.count, self.malformed.count, self.cut, self.other
        )?;
        self.icrc_bad.write_text(out, "ICRC wrong")?;
        self.malformed.write_text(out, "malformed")
    }
}
