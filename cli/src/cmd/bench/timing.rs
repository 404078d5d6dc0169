//! Rounds in which everybody runs once, so that a noisy machine shows as noise and not as a win.

use std::time::Instant;

use anyhow::Result;
use serde::Serialize;

/// Milliseconds over the rounds.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Spread {
    pub(super) median: f64,
    pub(super) min: f64,
    pub(super) max: f64,
    pub(super) rounds: usize,
}

impl Spread {
    /// The spread of the seconds of rounds, of which there must be one.
    pub(super) fn new(mut seconds: Vec<f64>) -> Self {
        let rounds = seconds.len();
        let median = median(&mut seconds);
        Self {
            median: 1e3 * median,
            min: 1e3 * seconds.first().copied().unwrap_or(median),
            max: 1e3 * seconds.last().copied().unwrap_or(median),
            rounds,
        }
    }
}

/// Runs each of `count` contenders in each of `rounds` rounds. `run(contender, repetitions)` gives the seconds of each
/// repetition; a contender's figure of a round is their median. One that gives none once is out, and has no figures.
pub(super) fn interleave(
    count: usize,
    rounds: usize,
    mut run: impl FnMut(usize, usize) -> Result<Option<Vec<f64>>>,
) -> Result<Vec<Option<Vec<f64>>>> {
    let mut repetitions = Vec::new();
    let mut all = vec![Some(Vec::new()); count];
    for (contender, figures) in all.iter_mut().enumerate() {
        // The first run warms up.
        let once = run(contender, 1)?;
        let fit = once.map(|mut once| (ROUND_SECONDS / median(&mut once).max(1e-9)).ceil());
        if fit.is_none() {
            *figures = None;
        }
        repetitions.push((fit.unwrap_or(1.0) as usize).clamp(1, MOST_REPETITIONS));
    }
    for _ in 0..rounds {
        for (contender, place) in all.iter_mut().enumerate() {
            let Some(figures) = place else {
                continue;
            };
            // With several, the first follows somebody else's work.
            let (count, warm) = match repetitions[contender] {
                1 => (1, 0),
                more => (more + 1, 1),
            };
            match run(contender, count)? {
                Some(seconds) => figures.push(median(&mut seconds[warm..].to_vec())),
                None => *place = None,
            }
        }
    }
    Ok(all)
}

/// The seconds of each of some calls.
pub(super) fn seconds(
    repetitions: usize,
    mut call: impl FnMut() -> Result<()>,
) -> Result<Vec<f64>> {
    let mut seconds = Vec::with_capacity(repetitions);
    for _ in 0..repetitions {
        let start = Instant::now();
        call()?;
        seconds.push(start.elapsed().as_secs_f64());
    }
    Ok(seconds)
}

/// The middle value, sorting them; not a number where there is none.
pub(super) fn median(values: &mut [f64]) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    match values {
        [] => f64::NAN,
        values if values.len().is_multiple_of(2) => {
            let half = values.len() / 2;
            f64::midpoint(values[half - 1], values[half])
        }
        values => values[values.len() / 2],
    }
}

/// How long a contender runs in a round, where its work is shorter than that.
const ROUND_SECONDS: f64 = 0.01;
const MOST_REPETITIONS: usize = 100;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_spreads() {
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&mut [4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&mut []).is_nan());
        let spread = Spread::new(vec![0.003, 0.001, 0.002]);
        let Spread {
            median, min, max, ..
        } = spread;
        assert_eq!(([median, min, max], spread.rounds), ([2.0, 1.0, 3.0], 3));
    }

    #[test]
    fn rounds_are_interleaved_and_short_work_is_repeated() {
        let mut calls = Vec::new();
        let spreads = interleave(2, 3, |contender, repetitions| {
            calls.push((contender, repetitions));
            let each = [0.004, 1.0][contender];
            Ok(Some(vec![each; repetitions]))
        });
        let expected = [0.004, 1.0].map(|each| Some(vec![each; 3]));
        assert_eq!(spreads.unwrap(), expected);
        let warm = [(0, 1), (1, 1)];
        let round = [(0, 4), (1, 1)];
        assert_eq!(calls, [warm, round, round, round].concat());
    }

    #[test]
    fn whoever_gives_no_time_is_out_and_the_others_go_on() {
        let mut calls = Vec::new();
        let found = interleave(3, 3, |contender, repetitions| {
            calls.push(contender);
            // The second from the beginning, the third in its second round.
            let is_there = contender == 0 || contender == 2 && calls.len() < 6;
            Ok(is_there.then(|| vec![1.0; repetitions]))
        });
        assert_eq!(found.unwrap(), [Some(vec![1.0; 3]), None, None]);
        assert_eq!(calls, [0, 1, 2, 0, 2, 0, 2, 0]);
    }
}
