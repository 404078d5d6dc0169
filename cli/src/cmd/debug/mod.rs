//! `cider debug`: what another program's results can be compared with.

mod logits;
mod others;
mod preprocess;
mod tensors;
mod tokenize;

use anyhow::Result;
use cider::TextSide;
use cider::text::RenderOptions;

use crate::args::DebugCommand;
use crate::pictures::user_message;

/// Runs the command.
pub(crate) fn run(command: &DebugCommand) -> Result<()> {
    match command {
        DebugCommand::Logits(args) => logits::run(args),
        DebugCommand::Preprocess(args) => preprocess::run(args),
        DebugCommand::Tokenize(args) => tokenize::run(args),
    }
}

/// The tokens of one message of a user, `images` pictures and a text, up to the assistant's turn.
fn chat_tokens(text: &TextSide, message: &str, images: usize) -> Result<Vec<u32>> {
    let messages = [user_message(message, images)];
    Ok(text.chat_prompt(&messages, &RenderOptions::default())?)
}
