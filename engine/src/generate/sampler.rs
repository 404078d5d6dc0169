//! Logits to the next token.
//!
//! The steps and their order are those of the `transformers` package: repetition penalty (over
//! prompt and generated tokens), then presence and frequency penalty (over generated tokens, as
//! the chat completions API defines them), temperature, top-k, top-p, min-p; each filter sees
//! what the one before left. vLLM applies min-p before top-k, llama.cpp the temperature last.
//! A constraint forbids tokens after the penalties and before everything else, so that the filters
//! choose among allowed tokens alone.

use std::cmp::Ordering;
use std::hash::{BuildHasher, Hasher, RandomState};

use super::constraint::Constraint;
use super::random::Random;
use super::sampling_params::SamplingParams;
use crate::{Error, Result};

/// The tokens before the one to sample.
#[derive(Clone, Copy, Debug, Default)]
pub struct History<'a> {
    /// Tokens the request brought.
    pub prompt: &'a [u32],
    /// Tokens sampled so far.
    pub generated: &'a [u32],
}

/// Chooses the tokens of one sequence.
///
/// The choice depends on the parameters, the logits, the history and the draws before; not on
/// other sequences. Nothing is allocated after construction.
///
/// ```
/// use cider::generate::{History, Sampler, SamplingParams};
///
/// let greedy = SamplingParams { temperature: 0.0, ..SamplingParams::default() };
/// // Four rows of logits, of which the tokenizer knows three.
/// let mut sampler = Sampler::new(&greedy, 4, 3)?;
/// let mut logits = [0.5, 2.0, 2.0, 9.0];
/// assert_eq!(sampler.sample(&mut logits, History::default())?, 1);
/// # Ok::<(), cider::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Sampler {
    params: SamplingParams,
    random: Random,
    seed: u64,
    /// Ids from here on have no token.
    vocab_size: usize,
    /// Tokens that may still be chosen.
    candidates: Vec<Candidate>,
    /// By id: how often it was generated; all zero between steps.
    counts: Vec<u32>,
}

#[derive(Clone, Copy, Debug)]
struct Candidate {
    /// The probability up to a factor that all share; the best of all has 1.
    weight: f64,
    logit: f32,
    id: u32,
}

impl Sampler {
    /// A sampler for rows of `logits` numbers, of which the first `vocab_size` have a token.
    ///
    /// # Errors
    /// As [`SamplingParams::validate`]; [`Error::Request`] if there is no token to choose.
    pub fn new(params: &SamplingParams, logits: usize, vocab_size: usize) -> Result<Self> {
        params.validate()?;
        let vocab_size = vocab_size.min(logits);
        if vocab_size == 0 {
            return Err(Error::Request(
                "the vocabulary is empty, nothing can be sampled".to_owned(),
            ));
        }
        let seed = params
            .seed
            .unwrap_or_else(|| RandomState::new().build_hasher().finish());
        Ok(Self {
            params: params.clone(),
            random: Random::new(seed),
            seed,
            vocab_size,
            candidates: Vec::with_capacity(vocab_size),
            counts: vec![0; vocab_size],
        })
    }

    /// The seed in use: the request's, or the one that was drawn.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Chooses the next token. `logits` come back with the penalties applied.
    ///
    /// # Errors
    /// [`Error::NonFinite`] if any logit is a NaN or an infinity; nothing is drawn then.
    pub fn sample(&mut self, logits: &mut [f32], history: History<'_>) -> Result<u32> {
        self.sample_within(logits, history, None)
    }

    /// Chooses the next token among those the constraint allows, and tells the constraint.
    ///
    /// # Errors
    /// As [`Sampler::sample`]; as the constraint; [`Error::Request`] if it allows no token.
    pub fn sample_within(
        &mut self,
        logits: &mut [f32],
        history: History<'_>,
        constraint: Option<&mut dyn Constraint>,
    ) -> Result<u32> {
        if !logits.iter().all(|logit| logit.is_finite()) {
            let tokens = history.prompt.len() + history.generated.len();
            return Err(Error::NonFinite {
                position: tokens.saturating_sub(1),
            });
        }
        let known = self.vocab_size.min(logits.len());
        let logits = logits.get_mut(..known).unwrap_or_default();
        self.penalize(logits, history);
        let Some(constraint) = constraint else {
            return Ok(self.choose(logits));
        };
        constraint.mask(logits)?;
        if logits.iter().all(|&logit| logit == f32::NEG_INFINITY) {
            let what = "the rule of the answer allows no token of the vocabulary";
            return Err(Error::Request(what.to_owned()));
        }
        let id = self.choose(logits);
        constraint.accept(id)?;
        Ok(id)
    }

