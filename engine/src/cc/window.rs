//! The window cap: what is in flight beyond one bandwidth-delay product only fills queues.

/// Packets of `mtu_bytes` that a path of this rate and round trip time holds, `percent` of them, rounded up: at least one.
pub(crate) fn bdp_packets(rate_bps: u64, rtt_ns: u64, mtu_bytes: u32, percent: u64) -> u32 {
    // bits = rate rtt / 10^9, a packet has 8 mtu of them, and the percentage is of 100.
    let scaled = u128::from(rate_bps) * u128::from(rtt_ns) * u128::from(percent);
    let packets = scaled.div_ceil(u128::from(mtu_bytes.max(1)) * 8 * 100_000_000_000);
    u32::try_from(packets).unwrap_or(u32::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_what_the_path_holds() {
        // 100 Gb/s for 10 us are 125,000 bytes: 30.5 packets of 4096.
        assert_eq!(bdp_packets(100_000_000_000, 10_000, 4096, 100), 31);
        assert_eq!(bdp_packets(100_000_000_000, 10_000, 4096, 200), 62);
        // Exactly one packet: 1024 bytes in 8.192 us at 1 Gb/s.
        assert_eq!(bdp_packets(1_000_000_000, 8_192, 1024, 100), 1);
        assert_eq!(bdp_packets(1_000_000_000, 8_193, 1024, 100), 2);
        assert_eq!(bdp_packets(1_000_000, 100, 4096, 10), 1, "never less than one packet");
        assert_eq!(bdp_packets(400_000_000_000, u64::MAX, 256, 1000), u32::MAX);
    }
}
