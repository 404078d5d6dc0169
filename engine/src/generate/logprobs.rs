//! The probabilities of tokens, as the chat completions API reports them.

use std::cmp::Ordering;

/// The log probabilities of one step.
///
/// They are of the model's own distribution: the softmax of the logits as they came, over the ids that have a
/// token, before penalties, temperature, filters and constraints. What a request forbids therefore changes no
/// number here, and every number is finite: none is below [`LOWEST_LOG_PROBABILITY`].
///
/// ```
/// use cider::generate::Logprobs;
///
/// let mut logprobs = Logprobs::new(2, 3);
/// // Before the sampler, which changes the logits; the fourth has no token.
/// logprobs.observe(&[1.0, 3.0, 3.0, 9.0]);
/// let top: Vec<u32> = logprobs.top().map(|(id, _)| id).collect();
/// assert_eq!(top, [1, 2]);
/// assert!(logprobs.of(0).is_some_and(|logprob| logprob < -2.0));
/// assert_eq!(logprobs.of(3), None);
/// ```
#[derive(Clone, Debug)]
pub struct Logprobs {
    count: usize,
    vocab_size: usize,
    logits: Vec<f32>,
    log_sum: f64,
    /// Ids, the most probable first.
    best: Vec<u32>,
}

/// What is reported for anything less probable.
pub const LOWEST_LOG_PROBABILITY: f32 = -9999.0;

impl Logprobs {
    /// For `count` alternatives beside the chosen token, of the first `vocab_size` ids.
    #[must_use]
    pub fn new(count: usize, vocab_size: usize) -> Self {
        Self {
            count,
            vocab_size,
            logits: Vec::new(),
            log_sum: 0.0,
            best: Vec::new(),
        }
    }

    /// Takes the logits of a step; to be called before the sampler changes them.
    pub fn observe(&mut self, logits: &[f32]) {
        let known = self.vocab_size.min(logits.len());
        let logits = logits.get(..known).unwrap_or_default();
        self.logits.clear();
        self.logits.extend_from_slice(logits);
        self.log_sum = log_sum_exp(logits);
        self.best.clear();
        if self.count == 0 {
            return;
        }
        for (id, &logit) in (0_u32..).zip(logits) {
            let full = self.best.len() == self.count;
            let last = self.best.last().copied().filter(|_| full);
            if last.is_some_and(|last| logit <= logit_of(logits, last)) {
                continue;
            }
            // Ids come in ascending order, so an equal one goes behind.
            let rank = |&other: &u32| logit_of(logits, other).total_cmp(&logit) != Ordering::Less;
            let place = self.best.partition_point(rank);
            self.best.truncate(self.count - 1);
            self.best.insert(place, id);
        }
    }

    /// The log probability of a token; `None` for an id without one.
    #[must_use]
    pub fn of(&self, id: u32) -> Option<f32> {
        let logit = f64::from(*self.logits.get(id as usize)?);
        Some(((logit - self.log_sum) as f32).clamp(LOWEST_LOG_PROBABILITY, 0.0))
    }

    /// The most probable tokens with their log probabilities, the lower id first of two equals.
    pub fn top(&self) -> impl Iterator<Item = (u32, f32)> {
        self.best.iter().filter_map(|&id| Some((id, self.of(id)?)))
    }
}

fn logit_of(logits: &[f32], id: u32) -> f32 {
    logits.get(id as usize).copied().unwrap_or(f32::MIN)
}

/// The logarithm of the probability of `id` under the softmax of `logits`; `None` if there is no
/// such logit.
#[must_use]
pub fn log_probability(logits: &[f32], id: u32) -> Option<f32> {
    let logit = *logits.get(id as usize)?;
    Some((f64::from(logit) - log_sum_exp(logits)) as f32)
}

/// The logarithm of the sum of the exponentials.
#[must_use]
pub fn log_sum_exp(logits: &[f32]) -> f64 {
    let largest = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = logits
        .iter()
        .map(|&logit| (f64::from(logit) - largest).exp())
        .sum();
    largest + sum.ln()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn log_probabilities_add_up() {
        let logits = [1000.0, 1001.0, 999.0];
        let sum: f64 = (0..3)
            .map(|id| f64::from(log_probability(&logits, id).unwrap()).exp())
            .sum();
        assert!((sum - 1.0).abs() < 1e-4, "{sum}");
        assert_eq!(log_probability(&[5.0], 0), Some(0.0));
        assert_eq!(log_probability(&logits, 3), None);
    }

    #[test]
    fn numbers_stay_in_their_bounds() {
        let mut logprobs = Logprobs::new(5, 3);
        logprobs.observe(&[f32::MAX, f32::MIN, 0.0, f32::MAX]);
        let top: Vec<(u32, f32)> = logprobs.top().collect();
        let lowest = LOWEST_LOG_PROBABILITY;
        assert_eq!(top, [(0, 0.0), (2, lowest), (1, lowest)]);
        assert_eq!(logprobs.of(3), None, "an id without a token");
        logprobs.observe(&[0.0, 0.0]);
        assert_eq!(logprobs.of(1), Some(-std::f32::consts::LN_2));
    }

    proptest! {
        #[test]
        fn the_best_are_those_of_a_full_sort(
            logits in prop::collection::vec((-4_i32..4).prop_map(|x| x as f32), 1..40),
            count in 0_usize..8,
        ) {
            let mut logprobs = Logprobs::new(count, 30);
            logprobs.observe(&logits);
            let known = logits.len().min(30);
            let mut ids: Vec<u32> = (0..known as u32).collect();
            ids.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b)));
            ids.truncate(count);
            prop_assert_eq!(logprobs.top().map(|(id, _)| id).collect::<Vec<_>>(), ids);
            for (id, logprob) in logprobs.top() {
                let plain = log_probability(&logits[..known], id).unwrap();
                prop_assert!((plain - logprob).abs() < 1e-6);
            }
        }
    }
}
