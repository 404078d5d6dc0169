//! Standard input and output: prompts and results.

use std::io::{self, Read as _, Write as _};

use anyhow::{Context as _, Result};
use serde::Serialize;

/// Writes a line.
pub(crate) fn line(text: &str) -> Result<()> {
    let mut stdout = io::stdout().lock();
    let written = writeln!(stdout, "{text}").and_then(|()| stdout.flush());
    written.context(STDOUT)
}

/// Writes text as it is, at once.
pub(crate) fn text(text: &str) -> Result<()> {
    let mut stdout = io::stdout().lock();
    let written = stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush());
    written.context(STDOUT)
}

/// Writes one JSON document.
pub(crate) fn json(value: &impl Serialize) -> Result<()> {
    line(&serde_json::to_string(value)?)
}

/// All of standard input.
pub(crate) fn read_stdin() -> Result<String> {
    let mut text = String::new();
    let read = io::stdin().read_to_string(&mut text);
    read.context("standard input")?;
    Ok(text)
}

/// Bytes in the unit that suits them.
pub(crate) fn bytes(count: u64) -> String {
    let amount = count as f64;
    if count < 1_000_000 {
        format!("{:.1} KB", amount / 1e3)
    } else if count < 10_000_000_000 {
        format!("{:.1} MB", amount / 1e6)
    } else {
        format!("{:.1} GB", amount / 1e9)
    }
}

const STDOUT: &str = "standard output";
