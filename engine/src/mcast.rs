//! Multicast groups: which QPs of the engine take the datagrams of a group. IBTA 10.5.
//!
//! Every shard has the whole table, so that a sender knows which shards its own datagrams are to be looped back to.

use std::net::IpAddr;

use wire::Qpn;

use crate::shard_of;

/// The QPN of all members of a multicast group: a frame with it is for every shard.
pub const MCAST_QPN: Qpn = Qpn::new(0xff_ffff);

/// Attachments in the engine at most.
pub(crate) const ATTACHMENTS_MAX: usize = 4096;

/// Who is attached to what, by rising group.
#[derive(Clone, Debug, Default)]
pub(crate) struct McastTable(Vec<(IpAddr, Qpn)>);

impl McastTable {
    /// Attaches a QP. False if it is attached already, or the table is full.
    pub(crate) fn attach(&mut self, group: IpAddr, qpn: Qpn) -> bool {
        match self.0.binary_search_by_key(&key(group, qpn), |&(group, qpn)| key(group, qpn)) {
            Err(at) if self.0.len() < ATTACHMENTS_MAX => {
                self.0.insert(at, (group, qpn));
                true
            }
            _ => false,
        }
    }

    /// Detaches a QP from a group. False if it was not attached.
    pub(crate) fn detach(&mut self, group: IpAddr, qpn: Qpn) -> bool {
        let found = self.0.binary_search_by_key(&key(group, qpn), |&(group, qpn)| key(group, qpn));
        found.map(|at| self.0.remove(at)).is_ok()
    }

    /// Detaches a QP from all groups.
    pub(crate) fn detach_all(&mut self, qpn: Qpn) {
        self.0.retain(|&(_, member)| member != qpn);
    }

    /// True if the QP is attached to any group.
    pub(crate) fn has_member(&self, qpn: Qpn) -> bool {
        self.0.iter().any(|&(_, member)| member == qpn)
    }

    /// The members of a group, by rising QPN, which is also by rising shard.
    #[inline]
    pub(crate) fn members(&self, group: IpAddr) -> impl ExactSizeIterator<Item = Qpn> + use<'_> {
        let start = self.0.partition_point(|&(other, _)| other < group);
        let rest = self.0.get(start..).unwrap_or_default();
        let count = rest.partition_point(|&(other, _)| other == group);
        rest.get(..count).unwrap_or_default().iter().map(|&(_, qpn)| qpn)
    }

    /// The shards with members of a group, as bits.
    #[inline]
    pub(crate) fn shards(&self, group: IpAddr) -> u16 {
        self.members(group).fold(0, |shards, qpn| shards | 1 << shard_of(qpn))
    }
}

fn key(group: IpAddr, qpn: Qpn) -> (IpAddr, u32) {
    (group, qpn.value())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_and_shards_of_a_group_are_those_attached() {
        let [a, b] = [IpAddr::from([239, 0, 0, 1]), IpAddr::from([239, 0, 0, 2])];
        let mut table = McastTable::default();
        let qpns = [17, 1 << 20 | 18, 3 << 20 | 19].map(Qpn::new);
        for qpn in qpns {
            assert!(table.attach(a, qpn) && !table.attach(a, qpn));
        }
        assert!(table.attach(b, qpns[1]));
        assert!(table.members(a).eq(qpns) && table.members(b).eq([qpns[1]]));
        assert_eq!((table.shards(a), table.shards(b), table.shards([239, 0, 0, 3].into())), (0b1011, 0b10, 0));
        assert!(table.detach(a, qpns[0]) && !table.detach(a, qpns[0]));
        table.detach_all(qpns[1]);
        assert!(table.members(a).eq([qpns[2]]) && !table.has_member(qpns[1]) && table.has_member(qpns[2]));
    }

    #[test]
    fn the_table_has_a_limit() {
        let mut table = McastTable::default();
        let group = IpAddr::from([239, 0, 0, 1]);
        assert!((0..ATTACHMENTS_MAX as u32).all(|qpn| table.attach(group, Qpn::new(qpn))));
        assert!(!table.attach(group, MCAST_QPN));
        assert_eq!(table.members(group).len(), ATTACHMENTS_MAX);
    }
}
