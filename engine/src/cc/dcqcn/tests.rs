use super::super::params::Algorithm;
use super::*;

const LINE: f64 = 100e9;

fn params(algorithm: Algorithm, changes: &[(&'static str, &'static str)]) -> DcqcnParams {
    let settings = Settings::new(algorithm).change(None, changes.iter().copied()).unwrap();
    DcqcnParams::new(&settings, whole(LINE))
}

fn us(at: u64) -> Time {
    Time::from_ns(at * 1_000)
}

fn close(found: f64, expected: f64) {
    assert!((found - expected).abs() <= expected.abs() * 1e-12, "{found} is not {expected}");
}

#[test]
fn line_rate_cnp_halves_and_five_steps_of_the_timer_come_back_by_halves() {
    let params = params(Algorithm::DcqcnPaper, &[]);
    let mut flow = Dcqcn::new(&params);
    assert_eq!((flow.rate_bps(), flow.next_step()), (None, Time::NEVER));
    flow.cnp(us(10), &params);
    assert_eq!((flow.rate_bps(), flow.next_step()), (Some(50_000_000_000), us(65)));
    close(flow.alpha, 1.0);
    for (step, rate) in [(1, 75e9), (2, 87.5e9), (3, 93.75e9), (4, 96.875e9)] {
        flow.advance(us(10 + 55 * step), &params);
        close(flow.rate, rate);
        close(flow.target, LINE);
    }
}

#[test]
fn second_cnp_cuts_by_alpha_and_makes_the_rate_before_it_the_target() {
    let params = params(Algorithm::DcqcnPaper, &[]);
    let mut flow = Dcqcn::new(&params);
    flow.cnp(us(0), &params);
    flow.cnp(us(100), &params);
    // One alpha period and one step of the timer are over by then.
    let alpha = 255.0 / 256.0;
    close(flow.target, 75e9);
    close(flow.rate, 75e9 * (1.0 - alpha / 2.0));
    close(flow.alpha, 255.0 / 256.0 * alpha + 1.0 / 256.0);
    assert_eq!((flow.next_step(), flow.next_alpha), (us(155), us(155)), "the timers start anew");
    // Six steps of additive increase: the target rises from the sixth on, with F = 5 the fifth.
    let (mut rate, mut target) = (flow.rate, flow.target);
    for step in 1..=6 {
        target += if step >= 5 { 40e6 } else { 0.0 };
        rate = f64::midpoint(rate, target);
        flow.advance(us(100 + 55 * step), &params);
        close(flow.rate, rate);
        close(flow.target, target);
    }
}

#[test]
fn bytes_step_up_as_the_timer_does_and_both_together_rise_faster() {
    let params = params(Algorithm::DcqcnPaper, &[("increase_timer", "1s")]);
    let mut flow = Dcqcn::new(&params);
    flow.cnp(us(0), &params);
    flow.cnp(us(1), &params);
    let (rate, target) = (flow.rate, flow.target);
    flow.sent(us(2), 9_999_999, &params);
    close(flow.rate, rate);
    flow.sent(us(2), 1, &params);
    close(flow.rate, f64::midpoint(rate, target));
    for _ in 2..=6 {
        flow.sent(us(2), 10_000_000, &params);
    }
    close(flow.target, target + 2.0 * 40e6);
    // T = 6 > F and BC = 6 > F: from here each step adds once more of Rhai.
    flow.timer_steps = 6;
    flow.sent(us(3), 10_000_000, &params);
    close(flow.target, target + 2.0 * 40e6 + 400e6);
    flow.sent(us(3), 10_000_000, &params);
    close(flow.target, target + 2.0 * 40e6 + 3.0 * 400e6);
}

#[test]
fn adapters_take_a_burst_of_cnps_as_one_and_let_alpha_run() {
    let params = params(Algorithm::DcqcnNvidia, &[]);
    let mut flow = Dcqcn::new(&params);
    flow.cnp(us(0), &params);
    let first = LINE * (1.0 - 1023.0 / 2048.0);
    close(flow.rate, first);
    flow.cnp(us(3), &params);
    close(flow.rate, first);
    let decay = |alpha: f64| alpha * (1019.0 / 1024.0);
    // Ends of periods: 1 us with the first CNP in it, 2 and 3 us without, 4 us with the second.
    let alpha = decay(decay(decay(decay(1023.0 / 1024.0) + 5.0 / 1024.0))) + 5.0 / 1024.0;
    flow.cnp(us(4), &params);
    close(flow.alpha, alpha);
    close(flow.rate, first * (1.0 - alpha / 2.0));
    close(flow.target, LINE);
    // After a step up by the timer, the rate before the cut is the target.
    flow.advance(us(304), &params);
    let rate = flow.rate;
    flow.cnp(us(305), &params);
    close(flow.target, rate);
}

#[test]
fn alpha_of_many_periods_at_once_is_that_of_one_after_the_other() {
    let params = params(Algorithm::DcqcnNvidia, &[]);
    let (mut jumps, mut walks) = (Dcqcn::new(&params), Dcqcn::new(&params));
    jumps.cnp(us(0), &params);
    walks.cnp(us(0), &params);
    (1..=250).for_each(|at| walks.advance(us(at), &params));
    jumps.advance(us(250), &params);
    assert!((jumps.alpha - walks.alpha).abs() < 1e-12);
    assert_eq!(jumps.next_alpha, walks.next_alpha);
}

