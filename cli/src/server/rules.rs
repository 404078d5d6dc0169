//! What an answer must keep to: a schema, an expression, a grammar, calls of tools, a budget for its thought.

use cider::Frontend;
use cider::generate::Constraint;
use cider::text::{AnswerFormat, Grammar, Opening, ToolChoice, ToolFormat, ToolRule};
use serde_json::Value;

use super::error::{ApiError, Code};
use super::wire::{ChatRequest, CompletionRequest};

/// The rules of a request.
#[derive(Debug, Default)]
pub(super) struct Rules {
    grammar: Option<Grammar>,
    thinking_budget: Option<usize>,
    /// How its answers are taken apart; raw texts are not.
    pub(super) format: Option<AnswerFormat>,
    /// The tools that the model is told of.
    pub(super) tools: Vec<Value>,
}

impl Rules {
    /// Those of a chat, of which `limit` bytes may be a schema, an expression or a grammar.
    pub(super) fn of_chat(
        chat: &ChatRequest,
        format: AnswerFormat,
        limit: usize,
    ) -> Result<Self, ApiError> {
        let choice = Choice::of(chat)?;
        let tools = match choice {
            Choice::None => Vec::new(),
            Choice::Auto | Choice::Must(_) => chat.tools.clone().unwrap_or_default(),
        };
        check_tools(&tools, limit)?;
        let tool_format = match (tools.is_empty(), format.tools) {
            (true, _) => None,
            (false, Some(format)) => Some(format),
            (false, None) => {
                let what = "the chat template of the model knows no tools";
                return Err(ApiError::unsupported("tools", what));
            }
        };
        let guide = Guide {
            response_format: chat.response_format.as_ref(),
            json: chat.guided_json.as_ref(),
            regex: chat.guided_regex.as_ref(),
            lark: chat.guided_grammar.as_ref(),
        };
        let guided = guide.grammar(limit)?;
        if guided.is_some() && tool_format.is_some() {
            let what = "tools do not go together with a format of the answer: say tool_choice none, or leave one of them out";
            return Err(ApiError::unsupported("tools", what));
        }
        let forced = tool_format.and_then(|format| {
            choice.rule(&tools, format, chat.parallel_tool_calls != Some(false))
        });
        Ok(Self {
            grammar: guided.or(forced),
            thinking_budget: chat.thinking_budget.map(|tokens| tokens as usize),
            format: Some(AnswerFormat {
                tools: tool_format,
                ..format
            }),
            tools,
        })
    }

    /// Those of a raw text.
    pub(super) fn of_completion(
        completion: &CompletionRequest,
        limit: usize,
    ) -> Result<Self, ApiError> {
        let guide = Guide {
            response_format: completion.response_format.as_ref(),
            json: completion.guided_json.as_ref(),
            regex: completion.guided_regex.as_ref(),
            lark: completion.guided_grammar.as_ref(),
        };
        Ok(Self {
            grammar: guide.grammar(limit)?,
            ..Self::default()
        })
    }

    /// What keeps `answers` answers to them, which takes a while.
    pub(super) fn compile(
        &self,
        frontend: &Frontend,
        opening: Opening,
        answers: usize,
    ) -> Result<Vec<Option<Box<dyn Constraint>>>, ApiError> {
        let thinks = self.format.is_some_and(|format| format.reasoning);
        let opening = if thinks { opening } else { Opening::Closed };
        let budget = self.thinking_budget.filter(|_| thinks);
        if self.grammar.is_none() && budget.is_none() {
            return Ok((0..answers).map(|_| None).collect());
        }
        let grammars = frontend.text().grammars()?;
        let one = || Ok(grammars.constrain(opening, budget, self.grammar.as_ref())?);
        (0..answers).map(|_| one()).collect()
    }
}

/// Which tools are to be called.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Choice {
    None,
    Auto,
    Must(ToolChoice),
}

