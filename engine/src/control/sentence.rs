//! The cause of a QP's end in a sentence with the facts in it.

use shm::control::post_mortem::{FailedRequest, Retries};
use wire::{OpKind, Psn};

use crate::cause::ErrorCause;
use crate::mr::MrFault;
use crate::post_mortem::{BreakRecord, RefusedFacts};
use crate::time::Time;

/// Why the QP broke.
pub(super) fn sentence(record: &BreakRecord) -> String {
    let request = record.request.as_ref().map_or_else(|| "the request".to_owned(), request_text);
    match record.cause {
        ErrorCause::RetryExceeded => retries_used_up(record),
        ErrorCause::RnrRetryExceeded => {
            let Retries { rnr_naks, waited_ns, .. } = record.retries;
            format!(
                "the peer had no receive posted: {} for {request} in {}, and rnr_retry is {}",
                counted(u64::from(rnr_naks), "RNR NAK"),
                duration(waited_ns),
                record.attr.rnr_retry
            )
        }
        ErrorCause::NeighbourUnresolved => neighbour_unresolved(record),
        ErrorCause::NakInvalidRequest => format!(
            "the peer refused {request} as invalid: its QP lacks the right, or the message is longer than its receive"
        ),
        ErrorCause::NakRemoteAccess => {
            format!("the peer refused {request}: wrong R_Key, range, right or protection domain there")
        }
        ErrorCause::NakRemoteOperation => format!("the peer failed to execute {request}: its receive may be unusable"),
        ErrorCause::ReservedSyndrome => {
            let byte = record.last_nak.map_or(0, |(syndrome, _)| syndrome);
            format!("the peer answered {request} with the reserved syndrome {byte:#04x}")
        }
        ErrorCause::ResponseLength => format!("the length of a response did not fit {request}"),
        ErrorCause::ResponseOpcode => format!("the opcode of a response did not fit {request}"),
        ErrorCause::FrameTooLong => {
            let (mtu, interface) = record.path.map_or((0, 0), |path| (path.path_mtu, path.interface_mtu));
            format!("packets of path MTU {mtu} do not fit the port, whose MTU is {interface}")
        }
        ErrorCause::InvalidRequestReceived => received(record, "the peer sent an invalid request"),
        ErrorCause::AccessViolationReceived => received(record, "the peer tried a forbidden access"),
        ErrorCause::ReceiveTooShort => received(record, ErrorCause::ReceiveTooShort.sentence()),
        ErrorCause::BadReceive => received(record, ErrorCause::BadReceive.sentence()),
        cause => match &record.request {
            Some(_) => format!("{}, in {request}", cause.sentence()),
            None => cause.sentence().to_owned(),
        },
    }
}

/// Why the table of regions refused.
pub(super) const fn refusal_reason(refused: &RefusedFacts) -> &'static str {
    match refused.fault {
        Some(MrFault::UnknownKey) => "no region has this R_Key",
        Some(MrFault::WrongPd) => "the region belongs to another protection domain than the QP",
        Some(MrFault::OutOfRange) => "it reaches outside the region",
        Some(MrFault::NoRight) => "the region does not grant the right",
        Some(MrFault::NotMapped) => "the memory is not mapped in the application any more",
        None => "the region would allow it; the QP's access flags or the request itself do not",
    }
}

/// The operation's usual name.
pub(super) const fn operation_name(kind: OpKind) -> &'static str {
    match kind {
        OpKind::Send => "SEND",
        OpKind::Write => "RDMA WRITE",
        OpKind::ReadRequest => "RDMA READ",
        OpKind::CompareSwap => "compare and swap",
        OpKind::FetchAdd => "fetch and add",
        _ => "request",
    }
}

