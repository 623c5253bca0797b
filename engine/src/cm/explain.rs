//! Refusals in sentences that name both values.

use wire::PathMtu;
use wire::cm::{MadHeader, RejReason, RejRepr, SidrStatus};

use super::id::Id;

/// Why the peer refused, for the application whose request it was.
pub(super) fn rejection(entry: &Id, rej: &RejRepr) -> String {
    let peer = entry.peer.map_or_else(|| "the peer".to_owned(), |peer| peer.to_string());
    let ari = rej.ari.value();
    let first = ari.first().copied();
    match rej.reason {
        RejReason::INVALID_SERVICE_ID => format!("nobody listens at {peer} in the {} port space", entry.space.name()),
        RejReason::CONSUMER => format!("the application at {peer} refused the connection"),
        RejReason::INVALID_MTU => {
            let ours = entry.path.map_or(0, |path| path.mtu.bytes());
            match first.and_then(PathMtu::from_code) {
                Some(theirs) => {
                    format!("{peer} refused a path MTU of {ours} bytes: it takes {} at most", theirs.bytes())
                }
                None => format!("{peer} refused a path MTU of {ours} bytes, and does not say what it takes"),
            }
        }
        RejReason::PRIMARY_GID => match ari.first_chunk().map(|bytes| wire::Gid(*bytes)) {
            Some(gid) => format!("{peer} refused to be reached by this GID: it says {}", gid.ip()),
            None => format!("{peer} refused to be reached by this GID"),
        },
        RejReason::STALE_CONNECTION => {
            let qpn = entry.link.as_ref().map_or(0, |link| link.local_qpn.value());
            format!("{peer} held QP {qpn:#08x} to be connected already, and has ended that connection: try again")
        }
        RejReason::CLASS_VERSION => {
            let theirs = first.map_or_else(|| "another one".to_owned(), |version| version.to_string());
            let ours = MadHeader::CLASS_VERSION_CM;
            format!("{peer} speaks version {theirs} of connection management, this device {ours}")
        }
        RejReason::INVALID_TRANSPORT => format!("{peer} refused a queue pair of type RC"),
        RejReason::INSUFFICIENT_RESPONDER_RESOURCES => {
            let (ours, theirs) =
                entry.link.as_ref().map_or((0, 0), |link| (link.responder_resources, link.initiator_depth));
            format!("{peer} refused responder resources {ours}, initiator depth {theirs}")
        }
        reason => format!("{peer} refused the connection: reason {reason}"),
    }
}

/// Why a service id was not resolved.
pub(super) fn sidr(entry: &Id, status: SidrStatus) -> String {
    let peer = entry.peer.map_or_else(|| "the peer".to_owned(), |peer| peer.to_string());
    match status {
        SidrStatus::NO_SERVICE => format!("nobody serves {peer} in the {} port space", entry.space.name()),
        SidrStatus::REJECTED => format!("the application at {peer} refused"),
        status => format!("{peer} refused: status {status}"),
    }
}

/// Why nothing came.
pub(super) fn unreachable(entry: &Id) -> String {
    let peer = entry.peer.map_or_else(|| "the peer".to_owned(), |peer| peer.to_string());
    let (count, wait_ms) =
        entry.link.as_ref().map_or((0, 0), |link| (u32::from(link.retries) + 1, link.response_ns / 1_000_000));
    format!("no answer from {peer} to {count} messages, {wait_ms} ms apart: is UDP port 4791 open on the way?")
}
