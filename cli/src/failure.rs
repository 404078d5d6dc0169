//! How a failure ends the program: one line on standard error and an exit code.

use std::fmt;
use std::io::{self, ErrorKind, Write as _};
use std::process::ExitCode;

use anyhow::Error;

/// The program was called in a way that cannot work, which the argument parser alone cannot see.
#[derive(Debug)]
pub(crate) struct Usage(pub(crate) String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// Says what went wrong and gives the exit code: 2 for wrong use, 1 for everything else. A reader that went
/// away (`cider ... | head`) is no failure.
pub(crate) fn report(error: &Error) -> ExitCode {
    if is_broken_pipe(error) {
        return ExitCode::SUCCESS;
    }
    say("error", error);
    if error.is::<Usage>() {
        ExitCode::from(2)
    } else {
        ExitCode::FAILURE
    }
}

/// The error; where the context is too short, with what helps.
pub(crate) fn hinted(error: Error, hint: &str) -> Error {
    match error.downcast_ref() {
        Some(cider::Error::ImagesExceedContext { text, limit, .. }) if text >= limit => {
            let message = format!("{error}: the text alone is too long for it");
            error.context(message)
        }
        Some(cider::Error::ContextExceeded { .. } | cider::Error::ImagesExceedContext { .. }) => {
            let message = format!("{error}: {hint}");
            error.context(message)
        }
        _ => error,
    }
}

/// Writes `label: message` as one line on standard error.
pub(crate) fn say(label: &str, error: &Error) {
    let line = one_line(&with_causes(error));
    // With standard error gone there is nobody left to tell.
    let _ = writeln!(io::stderr(), "{label}: {line}");
}

fn is_broken_pipe(error: &Error) -> bool {
    let io_errors = error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>());
    io_errors
        .into_iter()
        .any(|cause| cause.kind() == ErrorKind::BrokenPipe)
}

/// The message and its causes, but for those that the message before already tells.
fn with_causes(error: &Error) -> String {
    let mut message = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if message.is_empty() {
            message = cause;
        } else if !message.contains(&cause) {
            message = format!("{message}: {cause}");
        }
    }
    message
}

/// The message without line breaks, and with the control characters that a hostile file name or tensor name
/// would bring to the terminal spelt out.
fn one_line(message: &str) -> String {
    let lines: Vec<&str> = message
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    let mut line = String::new();
    for character in lines.join("; ").chars() {
        if character.is_control() {
            line.extend(character.escape_default());
        } else {
            line.push(character);
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_line_without_control_characters() {
        assert_eq!(one_line("a: b\n  c\n\n"), "a: b; c");
        assert_eq!(one_line("tensor \u{1b}[31m"), "tensor \\u{1b}[31m");
    }

    #[test]
    fn a_cause_is_told_once() {
        let io = io::Error::other("no luck");
        assert_eq!(
            with_causes(&Error::from(cider::Error::io("f")(io))),
            "f: no luck"
        );
        assert_eq!(
            with_causes(&Error::msg("no luck").context("f")),
            "f: no luck"
        );
    }

    #[test]
    fn a_broken_pipe_is_found_below_its_context() {
        let broken = Error::from(io::Error::from(ErrorKind::BrokenPipe)).context("standard output");
        assert!(is_broken_pipe(&broken));
        assert!(!is_broken_pipe(&Error::msg("else")));
    }
}
