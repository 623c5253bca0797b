//! Which priority a frame has.

use super::headers::Headers;
use super::pause::PRIORITY_COUNT;

/// Where a frame's priority is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trust {
    /// The IP header.
    Dscp,
    /// The VLAN tag.
    Pcp,
}

/// How priorities are told from frames, the same in all devices of a network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Classes {
    /// What decides.
    pub trust: Trust,
    /// Priority of each DSCP.
    pub dscp_priorities: [u8; 64],
}

impl Default for Classes {
    /// The upper three bits of the DSCP, as class selectors have them (RFC 2474 4.2.2).
    fn default() -> Self {
        Self { trust: Trust::Dscp, dscp_priorities: std::array::from_fn(|dscp| dscp as u8 >> 3) }
    }
}

impl Classes {
    /// The priority of a frame: 0 if it has nothing that says one.
    pub fn priority(&self, headers: &Headers) -> usize {
        let priority = match self.trust {
            Trust::Pcp => headers.pcp.unwrap_or(0),
            Trust::Dscp => headers.ip.map_or(0, |ip| self.dscp_priorities[usize::from(ip.dscp())]),
        };
        usize::from(priority)
    }

    /// The first DSCP that is mapped to no priority.
    pub(super) fn bad_entry(&self) -> Option<(usize, u8)> {
        let too_high = |&(_, &priority): &(usize, &u8)| usize::from(priority) >= PRIORITY_COUNT;
        self.dscp_priorities.iter().enumerate().find(too_high).map(|(dscp, &priority)| (dscp, priority))
    }
}
