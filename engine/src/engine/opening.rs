//! What opening a model took, phase by phase.

use std::time::Duration;

use crate::generate::LoadTimes;

/// The time from a path to a model that answers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Opening {
    /// Mapping and checking the files, and reading the configuration.
    pub(super) files: Duration,
    /// Tokenizer, chat template and image processor, beside the weights.
    pub(super) words: Duration,
    /// The rest.
    pub(super) load: LoadTimes,
    /// From the first to the last.
    pub(super) all: Duration,
}

impl Opening {
    /// Says it in the log.
    pub(super) fn log(&self) {
        tracing::info!("ready in {:.3} s", self.all.as_secs_f64());
        for (phase, time, what) in self.table() {
            tracing::info!("  {phase:<10}{:>9.3} s  {what}", time.as_secs_f64());
        }
    }

    fn table(&self) -> [(&'static str, Duration, String); 4] {
        let load = &self.load;
        let gigabytes = load.bytes as f64 / 1e9;
        let weights = format!(
            "{gigabytes:.3} GB read and packed, {:.2} GB/s",
            gigabytes / load.weights.as_secs_f64().max(1e-9)
        );
        [
            (
                "files",
                self.files,
                "mapped, headers and configuration".to_owned(),
            ),
            (
                "words",
                self.words,
                "tokenizer and templates, beside the weights".to_owned(),
            ),
            ("weights", load.weights, weights),
            ("memory", load.memory, "cache and working memory".to_owned()),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_weights_have_a_rate_even_where_there_is_no_time() {
        let mut opening = Opening::default();
        opening.load.bytes = 1_500_000_000;
        opening.load.weights = Duration::from_millis(500);
        let [.., (phase, _, what), _] = opening.table();
        assert_eq!(
            (phase, what.as_str()),
            ("weights", "1.500 GB read and packed, 3.00 GB/s")
        );
        opening.load = LoadTimes::default();
        assert!(opening.table()[2].2.ends_with("0.00 GB/s"));
    }
}
