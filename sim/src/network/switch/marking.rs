//! Which packets are marked.

use rand::Rng;

use super::settings::Marking;
use crate::random::Stream;

impl Marking {
    /// The share of packets that are marked when `queue_bytes` wait before them.
    pub fn probability(&self, queue_bytes: u64) -> f64 {
        if queue_bytes <= self.kmin_bytes {
            0.0
        } else if queue_bytes > self.kmax_bytes {
            1.0
        } else {
            let above = (queue_bytes - self.kmin_bytes) as f64;
            self.pmax * above / (self.kmax_bytes - self.kmin_bytes) as f64
        }
    }

    /// Whether this packet is. Draws only where luck decides.
    pub(super) fn hits(&self, queue_bytes: u64, stream: &mut Stream) -> bool {
        let probability = self.probability(queue_bytes);
        probability >= 1.0 || (probability > 0.0 && stream.random::<f64>() < probability)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{StreamOf, stream};

    const DCQCN: Marking = Marking { kmin_bytes: 5_000, kmax_bytes: 200_000, pmax: 0.01 };

    #[test]
    fn probability_is_zero_then_a_line_then_one() {
        let expected = [(0, 0.0), (5_000, 0.0), (102_500, 0.005), (200_000, 0.01), (200_001, 1.0)];
        for (queue, probability) in expected {
            assert!((DCQCN.probability(queue) - probability).abs() < 1e-12, "{queue}");
        }
        let step = Marking { kmin_bytes: 100, kmax_bytes: 100, pmax: 1.0 };
        assert_eq!([100, 101].map(|queue| step.probability(queue)), [0.0, 1.0]);
    }

    #[test]
    fn marks_come_as_often_as_the_line_says() {
        let marking = Marking { kmin_bytes: 0, kmax_bytes: 1_000, pmax: 0.2 };
        let mut stream = stream(11, StreamOf::Settings);
        let marked = (0..100_000).filter(|_| marking.hits(500, &mut stream)).count();
        // 10 %, four standard deviations (95 each) either way.
        assert!((9_620..=10_380).contains(&marked), "{marked}");
    }
}
