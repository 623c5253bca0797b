//! `ferroce qp`: queue pairs of all clients, a line each, or one in full.

mod why;

use std::io::{self, Write};

use serde::Serialize;
use serde_json::Value;
use shm::attr::{AhAttr, QpAttr, QpCap, RecoveryPolicy};
use shm::control::{QpDetail, QpSummary};
use wire::{AckTimeout, PathMtu, Qpn, RnrTimer};

use crate::client::Client;
use crate::outcome::{CommandError, Outcome};
use crate::report::{Fields, Pairs, duration, printable, qpn, table, write_json, write_table};

/// Arguments of `ferroce qp`.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true, disable_help_subcommand = true)]
pub(crate) struct Args {
    /// Show this one in full: a number such as 39 or 0x27.
    #[arg(value_name = "QPN", value_parser = parse_qpn)]
    qpn: Option<u32>,
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(clap::Subcommand)]
enum Action {
    /// All queue pairs, or one in full: `show` may be left out.
    Show {
        /// Show this one in full: a number such as 39 or 0x27.
        #[arg(value_name = "QPN", value_parser = parse_qpn)]
        qpn: Option<u32>,
    },
    /// Changes a queue pair of RC or XRC that there is, at once.
    #[command(after_help = "Example: ferroce qp set 0x000027 --recovery hybrid")]
    Set {
        /// The queue pair: a number such as 39 or 0x27.
        #[arg(value_name = "QPN", value_parser = parse_qpn)]
        qpn: u32,
        /// How lost packets are made up for: gbn, sr or hybrid. The last two need a peer that does one of them too.
        #[arg(long, value_name = "POLICY", value_parser = parse_recovery)]
        recovery: RecoveryPolicy,
    },
    /// Why queue pairs broke by themselves, even if they or their clients are gone: the newest ones, or one in full.
    #[command(after_help = "Example: ferroce qp why 0x000027")]
    Why {
        /// Show this one in full: a number such as 39 or 0x27.
        #[arg(value_name = "QPN", value_parser = parse_qpn)]
        qpn: Option<u32>,
    },
}

/// A QPN as a user writes it.
pub(crate) fn parse_qpn(text: &str) -> Result<u32, String> {
    let number = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(hex) => u32::from_str_radix(hex, 16),
        None => text.parse(),
    };
    match number {
        Ok(number) if number <= Qpn::MASK => Ok(number),
        _ => Err(format!("not a QPN: 0 to {:#x}, decimal or 0x and hexadecimal", Qpn::MASK)),
    }
}

fn parse_recovery(text: &str) -> Result<RecoveryPolicy, String> {
    RecoveryPolicy::from_name(text).ok_or_else(|| "gbn, sr and hybrid are possible".to_owned())
}

const HEADER: [&str; 10] =
    ["QPN", "TYPE", "STATE", "SESSION", "PID", "SHARD", "DEST_QPN", "PEER", "MTU", "OUTSTANDING"];
const NUMERIC: [usize; 5] = [3, 4, 5, 8, 9];

#[derive(Serialize)]
struct List {
    qps: Vec<Fields>,
}

/// Prints the list, or the one QP asked for.
pub(crate) fn run(client: &Client, args: &Args, json: bool, out: &mut impl Write) -> Result<Outcome, CommandError> {
    if let Some(Action::Why { qpn }) = args.action {
        return why::run(client, qpn, json, out);
    }
    let shown = match args.action {
        Some(Action::Set { qpn, recovery }) => {
            client.set_recovery(qpn, recovery)?;
            Some(qpn)
        }
        Some(Action::Show { qpn }) => qpn,
        _ => args.qpn,
    };
    match shown {
        None => {
            let qps = client.qps()?;
            if json {
                write_json(out, &List { qps: qps.iter().map(summary_fields).collect() })?;
            } else {
                write_table(out, &table(&HEADER, &NUMERIC, qps.iter().map(row)), "")?;
            }
        }
        Some(qpn) => {
            let detail = client.qp(qpn)?;
            let report = Detail::new(&detail);
            if json {
                write_json(out, &report)?;
            } else {
                report.write_text(out)?;
            }
        }
    }
    Ok(Outcome::Good)
}

/// Empty before the QP is in RTR.
fn known(peer: &str) -> Option<&str> {
    (!peer.is_empty()).then_some(peer)
}

fn mtu_bytes(code: u8) -> Option<u32> {
    PathMtu::from_code(code).map(PathMtu::bytes)
}

fn row(qp: &QpSummary) -> Vec<String> {
    let peer = known(&qp.peer);
    vec![
        qpn(qp.qpn),
        qp.qp_type.to_string(),
        qp.state.to_string(),
        qp.session.to_string(),
        qp.pid.to_string(),
        qp.shard.to_string(),
        peer.map_or_else(|| "-".to_owned(), |_| qpn(qp.dest_qpn)),
        peer.map_or_else(|| "-".to_owned(), printable),
        mtu_bytes(qp.path_mtu).map_or_else(|| "-".to_owned(), |bytes| bytes.to_string()),
        qp.sq_outstanding.to_string(),
    ]
}