impl Choice {
    fn of(chat: &ChatRequest) -> Result<Self, ApiError> {
        let refuse = || {
            let what = "tool_choice must be none, auto, required, or {\"type\": \"function\", \"function\": {\"name\": ...}}";
            ApiError::value("tool_choice", what)
        };
        let choice = match &chat.tool_choice {
            None | Some(Value::Null) => return Ok(Self::Auto),
            Some(Value::String(word)) => match word.as_str() {
                "none" => return Ok(Self::None),
                "auto" => return Ok(Self::Auto),
                "required" => ToolChoice::Required,
                _ => return Err(refuse()),
            },
            Some(named) => {
                let name = named.pointer("/function/name").and_then(Value::as_str);
                ToolChoice::Named(name.ok_or_else(refuse)?.to_owned())
            }
        };
        if chat.tools.as_ref().is_none_or(Vec::is_empty) {
            return Err(ApiError::value(
                "tool_choice",
                "tool_choice asks for a call, and there are no tools",
            ));
        }
        Ok(Self::Must(choice))
    }

    fn rule(self, tools: &[Value], format: ToolFormat, parallel: bool) -> Option<Grammar> {
        let Self::Must(choice) = self else {
            return None;
        };
        Some(Grammar::Tools(ToolRule {
            tools: tools.to_vec(),
            choice,
            format,
            parallel,
        }))
    }
}

fn check_tools(tools: &[Value], limit: usize) -> Result<(), ApiError> {
    if tools.len() > MAX_TOOLS {
        let what = format!("tools has {} tools, it may have {MAX_TOOLS}", tools.len());
        return Err(ApiError::value("tools", what));
    }
    for (at, tool) in tools.iter().enumerate() {
        let field = format!("tools[{at}]");
        let name = tool
            .pointer("/function/name")
            .and_then(Value::as_str)
            .unwrap_or_default();
        let parameters = tool.pointer("/function/parameters");
        let is_function = tool.get("type").is_none_or(|kind| kind == "function");
        let is_name = !name.is_empty() && name.len() <= 64;
        if !is_function
            || !is_name
            || !parameters.is_none_or(|schema| schema.is_object() || schema.is_null())
        {
            let what = format!(
                "{field} must be a function with a name and parameters, which are a JSON schema"
            );
            return Err(ApiError::value(field, what));
        }
        if let Some(schema) = parameters {
            check_length("tools", schema.to_string().len(), limit)?;
        }
    }
    Ok(())
}

/// The fields that say what an answer must be.
struct Guide<'a> {
    response_format: Option<&'a Value>,
    json: Option<&'a Value>,
    regex: Option<&'a String>,
    lark: Option<&'a String>,
}

impl Guide<'_> {
    fn grammar(&self, limit: usize) -> Result<Option<Grammar>, ApiError> {
        let given = self.response_format.filter(|format| !format.is_null());
        let format = given.map(response_format).transpose()?.flatten();
        let json = self
            .json
            .filter(|schema| !schema.is_null())
            .map(|schema| Grammar::JsonSchema(schema.clone()));
        let regex = self.regex.map(|text| Grammar::Regex(text.clone()));
        let lark = self.lark.map(|text| Grammar::Lark(text.clone()));
        let all = [
            ("response_format", format),
            ("guided_json", json),
            ("guided_regex", regex),
            ("guided_grammar", lark),
        ];
        let mut given = all
            .into_iter()
            .filter_map(|(name, grammar)| Some((name, grammar?)));
        let Some((name, grammar)) = given.next() else {
            return Ok(None);
        };
        if let Some((other, _)) = given.next() {
            return Err(ApiError::value(
                other,
                format!("{other} does not go together with {name}"),
            ));
        }
        let length = match &grammar {
            Grammar::JsonSchema(schema) => schema.to_string().len(),
            Grammar::Regex(text) | Grammar::Lark(text) => text.len(),
            Grammar::JsonObject | Grammar::Tools(_) => 0,
        };
        check_length(name, length, limit)?;
        Ok(Some(grammar))
    }
}

fn response_format(format: &Value) -> Result<Option<Grammar>, ApiError> {
    let refuse = |what: &str| ApiError::value("response_format", what);
    match format.get("type").and_then(Value::as_str) {
        Some("text") => Ok(None),
        Some("json_object") => Ok(Some(Grammar::JsonObject)),
        Some("json_schema") => {
            let schema = format
                .pointer("/json_schema/schema")
                .or_else(|| format.get("schema"));
            let schema =
                schema.ok_or_else(|| refuse("response_format has no json_schema.schema"))?;
            Ok(Some(Grammar::JsonSchema(schema.clone())))
        }
        _ => Err(refuse(
            "response_format must have the type text, json_object or json_schema",
        )),
    }
}

