//! The messages of a chat, as a chat template takes them.

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
    /// joined with a line feed.
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
                json!(texts.join("\n"))
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