fn summary_fields(qp: &QpSummary) -> Fields {
    let mut fields = Fields::default();
    fields
        .add_noted("qpn", qp.qpn, qpn(qp.qpn))
        .add("type", qp.qp_type.name())
        .add("state", qp.state.name())
        .add("session", qp.session)
        .add("pid", qp.pid)
        .add("shard", qp.shard)
        .add_noted("dest_qpn", qp.dest_qpn, qpn(qp.dest_qpn))
        .add("peer", known(&qp.peer))
        .add_noted("path_mtu", mtu_bytes(qp.path_mtu), qp.path_mtu)
        .add("sq_outstanding", qp.sq_outstanding);
    fields
}

/// One QP in full.
#[derive(Serialize)]
struct Detail<'a> {
    #[serde(flatten)]
    summary: Fields,
    attr: Fields,
    path: Fields,
    cap: Fields,
    figures: Pairs<'a, u64>,
}

impl<'a> Detail<'a> {
    fn new(detail: &'a QpDetail) -> Self {
        let mut summary = summary_fields(&detail.summary);
        summary.add("recovery", detail.recovery.name()).add("error", detail.error.as_deref());
        Self {
            summary,
            attr: attr_fields(&detail.attr),
            path: path_fields(&detail.attr.ah_attr),
            cap: cap_fields(&detail.attr.cap),
            figures: Pairs(&detail.figures),
        }
    }

    fn write_text(&self, out: &mut impl Write) -> io::Result<()> {
        self.summary.write_text(out, "")?;
        for (title, fields) in [("attributes", &self.attr), ("path", &self.path), ("capacities", &self.cap)] {
            writeln!(out, "{title}")?;
            fields.write_text(out, "  ")?;
        }
        writeln!(out, "figures")?;
        let rows = self.figures.0.iter().map(|(name, value)| {
            let note = if name.ends_with("psn") { format!("({value:#08x})") } else { String::new() };
            vec![printable(name), value.to_string(), note]
        });
        write_table(out, &table(&[], &[1], rows), "  ")
    }
}

fn attr_fields(attr: &QpAttr) -> Fields {
    let access: Vec<&str> = attr.qp_access_flags.names().collect();
    let timeout =
        AckTimeout::new(attr.timeout).and_then(AckTimeout::duration_ns).map_or_else(|| "never".to_owned(), duration);
    let rnr_timer =
        RnrTimer::new(attr.min_rnr_timer).map_or_else(|| "unknown".to_owned(), |timer| duration(timer.duration_ns()));
    let mut fields = Fields::default();
    fields
        .add("access", access)
        .add("port", attr.port_num)
        .add("pkey_index", attr.pkey_index)
        .add_noted("qkey", attr.qkey, format!("{:#010x}", attr.qkey))
        .add_noted("rq_psn", attr.rq_psn, qpn(attr.rq_psn))
        .add_noted("sq_psn", attr.sq_psn, qpn(attr.sq_psn))
        .add("max_rd_atomic", attr.max_rd_atomic)
        .add("max_dest_rd_atomic", attr.max_dest_rd_atomic)
        .add_noted("timeout", attr.timeout, timeout)
        .add("retry_cnt", attr.retry_cnt);
    // IBTA 9.7.5.2.8: seven means without end.
    match attr.rnr_retry {
        7 => fields.add_noted("rnr_retry", 7, "for ever"),
        count => fields.add("rnr_retry", count),
    };
    fields.add_noted("min_rnr_timer", attr.min_rnr_timer, rnr_timer);
    match attr.rate_limit {
        0 => fields.add("rate_limit_kbps", Value::Null),
        rate => fields.add("rate_limit_kbps", rate),
    };
    fields.add("sq_draining", attr.sq_draining != 0);
    fields
}

fn path_fields(path: &AhAttr) -> Fields {
    let mut fields = Fields::default();
    fields
        .add_noted("dgid", path.dgid.to_string(), path.dgid.ip())
        .add("sgid_index", path.sgid_index)
        .add("hop_limit", path.hop_limit)
        .add_noted("traffic_class", path.traffic_class, format!("DSCP {}", path.traffic_class >> 2))
        .add("sl", path.sl)
        .add_noted("flow_label", path.flow_label, if path.flow_label == 0 { "from the QPNs" } else { "set" });
    fields
}

fn cap_fields(cap: &QpCap) -> Fields {
    let mut fields = Fields::default();
    fields
        .add("max_send_wr", cap.max_send_wr)
        .add("max_recv_wr", cap.max_recv_wr)
        .add("max_send_sge", cap.max_send_sge)
        .add("max_recv_sge", cap.max_recv_sge)
        .add("max_inline_data", cap.max_inline_data);
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn qpn_is_decimal_or_hexadecimal_of_24_bits() {
        assert_eq!(["39", "0x27", "0X000027", "0xffffff"].map(parse_qpn), [Ok(39), Ok(39), Ok(39), Ok(0xff_ffff)]);
        for text in ["", "0x", "27h", "-1", "0x1000000", "16777216", "99999999999", "0x-1"] {
            assert!(parse_qpn(text).is_err_and(|error| error.contains("0 to 0xffffff")), "{text:?}");
        }
    }
}
