use super::*;

const LINK: f64 = 10e9;

fn params(algorithm: Algorithm, changes: &[(&'static str, &'static str)]) -> TimelyParams {
    let settings = Settings::new(algorithm).change(None, changes.iter().copied()).unwrap();
    TimelyParams::new(&settings, whole(LINK))
}

fn close(found: f64, expected: f64) {
    assert!((found - expected).abs() <= expected.abs() * 1e-12, "{found} is not {expected}");
}

#[test]
fn short_round_trips_add_and_long_ones_multiply() {
    let params = params(Algorithm::TimelyOriginal, &[("start_rate", "4Gbps")]);
    let mut flow = Timely::new(&params);
    flow.sample(49_999, &params);
    close(flow.rate, 4.01e9);
    flow.sample(1_000_000, &params);
    // 1 - 0.8 (1 - 500/1000)
    close(flow.rate, 4.01e9 * 0.6);
}

#[test]
fn original_falls_by_the_gradient_and_rises_faster_after_five_that_do_not_rise() {
    let params = params(Algorithm::TimelyOriginal, &[("start_rate", "4Gbps")]);
    let mut flow = Timely::new(&params);
    flow.sample(100_000, &params);
    close(flow.rate, 4.01e9);
    flow.sample(102_000, &params);
    // diff = 0.875 * 2 us, of which min_rtt is 20 us.
    close(flow.diff, 1_750.0);
    close(flow.rate, 4.01e9 * (1.0 - 0.8 * 1_750.0 / 20_000.0));
    let mut rate = flow.rate;
    for sample in 1..=6 {
        flow.sample(102_000 - 1_000 * sample, &params);
        rate += if sample >= 5 { 50e6 } else { 10e6 };
        close(flow.rate, rate);
    }
}

#[test]
fn patched_weighs_gradient_and_distance() {
    let params = params(Algorithm::Timely, &[("start_rate", "4Gbps")]);
    let mut flow = Timely::new(&params);
    flow.sample(75_000, &params);
    // No gradient yet: w = 1/2, err = 1/2.
    close(flow.rate, 4e9 * (1.0 - 0.008 * 0.25) + 5e6);
    let rate = flow.rate;
    flow.sample(77_000, &params);
    let weight = 2.0 * (0.875 * 2_000.0 / 20_000.0) + 0.5;
    close(flow.rate, rate * (1.0 - 0.008 * weight * 27.0 / 50.0) + 10e6 * (1.0 - weight));
    let rate = flow.rate;
    flow.sample(60_000, &params);
    close(flow.rate, rate + 10e6);
}

#[test]
fn rates_stay_within_their_bounds() {
    let params = params(Algorithm::TimelyOriginal, &[("min_rate", "50Mbps"), ("beta", "1")]);
    let mut flow = Timely::new(&params);
    flow.sample(20_000, &params);
    assert_eq!(flow.rate_bps(), 10_000_000_000);
    flow.sample(200_000, &params);
    assert_eq!(flow.rate_bps(), 50_000_000, "a gradient of 9 would make it negative");
    for _ in 0..10 {
        flow.sample(u64::MAX, &params);
    }
    assert_eq!(flow.rate_bps(), 50_000_000);
}

#[test]
fn the_step_is_in_proportion_to_the_port() {
    let settings = Settings::new(Algorithm::Timely);
    close(TimelyParams::new(&settings, 100_000_000_000).delta, 100e6);
}

/// Two flows that start at these rates (Gb/s) send segments of 16 KB into one queue; each segment's round trip is a sample.
/// The rates after 300 ms.
fn share_a_link(algorithm: Algorithm, starts: [u32; 2]) -> [f64; 2] {
    let start = |gbps: u32| {
        let text = format!("{gbps}Gbps");
        let settings = Settings::new(algorithm).change(None, [("start_rate", text.as_str())]).unwrap();
        TimelyParams::new(&settings, whole(LINK))
    };
    let params = starts.map(start);
    let mut flows = [Timely::new(&params[0]), Timely::new(&params[1])];
    let (mut owed, mut queue_bits) = ([0.0, 0.0], 0.0_f64);
    for _ in 0..300_000 {
        queue_bits = (queue_bits + flows.iter().map(|flow| flow.rate / 1e6).sum::<f64>() - LINK / 1e6).max(0.0);
        let rtt_ns = 4_000.0 + (queue_bits + 16e3 * 8.0) / LINK * 1e9;
        for ((flow, params), owed) in flows.iter_mut().zip(&params).zip(&mut owed) {
            *owed += flow.rate / 1e6;
            if *owed >= 16e3 * 8.0 {
                *owed -= 16e3 * 8.0;
                flow.sample(whole(rtt_ns), params);
            }
        }
    }
    flows.map(|flow| flow.rate)
}

#[test]
fn original_keeps_the_split_that_it_started_with_and_patched_comes_to_halves() {
    let share = |[one, other]: [f64; 2]| one / (one + other);
    let (uneven, even) =
        (share_a_link(Algorithm::TimelyOriginal, [7, 3]), share_a_link(Algorithm::TimelyOriginal, [5, 5]));
    assert!((share(even) - 0.5).abs() < 0.01, "{even:?}");
    assert!((share(uneven) - 0.5).abs() > 0.1, "{uneven:?}: the split depends on the start");
    for starts in [[7, 3], [9, 1], [5, 5]] {
        let rates = share_a_link(Algorithm::Timely, starts);
        assert!((share(rates) - 0.5).abs() < 0.02, "{starts:?}: {rates:?}");
    }
}