fn retries_used_up(record: &BreakRecord) -> String {
    let Retries { timeouts, sequence_naks, gaps, selective, waited_ns, .. } = record.retries;
    let (ours, peer) = ends(record);
    let psn = record.psns.unacknowledged & Psn::MASK;
    let tries = [timeouts, sequence_naks, gaps, selective].map(u64::from).iter().sum();
    let waited = duration(waited_ns);
    if timeouts == 0 && gaps == 0 {
        let mtu = record.path.map_or(0, |path| path.path_mtu);
        return format!(
            "the peer asked {} for PSN {psn:#08x} in {waited}: that packet is lost each time; can packets of path MTU \
             {mtu} pass between {ours} and {peer}?",
            times(u64::from(sequence_naks))
        );
    }
    if sequence_naks > 0 || gaps > 0 {
        return format!(
            "{} of PSN {psn:#08x} in {waited} without progress ({}, {}, {}): the path between {ours} and {peer} loses \
             packets",
            counted(tries, "transmission"),
            counted(u64::from(timeouts), "timeout"),
            counted(u64::from(sequence_naks), "sequence NAK"),
            counted(u64::from(gaps), "gap"),
        );
    }
    let since = |at: Time| (at != Time::NEVER).then(|| record.at.ns_since(at));
    let because = match (since(record.heard), since(record.others_heard)) {
        (Some(ago), _) if ago < waited_ns && selective > 0 => {
            let repeats = counted(u64::from(selective), "selective repeat");
            format!(
                "packets of the peer still came, the last {} before, and say that PSN {psn:#08x} is missing after {repeats}: \
                 that packet is lost each time; the path between {ours} and {peer} may not pass it",
                duration(ago)
            )
        }
        (Some(ago), _) if ago < waited_ns => {
            format!(
                "packets of the peer still came, the last {} before: its answers to this one are lost",
                duration(ago)
            )
        }
        (_, Some(ago)) if ago < waited_ns => format!(
            "{peer} still talks to other QPs here (the last packet came {} before), so its QP {:#08x} is gone, in ERR or \
             connected to another",
            duration(ago),
            record.dest_qpn
        ),
        (Some(ago), _) => format!(
            "the peer was last heard {} before: it may be gone, or UDP port 4791 is filtered between {ours} and {peer} now",
            duration(ago)
        ),
        _ => format!("the peer's QPN may be gone, or UDP port 4791 is filtered between {ours} and {peer}"),
    };
    format!("no answer to {} in {waited}: {because}", counted(tries, "transmission"))
}

fn neighbour_unresolved(record: &BreakRecord) -> String {
    let (ours, peer) = ends(record);
    let port = record.path.map_or(0, |path| u32::from(path.port) + 1);
    format!(
        "nobody on the network of port {port} answers for {peer}: its MAC address is not known and nothing was sent from \
         {ours}; the host may be down, or on another network"
    )
}

/// An error of the peer's request, with what it asked for.
fn received(record: &BreakRecord, what: &str) -> String {
    match &record.refused {
        Some(refused) if refused.operation == OpKind::Send => {
            format!("{what}: a SEND that invalidates R_Key {:#x}: {}", refused.rkey, refusal_reason(refused))
        }
        Some(refused) => format!(
            "{what}: {} of {} at {:#x} with R_Key {:#x}: {}",
            operation_name(refused.operation),
            counted(u64::from(refused.length), "byte"),
            refused.addr,
            refused.rkey,
            refusal_reason(refused)
        ),
        None => format!("{what} (PSN {:#08x})", record.psns.expected),
    }
}

/// Our address and the peer's.
fn ends(record: &BreakRecord) -> (String, String) {
    record.path.map_or_else(
        || ("this host".to_owned(), "the peer".to_owned()),
        |path| (path.src_ip.to_string(), path.dst_ip.to_string()),
    )
}

fn request_text(request: &FailedRequest) -> String {
    let FailedRequest { wr_id, opcode, length, remote_addr, rkey } = *request;
    let bytes = counted(u64::from(length), "byte");
    if opcode.has_remote_addr() {
        format!("the {opcode} of {bytes} at {remote_addr:#x} with R_Key {rkey:#x} (wr_id {wr_id})")
    } else if opcode.is_local() {
        format!("the {opcode} of key {rkey:#x} (wr_id {wr_id})")
    } else {
        format!("the {opcode} of {bytes} (wr_id {wr_id})")
    }
}

fn counted(count: u64, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

fn times(count: u64) -> String {
    if count == 1 { "once".to_owned() } else { format!("{count} times") }
}

/// A time in the unit that suits it, three digits at least where there are any.
fn duration(ns: u64) -> String {
    match ns {
        0..10_000 => format!("{ns} ns"),
        10_000..10_000_000 => format!("{} us", ns / 1_000),
        10_000_000..10_000_000_000 => format!("{} ms", ns / 1_000_000),
        _ => format!("{} s", ns / 1_000_000_000),
    }
}
