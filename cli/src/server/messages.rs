//! From the messages of a request to those of the chat template, and the pictures among them.

use cider::text::{Content, Message, Part, Role};
use serde_json::{Map, Value};

use super::error::ApiError;
use super::wire::{self, ChatMessage};

/// A conversation, and its pictures in the order of their places.
#[derive(Debug, Default)]
pub(super) struct Conversation {
    pub(super) messages: Vec<Message>,
    pub(super) pictures: Vec<Picture>,
}

/// Where a picture is to be had.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Picture {
    /// A URL, of whatever scheme.
    pub(super) url: String,
    /// The field of the request that names it.
    pub(super) param: String,
}

/// How many of both there may be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Most {
    pub(super) messages: usize,
    pub(super) pictures: usize,
}

impl Conversation {
    /// Reads a request's messages. `images` are the pictures of the marks in the texts.
    pub(super) fn read(
        messages: Option<Vec<ChatMessage>>,
        images: Option<Vec<String>>,
        most: Most,
    ) -> Result<Self, ApiError> {
        let messages = messages.unwrap_or_default();
        if messages.is_empty() || messages.len() > most.messages {
            let (count, limit) = (messages.len(), most.messages);
            let what = format!("messages has {count} messages, it must have from 1 to {limit}");
            return Err(ApiError::value("messages", what));
        }
        let mut reader = Reader::new(images.unwrap_or_default());
        let read = messages.into_iter().enumerate();
        let read = read.map(|(at, message)| reader.message(at, message));
        let messages = read.collect::<Result<Vec<_>, _>>()?;
        let pictures = reader.finish()?;
        if pictures.len() > most.pictures {
            let what = format!(
                "the request has {} pictures, it may have {}",
                pictures.len(),
                most.pictures
            );
            return Err(ApiError::value("messages", what));
        }
        Ok(Self { messages, pictures })
    }
}

/// Reads message by message.
struct Reader {
    images: std::vec::IntoIter<String>,
    given: usize,
    marks: usize,
    pictures: Vec<Picture>,
}

impl Reader {
    fn new(images: Vec<String>) -> Self {
        let given = images.len();
        Self {
            images: images.into_iter(),
            given,
            marks: 0,
            pictures: Vec::new(),
        }
    }

    fn message(&mut self, at: usize, message: ChatMessage) -> Result<Message, ApiError> {
        let field = format!("messages[{at}].content");
        let calls = calls(at, message.tool_calls)?;
        let content = match message.content {
            None | Some(Value::Null) => {
                let is_call = !calls.is_empty() || message.reasoning_content.is_some();
                if message.role != wire::Role::Assistant || !is_call {
                    let what = format!(
                        "{field} is missing: only an assistant's message beside tool_calls may have none"
                    );
                    return Err(ApiError::value(field, what));
                }
                Content::Nothing(())
            }
            Some(Value::String(text)) => joined(self.text(text)),
            Some(Value::Array(parts)) => self.parts(&field, parts)?,
            Some(_) => {
                let what = format!("{field} must be a text or a list of parts");
                return Err(ApiError::value(field, what));
            }
        };
        let mut extra = Map::new();
        for (name, value) in [
            ("name", message.name),
            ("tool_call_id", message.tool_call_id),
            ("reasoning_content", message.reasoning_content),
        ] {
            extra.extend(value.map(|text| (name.to_owned(), Value::String(text))));
        }
        let role = match message.role {
            wire::Role::System => Role::System,
            wire::Role::Developer => Role::Developer,
            wire::Role::User => Role::User,
            wire::Role::Assistant => Role::Assistant,
            wire::Role::Tool => Role::Tool,
        };
        Ok(Message {
            role,
            content,
            tool_calls: calls,
            extra,
        })
    }

    fn parts(&mut self, field: &str, parts: Vec<Value>) -> Result<Content, ApiError> {
        if parts.is_empty() {
            return Err(ApiError::value(field, format!("{field} is an empty list")));
        }
        let mut read = Vec::new();
        for (at, part) in parts.into_iter().enumerate() {
            read.extend(self.part(format!("{field}[{at}]"), part)?);
        }
        Ok(joined(read))
    }

