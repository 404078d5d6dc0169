//! What loads came to: figures, a table, a record, plots.

use std::collections::BTreeMap;
use std::env;
use std::time::Duration;

use anyhow::Result;
use serde::Serialize;

use super::super::record::{Machine, commit};
use super::super::svg::{self, Panel, Series};
use super::super::table::{align, number};
use super::load::{Outcome, Requests, Shape};

/// A run of the command.
#[derive(Debug, Serialize)]
pub(super) struct Record {
    command: &'static str,
    arguments: Vec<String>,
    date: String,
    cider_version: &'static str,
    commit: Option<String>,
    machine: Machine,
    requests: Asked,
    pub(super) loads: Vec<Load>,
}

/// What each request was like.
#[derive(Debug, Serialize)]
struct Asked {
    words: usize,
    shared_words: usize,
    tokens: usize,
    image: Option<[usize; 2]>,
    seed: u64,
}

/// One server under one load.
#[derive(Debug, Serialize)]
pub(super) struct Load {
    pub(super) server: String,
    model: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    clients: Option<usize>,
    /// Requests per second that were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    rate: Option<f64>,
    requests: usize,
    /// How many failed, by the reason.
    failed: BTreeMap<String, usize>,
    seconds: f64,
    prompt_tokens: u64,
    cached_tokens: u64,
    generated_tokens: u64,
    requests_per_second: f64,
    tokens_per_second: f64,
    /// Generated tokens per second over those of the same server's load of one client.
    times_one_client: Option<f64>,
    /// Tokens per second of an answer behind its first token.
    decode_tokens_per_second: Option<Percentiles>,
    first_token_ms: Option<Percentiles>,
    /// Between a text and the next, which most often is a token.
    between_tokens_ms: Option<Percentiles>,
    request_ms: Option<Percentiles>,
}

/// Where so many parts of the values end.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Percentiles {
    p50: f64,
    p90: f64,
    p99: f64,
    min: f64,
    max: f64,
}

impl Record {
    /// Of what was asked.
    pub(super) fn new(machine: Machine, requests: &Requests) -> Self {
        Self {
            command: "serve",
            arguments: env::args().skip(1).collect(),
            date: jiff::Timestamp::now().to_string(),
            cider_version: env!("CARGO_PKG_VERSION"),
            commit: commit(),
            machine,
            requests: Asked {
                words: requests.words,
                shared_words: requests.shared,
                tokens: requests.tokens,
                image: requests.image,
                seed: requests.seed,
            },
            loads: Vec::new(),
        }
    }

    /// Adds what a load came to.
    pub(super) fn add(&mut self, server: &str, model: &str, shape: Shape, outcome: &Outcome) {
        let mut load = Load::new(server, model, shape, outcome);
        let of_server = |other: &&Load| other.server == server && other.clients == Some(1);
        let one = self.loads.iter().find(of_server);
        let one = one
            .map(|one| one.tokens_per_second)
            .filter(|rate| *rate > 0.0);
        load.times_one_client = one.map(|one| load.tokens_per_second / one);
        self.loads.push(load);
    }

    /// As JSON.
    pub(super) fn text(&self) -> Result<String> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }

    /// As people read it.
    pub(super) fn table(&self) -> String {
        let machine = &self.machine;
        let mut text = format!(
            "{}, {} threads, {}\nmilliseconds at the percentiles 50, 90 and 99\n",
            machine.cpu, machine.threads, machine.isa
        );
        let titles = [
            "load",
            "server",
            "failed",
            "requests",
            "s",
            "req/s",
            "tok/s",
            "decode",
            "first",
            "90",
            "99",
            "between",
            "90",
            "99",
            "to one client",
        ];
        let mut lines = vec![titles.map(str::to_owned).to_vec()];
        let mut last = String::new();
        for load in &self.loads {
            let name = load.name();
            if name != last {
                lines.push(Vec::new());
            }
            lines.push(load.cells(&name));
            last = name;
        }
        align(&lines, &mut text);
        text
    }

    /// As plots, those of closed loops first.
    pub(super) fn plots(&self) -> String {
        let machine = &self.machine;
        let title = format!(
            "cider bench serve: {}, {} threads, {}",
            machine.cpu, machine.threads, machine.isa
        );
        let mut panels = Vec::new();
        for is_open in [false, true] {
            let loads = self
                .loads
                .iter()
                .filter(|load| load.rate.is_some() == is_open);
            let loads: Vec<&Load> = loads.collect();
            if !loads.is_empty() {
                panels.extend(plots(&loads, is_open));
            }
        }
        svg::sheet(&title, &panels)
    }
}

