//! The chat of `cider run` on a terminal: a line is a message.

use std::io::{self, BufRead as _, ErrorKind, Write as _};

use anyhow::{Context as _, Result};
use cider::text::{Message, Role};

use super::run::Session;
use crate::failure;

/// Chats until the person ends it.
pub(super) fn run(session: &mut Session<'_>) -> Result<()> {
    let mut messages = session.opening();
    note(HELP);
    while let Some(line) = read_line()? {
        match line.trim() {
            "" => {}
            "/clear" => messages = session.opening(),
            "/exit" => break,
            "/help" => note(HELP),
            command if is_command(command) => note(&format!("{command} is not known; {HELP}")),
            _ => {
                messages.push(Message::new(Role::User, line));
                match session.reply(&messages) {
                    Ok(answer) => messages.push(Message::new(Role::Assistant, answer)),
                    Err(error) if error.is::<cider::Error>() => {
                        // The conversation goes on as if the message had not been sent.
                        failure::say("error", &error);
                        messages.pop();
                    }
                    Err(error) => return Err(error),
                }
            }
        }
    }
    Ok(())
}

/// Asks for a line; nothing when input ends.
fn read_line() -> Result<Option<String>> {
    loop {
        let mut stderr = io::stderr();
        // Without standard error the chat goes on, only without its sign.
        let _ = stderr.write_all(b"> ").and_then(|()| stderr.flush());
        let mut line = String::new();
        match io::stdin().lock().read_line(&mut line) {
            Ok(0) => {
                note("");
                return Ok(None);
            }
            Ok(_) => {
                line.truncate(line.trim_end_matches(['\n', '\r']).len());
                return Ok(Some(line));
            }
            Err(error) if error.kind() == ErrorKind::InvalidData => {
                note("the line is not UTF-8 text");
            }
            Err(error) => return Err(error).context("standard input"),
        }
    }
}

fn is_command(line: &str) -> bool {
    let name = line.strip_prefix('/');
    name.is_some_and(|name| !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase()))
}

fn note(text: &str) {
    // Hints for a person: with standard error gone there is nobody to read them.
    let _ = writeln!(io::stderr(), "{text}");
}

const HELP: &str = "a line is a message; /clear forgets the conversation, /exit or Ctrl-D ends it, /help says this";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_single_words_after_a_slash_are_commands() {
        assert!(is_command("/quit"));
        assert!(!is_command("/") && !is_command("/etc/hosts is a file") && !is_command("a/b"));
    }
}
