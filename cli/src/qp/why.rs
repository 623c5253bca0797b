//! `ferroce qp why`: what QPs that broke by themselves have left.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::Value;
use shm::control::post_mortem::{
    FailedRequest, LastNak, PathSeen, PeerAttr, PostMortem, PostMortemSummary, Psns, RefusedAccess, Retries, Rtt,
};
use wire::{AckTimeout, PathMtu};

use super::{attr_fields, known};
use crate::client::Client;
use crate::outcome::{CommandError, Outcome};
use crate::report::{Fields, Pairs, duration, printable, qpn, table, write_json, write_table};

const HEADER: [&str; 6] = ["QPN", "PEER", "PID", "CLIENT", "AGO", "WHY"];

#[derive(Serialize)]
struct List {
    post_mortems: Vec<Fields>,
}

/// Prints the list, or the one asked for.
pub(super) fn run(
    client: &Client,
    qpn: Option<u32>,
    json: bool,
    out: &mut impl Write,
) -> Result<Outcome, CommandError> {
    match qpn {
        None => {
            let found = client.post_mortems()?;
            if json {
                write_json(out, &List { post_mortems: found.iter().map(summary_fields).collect() })?;
            } else {
                write_table(out, &table(&HEADER, &[2], found.iter().map(row)), "")?;
            }
        }
        Some(qpn) => {
            let found = client.why(qpn)?;
            let report = Report::new(&found);
            if json {
                write_json(out, &report)?;
            } else {
                report.write_text(out)?;
            }
        }
    }
    Ok(Outcome::Good)
}

fn row(found: &PostMortemSummary) -> Vec<String> {
    vec![
        qpn(found.qpn),
        known(&found.peer).map_or_else(|| "-".to_owned(), printable),
        found.pid.to_string(),
        printable(&found.client_name),
        ago(found.age_ms),
        printable(&found.sentence),
    ]
}

fn ago(age_ms: u64) -> String {
    duration(age_ms.saturating_mul(1_000_000))
}

fn summary_fields(found: &PostMortemSummary) -> Fields {
    let mut fields = Fields::default();
    fields
        .add("why", found.sentence.as_str())
        .add("vendor_err", found.vendor_err)
        .add_noted("qpn", found.qpn, qpn(found.qpn))
        .add("type", found.qp_type.name())
        .add_noted("dest_qpn", found.dest_qpn, qpn(found.dest_qpn))
        .add("peer", known(&found.peer))
        .add_noted("ago_ms", found.age_ms, ago(found.age_ms))
        .add("destroyed", found.destroyed)
        .add("client", found.client_name.as_str())
        .add("session", found.session)
        .add("pid", found.pid)
        .add("uid", found.uid);
    fields
}

/// One post-mortem in full: sections in the order of display.
#[derive(Serialize)]
struct Report<'a> {
    #[serde(flatten)]
    summary: Fields,
    psns: Fields,
    retries: Fields,
    timing: Fields,
    path: Option<Fields>,
    request: Option<Fields>,
    refused: Option<Fields>,
    attr: Fields,
    peer_attr: Option<Fields>,
    counters: Pairs<'a, u64>,
}

impl<'a> Report<'a> {
    fn new(found: &'a PostMortem) -> Self {
        let mut summary = summary_fields(&found.summary);
        summary.add("state", found.state.name());
        Self {
            summary,
            psns: psn_fields(&found.psns, found.last_nak.as_ref()),
            retries: retry_fields(&found.retries),
            timing: timing_fields(found),
            path: found.path.as_ref().map(path_fields),
            request: found.request.as_ref().map(request_fields),
            refused: found.refused.as_ref().map(refused_fields),
            attr: attr_fields(&found.attr),
            peer_attr: found.peer.as_ref().map(peer_fields),
            counters: Pairs(&found.counters),
        }
    }

    fn write_text(&self, out: &mut impl Write) -> io::Result<()> {
        self.summary.write_text(out, "")?;
        let sections = [
            ("sequence numbers", Some(&self.psns)),
            ("since the last progress", Some(&self.retries)),
            ("timing", Some(&self.timing)),
            ("path", self.path.as_ref()),
            ("work request", self.request.as_ref()),
            ("refused to the peer", self.refused.as_ref()),
            ("our attributes", Some(&self.attr)),
            ("the peer's attributes", self.peer_attr.as_ref()),
        ];
        for (title, fields) in sections.into_iter().filter_map(|(title, fields)| Some((title, fields?))) {
            writeln!(out, "{title}")?;
            fields.write_text(out, "  ")?;
        }
        writeln!(out, "counters")?;
        let rows = self.counters.0.iter().map(|(name, value)| vec![printable(name), value.to_string()]);
        write_table(out, &table(&[], &[1], rows), "  ")
    }
}