impl Load {
    fn new(server: &str, model: &str, shape: Shape, outcome: &Outcome) -> Self {
        let mut failed = BTreeMap::new();
        for failure in outcome
            .replies
            .iter()
            .filter_map(|reply| reply.as_ref().err())
        {
            *failed.entry(failure.clone()).or_default() += 1;
        }
        let replies: Vec<_> = outcome
            .replies
            .iter()
            .filter_map(|reply| reply.as_ref().ok())
            .collect();
        let ms = |time: Duration| 1e3 * time.as_secs_f64();
        let generated_tokens = replies.iter().map(|reply| reply.generated_tokens).sum();
        let decode = replies
            .iter()
            .filter(|reply| reply.generated_tokens > 1)
            .filter_map(|reply| {
                let seconds = reply.whole.saturating_sub(reply.first).as_secs_f64();
                (seconds > 0.0).then(|| (reply.generated_tokens - 1) as f64 / seconds)
            });
        let (clients, rate) = match shape {
            Shape::Clients(clients) => (Some(clients), None),
            Shape::Rate(rate) => (None, Some(rate)),
        };
        Self {
            server: server.to_owned(),
            model: model.to_owned(),
            clients,
            rate,
            requests: outcome.replies.len(),
            failed,
            seconds: outcome.seconds,
            prompt_tokens: replies.iter().map(|reply| reply.prompt_tokens).sum(),
            cached_tokens: replies.iter().map(|reply| reply.cached_tokens).sum(),
            generated_tokens,
            requests_per_second: replies.len() as f64 / outcome.seconds,
            tokens_per_second: generated_tokens as f64 / outcome.seconds,
            times_one_client: None,
            decode_tokens_per_second: Percentiles::of(decode),
            first_token_ms: Percentiles::of(replies.iter().map(|reply| ms(reply.first))),
            between_tokens_ms: Percentiles::of(
                replies
                    .iter()
                    .flat_map(|reply| &reply.gaps)
                    .map(|gap| ms(*gap)),
            ),
            request_ms: Percentiles::of(replies.iter().map(|reply| ms(reply.whole))),
        }
    }

    /// What it is called.
    pub(super) fn name(&self) -> String {
        match (self.clients, self.rate) {
            (Some(1), _) => "1 client".to_owned(),
            (Some(clients), _) => format!("{clients} clients"),
            (_, Some(rate)) => format!("{rate} a second"),
            _ => String::new(),
        }
    }

    fn cells(&self, name: &str) -> Vec<String> {
        let failed: usize = self.failed.values().sum();
        let failed = match self.failed.keys().next() {
            Some(first) => format!("{failed}: {first}"),
            None => "-".to_owned(),
        };
        let of = |found: &Option<Percentiles>| match found {
            Some(found) => [found.p50, found.p90, found.p99].map(number).to_vec(),
            None => vec!["-".to_owned(); 3],
        };
        let mut cells = vec![
            name.to_owned(),
            self.server.clone(),
            failed,
            self.requests.to_string(),
        ];
        cells.extend(
            [
                self.seconds,
                self.requests_per_second,
                self.tokens_per_second,
            ]
            .map(number),
        );
        cells.push(of(&self.decode_tokens_per_second)[0].clone());
        cells.extend(of(&self.first_token_ms));
        cells.extend(of(&self.between_tokens_ms));
        cells.push(
            self.times_one_client
                .map_or_else(|| "-".to_owned(), |times| format!("{times:.2}x")),
        );
        cells
    }
}

impl Percentiles {
    /// Of values in any order; nothing where there are none.
    fn of(values: impl Iterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.collect();
        values.sort_unstable_by(f64::total_cmp);
        // The smallest value that so many parts of all do not exceed.
        let at = |share: f64| {
            let rank = (share * values.len() as f64).ceil() as usize;
            values.get(rank.max(1) - 1).copied()
        };
        Some(Self {
            p50: at(0.5)?,
            p90: at(0.9)?,
            p99: at(0.99)?,
            min: at(0.0)?,
            max: at(1.0)?,
        })
    }
}