    /// One logit at least is finite; those at negative infinity are never chosen.
    fn choose(&mut self, logits: &[f32]) -> u32 {
        if self.params.temperature == 0.0 || self.params.top_k == 1 {
            return argmax(logits);
        }
        self.collect(logits);
        self.keep_top_k();
        self.weigh();
        self.keep_top_p();
        self.keep_min_p();
        self.draw()
    }

    fn penalize(&mut self, logits: &mut [f32], history: History<'_>) {
        self.penalize_repetition(logits, history);
        let SamplingParams {
            presence_penalty,
            frequency_penalty,
            ..
        } = self.params;
        if presence_penalty == 0.0 && frequency_penalty == 0.0 {
            return;
        }
        for &id in history.generated {
            if let Some(count) = self.counts.get_mut(id as usize) {
                *count += 1;
            }
        }
        for &id in history.generated {
            let Some(count) = self.counts.get_mut(id as usize) else {
                continue;
            };
            if let Some(logit) = logits.get_mut(id as usize).filter(|_| *count > 0) {
                let penalty = presence_penalty + frequency_penalty * *count as f32;
                *logit = (*logit - penalty).clamp(f32::MIN, f32::MAX);
            }
            *count = 0;
        }
    }

    /// Each token once, however often it occurs.
    fn penalize_repetition(&mut self, logits: &mut [f32], history: History<'_>) {
        let penalty = self.params.repetition_penalty;
        if (penalty - 1.0).abs() == 0.0 {
            return;
        }
        for &id in history.prompt.iter().chain(history.generated) {
            let seen = self
                .counts
                .get_mut(id as usize)
                .zip(logits.get_mut(id as usize));
            let Some((seen, logit)) = seen.filter(|(seen, _)| **seen == 0) else {
                continue;
            };
            *seen = 1;
            let penalized = if *logit > 0.0 {
                *logit / penalty
            } else {
                *logit * penalty
            };
            *logit = penalized.clamp(f32::MIN, f32::MAX);
        }
        for &id in history.prompt.iter().chain(history.generated) {
            if let Some(seen) = self.counts.get_mut(id as usize) {
                *seen = 0;
            }
        }
    }

    /// Candidates in ascending order of their ids, their logits divided by the temperature and
    /// counted from the largest, so that no quotient overflows.
    fn collect(&mut self, logits: &[f32]) {
        let largest = logits.iter().copied().fold(f32::MIN, f32::max);
        let temperature = self.params.temperature;
        self.candidates.clear();
        let allowed = (0_u32..)
            .zip(logits)
            .filter(|&(_, &logit)| logit > f32::NEG_INFINITY);
        self.candidates.extend(allowed.map(|(id, &logit)| {
            let logit = ((logit - largest) / temperature).max(f32::MIN);
            Candidate {
                weight: 0.0,
                logit,
                id,
            }
        }));
    }

    fn keep_top_k(&mut self) {
        let k = self.params.top_k;
        if k > 0 && k < self.candidates.len() {
            self.candidates.select_nth_unstable_by(k, by_rank);
            self.candidates.truncate(k);
            self.candidates
                .sort_unstable_by_key(|candidate| candidate.id);
        }
    }

    fn weigh(&mut self) {
        for candidate in &mut self.candidates {
            candidate.weight = f64::from(candidate.logit).exp();
        }
    }

    /// Sorts no more than it has to: the best few nearly always reach p.
    fn keep_top_p(&mut self) {
        let top_p = f64::from(self.params.top_p);
        if top_p >= 1.0 {
            return;
        }
        let target = top_p * self.candidates.iter().map(|c| c.weight).sum::<f64>();
        let mut sorted = FIRST_SORTED;
        loop {
            let len = self.candidates.len();
            if sorted < len {
                self.candidates.select_nth_unstable_by(sorted, by_rank);
            }
            let best = self
                .candidates
                .get_mut(..sorted.min(len))
                .unwrap_or_default();
            best.sort_unstable_by(by_rank);
            let mut sum = 0.0;
            let reached = best.iter().position(|candidate| {
                sum += candidate.weight;
                sum >= target
            });
            match reached {
                Some(last) => return self.candidates.truncate(last + 1),
                None if sorted >= len => return,
                None => sorted = sorted.saturating_mul(16),
            }
        }
    }

