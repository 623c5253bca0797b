use super::super::params::Algorithm;
use super::*;

fn params(changes: &[(&'static str, &'static str)]) -> SwiftParams {
    SwiftParams::new(&Settings::new(Algorithm::Swift).change(None, changes.iter().copied()).unwrap())
}

fn close(found: f64, expected: f64) {
    assert!((found - expected).abs() <= expected.abs() * 1e-12, "{found} is not {expected}");
}

fn us(at: u64) -> Time {
    Time::from_ns(at * 1_000)
}

#[test]
fn small_windows_aim_at_a_longer_delay() {
    let params = params(&[]);
    // base 25 us and 5 hops of 1 us; alpha = 100 us / (1/sqrt(0.1) - 1/sqrt(100)), beta = -alpha/10
    let alpha = 100_000.0 / (1.0 / 0.1_f64.sqrt() - 0.1);
    close(params.target(4.0), 30_000.0 + alpha / 2.0 - alpha / 10.0);
    close(params.target(0.1), 130_000.0);
    close(params.target(0.01), 130_000.0);
    close(params.target(100.0), 30_000.0);
    close(params.target(200.0), 30_000.0);
}

#[test]
fn below_the_target_the_window_grows_by_one_a_round_trip() {
    let params = params(&[("start_cwnd", "10")]);
    let mut flow = Swift::new(&params);
    flow.acknowledged(us(0), 5, None, &params);
    close(flow.cwnd(), 10.0);
    flow.acknowledged(us(1), 2, Some(20_000), &params);
    close(flow.cwnd(), 10.2);
    flow.acknowledged(us(2), 1, None, &params);
    close(flow.cwnd(), 10.2 + 1.0 / 10.2);
}

#[test]
fn above_the_target_it_shrinks_once_a_round_trip() {
    let params = params(&[("start_cwnd", "100")]);
    let mut flow = Swift::new(&params);
    flow.acknowledged(us(100), 1, Some(40_000), &params);
    // 1 - 0.8 (40 - 30)/40
    close(flow.cwnd(), 80.0);
    flow.acknowledged(us(139), 1, Some(40_000), &params);
    close(flow.cwnd(), 80.0);
    flow.acknowledged(us(140), 1, None, &params);
    close(flow.cwnd(), 80.0);
    flow.acknowledged(us(141), 1, Some(3_000_000), &params);
    close(flow.cwnd(), 40.0);
}

#[test]
fn a_loss_takes_half_once_a_round_trip() {
    let params = params(&[("start_cwnd", "16")]);
    let mut flow = Swift::new(&params);
    flow.acknowledged(us(0), 1, Some(20_000), &params);
    let cwnd = flow.cwnd();
    flow.lost(us(10), &params);
    flow.lost(us(29), &params);
    close(flow.cwnd(), cwnd / 2.0);
    flow.lost(us(30), &params);
    close(flow.cwnd(), cwnd / 4.0);
}

#[test]
fn below_one_packet_it_is_a_rate() {
    let params = params(&[("start_cwnd", "0.25"), ("min_cwnd", "0.01")]);
    let mut flow = Swift::new(&params);
    assert_eq!(flow.limit(1024), (None, 1), "without a round trip time there is nothing to pace by");
    flow.acknowledged(us(0), 0, Some(80_000), &params);
    // A packet of 1024 bytes every 320 us.
    assert_eq!(flow.limit(1024), (Some(25_600_000), 1));
    flow.acknowledged(us(1), 1, None, &params);
    close(flow.cwnd(), 1.25);
    assert_eq!(flow.limit(1024), (None, 1));
    for round in 1..100 {
        flow.acknowledged(us(1_000 * round), 1, Some(900_000), &params);
    }
    close(flow.cwnd(), 0.01);
}

/// Flows that start with these windows share a queue of 10 Gb/s behind a round trip of 10 us. Windows and the mean delay of
/// the last half.
fn share_a_link(starts: &[&'static str]) -> (Vec<f64>, f64) {
    const PACKET_NS: f64 = 1024.0 * 8.0 / 10.0;
    let params: Vec<_> = starts.iter().map(|&start| params(&[("start_cwnd", start)])).collect();
    let mut flows: Vec<_> = params.iter().map(|params| (Swift::new(params), 0.0_f64)).collect();
    let mut mean = 0.0;
    for now in 0..200_000_u64 {
        // What is in flight is what the windows allow; what the path does not hold waits.
        let in_flight: f64 = flows.iter().map(|(flow, _)| flow.cwnd()).sum();
        let delay_ns = (in_flight * PACKET_NS).max(10_000.0);
        for ((flow, owed), params) in flows.iter_mut().zip(&params) {
            *owed += flow.cwnd() * 1_000.0 / delay_ns;
            while *owed >= 1.0 {
                *owed -= 1.0;
                flow.acknowledged(us(now), 1, Some(whole(delay_ns)), params);
            }
        }
        mean += if now >= 100_000 { delay_ns / 100_000.0 } else { 0.0 };
    }
    (flows.iter().map(|(flow, _)| flow.cwnd()).collect(), mean)
}

#[test]
fn flows_come_to_equal_windows_and_the_delay_to_its_target() {
    let (windows, delay_ns) = share_a_link(&["1", "40", "90"]);
    let mean = windows.iter().sum::<f64>() / 3.0;
    assert!(windows.iter().all(|window| (window / mean - 1.0).abs() < 0.1), "{windows:?}");
    let target = params(&[]).target(mean);
    assert!((delay_ns / target - 1.0).abs() < 0.1, "{delay_ns} ns, the target is {target}");
}