    fn part(&mut self, field: String, mut part: Value) -> Result<Vec<Part>, ApiError> {
        let kind = part.get("type").and_then(Value::as_str).unwrap_or_default();
        match kind {
            "text" | "input_text" => match part.get_mut("text").map(Value::take) {
                Some(Value::String(text)) => Ok(self.text(text)),
                _ => Err(ApiError::value(
                    &field,
                    format!("{field} is a text without its text"),
                )),
            },
            "image_url" | "input_image" => {
                let named = part.get_mut("image_url").map(Value::take);
                let url = match named {
                    Some(Value::Object(mut image)) => image.remove("url"),
                    other => other,
                };
                let Some(Value::String(url)) = url else {
                    return Err(ApiError::value(
                        &field,
                        format!("{field} is a picture without its URL"),
                    ));
                };
                self.pictures.push(Picture { url, param: field });
                Ok(vec![Part::Image])
            }
            "" => Err(ApiError::value(&field, format!("{field} has no type"))),
            kind => {
                let kind: String = kind.chars().take(40).collect();
                let what = format!(
                    "{field} is of the type {kind:?}, which is not supported: text and image_url are"
                );
                Err(ApiError::unsupported(field, what))
            }
        }
    }

    /// A text; where the request has pictures for marks, each mark is one of them.
    fn text(&mut self, text: String) -> Vec<Part> {
        if self.given == 0 {
            return vec![Part::Text { text }];
        }
        let mut parts = Vec::new();
        for (at, piece) in text.split(MARK).enumerate() {
            if at > 0 {
                let param = format!("images[{}]", self.marks);
                self.marks += 1;
                if let Some(image) = self.images.next() {
                    self.pictures.push(Picture {
                        url: as_url(image),
                        param,
                    });
                }
                parts.push(Part::Image);
            }
            parts.push(Part::Text {
                text: piece.to_owned(),
            });
        }
        parts
    }

    fn finish(self) -> Result<Vec<Picture>, ApiError> {
        let (given, marks) = (self.given, self.marks);
        if given != marks {
            let what =
                format!("images has {given} pictures, the messages have {marks} marks {MARK}");
            return Err(ApiError::value("images", what));
        }
        Ok(self.pictures)
    }
}

/// Parts as content: neighbouring texts are one, and texts alone are a text.
fn joined(parts: Vec<Part>) -> Content {
    let mut all: Vec<Part> = Vec::new();
    for part in parts {
        match (all.last_mut(), part) {
            (Some(Part::Text { text }), Part::Text { text: more }) => text.push_str(&more),
            (_, part) => all.push(part),
        }
    }
    all.retain(|part| !matches!(part, Part::Text { text } if text.is_empty()));
    match all.as_mut_slice() {
        [] => Content::Text(String::new()),
        [Part::Text { text }] => Content::Text(std::mem::take(text)),
        _ => Content::Parts(all),
    }
}

/// The calls of an assistant's message.
fn calls(at: usize, calls: Option<Vec<Value>>) -> Result<Vec<Value>, ApiError> {
    let calls = calls.unwrap_or_default();
    for (number, call) in calls.iter().enumerate() {
        let name = call.pointer("/function/name").is_some_and(Value::is_string);
        let arguments = call.pointer("/function/arguments");
        if !name
            || !arguments.is_none_or(|arguments| arguments.is_string() || arguments.is_object())
        {
            let field = format!("messages[{at}].tool_calls[{number}]");
            let what =
                format!("{field} must have function.name and function.arguments, which are texts");
            return Err(ApiError::value(field, what));
        }
    }
    Ok(calls)
}

/// An entry of `images`: a URL, or base64 without one.
fn as_url(image: String) -> String {
    // No letter of base64 is a colon.
    if image.contains(':') {
        image
    } else {
        format!("data:;base64,{image}")
    }
}

