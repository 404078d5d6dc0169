//! Counts and times, in the text form that Prometheus reads.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cider::BatchStats;

use super::error::Code;

/// What the server counts itself.
#[derive(Debug, Default)]
pub(super) struct Metrics {
    /// Answers by the first digit of their status.
    statuses: [AtomicU64; 6],
    /// Refusals and failures by their code.
    errors: [AtomicU64; Code::ALL.len()],
    pub(super) first_token: Histogram,
    pub(super) between_tokens: Histogram,
    pub(super) connections: AtomicU64,
}

impl Metrics {
    /// An answer has begun.
    pub(super) fn answered(&self, status: u16) {
        let class = usize::from(status / 100).min(5);
        self.statuses[class].fetch_add(1, Ordering::Relaxed);
    }

    /// A request was refused or failed.
    pub(super) fn failed(&self, code: Code) {
        if let Some(at) = Code::ALL.iter().position(|known| *known == code) {
            self.errors[at].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The page of figures.
    pub(super) fn page(&self, stats: &BatchStats, in_flight: usize) -> String {
        let mut page = Page::default();
        page.family("cider_http_responses_total", "counter", "Answers by status");
        for (class, count) in self.statuses.iter().enumerate().skip(1) {
            let label = format!("{{status=\"{class}xx\"}}");
            page.sample(
                "cider_http_responses_total",
                &label,
                count.load(Ordering::Relaxed),
            );
        }
        page.family(
            "cider_errors_total",
            "counter",
            "Refusals and failures by code",
        );
        for (code, count) in Code::ALL.iter().zip(&self.errors) {
            let label = format!("{{code=\"{}\"}}", code.name());
            page.sample("cider_errors_total", &label, count.load(Ordering::Relaxed));
        }
        page.one(
            "cider_connections",
            "gauge",
            "Open connections",
            self.connections.load(Ordering::Relaxed),
        );
        page.one(
            "cider_in_flight_bytes",
            "gauge",
            "Bytes of bodies and pictures in flight",
            in_flight as u64,
        );
        page.gauges(stats);
        page.counters(stats);
        page.histogram(
            "cider_time_to_first_token_seconds",
            "From the request to its first token",
            &self.first_token,
        );
        page.histogram(
            "cider_time_between_tokens_seconds",
            "From one text to the next",
            &self.between_tokens,
        );
        page.0
    }
}

/// Times in buckets.
#[derive(Debug, Default)]
pub(super) struct Histogram {
    buckets: [AtomicU64; BOUNDS.len() + 1],
    microseconds: AtomicU64,
}

impl Histogram {
    /// Counts a time.
    pub(super) fn observe(&self, time: Duration) {
        let at = BOUNDS.partition_point(|bound| *bound < time.as_secs_f64());
        self.buckets[at].fetch_add(1, Ordering::Relaxed);
        let time = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.microseconds.fetch_add(time, Ordering::Relaxed);
    }
}

#[derive(Default)]
struct Page(String);

impl Page {
    // Writing to a string cannot fail.
    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        let _ = writeln!(self.0, "{line}");
    }

    fn family(&mut self, name: &str, kind: &str, help: &str) {
        self.line(format_args!("# HELP {name} {help}"));
        self.line(format_args!("# TYPE {name} {kind}"));
    }

    fn sample(&mut self, name: &str, labels: &str, value: u64) {
        self.line(format_args!("{name}{labels} {value}"));
    }

    fn one(&mut self, name: &str, kind: &str, help: &str, value: u64) {
        self.family(name, kind, help);
        self.sample(name, "", value);
    }

    fn gauges(&mut self, stats: &BatchStats) {
        let gauges = [
            (
                "requests_waiting",
                "Answers that wait for their turn",
                stats.waiting,
            ),
            (
                "requests_running",
                "Answers that are computed",
                stats.running,
            ),
            (
                "kv_blocks_used",
                "Blocks of the cache that answers use",
                stats.used_blocks,
            ),
            (
                "kv_blocks_cached",
                "Blocks that may be used again",
                stats.cached_blocks,
            ),
            ("kv_blocks", "Blocks of the cache", stats.total_blocks),
            (
                "image_cache_bytes",
                "Bytes of remembered pictures",
                stats.image_bytes,
            ),
        ];
        for (name, help, value) in gauges {
            self.one(&format!("cider_{name}"), "gauge", help, value as u64);
        }
    }

    fn counters(&mut self, stats: &BatchStats) {
        let counters = [
            (
                "prefix_queries",
                "Prompt tokens looked for in the cache",
                stats.prefix_queries,
            ),
            (
                "prefix_hits",
                "Prompt tokens found in the cache",
                stats.prefix_hits,
            ),
            (
                "image_queries",
                "Pictures looked for in the cache",
                stats.image_queries,
            ),
            (
                "image_hits",
                "Pictures found in the cache",
                stats.image_hits,
            ),
            (
                "preemptions",
                "Answers that made room for older ones",
                stats.preemptions,
            ),
            ("steps", "Steps of the model", stats.steps),
            (
                "step_panics",
                "Steps that were taken again, one by one",
                stats.panics,
            ),
            (
                "prompt_tokens",
                "Prompt tokens computed",
                stats.prompt_tokens,
            ),
            (
                "generated_tokens",
                "Tokens generated",
                stats.generated_tokens,
            ),
        ];
        for (name, help, value) in counters {
            self.one(&format!("cider_{name}_total"), "counter", help, value);
        }
    }

    fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        self.family(name, "histogram", help);
        let mut count = 0;
        for (at, bucket) in histogram.buckets.iter().enumerate() {
            count += bucket.load(Ordering::Relaxed);
            match BOUNDS.get(at) {
                Some(bound) => self.line(format_args!("{name}_bucket{{le=\"{bound}\"}} {count}")),
                None => self.line(format_args!("{name}_bucket{{le=\"+Inf\"}} {count}")),
            }
        }
        let seconds = histogram.microseconds.load(Ordering::Relaxed) as f64 / 1e6;
        self.line(format_args!("{name}_sum {seconds}"));
        self.line(format_args!("{name}_count {count}"));
    }
}

/// Upper bounds of the buckets, in seconds.
const BOUNDS: [f64; 14] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_a_type_for_each_family_and_buckets_that_add_up() {
        let metrics = Metrics::default();
        metrics.answered(200);
        metrics.failed(Code::QueueFull);
        metrics.first_token.observe(Duration::from_millis(3));
        metrics.first_token.observe(Duration::from_secs(100));
        let page = metrics.page(
            &BatchStats {
                running: 3,
                ..BatchStats::default()
            },
            5,
        );
        for line in [
            "cider_http_responses_total{status=\"2xx\"} 1",
            "cider_errors_total{code=\"queue_full\"} 1",
            "cider_requests_running 3",
            "cider_in_flight_bytes 5",
            "cider_time_to_first_token_seconds_bucket{le=\"0.005\"} 1",
            "cider_time_to_first_token_seconds_bucket{le=\"+Inf\"} 2",
            "cider_time_to_first_token_seconds_sum 100.003",
            "cider_time_to_first_token_seconds_count 2",
        ] {
            assert!(page.lines().any(|found| found == line), "{line}\n{page}");
        }
        let families = page
            .lines()
            .filter(|line| line.starts_with("# TYPE"))
            .count();
        assert_eq!(
            families,
            page.lines()
                .filter(|line| line.starts_with("# HELP"))
                .count()
        );
    }
}
