//! Results on standard output.

use std::io::{self, Write as _};

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

/// Bytes in the unit that suits them.
pub(crate) fn megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}

const STDOUT: &str = "standard output";
