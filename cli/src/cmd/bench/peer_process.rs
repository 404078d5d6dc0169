//! A program as a child process: a line goes in, a line comes out, and neither is waited for without end.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::interrupt::Cleaner;

/// A running program. It and whatever it started are gone when this is, or when a signal ends ours.
pub(super) struct Process {
    child: Child,
    /// Closed to end the program.
    requests: Option<Sender<String>>,
    lines: Receiver<io::Result<String>>,
    _cleaner: Cleaner,
}

/// Why there is no line.
#[derive(Debug)]
pub(super) enum Silence {
    /// The time is over.
    Late,
    /// The program has ended.
    Ended,
    /// It wrote something else than lines of text.
    NoText(io::Error),
}

impl Process {
    /// Starts a command of the shell, the leader of a group of processes.
    pub(super) fn start(command: &str, threads: usize) -> Result<Self> {
        let mut child = Command::new("sh")
            .args(["-c", &format!("exec {command}")])
            .env("CIDER_PEER_THREADS", threads.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()?;
        let group = child.id();
        let cleaner = Cleaner::new(move || kill(group)).context("signals")?;
        let (requests, to_send) = mpsc::channel::<String>();
        if let Some(mut stdin) = child.stdin.take() {
            // A program that does not read would hold up whoever writes. One that has ended gives no line.
            thread::spawn(move || {
                for request in to_send {
                    if writeln!(stdin, "{request}")
                        .and_then(|()| stdin.flush())
                        .is_err()
                    {
                        break;
                    }
                }
            });
        }
        // Of lines that nobody asked for only a few are kept.
        let (sender, lines) = mpsc::sync_channel(1);
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
        Ok(Self {
            child,
            requests: Some(requests),
            lines,
            _cleaner: cleaner,
        })
    }

    /// Sends a line.
    pub(super) fn send(&self, line: String) {
        if let Some(requests) = &self.requests {
            // Fails where the program has ended, which its silence tells.
            let _ = requests.send(line);
        }
    }

    /// The next line, for which `patience` is the longest wait.
    pub(super) fn line(&self, patience: Duration) -> Result<String, Silence> {
        match self.lines.recv_timeout(patience) {
            Ok(line) => line.map_err(Silence::NoText),
            Err(RecvTimeoutError::Timeout) => Err(Silence::Late),
            Err(RecvTimeoutError::Disconnected) => Err(Silence::Ended),
        }
    }

    /// Ends it at once: it had its time.
    pub(super) fn kill(mut self) {
        self.requests = None;
        kill(self.child.id());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.requests = None;
        let started = std::time::Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) && started.elapsed() < FAREWELL {
            thread::sleep(Duration::from_millis(5));
        }
        // What it leaves behind would take time from whoever is measured next.
        kill(self.child.id());
        let _ = self.child.wait();
    }
}

impl fmt::Display for Silence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Late => f.write_str("no answer in time"),
            Self::Ended => f.write_str("it ended without an answer"),
            Self::NoText(error) => error.fmt(f),
        }
    }
}

/// Kills a group of processes; the shell's own command, as there may be no other.
fn kill(group: u32) {
    let killed = Command::new("sh")
        .args(["-c", "kill -s KILL -- \"-$1\"", "sh", &group.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    // Without a shell there is no program either.
    let _ = killed;
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

/// Bytes that no line of a program has.
const LONGEST_LINE: u64 = 16 << 20;

/// How long a program has to end by itself once its input has ended.
const FAREWELL: Duration = Duration::from_secs(2);
