//! Other programs that do the same work: child processes that answer one JSON line with another.

use std::io::{self, BufRead, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;
use std::{env, fs, process, thread};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::interrupt::Cleaner;

/// A variant of another program, ready to be asked.
pub(super) struct Peer {
    pub(super) name: String,
    pub(super) version: String,
    pub(super) variant: String,
    command: String,
    child: Child,
    /// Closed to end the program.
    stdin: Option<ChildStdin>,
    lines: Receiver<io::Result<String>>,
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
    #[serde(default)]
    version: String,
    threads: usize,
    variants: Map<String, Value>,
}

impl Peer {
    /// Starts each command once for each of its variants of `work`, so that variants can be interleaved.
    pub(super) fn start_all(commands: &[String], work: &str, threads: usize) -> Result<Vec<Self>> {
        let mut peers = Vec::new();
        for command in commands {
            let (first, hello) = Self::start(command, threads)?;
            let variants: Vec<String> = match hello.variants.get(work) {
                Some(list) => serde_json::from_value(list.clone())
                    .with_context(|| format!("{first}: the list of variants of {work}"))?,
                None => Vec::new(),
            };
            if variants.is_empty() {
                tracing::warn!("{first} has no variants of {work}");
                continue;
            }
            let mut first = Some(first);
            for variant in variants {
                let mut peer = match first.take() {
                    Some(peer) => peer,
                    None => Self::start(command, threads)?.0,
                };
                peer.variant = variant;
                peers.push(peer);
            }
        }
        Ok(peers)
    }

    fn start(command: &str, threads: usize) -> Result<(Self, Hello)> {
        let mut child = Command::new("sh")
            .args(["-c", &format!("exec {command}")])
            .env("CIDER_PEER_THREADS", threads.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("peer {command}"))?;
        let (sender, lines) = mpsc::channel();
        if let Some(stdout) = child.stdout.take() {
            // Ends with the program, or when nobody listens any more.
            thread::spawn(move || {
                let mut reader = BufReader::new(stdout);
                while let Some(line) = read_line(&mut reader) {
                    if sender.send(line).is_err() {
                        break;
                    }
                }
            });
        }
        let mut peer = Self {
            name: String::new(),
            version: String::new(),
            variant: String::new(),
            command: command.to_owned(),
            stdin: child.stdin.take(),
            child,
            lines,
        };
        let line = peer.line()?;
        let hello: Hello = serde_json::from_str(&line)
            .with_context(|| format!("{peer}: its first line is {}", excerpt(&line)))?;
        ensure!(
            hello.threads == threads,
            "{peer}: it runs {} threads, CIDER_PEER_THREADS asks for {threads}",
            hello.threads
        );
        peer.name.clone_from(&hello.peer);
        peer.version.clone_from(&hello.version);
        Ok((peer, hello))
    }

    /// Has it prepare `request`, to which the variant is added; nothing where it cannot do that.
    pub(super) fn prepare(&mut self, mut request: Value) -> Result<Option<Map<String, Value>>> {
        request["op"] = "prepare".into();
        request["variant"] = self.variant.clone().into();
        let reply = self.ask(&request)?;
        if let Some(why) = reply.get("unsupported") {
            tracing::warn!(
                "{self} cannot do this: {}",
                why.as_str().unwrap_or_default()
            );
            return Ok(None);
        }
        let ready = reply.get("ready") == Some(&Value::Bool(true));
        ensure!(
            ready,
            "{self}: expected ready, got {}",
            Value::Object(reply)
        );
        Ok(Some(reply))
    }

    /// The seconds of `count` runs of what was prepared.
    pub(super) fn run(&mut self, mut request: Value, count: usize) -> Result<Vec<f64>> {
        request["op"] = "run".into();
        let mut reply = self.ask(&request)?;
        let seconds: Option<Vec<f64>> = reply
            .remove("seconds")
            .and_then(|seconds| serde_json::from_value(seconds).ok());
        let Some(seconds) = seconds else {
            bail!("{self}: expected seconds, got {}", Value::Object(reply));
        };
        let are_times = seconds.iter().all(|&s| s.is_finite() && s > 0.0);
        ensure!(
            seconds.len() == count && are_times,
            "{self}: expected {count} times above 0, got {seconds:?}"
        );
        Ok(seconds)
    }

    fn ask(&mut self, request: &Value) -> Result<Map<String, Value>> {
        let sent = match &mut self.stdin {
            Some(stdin) => writeln!(stdin, "{request}").and_then(|()| stdin.flush()),
            None => Err(io::ErrorKind::BrokenPipe.into()),
        };
        // A program that has ended is not a reader of ours that went away.
        sent.map_err(|error| anyhow!("{self}: {error}"))?;
        let line = self.line()?;
        let reply: Map<String, Value> = serde_json::from_str(&line)
            .with_context(|| format!("{self}: it answered {}", excerpt(&line)))?;
        if let Some(error) = reply.get("error") {
            bail!("{self}: {error}");
        }
        Ok(reply)
    }

    fn line(&mut self) -> Result<String> {
        match self.lines.recv_timeout(PATIENCE) {
            Ok(line) => line.map_err(|error| anyhow!("{self}: {error}")),
            Err(RecvTimeoutError::Timeout) => {
                bail!("{self}: no answer in {} s", PATIENCE.as_secs())
            }
            Err(RecvTimeoutError::Disconnected) => bail!("{self}: it ended without an answer"),
        }
    }
}

impl std::fmt::Display for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.name.is_empty() {
            return write!(f, "peer {}", self.command);
        }
        write!(f, "peer {} {}", self.name, self.variant)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        drop(self.stdin.take());
        for _ in 0..100 {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            thread::sleep(Duration::from_millis(20));
        }
        // It had two seconds to end by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The next line without its end, unless it is the last; an endless one is an error.
fn read_line(reader: &mut impl BufRead) -> Option<io::Result<String>> {
    let mut line = String::new();
    match reader.take(LONGEST_LINE).read_line(&mut line) {
        Ok(0) => None,
        Ok(bytes) if bytes as u64 == LONGEST_LINE => Some(Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("a line of {LONGEST_LINE} bytes or more"),
        ))),
        Ok(_) => Some(Ok(line.trim_end_matches(['\n', '\r']).to_owned())),
        Err(error) => Some(Err(error)),
    }
}

/// The start of a line that is not what it should be.
fn excerpt(line: &str) -> String {
    format!("{:?}", line.chars().take(200).collect::<String>())
}

/// Bytes that no line of a program has.
const LONGEST_LINE: u64 = 16 << 20;

/// How long a program may take for one answer: preparing may mean to convert a model.
const PATIENCE: Duration = Duration::from_mins(15);
