//! Calls of tools as a grammar: what a forced call looks like.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::{limits, schema};
use crate::text::answer::ToolFormat;
use crate::{Error, Result};

/// Which tools must be called, and how a call is written.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolRule {
    /// The tools of the request, in the form of the chat completions API.
    pub tools: Vec<Value>,
    /// What must be called.
    pub choice: ToolChoice,
    /// How the model writes a call.
    pub format: ToolFormat,
    /// Whether several calls may follow each other.
    pub parallel: bool,
}

/// What must be called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolChoice {
    /// Any of the tools, once at least.
    Required,
    /// The tool of this name.
    Named(String),
}

impl ToolRule {
    pub(super) fn to_lark(&self) -> Result<String> {
        let mut calls = String::new();
        let mut rules = String::new();
        let mut length = 0;
        for (index, tool) in self.tools.iter().enumerate() {
            let (name, parameters) = function_of(tool)?;
            if matches!(&self.choice, ToolChoice::Named(named) if named != name) {
                continue;
            }
            let schema = schema::prepare(KIND, &parameters)?;
            let schema = schema.to_string();
            length += schema.len();
            limits::check_length(KIND, length, limits::SCHEMA_LENGTH)?;
            let opening = self.format.opening(name);
            let separator = if calls.is_empty() { "" } else { " | " };
            // Writing to a string cannot fail.
            let _ = write!(calls, "{separator}tool_{index}");
            let _ = writeln!(
                rules,
                "tool_{index}: {} arguments_{index} {}\narguments_{index}: %json {schema}",
                literal(&opening),
                literal(self.format.closing()),
            );
        }
        if calls.is_empty() {
            return Err(self.nothing_to_call());
        }
        // Names count too; a rule of this form is some hundred bytes beside name and schema.
        limits::check_length(KIND, rules.len(), 4 * limits::SCHEMA_LENGTH)?;
        let start = if self.parallel {
            let separator = literal(self.format.separator());
            format!("start: call ({separator} call){{0,{}}}", MOST_CALLS - 1)
        } else {
            "start: call".to_owned()
        };
        Ok(format!("{start}\ncall: {calls}\n{rules}"))
    }

    fn nothing_to_call(&self) -> Error {
        let what = match &self.choice {
            ToolChoice::Required => "no tool is given, and one must be called".to_owned(),
            ToolChoice::Named(name) => {
                format!("tool_choice names {name:?}, which is no tool of the request")
            }
        };
        Error::Grammar { kind: KIND, what }
    }
}

/// The name of a function, and the schema of its arguments, which is always one of an object.
fn function_of(tool: &Value) -> Result<(&str, Value)> {
    let refused = |what: &str| Error::Grammar {
        kind: KIND,
        what: what.to_owned(),
    };
    let function = tool.get("function").unwrap_or(tool);
    let name = function
        .get("name")
        .and_then(Value::as_str)
        .ok_or_else(|| refused("a tool has no name"))?;
    let mut parameters = match function.get("parameters") {
        None | Some(Value::Null) => json!({}),
        Some(parameters @ Value::Object(_)) => parameters.clone(),
        Some(_) => return Err(refused("parameters must be an object")),
    };
    if let Value::Object(entries) = &mut parameters {
        match entries.get("type") {
            None => {
                entries.insert("type".to_owned(), json!("object"));
            }
            Some(kind) if kind == "object" => {}
            Some(kind) => {
                return Err(refused(&format!(
                    "parameters are of type {kind}, not object"
                )));
            }
        }
    }
    Ok((name, parameters))
}

/// A literal of Lark: JSON's escapes are among those it takes.
fn literal(text: &str) -> String {
    Value::from(text).to_string()
}

const KIND: &str = "tools";
/// Calls in one answer.
const MOST_CALLS: usize = 64;