fn psn_fields(psns: &Psns, last_nak: Option<&LastNak>) -> Fields {
    let mut fields = Fields::default();
    fields
        .add_noted("unacknowledged", psns.unacknowledged, qpn(psns.unacknowledged))
        .add_noted("next", psns.next, qpn(psns.next))
        .add_noted("sent_end", psns.sent_end, qpn(psns.sent_end))
        .add_noted("expected", psns.expected, qpn(psns.expected))
        .add("msn", psns.msn);
    match last_nak {
        None => fields.add("last_nak", Value::Null),
        Some(nak) => fields.add_noted("last_nak", nak.text.as_str(), format!("{:#04x}", nak.syndrome)).add_noted(
            "last_nak_psn",
            nak.psn,
            qpn(nak.psn),
        ),
    };
    fields
}

fn retry_fields(retries: &Retries) -> Fields {
    let mut fields = Fields::default();
    fields
        .add("timeouts", retries.timeouts)
        .add("sequence_naks", retries.sequence_naks)
        .add("gaps", retries.gaps)
        .add("rnr_naks", retries.rnr_naks)
        .add_noted("waited_ns", retries.waited_ns, duration(retries.waited_ns));
    fields
}

fn timing_fields(found: &PostMortem) -> Fields {
    let mut fields = Fields::default();
    let mut time = |name, ns: Option<u64>| match ns {
        Some(ns) => drop(fields.add_noted(name, ns, duration(ns))),
        None => drop(fields.add(name, Value::Null)),
    };
    let rtt = |part: fn(&Rtt) -> u64| found.rtt.as_ref().map(part);
    time("rtt_smoothed_ns", rtt(|rtt| rtt.smoothed_ns));
    time("rtt_min_ns", rtt(|rtt| rtt.min_ns));
    time("rtt_last_ns", rtt(|rtt| rtt.last_ns));
    time("peer_heard_before_ns", found.heard_ago_ns);
    time("peer_heard_by_others_before_ns", found.others_heard_ago_ns);
    fields
}

fn path_fields(path: &PathSeen) -> Fields {
    let mut fields = Fields::default();
    fields
        .add("src_ip", path.src_ip.to_string())
        .add("dst_ip", path.dst_ip.to_string())
        .add("local", path.local)
        .add("src_mac", path.src_mac.to_string())
        .add("dst_mac", if path.dst_mac == wire::MacAddr::ZERO { Value::Null } else { path.dst_mac.to_string().into() })
        .add("udp_src_port", path.udp_src_port)
        .add("udp_dst_port", 4791)
        .add_noted("traffic_class", path.traffic_class, format!("DSCP {}", path.traffic_class >> 2))
        .add("vlan", path.vlan)
        .add("path_mtu", path.path_mtu)
        .add("interface_mtu", path.interface_mtu);
    fields
}

fn request_fields(request: &FailedRequest) -> Fields {
    let mut fields = Fields::default();
    fields.add("wr_id", request.wr_id).add("opcode", request.opcode.name()).add("length", request.length);
    if request.opcode.has_remote_addr() {
        fields.add_noted("remote_addr", request.remote_addr, format!("{:#x}", request.remote_addr));
        fields.add_noted("rkey", request.rkey, format!("{:#x}", request.rkey));
    }
    fields
}

fn refused_fields(refused: &RefusedAccess) -> Fields {
    let mut fields = Fields::default();
    fields
        .add("reason", refused.reason.as_str())
        .add("operation", refused.operation.as_str())
        .add_noted("addr", refused.addr, format!("{:#x}", refused.addr))
        .add("length", refused.length)
        .add_noted("rkey", refused.rkey, format!("{:#x}", refused.rkey));
    fields
}

fn peer_fields(peer: &PeerAttr) -> Fields {
    let timeout =
        AckTimeout::new(peer.timeout).and_then(AckTimeout::duration_ns).map_or_else(|| "never".to_owned(), duration);
    let mut fields = Fields::default();
    fields
        .add_noted("qpn", peer.qpn, qpn(peer.qpn))
        .add_noted("starting_psn", peer.starting_psn, qpn(peer.starting_psn))
        .add_noted("path_mtu", PathMtu::from_code(peer.path_mtu).map(PathMtu::bytes), peer.path_mtu)
        .add("responder_resources", peer.responder_resources)
        .add("initiator_depth", peer.initiator_depth)
        .add_noted("timeout", peer.timeout, timeout)
        .add("retry_cnt", peer.retry_cnt)
        .add("rnr_retry", peer.rnr_retry);
    fields
}
