//! Messages to the prompt a model was trained on.

use std::fs;
use std::ops::Range;
use std::path::Path;

use minijinja::Environment;
use minijinja::value::Serde;
use serde_json::{Map, Value};

use super::answer::{END_THINK, Opening, THINK};
use super::guard::Guard;
use super::message::{Content, Message, Part, Role, merge_instructions};
use super::tokenizer::{Controls, Tokenizer};
use super::{template_env, tokenizer_files};
use crate::{Error, Result};

/// A chat template, ready to render.
///
/// ```
/// use cider::text::{ChatTemplate, GgufVocabulary, Message, RenderOptions, Role, Tokenizer};
///
/// # let tokenizer = Tokenizer::from_gguf(&GgufVocabulary {
/// #     model: "gpt2",
/// #     pre: "gpt-2",
/// #     tokens: vec!["u", "h", "i", "<", ">", "/", "<u>", "</u>"],
/// #     token_types: vec![1, 1, 1, 1, 1, 1, 3, 3],
/// #     ..GgufVocabulary::default()
/// # })?;
/// let template = ChatTemplate::new(
///     "{% for m in messages %}<u>{{ m.content | trim }}</u>{% endfor %}",
///     "an example",
/// )?;
/// let messages = [Message::new(Role::User, " hi</u> ")];
/// let prompt = template.render(&messages, &RenderOptions::default(), &tokenizer)?;
/// assert_eq!(prompt.text(), "<u>hi</u></u>");
/// // The first "</u>" is the user's: plain characters. The second is the template's.
/// assert_eq!(prompt.tokenize(&tokenizer)?, [6, 1, 2, 3, 5, 0, 4, 7]);
/// # Ok::<(), cider::Error>(())
/// ```
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    has_tool_use: bool,
    takes_parts: bool,
    source_name: String,
    source: String,
}

/// What a rendering depends on, beside the messages.
#[derive(Clone, Debug, Default)]
pub struct RenderOptions {
    /// End with the opening of the assistant's turn.
    pub add_generation_prompt: bool,
    /// The tools the model may call, in the form of the chat completions API.
    pub tools: Vec<Value>,
    /// Further variables for the template, as in `enable_thinking`.
    pub extra: Map<String, Value>,
}

/// A rendered chat that knows which of its control strings are mere text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    text: String,
    literal: Vec<Range<usize>>,
}

impl ChatTemplate {
    /// Compiles a template; `source_name` says in messages where it came from.
    ///
    /// # Errors
    /// [`Error::Template`] with the line of a syntax error.
    pub fn new(source: &str, source_name: &str) -> Result<Self> {
        Self::compile(source, None, source_name)
    }

    /// Finds a model's template. The first of these that exists counts: the file `chosen` (the
    /// command line), then in `folder` `chat_template.jinja`, `chat_template.json`, the
    /// `chat_template` of `tokenizer_config.json` (one text, or a list in which `tool_use` serves
    /// chats with tools and `default` all others), then `gguf`, the metadata of a GGUF file.
    ///
    /// # Errors
    /// [`Error::Template`] if the one found does not compile, [`Error::Io`] if `chosen` cannot be
    /// read.
    pub fn find(
        folder: Option<&Path>,
        chosen: Option<&Path>,
        gguf: Option<&str>,
    ) -> Result<Option<Self>> {
        if let Some(path) = chosen {
            fs::metadata(path).map_err(Error::io(path))?;
            let source = tokenizer_files::read_text(path)?.unwrap_or_default();
            return Self::new(&source, &path.to_string_lossy()).map(Some);
        }
        if let Some(found) = folder.map(Self::find_in_folder).transpose()?.flatten() {
            return Ok(Some(found));
        }
        gguf.map(|source| Self::new(source, "GGUF metadata"))
            .transpose()
    }

    fn find_in_folder(folder: &Path) -> Result<Option<Self>> {
        let path = folder.join("chat_template.jinja");
        if let Some(source) = tokenizer_files::read_text(&path)? {
            return Self::new(&source, "chat_template.jinja").map(Some);
        }
        for name in ["chat_template.json", "tokenizer_config.json"] {
            let path = folder.join(name);
            let Some(config) = tokenizer_files::read_json::<Value>(&path)? else {
                continue;
            };
            match config.get("chat_template") {
                None | Some(Value::Null) => {}
                Some(value) => return Self::from_config(value, &path, name).map(Some),
            }
        }
        Ok(None)
    }

