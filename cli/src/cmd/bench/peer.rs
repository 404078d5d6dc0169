//! Other programs that do the same work, through the protocol of `bench/peers/README.md`.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{env, fmt, fs, io, process};

use anyhow::{Context as _, Result, bail, ensure};
use cider_kernels::Ceilings;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::peer_process::{Process, Silence};
use super::roofline::Cost;
use super::sample::relative_error;
use crate::args::BenchOptions;
use crate::interrupt::Cleaner;

/// The programs that are measured.
pub(super) struct Peers {
    all: Vec<Peer>,
    /// How long each may take for an answer.
    patience: Duration,
    given_up: Vec<GivenUp>,
}

/// A variant of another program, ready to be asked, until it is given up.
pub(super) struct Peer {
    pub(super) name: String,
    pub(super) variant: String,
    command: String,
    process: Option<Process>,
    /// Seconds of its last preparations.
    prepared: f64,
}

/// A program that was ended since it did not answer.
#[derive(Clone, Debug, Serialize)]
pub(super) struct GivenUp {
    pub(super) peer: String,
    pub(super) why: String,
}

/// Work that a program is to do once, and what comes out of it.
pub(super) struct Question<'a> {
    pub(super) request: Value,
    /// Where the answer is put.
    pub(super) out: &'a Path,
    pub(super) expected: &'a [f64],
    /// Reads of an answer what is expected.
    pub(super) read: &'a dyn Fn(&Path) -> io::Result<Vec<f64>>,
    /// The largest error of a variant.
    pub(super) limit: &'a dyn Fn(&str) -> f64,
}

/// What is timed of a program.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ask {
    /// Runs of the work that was prepared.
    Work,
    /// Prompts of a model.
    Prefill,
    /// So many tokens after a prompt.
    Decode(usize),
}

/// A folder for the arrays that go back and forth; gone in the end, and when a signal ends the program.
pub(super) struct Exchange {
    path: PathBuf,
    _cleaner: Cleaner,
}