/// What stands for a picture in a text.
const MARK: &str = "<image>";

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const MOST: Most = Most {
        messages: 8,
        pictures: 3,
    };

    fn read(messages: &Value, images: &[&str]) -> Result<Conversation, ApiError> {
        let messages = serde_json::from_value(messages.clone()).unwrap();
        let images = images.iter().map(|&image| image.to_owned()).collect();
        Conversation::read(Some(messages), Some(images), MOST)
    }

    fn refused(messages: &Value) -> String {
        read(messages, &[]).unwrap_err().body().error.message
    }

    #[test]
    fn c048_every_role_takes_a_text_or_parts() {
        for role in ["system", "user", "assistant", "tool"] {
            let text = read(&json!([{"role": role, "content": "ab"}]), &[]).unwrap();
            let parts = json!([{"role": role, "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]);
            assert_eq!(text.messages, read(&parts, &[]).unwrap().messages, "{role}");
        }
        let part = |part: Value| json!([{"role": "user", "content": [part]}]);
        assert!(refused(&json!([{"role": "user", "content": []}])).contains("empty"));
        assert!(refused(&part(json!({"type": "text"}))).contains("without its text"));
        assert!(refused(&part(json!({"type": "foo"}))).contains("foo"));
        assert!(
            refused(&part(
                json!({"type": "video_url", "video_url": {"url": ""}})
            ))
            .contains("video_url")
        );
        assert!(refused(&part(json!({"type": "image_url"}))).contains("without its URL"));
        assert!(refused(&part(json!("text"))).contains("no type"));
    }

    #[test]
    fn c047_only_calls_may_stand_without_content() {
        let call =
            json!({"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}});
        for message in [
            json!({"role": "assistant", "content": null, "tool_calls": [call]}),
            json!({"role": "assistant", "tool_calls": [call]}),
        ] {
            assert_eq!(
                read(&json!([message]), &[]).unwrap().messages[0].content,
                Content::Nothing(())
            );
        }
        for message in [
            json!({"role": "user", "content": null}),
            json!({"role": "assistant"}),
            json!({"role": "user", "content": 1}),
        ] {
            assert!(refused(&json!([message])).contains("messages[0].content"));
        }
        assert!(
            refused(&json!([{"role": "assistant", "tool_calls": [{"function": {}}]}]))
                .contains("function.name")
        );
    }

    #[test]
    fn pictures_bind_to_marks_in_reading_order() {
        let messages = json!([
            {"role": "user", "content": "a<image>b"},
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,x"}}, {"type": "text", "text": "<image>"}]},
        ]);
        let read_in = read(&messages, &["AAAA", "data:,y"]).unwrap();
        let urls: Vec<&str> = read_in
            .pictures
            .iter()
            .map(|picture| picture.url.as_str())
            .collect();
        assert_eq!(urls, ["data:;base64,AAAA", "data:,x", "data:,y"]);
        assert_eq!(read_in.pictures[2].param, "images[1]");
        let part = |text: &str| Part::Text {
            text: text.to_owned(),
        };
        assert_eq!(
            read_in.messages[0].content,
            Content::Parts(vec![part("a"), Part::Image, part("b")])
        );
        assert!(read(&messages, &["AAAA"]).is_err() && read(&messages, &["a", "b", "c"]).is_err());
        let words = read(&messages, &[]).unwrap();
        assert_eq!(
            words.messages[0].content,
            Content::Text("a<image>b".to_owned())
        );
    }

    #[test]
    fn there_are_limits() {
        assert!(refused(&json!([])).contains("from 1 to 8"));
        assert!(Conversation::read(None, None, MOST).is_err());
        let many = vec![json!({"role": "user", "content": "a"}); 9];
        assert!(refused(&Value::Array(many)).contains("9 messages"));
        let pictures = vec![json!({"type": "image_url", "image_url": "data:,x"}); 4];
        assert!(refused(&json!([{"role": "user", "content": pictures}])).contains("4 pictures"));
    }
}
