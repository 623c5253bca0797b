//! Jain's index of fairness.

/// Jain's index of shares: 1 if all are equal, 1/N if one has it all. `None` if there are none, or nothing to share.
///
/// Source: R. Jain, D. Chiu, W. Hawe, DEC-TR-301, 1984.
pub fn jain(shares: &[f64]) -> Option<f64> {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    (squares > 0.0).then(|| sum * sum / (shares.len() as f64 * squares))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn index_is_one_for_equals_and_a_part_for_a_hog() {
        assert_eq!(jain(&[3.0, 3.0, 3.0]), Some(1.0));
        assert_eq!(jain(&[5.0, 0.0, 0.0, 0.0]), Some(0.25));
        assert_eq!(jain(&[1.0, 3.0]), Some(0.8));
        assert_eq!((jain(&[]), jain(&[0.0])), (None, None));
    }
}