impl Exchange {
    pub(super) fn new() -> Result<Self> {
        let path = env::temp_dir().join(format!("cider-bench-{}", process::id()));
        fs::create_dir_all(&path).with_context(|| path.display().to_string())?;
        let folder = path.clone();
        let cleaner = Cleaner::new(move || {
            let _ = fs::remove_dir_all(&folder);
        });
        Ok(Self {
            path,
            _cleaner: cleaner.context("signals")?,
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        // What cannot be removed is the system's to clean up.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// What a program says of itself when it starts.
#[derive(Deserialize)]
struct Hello {
    peer: String,
    threads: usize,
    variants: Map<String, Value>,
}

impl Peers {
    /// Starts each command once for each of its variants of `work`, so that variants can be interleaved.
    pub(super) fn start(options: &BenchOptions, work: &str, threads: usize) -> Result<Self> {
        let mut peers = Self {
            patience: Duration::from_secs(options.peer_timeout),
            ..Self::none()
        };
        for command in &options.peer {
            peers.start_all(command, work, threads)?;
        }
        Ok(peers)
    }

    fn start_all(&mut self, command: &str, work: &str, threads: usize) -> Result<()> {
        let Some((first, hello)) = self.start_one(command, threads)? else {
            return Ok(());
        };
        let variants: Vec<String> = match hello.variants.get(work) {
            Some(list) => serde_json::from_value(list.clone())
                .with_context(|| format!("{first}: the list of variants of {work}"))?,
            None => Vec::new(),
        };
        ensure!(
            variants.len() <= MOST_VARIANTS,
            "{first}: {} variants of {work}, the limit is {MOST_VARIANTS}",
            variants.len()
        );
        if variants.is_empty() {
            tracing::warn!("{first} has no variants of {work}");
        }
        let mut first = Some(first);
        for variant in variants {
            let started = match first.take() {
                Some(peer) => Some(peer),
                None => self.start_one(command, threads)?.map(|(peer, _)| peer),
            };
            if let Some(peer) = started {
                self.all.push(Peer { variant, ..peer });
            }
        }
        Ok(())
    }

    /// A program that has said what it is; none where it does not.
    fn start_one(&mut self, command: &str, threads: usize) -> Result<Option<(Peer, Hello)>> {
        let mut peer = Peer {
            name: String::new(),
            variant: String::new(),
            command: command.to_owned(),
            process: None,
            prepared: 0.0,
        };
        let started = Process::start(command, threads);
        peer.process = Some(started.with_context(|| peer.to_string())?);
        let Some(line) = peer.line(self.patience, &mut self.given_up)? else {
            return Ok(None);
        };
        let hello: Hello = serde_json::from_str(&line)
            .with_context(|| format!("{peer}: its first line is {}", excerpt(&line)))?;
        ensure!(
            hello.threads == threads,
            "{peer}: it runs {} threads, CIDER_PEER_THREADS asks for {threads}",
            hello.threads
        );
        peer.name.clone_from(&hello.peer);
        Ok(Some((peer, hello)))
    }

    /// Nobody.
    pub(super) fn none() -> Self {
        Self {
            all: Vec::new(),
            patience: Duration::ZERO,
            given_up: Vec::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The one of a number.
    pub(super) fn get(&self, number: usize) -> &Peer {
        &self.all[number]
    }

    /// Ends them; gives those that had to be ended before, since they did not answer.
    pub(super) fn end(self) -> Vec<GivenUp> {
        self.given_up
    }

    /// Has each prepare `request`, to which its variant is added; gives the numbers of those that can, with what they
    /// replied.
    pub(super) fn prepare(&mut self, request: &Value) -> Result<Vec<(usize, Map<String, Value>)>> {
        let mut able = Vec::new();
        for (number, peer) in self.all.iter_mut().enumerate() {
            if let Some(reply) = peer.prepare(request, self.patience, &mut self.given_up)? {
                able.push((number, reply));
            }
        }
        Ok(able)
    }

    /// Has each do the work once and checks its answer; gives the numbers of those that can, with their errors.
    pub(super) fn check(&mut self, question: &Question<'_>) -> Result<Vec<(usize, f64)>> {
        let mut able = Vec::new();
        for (number, peer) in self.all.iter_mut().enumerate() {
            let reply = peer.prepare(&question.request, self.patience, &mut self.given_up)?;
            if reply.is_none() {
                continue;
            }
            let got = (question.read)(question.out);
            let got = got.with_context(|| format!("{peer}: its answer"))?;
            let error = relative_error(&got, question.expected);
            let limit = (question.limit)(&peer.variant);
            ensure!(
                error <= limit,
                "{peer}: its answer is wrong by {error:.2e} of the largest value, the limit is {limit}"
            );
            able.push((number, error));
            // So that nobody gets away with the answer of the one before.
            fs::remove_file(question.out).with_context(|| question.out.display().to_string())?;
        }
        Ok(able)
    }

    /// The seconds of each of some runs of what one has prepared, whose cost is known; none where it was given up.
    pub(super) fn run(
        &mut self,
        number: usize,
        ask: Ask,
        repetitions: usize,
        (cost, ceilings): (&Cost, &Ceilings),
    ) -> Result<Option<Vec<f64>>> {
        let peer = &mut self.all[number];
        let (request, count) = ask.request(repetitions);
        let start = Instant::now();
        let Some(mut reply) = peer.ask(&request, self.patience, &mut self.given_up)? else {
            return Ok(None);
        };
        let took = start.elapsed().as_secs_f64();
        let seconds: Option<Vec<f64>> = reply
            .remove("seconds")
            .and_then(|seconds| serde_json::from_value(seconds).ok());
        let Some(seconds) = seconds else {
            let reply = Value::Object(reply).to_string();
            bail!("{peer}: expected seconds, got {}", excerpt(&reply));
        };
        ensure!(
            seconds.len() == count,
            "{peer}: expected {count} times, got {}",
            seconds.len()
        );
        let least = cost.least(ceilings) / ABSURD;
        if let Err(why) = believe(&seconds, took, peer.prepared, least) {
            bail!("{peer}: {why}");
        }
        Ok(Some(seconds))
    }
}

impl Ask {
    /// The request, and how many times it asks for.
    fn request(self, repetitions: usize) -> (Value, usize) {
        match self {
            Self::Work => (
                json!({ "op": "run", "repetitions": repetitions }),
                repetitions,
            ),
            Self::Prefill => {
                let request =
                    json!({ "op": "run", "phase": "prefill", "repetitions": repetitions });
                (request, repetitions)
            }
            Self::Decode(tokens) => (
                json!({ "op": "run", "phase": "decode", "tokens": tokens }),
                tokens,
            ),
        }
    }
}

impl Peer {
    fn prepare(
        &mut self,
        request: &Value,
        patience: Duration,
        given_up: &mut Vec<GivenUp>,
    ) -> Result<Option<Map<String, Value>>> {
        let mut request = request.clone();
        request["op"] = "prepare".into();
        request["variant"] = self.variant.clone().into();
        let start = Instant::now();
        let Some(reply) = self.ask(&request, patience, given_up)? else {
            return Ok(None);
        };
        self.prepared = start.elapsed().as_secs_f64();
        if let Some(why) = reply.get("unsupported") {
            let why = why.as_str().unwrap_or_default();
            tracing::warn!("{self} cannot do this: {why}");
            return Ok(None);
        }
        let ready = reply.get("ready") == Some(&Value::Bool(true));
        let reply = Value::Object(reply);
        ensure!(
            ready,
            "{self}: expected ready, got {}",
            excerpt(&reply.to_string())
        );
        match reply {
            Value::Object(reply) => Ok(Some(reply)),
            _ => Ok(None),
        }
    }

    fn ask(
        &mut self,
        request: &Value,
        patience: Duration,
        given_up: &mut Vec<GivenUp>,
    ) -> Result<Option<Map<String, Value>>> {
        let Some(process) = &self.process else {
            return Ok(None);
        };
        process.send(request.to_string());
        let Some(line) = self.line(patience, given_up)? else {
            return Ok(None);
        };
        let reply: Map<String, Value> = serde_json::from_str(&line)
            .with_context(|| format!("{self}: it answered {}", excerpt(&line)))?;
        if let Some(error) = reply.get("error") {
            bail!("{self}: {}", excerpt(&error.to_string()));
        }
        Ok(Some(reply))
    }

    /// Its next line; none where it takes too long, and then it is ended.
    fn line(&mut self, patience: Duration, given_up: &mut Vec<GivenUp>) -> Result<Option<String>> {
        let Some(process) = &self.process else {
            return Ok(None);
        };
        match process.line(patience) {
            Ok(line) => Ok(Some(line)),
            Err(Silence::Late) => {
                let why = format!("no answer in {} s", patience.as_secs());
                tracing::warn!("{self}: {why}, it is ended (--peer-timeout is the limit)");
                let peer = self.to_string();
                given_up.push(GivenUp { peer, why });
                if let Some(process) = self.process.take() {
                    process.kill();
                }
                Ok(None)
            }
            Err(silence) => bail!("{self}: {silence}"),
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.name.is_empty() {
            return write!(f, "peer {}", self.command);
        }
        write!(f, "peer {} {}", self.name, self.variant)
    }
}

/// Refuses times that cannot be: `took` seconds went by until they were told, `prepared` before, and nothing takes less
/// than `least`.
fn believe(seconds: &[f64], took: f64, prepared: f64, least: f64) -> Result<(), String> {
    if let Some(time) = seconds
        .iter()
        .find(|time| !(time.is_finite() && **time > 0.0))
    {
        return Err(format!("expected times above 0 s, got {time:e}"));
    }
    let all: f64 = seconds.iter().sum();
    let runs = seconds.len();
    if all > 1.01 * took + 0.001 {
        return Err(format!(
            "it reports {all:.3e} s for {runs} runs, and answered after {took:.3e} s"
        ));
    }
    // A model may read its prompt before what it is timed for.
    let rest = OVERHEAD + prepared + 99.0 * all;
    if took - all > rest {
        return Err(format!(
            "it reports {all:.3e} s for {runs} runs, and answered after {took:.3e} s only"
        ));
    }
    let least = least.max(SHORTEST);
    match seconds.iter().find(|time| **time < least) {
        Some(time) => Err(format!(
            "it reports {time:.3e} s for a run, which takes {least:.3e} s at least"
        )),
        None => Ok(()),
    }
}

/// The start of what is not as it should be.
fn excerpt(line: &str) -> String {
    format!("{:?}", line.chars().take(200).collect::<String>())
}

/// Variants of a program that are run side by side.
const MOST_VARIANTS: usize = 64;

/// How far beyond the ceilings no time is believed: other units than ours may be eight times as fast, caches as much.
const ABSURD: f64 = 64.0;

/// Seconds that no call takes less than, however little it does.
const SHORTEST: f64 = 1e-8;

/// Seconds that a program may take for other things than what it times.
const OVERHEAD: f64 = 5.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_believed_within_what_can_be() {
        assert_eq!(believe(&[0.1, 0.2], 0.31, 0.0, 1e-3), Ok(()));
        // A prompt of seven seconds before tokens of some milliseconds.
        assert_eq!(believe(&[0.01, 0.01], 7.5, 7.0, 1e-6), Ok(()));
        let cases: [(&[f64], f64, &str); 9] = [
            (&[0.1, 0.0], 0.5, "above 0 s, got 0e0"),
            (&[-1.0], 0.5, "above 0 s, got -1e0"),
            (&[f64::NAN], 0.5, "above 0 s, got NaN"),
            (&[f64::INFINITY], 0.5, "above 0 s, got inf"),
            (&[1e300], 0.5, "reports 1.000e300 s for 1 runs"),
            (&[0.3, 0.3], 0.5, "reports 6.000e-1 s for 2 runs"),
            (&[1e-3], 30.0, "answered after 3.000e1 s only"),
            (
                &[0.1, 1e-5],
                0.5,
                "1.000e-5 s for a run, which takes 1.000e-3 s",
            ),
            (&[1e-30], 0.5, "1.000e-30 s for a run"),
        ];
        for (seconds, took, what) in cases {
            let why = believe(seconds, took, 0.0, 1e-3).unwrap_err();
            assert!(why.contains(what), "{seconds:?}: {why}");
        }
        assert!(believe(&[1e-9], 0.5, 0.0, 0.0).is_err());
    }
}
