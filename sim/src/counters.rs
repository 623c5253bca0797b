//! Counters of an engine that must be zero unless something explains them.

use engine::counters::{PortCounters, ShardCounters};

use crate::violation::{Checked, require};

/// What has happened on purpose, and may show.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Excuses {
    /// A client has written over its rings.
    pub(crate) garbage: bool,
    /// QPs have gone while their peers were sending.
    pub(crate) gone_qps: bool,
    /// Work requests were wrong.
    pub(crate) wrong_requests: bool,
    /// Requests of the peer were wrong, or its memory has gone.
    pub(crate) wrong_peers: bool,
}

/// Frames that a port did not take for what they were: the damaged ones, if all else is right.
pub(crate) fn refused(port: &PortCounters) -> u64 {
    port.rx_icrc_encapsulated
        + port.rx_checksum_err
        + port.rx_malformed_packets
        + port.rx_unknown_opcode
        + port.rx_bad_tver
        + port.rx_other_packets
}

/// Looks at the counters that say that somebody did something wrong.
///
/// # Errors
/// The first that nothing explains.
pub(crate) fn check(port: &PortCounters, shard: &ShardCounters, excuses: Excuses) -> Checked {
    let counters = [
        ("bad_ring_index", shard.bad_ring_index, excuses.garbage),
        ("cq_overrun", shard.cq_overrun, excuses.garbage),
        ("events_lost", shard.events_lost, false),
        ("rx_unknown_qpn", port.rx_unknown_qpn, excuses.gone_qps),
        ("rx_wrong_path", port.rx_wrong_path, false),
        ("rx_wrong_service", port.rx_wrong_service, false),
        ("rx_bad_pkey", port.rx_bad_pkey, false),
        ("rx_unknown_vlan", port.rx_unknown_vlan, false),
        ("arp_address_conflict", port.arp_address_conflict, false),
        ("ndp_address_conflict", port.ndp_address_conflict, false),
        ("req_local_errors", shard.req_local_errors, excuses.wrong_requests),
        ("req_remote_errors", shard.req_remote_errors, excuses.wrong_peers),
        ("resp_local_length_error", shard.resp_local_length_error, excuses.wrong_peers),
        ("resp_remote_access_errors", shard.resp_remote_access_errors, excuses.wrong_peers),
        ("resp_local_operation_err", shard.resp_local_operation_err, excuses.wrong_peers),
    ];
    for (name, value, may_be) in counters {
        require!(may_be || value == 0, "the counter {name} is {value}, and nothing explains it");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_needs_its_own_excuse() {
        let (port, shard) =
            (PortCounters::default(), ShardCounters { req_local_errors: 1, ..ShardCounters::default() });
        let excuse = |wrong_requests, garbage| Excuses { wrong_requests, garbage, ..Excuses::default() };
        assert_eq!(check(&port, &ShardCounters::default(), Excuses::default()), Ok(()));
        assert_eq!(check(&port, &shard, excuse(true, false)), Ok(()));
        assert!(check(&port, &shard, excuse(false, true)).unwrap_err().contains("req_local_errors is 1"));
    }
}
