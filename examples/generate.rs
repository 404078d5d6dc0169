//! Asks a model a question and prints the answer as it comes.
//!
//! ```text
//! cargo run --release -p cider --example generate -- "$(scripts/fetch-smollm2)" "What is the capital of France?"
//! ```

use std::error::Error;
use std::io::{self, Write};
use std::path::Path;

use cider::generate::SamplingParams;
use cider::ops::default_backend;
use cider::text::{Message, RenderOptions, Role};
use cider::{Engine, EngineOptions, Event, Request};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, question] = &arguments[..] else {
        return Err("expected a model (a folder or a GGUF file) and a question".into());
    };
    run(Path::new(model), question, &mut io::stdout().lock())
}

/// Opens the model, quantised to W8A8 as it is loaded, and writes the answer and a line of figures.
pub(crate) fn run(model: &Path, question: &str, out: &mut dyn Write) -> Result<(), Box<dyn Error>> {
    let options = EngineOptions::default();
    let mut engine = Engine::open(model, default_backend()?, &options, &mut |_| {})?;

    let messages = [Message::new(Role::User, question)];
    let render = RenderOptions {
        add_generation_prompt: true,
        ..RenderOptions::default()
    };
    let prompt = engine.chat_prompt(&messages, &render)?;
    let mut request = Request::new(prompt);
    request.sampling = SamplingParams {
        temperature: 0.0,
        ..engine.sampling()
    };
    request.max_tokens = Some(200);

    let mut written = Ok(());
    let answer = engine.generate(&request, &mut |event| {
        if let (Event::Text(text), Ok(())) = (event, &written) {
            written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
        }
    })?;
    written?;
    writeln!(
        out,
        "\n{} + {} tokens, {:.1} tok/s in the prompt, {:.1} tok/s after it",
        answer.prompt_tokens,
        answer.generated_tokens,
        answer.prefill_rate(),
        answer.decode_rate()
    )?;
    Ok(())
}
