//! The chat of `cider run` on a terminal: a line is a message.

use std::io::{self, BufRead as _, ErrorKind, Write as _};
use std::path::Path;

use anyhow::{Context as _, Result};
use cider::Generation;
use cider::files::shown_name;
use cider::generate::StopReason;
use cider::text::{Message, Role};

use super::run::Session;
use crate::failure;
use crate::interrupt::Interrupt;
use crate::pictures::user_message;

/// Chats until the person ends it.
pub(super) fn run(session: &mut Session<'_>) -> Result<()> {
    let mut messages = session.opening();
    // Pictures up to here belong to messages; those behind go with the next one.
    let mut sent = 0;
    let interrupt = Interrupt::listen().context("Ctrl-C")?;
    note(HELP);
    while let Some(line) = read_line()? {
        match line.trim() {
            "" => {}
            "/clear" => {
                messages = session.opening();
                session.pictures.truncate(0);
                sent = 0;
                note("the conversation is forgotten");
            }
            "/image" => note(IMAGE_USAGE),
            "/exit" => break,
            "/help" => note(HELP),
            command if image_of(command).is_some() => {
                match session.attach(&image_of(command).unwrap_or_default()) {
                    Ok(line) => note(&line),
                    Err(error) => failure::say("error", &error),
                }
            }
            command if is_command(command) => {
                note(&format!("{} is not known; {HELP}", shown_name(command)));
            }
            _ => {
                let all = session.pictures.images().len();
                messages.push(user_message(&line, all - sent));
                session.cancel = interrupt.answer();
                let reply = session.reply(&messages);
                interrupt.rest();
                match reply {
                    Ok(answer) if answer.text.is_empty() && is_cancelled(&answer) => {
                        note(STOPPED);
                        messages.pop();
                        session.pictures.truncate(sent);
                    }
                    Ok(answer) => {
                        if is_cancelled(&answer) {
                            note(STOPPED);
                        }
                        messages.push(Message::new(Role::Assistant, answer.text));
                        sent = all;
                    }
                    Err(error) if error.is::<cider::Error>() => {
                        // The conversation goes on as if the message had not been sent.
                        match error.downcast_ref() {
                            Some(cider::Error::Cancelled) => note(STOPPED),
                            _ => failure::say("error", &error),
                        }
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

/// The file of `/image FILE`: all that follows, with or without quotes round it, or as terminals write a file that is
/// dropped on them, a backslash before each character of note.
fn image_of(line: &str) -> Option<String> {
    let file = line.strip_prefix("/image")?;
    if !file.starts_with(char::is_whitespace) {
        return None;
    }
    let file = file.trim();
    let quoted = ['"', '\'']
        .iter()
        .find_map(|&quote| file.strip_prefix(quote)?.strip_suffix(quote));
    if let Some(name) = quoted {
        return Some(name.to_owned());
    }
    if !file.contains('\\') || Path::new(file).exists() {
        return Some(file.to_owned());
    }
    let mut name = String::new();
    let mut characters = file.chars();
    while let Some(character) = characters.next() {
        let escaped = (character == '\\').then(|| characters.next()).flatten();
        name.push(escaped.unwrap_or(character));
    }
    Some(name)
}

fn is_cancelled(answer: &Generation) -> bool {
    answer.reason == StopReason::Cancelled
}

/// A word after a slash, whatever follows: a path has more than one slash.
fn is_command(line: &str) -> bool {
    let word = line.split_whitespace().next().unwrap_or_default();
    let name = word.strip_prefix('/');
    name.is_some_and(|name| {
        name.starts_with(|c: char| c.is_ascii_alphabetic()) && !name.contains('/')
    })
}

fn note(text: &str) {
    // Hints for a person: with standard error gone there is nobody to read them.
    let _ = writeln!(io::stderr(), "{text}");
}

const IMAGE_USAGE: &str = "/image FILE: a picture that goes with the next message; FILE is all that follows, spaces and all";

const STOPPED: &str = "stopped; Ctrl-C once more ends the chat";

const HELP: &str = "a line is a message; /image FILE shows a picture with the next one, /clear forgets the conversation, \
    Ctrl-C stops an answer, /exit or Ctrl-D ends the chat, /help says this";

/// What makes room in a conversation.
pub(super) const ROOM: &str = "/clear forgets the conversation";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_single_words_after_a_slash_are_commands() {
        for slip in ["/quit", "/Image x", "/imageok.png", "/clear x"] {
            assert!(is_command(slip), "{slip}");
        }
        assert!(image_of("/image").is_none() && image_of("/images x").is_none());
        assert!(!is_command("/") && !is_command("/etc/hosts is a file") && !is_command("a/b"));
    }

    #[test]
    fn the_name_of_a_picture_is_all_that_follows() {
        for (line, name) in [
            ("/image a b.png ", "a b.png"),
            ("/image \"a b.png\"", "a b.png"),
            ("/image 'it is.png'", "it is.png"),
            ("/image it's.png", "it's.png"),
            ("/image a\\ b\\(1\\).png", "a b(1).png"),
            (
                "/image data:image/png;base64,AA==",
                "data:image/png;base64,AA==",
            ),
        ] {
            assert_eq!(image_of(line).as_deref(), Some(name), "{line}");
        }
    }
}
