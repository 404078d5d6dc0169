//! The chat of `cider run` on a terminal: a line is a message.

use std::io::{self, BufRead as _, ErrorKind, Write as _};

use anyhow::{Context as _, Result};
use cider::text::{Message, Role};

use super::run::Session;
use crate::failure;
use crate::pictures::user_message;

/// Chats until the person ends it.
pub(super) fn run(session: &mut Session<'_>) -> Result<()> {
    let mut messages = session.opening();
    // Pictures up to here belong to messages; those behind go with the next one.
    let mut sent = 0;
    note(HELP);
    while let Some(line) = read_line()? {
        match line.trim() {
            "" => {}
            "/clear" => {
                messages = session.opening();
                session.pictures.truncate(0);
                sent = 0;
            }
            "/exit" => break,
            "/help" => note(HELP),
            command if image_of(command).is_some() => {
                match session.attach(image_of(command).unwrap_or_default()) {
                    Ok(line) => note(&line),
                    Err(error) => failure::say("error", &error),
                }
            }
            command if is_command(command) => note(&format!("{command} is not known; {HELP}")),
            _ => {
                let all = session.pictures.images().len();
                messages.push(user_message(&line, all - sent));
                match session.reply(&messages) {
                    Ok(answer) => {
                        messages.push(Message::new(Role::Assistant, answer));
                        sent = all;
                    }
                    Err(error) if error.is::<cider::Error>() => {
                        // The conversation goes on as if the message had not been sent.
                        failure::say("error", &error);
                        messages.pop();
                        session.pictures.truncate(sent);
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

/// The file of `/image FILE`.
fn image_of(line: &str) -> Option<&str> {
    let file = line.strip_prefix("/image")?;
    file.starts_with(char::is_whitespace).then(|| file.trim())
}

fn is_command(line: &str) -> bool {
    let name = line.strip_prefix('/');
    name.is_some_and(|name| !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase()))
}

fn note(text: &str) {
    // Hints for a person: with standard error gone there is nobody to read them.
    let _ = writeln!(io::stderr(), "{text}");
}

const HELP: &str = "a line is a message; /image FILE shows a picture with the next one, /clear forgets the conversation, \
    /exit or Ctrl-D ends it, /help says this";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_single_words_after_a_slash_are_commands() {
        assert!(is_command("/quit"));
        assert_eq!(image_of("/image a b.png"), Some("a b.png"));
        assert!(image_of("/image").is_none() && image_of("/images x").is_none());
        assert!(!is_command("/") && !is_command("/etc/hosts is a file") && !is_command("a/b"));
    }
}
