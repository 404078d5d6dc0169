//! The messages of a chat, as a chat template takes them.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Instructions for the whole chat.
    System,
    /// The newer name of [`Role::System`]; templates see `system`.
    Developer,
    /// The person.
    User,
    /// The model.
    Assistant,
    /// The result of a tool call.
    Tool,
}

/// One message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// What is said.
    #[serde(default)]
    pub content: Content,
    /// Calls of tools that the assistant made, in the form of the chat completions API.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<Value>,
    /// Everything else a template may look at: `name`, `tool_call_id`, `reasoning_content`, ...
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// The content of a message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Content {
    /// One text.
    Text(String),
    /// Texts and pictures in the order they were given.
    Parts(Vec<Part>),
    /// Nothing, as beside tool calls.
    Nothing(()),
}

/// A part of a message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Part {
    /// Text.
    Text {
        /// The text.
        text: String,
    },
    /// A picture; the template writes its marks, the pixels travel apart.
    Image,
}

impl Message {
    /// A message of one text.
    #[must_use]
    pub fn new(role: Role, text: impl Into<String>) -> Self {
        let content = Content::Text(text.into());
        Self {
            role,
            content,
            tool_calls: Vec::new(),
            extra: Map::new(),
        }
    }

    /// What the template sees. Parts stay a list where `parts` says so; otherwise the texts are
    /// joined with nothing between, so that a text says the same in one part and in several.
    pub(crate) fn to_template(&self, parts: bool) -> Value {
        let mut value = Map::new();
        value.insert("role".to_owned(), json!(self.role.for_template()));
        value.insert("content".to_owned(), self.content.to_template(parts));
        value.extend(self.extra.clone());
        if !self.tool_calls.is_empty() {
            let calls = self
                .tool_calls
                .iter()
                .cloned()
                .map(parse_arguments)
                .collect();
            value.insert("tool_calls".to_owned(), Value::Array(calls));
        }
        Value::Object(value)
    }
}

/// The instructions a chat begins with, system and developer messages, as one message: templates know one, and many
/// drop or refuse a second. An empty line stands between two.
pub(crate) fn merge_instructions(messages: &[Message]) -> Cow<'_, [Message]> {
    let instructs = |message: &&Message| matches!(message.role, Role::System | Role::Developer);
    let count = messages.iter().take_while(instructs).count();
    let Some((instructions, rest)) = messages.split_at_checked(count).filter(|_| count > 1) else {
        return Cow::Borrowed(messages);
    };
    let mut merged = Message::new(Role::System, "");
    let mut parts = Vec::new();
    for message in instructions {
        if !parts.is_empty() {
            parts.push(Part::text("\n\n"));
        }
        match &message.content {
            Content::Text(text) => parts.push(Part::text(text)),
            Content::Parts(more) => parts.extend(more.iter().cloned()),
            Content::Nothing(()) => {}
        }
        merged.extra.extend(message.extra.clone());
    }
    let texts: Option<String> = parts.iter().map(Part::as_text).collect();
    merged.content = texts.map_or(Content::Parts(parts), Content::Text);
    Cow::Owned([&[merged], rest].concat())
}

impl Part {
    fn text(text: impl Into<String>) -> Self {
        Self::Text { text: text.into() }
    }

    fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text { text } => Some(text),
            Self::Image => None,
        }
    }
}

impl Role {
    fn for_template(self) -> &'static str {
        match self {
            Self::System | Self::Developer => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
        }
    }
}

impl Content {
    /// Whether there is a picture, for which the template must take parts.
    pub(crate) fn has_image(&self) -> bool {
        matches!(self, Self::Parts(parts) if parts.contains(&Part::Image))
    }

    fn to_template(&self, as_list: bool) -> Value {
        match self {
            Self::Text(text) => json!(text),
            Self::Nothing(()) => json!(""),
            Self::Parts(parts) if as_list => parts
                .iter()
                .map(|part| match part {
                    Part::Text { text } => json!({"type": "text", "text": text}),
                    Part::Image => json!({"type": "image"}),
                })
                .collect(),
            Self::Parts(parts) => {
                let texts: Vec<&str> = parts
                    .iter()
                    .filter_map(|part| match part {
                        Part::Text { text } => Some(text.as_str()),
                        Part::Image => None,
                    })
                    .collect();
                json!(texts.concat())
            }
        }
    }
}

impl Default for Content {
    fn default() -> Self {
        Self::Nothing(())
    }
}

/// The API carries the arguments of a call as JSON in a string; templates expect the object.
fn parse_arguments(mut call: Value) -> Value {
    if let Some(arguments) = call.pointer_mut("/function/arguments")
        && let Some(object) = arguments
            .as_str()
            .and_then(|text| serde_json::from_str(text).ok())
        && matches!(object, Value::Object(_))
    {
        *arguments = object;
    }
    call
}