/// What one kind of loads came to, over the loads.
fn plots(loads: &[&Load], is_open: bool) -> [Panel; 4] {
    let rate = "tokens per second";
    let time = "milliseconds";
    let [generated, decode]: [Line; 2] = [
        ("", |load| Some(load.tokens_per_second)),
        ("", |load| Some(load.decode_tokens_per_second?.p50)),
    ];
    let first: [Line; 2] = [
        (" p50", |load| Some(load.first_token_ms?.p50)),
        (" p99", |load| Some(load.first_token_ms?.p99)),
    ];
    let between: [Line; 2] = [
        (" p50", |load| Some(load.between_tokens_ms?.p50)),
        (" p99", |load| Some(load.between_tokens_ms?.p99)),
    ];
    [
        plot(loads, is_open, ("all answers together", rate), &[generated]),
        plot(
            loads,
            is_open,
            ("an answer behind its first token", rate),
            &[decode],
        ),
        plot(loads, is_open, ("to the first token", time), &first),
        plot(loads, is_open, ("between tokens", time), &between),
    ]
}

/// A line of each server: how its name ends, and its heights.
type Line = (&'static str, fn(&Load) -> Option<f64>);

fn plot(loads: &[&Load], is_open: bool, (what, up): (&str, &'static str), lines: &[Line]) -> Panel {
    let (kind, right) = if is_open {
        ("open loop", "requests per second")
    } else {
        ("closed loop", "clients")
    };
    let tick = |load: &Load| {
        load.rate
            .unwrap_or_else(|| load.clients.unwrap_or(0) as f64)
    };
    let mut ticks: Vec<f64> = loads.iter().map(|load| tick(load)).collect();
    ticks.sort_unstable_by(f64::total_cmp);
    ticks.dedup();
    let mut series: Vec<Series> = Vec::new();
    for load in loads {
        let at = ticks.partition_point(|other| *other < tick(load));
        for (suffix, value) in lines {
            let Some(height) = value(load) else { continue };
            let name = format!("{}{suffix}", load.server);
            match series.iter_mut().find(|series| series.name == name) {
                Some(series) => series.points.push((at, height)),
                None => series.push(Series {
                    name,
                    points: vec![(at, height)],
                }),
            }
        }
    }
    let labels = ticks.iter().map(f64::to_string).collect();
    Panel::new(format!("{what}, {kind}"), [up, right], labels, series)
}

#[cfg(test)]
mod tests {
    use super::super::client::Reply;
    use super::*;

    #[test]
    fn percentiles_are_values_that_there_are() {
        let all = (1..=100).rev().map(f64::from);
        let found = Percentiles::of(all).unwrap();
        assert_eq!(
            [found.p50, found.p90, found.p99, found.min, found.max],
            [50.0, 90.0, 99.0, 1.0, 100.0]
        );
        let one = Percentiles::of([7.0].into_iter()).unwrap();
        assert_eq!([one.p50, one.p90, one.p99, one.min, one.max], [7.0; 5]);
        assert_eq!(Percentiles::of([].into_iter()), None);
    }

    #[test]
    fn a_load_counts_what_came_and_what_did_not() {
        let reply = Reply {
            first: Duration::from_millis(100),
            gaps: vec![Duration::from_millis(50); 4],
            whole: Duration::from_millis(300),
            prompt_tokens: 10,
            cached_tokens: 0,
            generated_tokens: 5,
        };
        let replies = vec![Ok(reply.clone()), Err("queue_full".to_owned()), Ok(reply)];
        let load = Load::new(
            "a",
            "m",
            Shape::Clients(2),
            &Outcome {
                seconds: 2.0,
                replies,
            },
        );
        assert_eq!(
            (
                load.requests,
                load.failed["queue_full"],
                load.generated_tokens
            ),
            (3, 1, 10)
        );
        assert_eq!(
            (load.requests_per_second, load.tokens_per_second),
            (1.0, 5.0)
        );
        assert!((load.decode_tokens_per_second.unwrap().p50 - 20.0).abs() < 1e-9);
        let nothing = Load::new(
            "a",
            "m",
            Shape::Rate(0.5),
            &Outcome {
                seconds: 1.0,
                replies: Vec::new(),
            },
        );
        assert_eq!(
            (nothing.first_token_ms, nothing.name().as_str()),
            (None, "0.5 a second")
        );
        assert_eq!(nothing.cells("x").len(), load.cells("x").len());
    }
}
