//! `cider debug`: what another program's results can be compared with.

mod logits;
mod others;
mod tokenize;

use anyhow::Result;
use cider::TextSide;
use cider::text::{Message, RenderOptions, Role};

use crate::args::DebugCommand;

/// Runs the command.
pub(crate) fn run(command: &DebugCommand) -> Result<()> {
    match command {
        DebugCommand::Logits(args) => logits::run(args),
        DebugCommand::Tokenize(args) => tokenize::run(args),
    }
}

/// The tokens of one message of a user, up to the assistant's turn.
fn chat_tokens(text: &TextSide, message: &str) -> Result<Vec<u32>> {
    let messages = [Message::new(Role::User, message)];
    Ok(text.chat_prompt(&messages, &RenderOptions::default())?)
}
