//! `cider run`: one answer, or a chat.

use std::io::{self, IsTerminal as _};
use std::path::Path;

use anyhow::Result;
use cider::files::shown;
use cider::generate::{SamplingParams, StopReason};
use cider::image::{ImageSize, RgbImage};
use cider::load::GenerationConfig;
use cider::text::{Message, RenderOptions, Role, StopMatcher};
use cider::{Cancel, Engine, Event, Generation, ImageTimes, Request};

use super::chat;
use super::report::Report;
use crate::args::{RunArgs, SamplingOptions};
use crate::bundled;
use crate::console;
use crate::failure::{Usage, hinted};
use crate::model::{self, Opened};
use crate::pictures::{Pictures, Room, Seen, user_message};
use crate::progress::Progress;

/// Runs the command.
pub(crate) fn run(args: &RunArgs, quiet: bool) -> Result<()> {
    check(args)?;
    bundled::refuse_slips(args.model.as_deref(), args.prompt.as_deref())?;
    let (path, prompt) = bundled::tell_apart(args.model.as_deref(), args.prompt.as_deref());
    let path = path.map_or_else(bundled::find, Ok)?;
    let prompt = match prompt {
        Some(prompt) => Some(prompt),
        None if io::stdin().is_terminal() => None,
        None => Some(read_prompt()?),
    };
    if prompt.as_ref().is_some_and(String::is_empty) {
        return Err(Usage("the prompt is empty".to_owned()).into());
    }
    if prompt.is_none() && (args.json || args.raw) {
        let what = "--json and --raw need a PROMPT, or one on standard input";
        return Err(Usage(what.to_owned()).into());
    }
    let pictures = model::read_pictures(&path, args)?;
    let mut session = Session {
        path: &path,
        args,
        quiet,
        opened: model::open(&path, args, quiet)?,
        pictures,
        cancel: Cancel::default(),
    };
    if !args.raw && session.opened.engine.chat_template().is_none() {
        let path = shown(&path);
        let what = "no chat template in it: give one with --chat-template, or use --raw";
        anyhow::bail!("{path}: {what}");
    }
    match prompt {
        Some(prompt) => session.answer(&prompt),
        None => chat::run(&mut session),
    }
}

/// A model and how it was asked for.
pub(super) struct Session<'a> {
    path: &'a Path,
    args: &'a RunArgs,
    quiet: bool,
    opened: Opened,
    /// The pictures of the conversation.
    pub(super) pictures: Pictures,
    /// What ends the next answer before its time.
    pub(super) cancel: Cancel,
}