    fn keep_min_p(&mut self) {
        if self.params.min_p > 0.0 {
            let lowest = self.params.min_p.ln();
            self.candidates
                .retain(|candidate| candidate.logit >= lowest);
        }
    }

    fn draw(&mut self) -> u32 {
        let total: f64 = self.candidates.iter().map(|c| c.weight).sum();
        let target = self.random.unit() * total;
        let mut sum = 0.0;
        let mut chosen = 0;
        for candidate in &self.candidates {
            if candidate.weight > 0.0 {
                chosen = candidate.id;
            }
            sum += candidate.weight;
            if sum > target {
                break;
            }
        }
        chosen
    }
}

/// The id of the largest logit, the lowest of several; a NaN is never the largest.
#[must_use]
pub fn argmax(logits: &[f32]) -> u32 {
    let mut best = (0, f32::NEG_INFINITY);
    for (id, &logit) in (0_u32..).zip(logits) {
        if logit > best.1 {
            best = (id, logit);
        }
    }
    best.0
}

/// The largest first, the lowest id first of several.
fn by_rank(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit.total_cmp(&a.logit).then(a.id.cmp(&b.id))
}

const FIRST_SORTED: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    fn params() -> SamplingParams {
        SamplingParams {
            seed: Some(7),
            ..SamplingParams::default()
        }
    }

    fn draw(params: &SamplingParams, logits: &[f32], count: usize) -> Vec<u32> {
        let mut sampler = Sampler::new(params, logits.len(), logits.len()).unwrap();
        let mut next = || {
            sampler
                .sample(&mut logits.to_vec(), History::default())
                .unwrap()
        };
        (0..count).map(|_| next()).collect()
    }

    fn after(params: &SamplingParams, logits: &[f32], history: History<'_>) -> Vec<f32> {
        let mut logits = logits.to_vec();
        let mut sampler = Sampler::new(params, logits.len(), logits.len()).unwrap();
        sampler.sample(&mut logits, history).unwrap();
        assert!(sampler.counts.iter().all(|&count| count == 0));
        logits
    }

    /// Pearson's statistic of the draws against the probabilities.
    fn chi_square(draws: &[u32], probabilities: &[f64]) -> f64 {
        let terms = (0_u32..).zip(probabilities).map(|(id, p)| {
            let seen = draws.iter().filter(|&&d| d == id).count();
            let expected = p * draws.len() as f64;
            if *p == 0.0 {
                assert_eq!(seen, 0, "token {id} must never be drawn");
                return 0.0;
            }
            (seen as f64 - expected).powi(2) / expected
        });
        terms.sum()
    }

    fn logits_of(probabilities: &[f64]) -> Vec<f32> {
        probabilities.iter().map(|p| p.ln() as f32).collect()
    }

    const P: [f64; 6] = [0.05, 0.4, 0.1, 0.25, 0.15, 0.05];
    /// Chi-square with five degrees of freedom exceeds this once in a thousand.
    const LIMIT: f64 = 20.5;

    #[test]
    fn draws_follow_the_softmax() {
        let draws = draw(&params(), &logits_of(&P), 20_000);
        assert!(chi_square(&draws, &P) < LIMIT);
        let wrong = [0.05, 0.38, 0.12, 0.25, 0.15, 0.05];
        assert!(
            chi_square(&draws, &wrong) > LIMIT,
            "the bound must notice 0.02"
        );
    }

    #[test]
    fn temperature_sharpens() {
        let hot = SamplingParams {
            temperature: 2.0,
            ..params()
        };
        let roots: Vec<f64> = P.iter().map(|p| p.sqrt()).collect();
        let sum: f64 = roots.iter().sum();
        let expected: Vec<f64> = roots.iter().map(|r| r / sum).collect();
        assert!(chi_square(&draw(&hot, &logits_of(&P), 20_000), &expected) < LIMIT);
        let cold = SamplingParams {
            temperature: 1e-30,
            ..params()
        };
        assert_eq!(draw(&cold, &logits_of(&P), 50), [1; 50]);
    }

    #[test]
    fn filters_keep_what_they_say() {
        let all = |top_k, top_p, min_p| SamplingParams {
            top_k,
            top_p,
            min_p,
            ..params()
        };
        let three = [0.0, 0.5, 0.0, 0.3125, 0.1875, 0.0];
        let one = [0.0, 1.0, 0.0, 0.0, 0.0, 0.0];
        let cases = [
            (all(3, 1.0, 0.0), three),
            (all(0, 0.6, 0.0), [0.0, 8. / 13., 0.0, 5. / 13., 0.0, 0.0]),
            (all(0, 1e-6, 0.0), one),
            (all(0, 1.0, 0.3), three),
            // Top-p counts within what top-k left: 0.45 of 0.8 is reached by the first alone.
            (all(3, 0.45, 0.0), one),
            // Top-p comes before min-p: 0.7 of 1 needs three, of the 0.8 that pass min-p two.
            (all(0, 0.7, 0.3), three),
        ];
        for (params, expected) in cases {
            let draws = draw(&params, &logits_of(&P), 20_000);
            assert!(chi_square(&draws, &expected) < LIMIT, "{params:?}");
        }
    }

    #[test]
    fn top_p_over_many_equal_tokens() {
        let params = SamplingParams {
            top_p: 0.5,
            ..params()
        };
        let draws = draw(&params, &vec![1.0; 10_000], 2_000);
        assert!(
            draws.iter().all(|&id| id < 5_001),
            "ties go to the lowest ids"
        );
        assert!(draws.iter().any(|&id| id > 4_500));
    }

    #[test]
    fn the_seed_alone_decides() {
        let logits = logits_of(&P);
        assert_eq!(draw(&params(), &logits, 100), draw(&params(), &logits, 100));
        let other = SamplingParams {
            seed: Some(8),
            ..params()
        };
        assert_ne!(draw(&params(), &logits, 100), draw(&other, &logits, 100));
        let unseeded = SamplingParams {
            seed: None,
            ..params()
        };
        let (a, b) = (
            Sampler::new(&unseeded, 6, 6).unwrap(),
            Sampler::new(&unseeded, 6, 6).unwrap(),
        );
        assert_ne!(a.seed(), b.seed());
    }

    #[test]
    fn rows_without_a_token_never_win() {
        let mut logits = vec![0.0_f32; 512];
        logits[500..].fill(50.0);
        for temperature in [0.0, 2.0] {
            let params = SamplingParams {
                temperature,
                ..params()
            };
            let mut sampler = Sampler::new(&params, 512, 500).unwrap();
            for _ in 0..500 {
                let id = sampler
                    .sample(&mut logits.clone(), History::default())
                    .unwrap();
                assert!(id < 500);
            }
        }
        assert!(Sampler::new(&params(), 512, 0).is_err());
    }

    #[test]
    fn greedy_takes_the_lowest_of_equals() {
        let greedy = SamplingParams {
            temperature: 0.0,
            ..params()
        };
        assert_eq!(draw(&greedy, &[1.0, 3.0, -2.0, 3.0], 1), [1]);
        assert_eq!(draw(&greedy, &[-5.0, -4.0, -4.0], 1), [1]);
        assert_eq!(draw(&greedy, &[f32::MIN, f32::MIN], 1), [0]);
        assert_eq!(argmax(&[0.0, 2.0, 2.0]), 1);
        assert_eq!(argmax(&[f32::NAN, f32::NEG_INFINITY, -1.0, f32::NAN]), 2);
    }

    #[test]
    fn non_finite_logits_are_an_error() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut sampler = Sampler::new(&params(), 3, 2).unwrap();
            let before = sampler.random.clone().unit().to_bits();
            let history = History {
                prompt: &[1, 1, 1],
                generated: &[0],
            };
            let error = sampler.sample(&mut [0.0, 1.0, bad], history).unwrap_err();
            assert!(matches!(error, Error::NonFinite { position: 3 }));
            assert_eq!(sampler.random.unit().to_bits(), before, "nothing was drawn");
        }
    }

    #[test]
    fn penalties() {
        let history = History {
            prompt: &[0, 0, 1],
            generated: &[2, 3, 2, 99],
        };
        let repetition = SamplingParams {
            repetition_penalty: 2.0,
            ..params()
        };
        let logits = [4.0, -1.0, 1.0, 0.0, 3.0];
        assert_eq!(
            after(&repetition, &logits, history),
            [2.0, -2.0, 0.5, 0.0, 3.0]
        );
        let others = SamplingParams {
            presence_penalty: 0.5,
            frequency_penalty: 0.25,
            ..params()
        };
        assert_eq!(
            after(&others, &logits, history),
            [4.0, -1.0, 0.0, -0.75, 3.0]
        );
        let all = SamplingParams {
            repetition_penalty: 2.0,
            presence_penalty: 0.5,
            ..params()
        };
        assert_eq!(after(&all, &logits, history), [2.0, -2.0, 0.0, -0.5, 3.0]);
    }

    /// Allows a set of ids, and notes what was chosen.
    struct Only(Vec<u32>, Vec<u32>);

    impl Constraint for Only {
        fn mask(&mut self, logits: &mut [f32]) -> Result<()> {
            for (id, logit) in (0_u32..).zip(logits) {
                if !self.0.contains(&id) {
                    *logit = f32::NEG_INFINITY;
                }
            }
            Ok(())
        }

        fn accept(&mut self, token: u32) -> Result<()> {
            self.1.push(token);
            Ok(())
        }

        fn finished(&self) -> bool {
            false
        }
    }

    #[test]
    fn a_constraint_decides_before_the_filters() {
        let cases = [
            params(),
            SamplingParams {
                temperature: 0.0,
                ..params()
            },
            SamplingParams {
                top_k: 1,
                ..params()
            },
            SamplingParams {
                top_k: 2,
                top_p: 0.9,
                min_p: 0.1,
                ..params()
            },
            SamplingParams {
                temperature: 100.0,
                ..params()
            },
        ];
        for params in cases {
            let mut sampler = Sampler::new(&params, 6, 6).unwrap();
            let mut rule = Only(vec![0, 5], Vec::new());
            for _ in 0..200 {
                // The forbidden ones are the most probable, and the penalties must not bring them back.
                let mut logits = [f32::MIN, 90.0, 80.0, 70.0, 60.0, f32::MIN];
                let id = sampler
                    .sample_within(&mut logits, History::default(), Some(&mut rule))
                    .unwrap();
                assert!(id == 0 || id == 5, "{params:?}");
                assert_eq!(rule.1.last(), Some(&id));
            }
        }
    }

    #[test]
    fn penalties_never_bring_back_what_is_forbidden() {
        let penalised = SamplingParams {
            temperature: 0.0,
            repetition_penalty: 100.0,
            frequency_penalty: -2.0,
            ..params()
        };
        let mut sampler = Sampler::new(&penalised, 3, 3).unwrap();
        let history = History {
            prompt: &[2],
            generated: &[0, 1],
        };
        let mut rule = Only(vec![2], Vec::new());
        let id = sampler.sample_within(&mut [5.0, 5.0, -5.0], history, Some(&mut rule));
        assert_eq!(id.unwrap(), 2);
    }

    #[test]
    fn a_constraint_that_allows_nothing_is_an_error() {
        let mut sampler = Sampler::new(&params(), 3, 2).unwrap();
        let before = sampler.random.clone().unit().to_bits();
        // Id 2 has a logit and no token.
        let mut rule = Only(vec![2], Vec::new());
        let chosen = sampler.sample_within(&mut [0.0; 3], History::default(), Some(&mut rule));
        assert!(matches!(chosen, Err(Error::Request(_))), "{chosen:?}");
        assert_eq!(rule.1, [0; 0]);
        assert_eq!(sampler.random.unit().to_bits(), before, "nothing was drawn");
    }

    /// C051: a temperature of 0, and one next to it, take the largest and no NaN.
    #[test]
    fn no_temperature_divides_by_zero() {
        for temperature in [0.0, 1e-6, f32::MIN_POSITIVE] {
            let params = SamplingParams {
                temperature,
                ..params()
            };
            assert_eq!(draw(&params, &[1.0, 3.0, 2.0], 100), [1; 100]);
        }
        let greedy = SamplingParams {
            temperature: 0.0,
            ..params()
        };
        assert_eq!(draw(&greedy, &[2.0, 2.0, 1.0], 100), [0; 100]);
        let with_filters = SamplingParams {
            top_p: 0.5,
            top_k: 1,
            ..greedy
        };
        assert_eq!(draw(&with_filters, &[1.0, 3.0, 2.0], 100), [1; 100]);
    }
}