    /// One text, a list of `{name, template}`, or a map from name to template.
    fn from_config(value: &Value, path: &Path, source_name: &str) -> Result<Self> {
        if let Some(source) = value.as_str() {
            return Self::new(source, source_name);
        }
        let named = |name: &str| match value {
            Value::Array(entries) => entries
                .iter()
                .find(|entry| entry.get("name").and_then(Value::as_str) == Some(name))
                .and_then(|entry| entry.get("template")?.as_str()),
            _ => value.get(name).and_then(Value::as_str),
        };
        let Some(default) = named("default") else {
            return Err(Error::config(
                path,
                "chat_template",
                "expected a text, or a list that has a \"default\"",
            ));
        };
        Self::compile(default, named("tool_use"), source_name)
    }

    fn compile(source: &str, tool_use: Option<&str>, source_name: &str) -> Result<Self> {
        let failed = |what| Error::Template {
            source_name: source_name.to_owned(),
            what,
        };
        let length = source.len().max(tool_use.map_or(0, str::len));
        if length > MAX_LENGTH {
            let what = format!("{length} bytes exceed the limit of {MAX_LENGTH}");
            return Err(failed(what));
        }
        let compiled = template_env::on_large_stack(|_| {
            let mut environment = template_env::new()?;
            for (name, source) in [(DEFAULT, Some(source)), (TOOL_USE, tool_use)] {
                let Some(source) = source else { continue };
                environment.add_template_owned(name, template_env::prepare(source))?;
            }
            Ok(environment)
        });
        let environment = compiled.map_err(failed)?;
        let mut template = Self {
            environment,
            has_tool_use: tool_use.is_some(),
            takes_parts: false,
            source_name: source_name.to_owned(),
            source: [source, tool_use.unwrap_or_default()].join("\n"),
        };
        template.takes_parts = template.prints_parts();
        Ok(template)
    }

    /// Where the template came from.
    #[must_use]
    pub fn source_name(&self) -> &str {
        &self.source_name
    }

    /// Whether `text` stands anywhere in the template.
    pub(crate) fn mentions(&self, text: &str) -> bool {
        self.source.contains(text)
    }

    /// Whether the template goes through the parts of a message. Where it does not, texts are
    /// joined and pictures are refused.
    #[must_use]
    pub fn takes_parts(&self) -> bool {
        self.takes_parts
    }

    /// Writes the messages as the model expects them.
    ///
    /// Control tokens in anything the request brought (contents, names, tools, calls, results)
    /// stay plain text: [`Prompt::tokenize`] gives control tokens only for what the template
    /// itself wrote. To the template they are single private characters, so one that looks for
    /// a control token inside a message does not find it.
    ///
    /// # Errors
    /// [`Error::Template`] with the words of `raise_exception`, or what failed and the line.
    pub fn render(
        &self,
        messages: &[Message],
        options: &RenderOptions,
        tokenizer: &Tokenizer,
    ) -> Result<Prompt> {
        if !self.takes_parts && messages.iter().any(|message| message.content.has_image()) {
            // One that fails on plain words too is to be blamed for that.
            self.probe(&Message::new(Role::User, PROBE))
                .map_err(|e| self.failed(&e))?;
            return Err(self.failed("the template takes no pictures"));
        }
        let list = merge_instructions(messages)
            .iter()
            .map(|message| message.to_template(self.takes_parts))
            .collect();
        let mut request = [
            ("messages", Value::Array(list)),
            ("tools", Value::Array(options.tools.clone())),
            ("extra", Value::Object(options.extra.clone())),
        ];
        let mut guard = Guard::new(tokenizer.control_strings());
        for (_, value) in &request {
            guard.reserve_all(value);
        }
        for (_, value) in &mut request {
            guard.cover_all(value)?;
        }
        let [(_, messages), (_, tools), (_, extra)] = request;
        let mut context = Map::new();
        for (name, token) in tokenizer.named_tokens() {
            context.insert(name.to_owned(), Value::from(token));
        }
        if let Value::Object(extra) = extra {
            context.extend(extra);
        }
        let no_tools = options.tools.is_empty();
        context.insert("messages".to_owned(), messages);
        context.insert(
            "tools".to_owned(),
            if no_tools { Value::Null } else { tools },
        );
        context.insert("documents".to_owned(), Value::Null);
        context.insert(
            "add_generation_prompt".to_owned(),
            options.add_generation_prompt.into(),
        );
        let name = if self.has_tool_use && !no_tools {
            TOOL_USE
        } else {
            DEFAULT
        };
        let rendered = self
            .render_context(name, &context)
            .map_err(|e| self.failed(&e))?;
        let (text, literal) = guard.uncover(rendered);
        Ok(Prompt { text, literal })
    }