impl Session<'_> {
    /// The messages before the first one of the user.
    pub(super) fn opening(&self) -> Vec<Message> {
        let system = self.args.system.as_deref();
        let message = system.map(|text| Message::new(Role::System, text));
        message.into_iter().collect()
    }

    /// Reads a picture for the next message; gives the line to say about it.
    pub(super) fn attach(&mut self, file: &str) -> Result<String> {
        let engine = &mut self.opened.engine;
        let context = engine.runner().context();
        let Some(vision) = engine.vision_mut() else {
            anyhow::bail!("{}: the model has no vision input", shown(self.path));
        };
        vision.set_budget(model::budget(vision.processor(), &self.args.images.bounds)?)?;
        let room = Room {
            processor: vision.processor().clone(),
            context: Some(context),
        };
        let added = self.pictures.add(&[file.to_owned()], &room);
        added.map_err(|error| hinted(error.into(), chat::ROOM))?;
        let number = self.pictures.images().len();
        let size = self.pictures.images().last().map(RgbImage::size);
        let size = size.unwrap_or(ImageSize::new(0, 0));
        let (width, height, tokens) = (size.width, size.height, room.processor.tokens(size));
        Ok(format!(
            "image {number}: {width}x{height}, {tokens} tokens, goes with the next message"
        ))
    }

    /// Answers the last of the messages: text goes to standard output as it comes, the figures to the log.
    pub(super) fn reply(&mut self, messages: &[Message]) -> Result<Generation> {
        let options = RenderOptions::default();
        let prompt = self.opened.engine.chat_prompt(messages, &options)?;
        let answer = self.generate(&prompt);
        let (generation, seen) = answer.map_err(|error| hinted(error, chat::ROOM))?;
        tracing::info!("{}", self.report(&generation, seen).line());
        Ok(generation)
    }

    /// Answers the one prompt of a call.
    fn answer(&mut self, prompt: &str) -> Result<()> {
        let tokens = if self.args.raw {
            self.opened.engine.raw_prompt(prompt)?
        } else {
            let mut messages = self.opening();
            messages.push(user_message(prompt, self.pictures.images().len()));
            let options = RenderOptions::default();
            self.opened.engine.chat_prompt(&messages, &options)?
        };
        let hint = match self.pictures.images() {
            [] => "a larger --ctx makes room",
            _ => model::ROOM,
        };
        let answer = self.generate(&tokens);
        let (generation, seen) = answer.map_err(|error| hinted(error, hint))?;
        let report = self.report(&generation, seen);
        if self.args.json {
            return console::json(&report);
        }
        tracing::info!("{}", report.line());
        Ok(())
    }

    /// Puts the pictures into the prompt.
    fn see(&mut self, prompt: &[u32]) -> Result<(Request, Seen)> {
        let Opened { engine, memory, .. } = &mut self.opened;
        let mut times = ImageTimes {
            preprocess: self.pictures.take_reading(),
            ..ImageTimes::default()
        };
        let mut bar = Progress::blocks("looking at the pictures", self.quiet);
        let cancel = self.cancel.clone();
        let mut watch = |done: usize, total: usize| {
            bar.show(done, total);
            !cancel.is_cancelled()
        };
        let images = self.pictures.images();
        let (prompt, images) = engine.see_watched(prompt, images, &mut times, &mut watch)?;
        bar.clear();
        memory.sample();
        let seen = Seen {
            images: images.len(),
            tokens: images.iter().map(|image| image.features.tokens()).sum(),
            times,
        };
        let flags = &self.args.sampling;
        let request = Request {
            images,
            sampling: sampling(flags, engine),
            max_tokens: flags.max_tokens,
            stops: flags.stop.clone(),
            cancel: self.cancel.clone(),
            ..Request::new(prompt)
        };
        Ok((request, seen))
    }

    /// Generates; without `--json`, text goes to standard output as it comes, and its last line is ended.
    fn generate(&mut self, prompt: &[u32]) -> Result<(Generation, Seen)> {
        let (request, seen) = self.see(prompt)?;
        let Opened { engine, memory, .. } = &mut self.opened;
        let cancel = request.cancel.clone();
        let mut bar = Progress::tokens("reading the prompt", self.quiet);
        let mut written = Ok(());
        let mut last = None;
        let generated = engine.generate(&request, &mut |event| match event {
            Event::Prefill { done, total } => {
                memory.sample();
                bar.show(done, total);
            }
            Event::Text(text) if !self.args.json && written.is_ok() => {
                last = text.chars().last();
                written = console::text(text);
                if written.is_err() {
                    cancel.cancel();
                }
            }
            Event::Text(_) => {}
        });
        memory.sample();
        written?;
        if !self.args.json && last != Some('\n') && (generated.is_ok() || last.is_some()) {
            console::text("\n")?;
        }
        let generation = generated?;
        let context = engine.runner().context();
        if generation.reason == StopReason::Length
            && generation.prompt_tokens + generation.generated_tokens >= context
        {
            tracing::warn!("the answer ends where the context of {context} tokens is full");
        }
        Ok((generation, seen))
    }

    fn report<'a>(&'a self, generation: &'a Generation, seen: Seen) -> Report<'a> {
        Report::new(self.path, self.args, &self.opened, generation, seen)
    }
}

/// Refuses what cannot work before a model is loaded for it.
fn check(args: &RunArgs) -> Result<()> {
    args.options.check()?;
    let flags = merge(&args.sampling, &SamplingParams::default());
    let refuse = |error: cider::Error| Usage(error.to_string());
    flags.validate().map_err(refuse)?;
    StopMatcher::new(&args.sampling.stop).map_err(refuse)?;
    Ok(())
}

/// What the checkpoint says, and the flags over it.
fn sampling(flags: &SamplingOptions, engine: &Engine) -> SamplingParams {
    let mut params = engine.sampling();
    let filters = flags.top_p.is_some() || flags.top_k.is_some() || flags.min_p.is_some();
    if !filters && is_silent(engine.generation()) {
        params.temperature = 0.0;
    }
    merge(flags, &params)
}

/// Whether a checkpoint does not say that it wants to be sampled from.
fn is_silent(generation: &GenerationConfig) -> bool {
    generation.do_sample != Some(true)
        && generation.temperature.is_none()
        && generation.top_k.is_none()
        && generation.top_p.is_none()
        && generation.min_p.is_none()
}

fn merge(flags: &SamplingOptions, params: &SamplingParams) -> SamplingParams {
    SamplingParams {
        temperature: flags.temperature.unwrap_or(params.temperature),
        top_k: flags.top_k.unwrap_or(params.top_k),
        top_p: flags.top_p.unwrap_or(params.top_p),
        min_p: flags.min_p.unwrap_or(params.min_p),
        repetition_penalty: flags
            .repetition_penalty
            .unwrap_or(params.repetition_penalty),
        presence_penalty: flags.presence_penalty.unwrap_or(params.presence_penalty),
        frequency_penalty: flags.frequency_penalty.unwrap_or(params.frequency_penalty),
        seed: flags.seed.or(params.seed),
    }
}

/// Standard input without its final line break.
fn read_prompt() -> Result<String> {
    let mut text = console::read_stdin()?;
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    Ok(text)
}