#[test]
fn a_cut_is_bounded_and_the_rate_never_falls_below_its_minimum() {
    let params = params(Algorithm::DcqcnNvidia, &[("max_cut", "10%"), ("min_rate", "1Gbps")]);
    let mut flow = Dcqcn::new(&params);
    flow.cnp(us(0), &params);
    close(flow.rate, 0.9 * LINE);
    for burst in 1..200 {
        flow.cnp(us(4 * burst), &params);
    }
    assert_eq!(flow.rate_bps(), Some(1_000_000_000));
}

#[test]
fn the_limit_goes_when_the_rate_is_back_and_the_state_with_it() {
    let params = params(Algorithm::DcqcnPaper, &[]);
    let mut flow = Dcqcn::new(&params);
    flow.cnp(us(0), &params);
    flow.advance(us(55 * 8), &params);
    assert!(flow.is_limited());
    flow.advance(us(55 * 9), &params);
    assert_eq!(flow, Dcqcn::new(&params));
}

#[test]
fn a_long_absence_is_made_up_for_as_if_it_had_been_watched() {
    let params = params(Algorithm::DcqcnNvidia, &[]);
    let (mut jumps, mut walks) = (Dcqcn::new(&params), Dcqcn::new(&params));
    for flow in [&mut jumps, &mut walks] {
        (0..100).for_each(|burst| flow.cnp(us(4 * burst), &params));
        flow.target = flow.rate;
    }
    for at in (0..1_000).map(|step| 400 + 300 * step) {
        walks.advance(us(at), &params);
    }
    jumps.advance(us(400 + 300 * 999), &params);
    assert!(walks.is_limited());
    assert!((jumps.rate / walks.rate - 1.0).abs() < 1e-9, "{} {}", jumps.rate, walks.rate);
    assert_eq!((jumps.next_step, jumps.timer_steps), (walks.next_step, walks.timer_steps));
    jumps.advance(Time::from_ns(u64::MAX - 1), &params);
    assert!(!jumps.is_limited());
}

#[test]
fn new_parameters_hold_at_once() {
    let slow = params(Algorithm::DcqcnPaper, &[]);
    let mut flow = Dcqcn::new(&slow);
    flow.cnp(us(0), &slow);
    let fast = params(Algorithm::DcqcnPaper, &[("min_rate", "60Gbps")]);
    flow.adapt(&fast);
    assert_eq!(flow.rate_bps(), Some(60_000_000_000));
}

/// `count` flows that came one after the other send into one queue, which marks as RED does; each gets at most a CNP in
/// `cnp_us`. Shares of the last 50 ms, and the mean queue in bytes.
fn share_a_link(algorithm: Algorithm, count: usize, cnp_us: u64, seed: u64) -> (Vec<f64>, f64) {
    const LINK: f64 = 40e9;
    const PACKET_BITS: f64 = 1024.0 * 8.0;
    let params = DcqcnParams::new(&Settings::new(algorithm), whole(LINK));
    let mut flows = vec![(Dcqcn::new(&params), 0_u64, 0.0_f64, 0.0_f64); count];
    let (mut queue_bits, mut mean, mut random) = (0.0_f64, 0.0, seed);
    for now in 0..400_000_u64 {
        let marking = ((queue_bits / 8.0 - 5e3) / (200e3 - 5e3) * 0.01).max(0.0);
        let marking = if marking > 0.01 { 1.0 } else { marking };
        for (index, (flow, cnp_after, owed, total)) in flows.iter_mut().enumerate() {
            if now < 2_000 * index as u64 {
                continue;
            }
            flow.advance(us(now), &params);
            *owed += flow.rate_bps().map_or(LINK, real) / 1e6;
            while *owed >= PACKET_BITS {
                *owed -= PACKET_BITS;
                queue_bits += PACKET_BITS;
                *total += if now >= 350_000 { PACKET_BITS } else { 0.0 };
                flow.sent(us(now), 1024, &params);
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                if real(random >> 12) / real(1 << 52) < marking && now >= *cnp_after {
                    *cnp_after = now + cnp_us;
                    flow.cnp(us(now), &params);
                }
            }
        }
        queue_bits = (queue_bits - LINK / 1e6).max(0.0);
        mean += if now >= 350_000 { queue_bits / 8.0 / 50_000.0 } else { 0.0 };
    }
    let all: f64 = flows.iter().map(|flow| flow.3).sum();
    (flows.iter().map(|flow| flow.3 / all).collect(), mean)
}

#[test]
fn flows_come_to_equal_shares_of_a_link() {
    for (count, seed) in [(2, 1), (4, 2), (8, 3)] {
        let (shares, queue) = share_a_link(Algorithm::DcqcnPaper, count, 50, seed);
        let fair = 1.0 / real(count as u64);
        assert!(shares.iter().all(|share| (share / fair - 1.0).abs() < 0.15), "seed {seed}: {shares:?}");
        assert!(queue < 200e3, "{queue} bytes wait");
    }
}
