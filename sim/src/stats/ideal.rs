//! The time that a flow takes on an empty network: what its slowdown is measured against.

/// A link on the way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hop {
    /// Its rate, bits a second; not 0.
    pub bits_per_s: u64,
    /// Its propagation delay, ns.
    pub delay_ns: u64,
}

/// The way from one host to another through switches that store a frame before they forward it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Path {
    /// The links from source to destination. The way back is the same.
    pub hops: Vec<Hop>,
    /// Payload of a full packet, bytes; not 0.
    pub mtu_bytes: u32,
    /// What a packet adds to its payload on a link: headers, checksums, preamble and gap, bytes.
    pub overhead_bytes: u32,
}

impl Hop {
    fn transmit_ns(&self, bytes: u64) -> f64 {
        bytes as f64 * 8e9 / self.bits_per_s as f64
    }
}

impl Path {
    /// Time from the post of a flow to its completion, ns, when nothing else is sent and nothing is waited for: its packets go
    /// back to back, and one without payload goes the other way: an acknowledgement, or before them the request of a READ.
    pub fn completion_ns(&self, bytes: u64) -> f64 {
        let (overhead, mtu) = (u64::from(self.overhead_bytes), u64::from(self.mtu_bytes));
        let packet_count = bytes.div_ceil(mtu).max(1);
        let full = mtu + overhead;
        let last = bytes - (packet_count - 1) * mtu + overhead;
        // When the last full packet has left each link, and when the last packet has.
        let (mut full_left, mut last_left) = (0.0, 0.0_f64);
        let (mut first_left, mut slowest_ns) = (0.0, 0.0_f64);
        for hop in &self.hops {
            let full_ns = hop.transmit_ns(full);
            slowest_ns = slowest_ns.max(full_ns);
            // Full packets come out of a link at the pace of the slowest so far.
            first_left += full_ns;
            if packet_count > 1 {
                full_left = first_left + (packet_count - 2) as f64 * slowest_ns;
            }
            last_left = last_left.max(full_left) + hop.transmit_ns(last) + hop.delay_ns as f64;
            full_left += hop.delay_ns as f64;
            first_left += hop.delay_ns as f64;
        }
        let answer_ns: f64 = self.hops.iter().map(|hop| hop.transmit_ns(overhead) + hop.delay_ns as f64).sum();
        last_left + answer_ns
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Packet by packet, as the definition says: a link sends a packet once it has it and the one before is out.
    fn packet_by_packet(path: &Path, bytes: u64) -> f64 {
        let mut free_at = vec![0.0_f64; path.hops.len()];
        let (mut left, mut arrived) = (bytes, 0.0);
        while left > 0 {
            let payload = left.min(path.mtu_bytes.into());
            left -= payload;
            arrived = 0.0;
            for (hop, free_at) in path.hops.iter().zip(&mut free_at) {
                *free_at = free_at.max(arrived) + hop.transmit_ns(payload + u64::from(path.overhead_bytes));
                arrived = *free_at + hop.delay_ns as f64;
            }
        }
        let overhead = path.overhead_bytes.into();
        arrived + path.hops.iter().map(|hop| hop.transmit_ns(overhead) + hop.delay_ns as f64).sum::<f64>()
    }

    #[test]
    fn one_link_takes_bytes_by_rate_and_a_round_trip() {
        let hops = vec![Hop { bits_per_s: 100_000_000_000, delay_ns: 1_000 }];
        let path = Path { hops, mtu_bytes: 4_096, overhead_bytes: 104 };
        // Two packets of 4200 bytes at 12.5 bytes a ns, an acknowledgement of 104, 1 us each way.
        assert_eq!(path.completion_ns(8_192), 672.0 + 8.32 + 2_000.0);
    }

    proptest! {
        #[test]
        fn formula_is_what_packet_by_packet_gives(
            hops in prop::collection::vec((1u64..400, 0u64..5_000), 1..7),
            mtu_bytes in 256u32..4_097,
            overhead_bytes in 40u32..150,
            bytes in 1u64..200_000,
        ) {
            let hops = hops.iter().map(|&(gbit, delay_ns)| Hop { bits_per_s: gbit * 1_000_000_000, delay_ns }).collect();
            let path = Path { hops, mtu_bytes, overhead_bytes };
            let (formula, counted) = (path.completion_ns(bytes), packet_by_packet(&path, bytes));
            prop_assert!((formula / counted - 1.0).abs() < 1e-9, "{} and {}", formula, counted);
        }
    }
}
