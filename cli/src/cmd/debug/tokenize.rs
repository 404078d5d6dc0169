//! `cider debug tokenize`: the tokens of a text.

use anyhow::Result;
use cider::TextSide;
use cider::load::Checkpoint;
use cider::text::Tokenizer;
use serde::Serialize;

use super::chat_tokens;
use crate::args::TokenizeArgs;
use crate::console;

/// Runs the command.
pub(super) fn run(args: &TokenizeArgs) -> Result<()> {
    let checkpoint = Checkpoint::open(&args.model)?;
    let text = TextSide::open(&checkpoint, args.chat_template.as_deref())?;
    let ids = ids(args, &text)?;
    let pieces: Vec<String> = ids.iter().map(|&id| piece(&text.tokenizer, id)).collect();
    if args.json {
        return console::json(&Tokens { ids, pieces });
    }
    for (id, piece) in ids.iter().zip(pieces) {
        console::line(&format!("{id:>8}  {piece:?}"))?;
    }
    Ok(())
}

#[derive(Serialize)]
struct Tokens {
    ids: Vec<u32>,
    pieces: Vec<String>,
}

fn ids(args: &TokenizeArgs, text: &TextSide) -> Result<Vec<u32>> {
    let input = &args.input;
    if let Some(message) = &input.chat {
        return chat_tokens(text, message, 0);
    }
    let raw = input.prompt.clone().map_or_else(console::read_stdin, Ok)?;
    Ok(text.tokenizer.encode_prompt(&raw)?)
}

/// What a token adds to the text; bytes that are only part of a character become U+FFFD.
fn piece(tokenizer: &Tokenizer, id: u32) -> String {
    let bytes = tokenizer.token_bytes(id).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}