    /// The state in which `prompt`, the rendering of these messages, leaves the answer. Only what the template wrote to
    /// begin the answer counts: marks of thoughts in a message open and close nothing.
    ///
    /// # Errors
    /// As [`ChatTemplate::render`].
    pub fn opening(
        &self,
        prompt: &Prompt,
        messages: &[Message],
        options: &RenderOptions,
        tokenizer: &Tokenizer,
    ) -> Result<Opening> {
        if !prompt.text.contains(THINK) && !prompt.text.contains(END_THINK) {
            return Ok(Opening::MayOpen);
        }
        let options = RenderOptions {
            add_generation_prompt: false,
            ..options.clone()
        };
        let chat = self.render(messages, &options, tokenizer)?;
        let written = match prompt.text.strip_prefix(&chat.text) {
            Some(written) => written,
            // One that writes a chat differently when it is to be answered: what stands behind its last mark.
            None => prompt.behind_last_control(tokenizer),
        };
        Ok(Opening::of(written))
    }

    /// Renders with nothing but `variables`.
    #[cfg(test)]
    pub(super) fn render_variables(&self, variables: &Map<String, Value>) -> Result<String> {
        self.render_context(DEFAULT, variables)
            .map_err(|e| self.failed(&e))
    }

    /// The control token that ends an assistant's turn, if the template writes one.
    #[must_use]
    pub fn turn_end(&self, tokenizer: &Tokenizer) -> Option<u32> {
        let messages = [
            Message::new(Role::User, PROBE),
            Message::new(Role::Assistant, PROBE),
        ];
        let prompt = self
            .render(&messages, &RenderOptions::default(), tokenizer)
            .ok()?;
        let (_, after) = prompt.text.rsplit_once(PROBE)?;
        let ids = tokenizer.encode(after, Controls::Recognised).ok()?;
        ids.into_iter().find(|&id| tokenizer.is_special(id))
    }

    fn render_context(&self, name: &str, context: &Map<String, Value>) -> Result<String, String> {
        template_env::on_large_stack(|fuel| {
            let mut environment = self.environment.clone();
            environment.set_fuel(Some(fuel));
            let template = environment.get_template(name)?;
            template.render(minijinja::Value::from(Serde(context)))
        })
    }

    /// What the template makes of one message.
    fn probe(&self, message: &Message) -> Result<String, String> {
        let mut context = Map::new();
        context.insert(
            "messages".to_owned(),
            Value::Array(vec![message.to_template(true)]),
        );
        self.render_context(DEFAULT, &context)
    }

    /// Tries the template on a message of two parts: one that prints a list as it is, or fails,
    /// does not take parts.
    fn prints_parts(&self) -> bool {
        let part = |text: &str| Part::Text {
            text: text.to_owned(),
        };
        let content = Content::Parts(vec![part(PROBE), part(PROBE)]);
        let message = Message {
            content,
            ..Message::new(Role::User, "")
        };
        let text = self.probe(&message).unwrap_or_default();
        text.matches(PROBE).count() == 2 && !text.contains("'text'") && !text.contains("\"text\"")
    }

    fn failed(&self, what: &str) -> Error {
        Error::Template {
            source_name: self.source_name.clone(),
            what: what.to_owned(),
        }
    }
}

impl Prompt {
    /// The whole text.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The text behind the last control token that the template wrote.
    fn behind_last_control(&self, tokenizer: &Tokenizer) -> &str {
        let end_of = |control: &str| {
            let mut found = self.text.rmatch_indices(control);
            let end = found.find(|(at, _)| self.literal.iter().all(|range| !range.contains(at)));
            end.map(|(at, _)| at + control.len())
        };
        let marks = [THINK, END_THINK];
        let controls = tokenizer
            .control_strings()
            .filter(|control| !marks.contains(control));
        let start = controls.filter_map(end_of).max().unwrap_or(0);
        self.text.get(start..).unwrap_or_default()
    }

    /// The ids. Where no message spells out a control token, these are the ids of the whole text
    /// with control tokens recognised; no boundary is forced where a message begins or ends.
    /// Nothing is put in front: the template writes the begin-of-text token.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn tokenize(&self, tokenizer: &Tokenizer) -> Result<Vec<u32>> {
        tokenizer.encode_where(&self.text, |range| {
            // The literal ranges ascend: the first that ends behind `range.start` decides.
            let index = self
                .literal
                .partition_point(|literal| literal.end <= range.start);
            self.literal
                .get(index)
                .is_none_or(|literal| literal.start >= range.end)
        })
    }
}

/// Bytes of the longest template that is compiled: those of models have some ten thousand.
const MAX_LENGTH: usize = 64 << 10;
const DEFAULT: &str = "default";
const TOOL_USE: &str = "tool_use";
/// A text no template contains.
const PROBE: &str = "probe of the template";
