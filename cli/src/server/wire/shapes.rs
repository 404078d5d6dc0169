//! What the description of the API says of fields that are read by hand, because more forms are understood than are told.

use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// What a message says
#[derive(Deserialize, ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "it describes, and nothing is read into it")]
pub(super) enum MessageContent {
    Text(String),
    Parts(Vec<ContentPart>),
}

/// A text or a picture
#[derive(Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[expect(dead_code, reason = "it describes, and nothing is read into it")]
pub(super) enum ContentPart {
    Text {
        text: String,
    },
    ImageUrl {
        /// A `data:` URL, or where the server allows it one of `http:`, `https:` or `file:`
        image_url: ImageUrl,
    },
}

/// Where a picture is
#[derive(Deserialize, ToSchema)]
#[expect(dead_code, reason = "it describes, and nothing is read into it")]
pub(super) struct ImageUrl {
    url: String,
}

/// One text or several
#[derive(Deserialize, ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "it describes, and nothing is read into it")]
pub(super) enum Stop {
    Text(String),
    Texts(Vec<String>),
}

/// The form of an answer
#[derive(Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[expect(dead_code, reason = "it describes, and nothing is read into it")]
pub(super) enum ResponseFormat {
    Text,
    JsonObject,
    JsonSchema { json_schema: NamedSchema },
}

/// A JSON schema and its name
#[derive(Deserialize, ToSchema)]
#[expect(dead_code, reason = "it describes, and nothing is read into it")]
pub(super) struct NamedSchema {
    name: Option<String>,
    schema: Map<String, Value>,
    strict: Option<bool>,
}

/// A function that may be called
#[derive(Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[expect(dead_code, reason = "it describes, and nothing is read into it")]
pub(super) enum Tool {
    Function { function: Function },
}

/// A function, with a JSON schema of its arguments
#[derive(Deserialize, ToSchema)]
#[expect(dead_code, reason = "it describes, and nothing is read into it")]
pub(super) struct Function {
    #[schema(min_length = 1, max_length = 64)]
    name: String,
    description: Option<String>,
    parameters: Option<Map<String, Value>>,
}

/// Whether a tool is called, and which
#[derive(Deserialize, ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "it describes, and nothing is read into it")]
pub(super) enum ToolChoice {
    Mode(ToolMode),
    Named(NamedTool),
}

/// Whether a tool is called
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum ToolMode {
    None,
    Auto,
    Required,
}

/// The tool that is called
#[derive(Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[expect(dead_code, reason = "it describes, and nothing is read into it")]
pub(super) enum NamedTool {
    Function { function: FunctionName },
}

/// The name of a function
#[derive(Deserialize, ToSchema)]
#[expect(dead_code, reason = "it describes, and nothing is read into it")]
pub(super) struct FunctionName {
    name: String,
}

/// A call that the assistant made
#[derive(Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[expect(dead_code, reason = "it describes, and nothing is read into it")]
pub(super) enum MadeCall {
    Function { id: String, function: MadeFunction },
}

/// A function and its arguments, which are JSON
#[derive(Deserialize, ToSchema)]
#[expect(dead_code, reason = "it describes, and nothing is read into it")]
pub(super) struct MadeFunction {
    name: String,
    arguments: String,
}

/// What a raw text goes on from
#[derive(Deserialize, ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "it describes, and nothing is read into it")]
pub(super) enum RawPrompt {
    Text(String),
    Texts(Vec<String>),
    Tokens(Vec<u32>),
    ListsOfTokens(Vec<Vec<u32>>),
}