fn check_length(name: &str, length: usize, limit: usize) -> Result<(), ApiError> {
    if length <= limit {
        return Ok(());
    }
    let what = format!("{name} has {length} bytes, it may have {limit}");
    Err(ApiError::new(Code::InvalidGrammar, what).at(name))
}

const MAX_TOOLS: usize = 128;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const FORMAT: AnswerFormat = AnswerFormat {
        reasoning: true,
        tools: Some(ToolFormat::Hermes),
    };

    fn rules(body: &Value) -> Result<Rules, ApiError> {
        Rules::of_chat(&serde_json::from_value(body.clone()).unwrap(), FORMAT, 1000)
    }

    fn refused(body: &Value) -> Option<String> {
        rules(body).unwrap_err().body().error.param
    }

    #[test]
    fn formats_of_answers_are_read_and_one_is_enough() {
        assert!(rules(&json!({})).unwrap().grammar.is_none());
        assert!(
            rules(&json!({"response_format": {"type": "text"}}))
                .unwrap()
                .grammar
                .is_none()
        );
        let object = rules(&json!({"response_format": {"type": "json_object"}})).unwrap();
        assert_eq!(object.grammar, Some(Grammar::JsonObject));
        let schema = json!({"type": "object"});
        let expected = Some(Grammar::JsonSchema(schema.clone()));
        for body in [
            json!({"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}),
            json!({"guided_json": schema}),
        ] {
            assert_eq!(rules(&body).unwrap().grammar, expected);
        }
        assert_eq!(
            rules(&json!({"guided_regex": "a+"})).unwrap().grammar,
            Some(Grammar::Regex("a+".to_owned()))
        );
        for (body, param) in [
            (
                json!({"response_format": {"type": "foo"}}),
                "response_format",
            ),
            (json!({"response_format": 1}), "response_format"),
            (
                json!({"response_format": {"type": "json_schema"}}),
                "response_format",
            ),
            (
                json!({"guided_regex": "a", "guided_grammar": "b"}),
                "guided_grammar",
            ),
            (json!({"guided_regex": "a".repeat(1001)}), "guided_regex"),
        ] {
            assert_eq!(refused(&body).as_deref(), Some(param), "{body}");
        }
    }

    #[test]
    fn tools_are_told_and_forced_as_the_request_says() {
        let tools = json!([{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]);
        let with = |choice: Value| rules(&json!({"tools": tools, "tool_choice": choice}));
        let auto = with(json!("auto")).unwrap();
        assert_eq!(
            (auto.tools.len(), auto.grammar, auto.format.unwrap().tools),
            (1, None, Some(ToolFormat::Hermes))
        );
        let none = with(json!("none")).unwrap();
        assert_eq!((none.tools.len(), none.format.unwrap().tools), (0, None));
        for choice in [
            json!("required"),
            json!({"type": "function", "function": {"name": "f"}}),
        ] {
            assert!(matches!(
                with(choice).unwrap().grammar,
                Some(Grammar::Tools(_))
            ));
        }
        for (body, param) in [
            (
                json!({"tools": tools, "tool_choice": "some"}),
                "tool_choice",
            ),
            (json!({"tool_choice": "required"}), "tool_choice"),
            (json!({"tools": [{"type": "function"}]}), "tools[0]"),
            (
                json!({"tools": [{"type": "other", "function": {"name": "f"}}]}),
                "tools[0]",
            ),
            (
                json!({"tools": [{"function": {"name": "f", "parameters": []}}]}),
                "tools[0]",
            ),
            (
                json!({"tools": tools, "response_format": {"type": "json_object"}}),
                "tools",
            ),
        ] {
            assert_eq!(refused(&body).as_deref(), Some(param), "{body}");
        }
        let chat: ChatRequest = serde_json::from_value(json!({"tools": tools})).unwrap();
        let knows_none = Rules::of_chat(&chat, AnswerFormat::default(), 1000).unwrap_err();
        assert_eq!(knows_none.code(), Code::UnsupportedParameter);
    }
}
