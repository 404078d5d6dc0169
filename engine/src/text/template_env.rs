//! The template engine, set up as chat templates expect it: Jinja2 with the extensions and
//! filters of the `transformers` package.

use std::fmt::Write as _;

use jiff::ZonedDateTime;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, ValueKind, from_args};
use minijinja::{Environment, Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat;

use super::guard::PLANE;

/// An environment without templates.
pub(crate) fn new() -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build()?;
    environment.set_syntax(syntax);
    environment.set_fuel(Some(FUEL));
    environment.set_unknown_method_callback(python_method);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", strftime_now);
    environment.add_filter("tojson", to_json);
    Ok(environment)
}

/// Does the work of the template engine where values that a template nests can be printed, compared and dropped: all of
/// that recurses once a level, and fuel is what bounds the levels.
///
/// Where the address space has no room for the large stack, a smaller one has to do, with less fuel, which `work` is given.
pub(crate) fn on_large_stack<T: Send>(
    work: impl Fn(u64) -> Result<T, Error> + Sync,
) -> Result<T, String> {
    let work = &work;
    std::thread::scope(|scope| {
        let start = |parts: usize| {
            let fuel = FUEL / parts as u64;
            std::thread::Builder::new()
                .name("chat template".to_owned())
                .stack_size(STACK_BYTES / parts)
                .spawn_scoped(scope, move || work(fuel).map_err(|error| describe(&error)))
        };
        let thread = start(1).or_else(|_| start(SMALLER));
        let thread =
            thread.map_err(|e| format!("no stack of {} bytes: {e}", STACK_BYTES / SMALLER))?;
        thread
            .join()
            .unwrap_or_else(|_| Err("the template engine failed".to_owned()))
    })
}

/// What a template file says, in the form the engine takes: no byte order mark, line feeds
/// alone, and `generation` blocks, which only mark the assistant's words for training, turned
/// into blocks that do nothing.
pub(crate) fn prepare(source: &str) -> String {
    let source = source.strip_prefix('\u{feff}').unwrap_or(source);
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut prepared = String::with_capacity(source.len());
    let mut rest = source.as_str();
    while let Some(at) = rest.find("{%") {
        let inside = at + 2;
        let end = rest
            .get(inside..)
            .and_then(|tag| tag.find("%}"))
            .map_or(rest.len(), |n| inside + n);
        prepared.push_str(rest.get(..inside).unwrap_or_default());
        let tag = rest.get(inside..end).unwrap_or_default();
        let word = tag.trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+');
        match word {
            "generation" => prepared.push_str(&tag.replace("generation", "with")),
            "endgeneration" => prepared.push_str(&tag.replace("endgeneration", "endwith")),
            _ => prepared.push_str(tag),
        }
        rest = rest.get(end..).unwrap_or_default();
    }
    prepared.push_str(rest);
    prepared
}

/// One line that says what went wrong: a template's own words alone, else kind and place.
pub(crate) fn describe(error: &Error) -> String {
    let detail = error.detail().unwrap_or_default();
    let text = match detail.strip_prefix(RAISED) {
        Some(own) => own.to_owned(),
        None => match (detail, error.line()) {
            ("", Some(line)) => format!("{} (line {line})", error.kind()),
            ("", None) => error.kind().to_string(),
            (detail, Some(line)) => format!("{}: {detail} (line {line})", error.kind()),
            (detail, None) => format!("{}: {detail}", error.kind()),
        },
    };
    text.replace(['\n', '\r'], " ")
}

fn raise_exception(message: &str) -> Result<Value, Error> {
    Err(Error::new(
        ErrorKind::InvalidOperation,
        format!("{RAISED}{message}"),
    ))
}

fn strftime_now(format: &str) -> Result<String, Error> {
    let mut text = String::new();
    let parts = jiff::fmt::strtime::BrokenDownTime::from(&ZonedDateTime::now());
    match parts.format(format, &mut text) {
        Ok(()) => Ok(text),
        Err(e) => Err(Error::new(
            ErrorKind::InvalidOperation,
            format!("strftime_now: {e}"),
        )),
    }
}

/// Methods of Python's types: those of the compatibility layer, and two it lacks.
fn python_method(
    state: &mut State,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    match (method, value.as_str()) {
        ("removeprefix", Some(text)) => {
            let (prefix,): (&str,) = from_args(args)?;
            Ok(Value::from(text.strip_prefix(prefix).unwrap_or(text)))
        }
        ("removesuffix", Some(text)) => {
            let (suffix,): (&str,) = from_args(args)?;
            Ok(Value::from(text.strip_suffix(suffix).unwrap_or(text)))
        }
        _ => pycompat::unknown_method_callback(state, value, method, args),
    }
}

/// As Python's `json.dumps(ensure_ascii=False)`, which is what `transformers` puts here: nothing
/// is escaped for HTML, keys stay in order.
#[expect(
    clippy::needless_pass_by_value,
    reason = "the engine hands options over by value"
)]
fn to_json(value: &Value, options: Kwargs) -> Result<String, Error> {
    let mut style = Style::from_options(&options)?;
    options.assert_all_used()?;
    let json = serde_json::to_value(value)
        .map_err(|e| Error::new(ErrorKind::BadSerialization, e.to_string()))?;
    style.write(&json, 0)?;
    Ok(style.out)
}

fn too_large() -> Error {
    let what = format!("tojson: more than {MAX_JSON} bytes, or {MAX_DEPTH} levels");
    Error::new(ErrorKind::InvalidOperation, what)
}

/// The options of `json.dumps`, and what was written so far.
struct Style {
    indent: Option<String>,
    item: String,
    key: String,
    ensure_ascii: bool,
    sort_keys: bool,
    out: String,
}

impl Style {
    fn from_options(options: &Kwargs) -> Result<Self, Error> {
        let indent: Option<Value> = options.get("indent")?;
        let indent = indent
            .filter(|v| !v.is_none() && !v.is_undefined())
            .map(|v| {
                let spaces = usize::try_from(v.clone()).unwrap_or(0).min(MAX_INDENT);
                v.as_str().map_or_else(|| " ".repeat(spaces), str::to_owned)
            });
        let separators: Option<Value> = options.get("separators")?;
        let separators = separators.filter(|v| v.kind() == ValueKind::Seq);
        let given = |index: usize| {
            let separators = separators.as_ref()?;
            separators
                .get_item_by_index(index)
                .ok()?
                .as_str()
                .map(str::to_owned)
        };
        let item = if indent.is_some() { "," } else { ", " };
        Ok(Self {
            indent,
            item: given(0).unwrap_or_else(|| item.to_owned()),
            key: given(1).unwrap_or_else(|| ": ".to_owned()),
            ensure_ascii: options
                .get::<Option<bool>>("ensure_ascii")?
                .unwrap_or(false),
            sort_keys: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
            out: String::new(),
        })
    }

    fn write(&mut self, value: &serde_json::Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(too_large());
        }
        match value {
            serde_json::Value::Null => self.out.push_str("null"),
            serde_json::Value::Bool(b) => self.out.push_str(if *b { "true" } else { "false" }),
            serde_json::Value::Number(n) => self.number(n),
            serde_json::Value::String(s) => self.string(s),
            serde_json::Value::Array(items) => {
                self.out.push('[');
                for (index, item) in items.iter().enumerate() {
                    self.before_item(index, depth + 1)?;
                    self.write(item, depth + 1)?;
                }
                self.after_items(items.len(), depth)?;
                self.out.push(']');
            }
            serde_json::Value::Object(entries) => {
                let mut entries: Vec<_> = entries.iter().collect();
                if self.sort_keys {
                    entries.sort_by_key(|(key, _)| *key);
                }
                self.out.push('{');
                for (index, (key, item)) in entries.iter().enumerate() {
                    self.before_item(index, depth + 1)?;
                    self.string(key);
                    self.out.push_str(&self.key.clone());
                    self.write(item, depth + 1)?;
                }
                self.after_items(entries.len(), depth)?;
                self.out.push('}');
            }
        }
        Ok(())
    }

    fn before_item(&mut self, index: usize, depth: usize) -> Result<(), Error> {
        if index > 0 {
            self.out.push_str(&self.item.clone());
        }
        self.line(depth)
    }

    fn after_items(&mut self, count: usize, depth: usize) -> Result<(), Error> {
        if count > 0 { self.line(depth) } else { Ok(()) }
    }

    /// Begins a line where items have their own; the place where the length is looked at, once an item.
    fn line(&mut self, depth: usize) -> Result<(), Error> {
        let indent = self.indent.as_deref().unwrap_or_default();
        if self.out.len() + indent.len() * depth > MAX_JSON {
            return Err(too_large());
        }
        if self.indent.is_some() {
            let indent = indent.repeat(depth);
            self.out.push('\n');
            self.out.push_str(&indent);
        }
        Ok(())
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for character in text.chars() {
            match character {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if c < ' ' || (self.ensure_ascii && c > '~' && !is_placeholder(c)) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        // Writing to a string cannot fail.
                        let _ = write!(self.out, "\\u{unit:04x}");
                    }
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }

    fn number(&mut self, number: &serde_json::Number) {
        match number.as_f64().filter(|_| number.is_f64()) {
            Some(float) => self.out.push_str(&python_float(float)),
            None => self.out.push_str(&number.to_string()),
        }
    }
}

/// Characters that stand for control strings must survive until they are put back.
fn is_placeholder(character: char) -> bool {
    PLANE.contains(&u32::from(character))
}

/// The shortest digits that read back the same, laid out as Python does: an exponent of at least
/// two digits below 1e-4 and from 1e16 on.
fn python_float(value: f64) -> String {
    let scientific = format!("{value:e}");
    let Some((digits, exponent)) = scientific.split_once('e') else {
        return scientific;
    };
    match exponent.parse::<i32>() {
        Ok(exponent @ -4..=15) if exponent >= 0 || value == 0.0 => format!("{value:?}"),
        Ok(-4..=-1) => format!("{value}"),
        Ok(exponent) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.unsigned_abs())
        }
        Err(_) => scientific,
    }
}

/// What a template may do: a step takes 1, and so do 64 bytes of what it writes. A chat of a thousand messages takes some
/// hundred thousand; memory stays below 64 MB, and levels of nested values below some half a million.
const FUEL: u64 = 1_000_000;
/// What half a million levels take, at up to 640 bytes a level, measured on the deepest recursion (comparing, printing).
/// Only what is used is ever in memory.
const STACK_BYTES: usize = 512 << 20;
/// The part of stack and fuel that is enough for a chat of some hundred messages.
const SMALLER: usize = 8;
/// Bytes of one JSON document.
const MAX_JSON: usize = 16 << 20;
/// Levels of one JSON document.
const MAX_DEPTH: usize = 500;
const MAX_INDENT: usize = 32;
/// Marks the words of a template's own refusal.
const RAISED: &str = "\u{1}";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_as_python_prints_them() {
        let cases = [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (0.1, "0.1"),
            (0.0001, "0.0001"),
            (0.000_01, "1e-05"),
            (1.5e-7, "1.5e-07"),
            (123_456_789.125, "123456789.125"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (-2.5e22, "-2.5e+22"),
            (1e100, "1e+100"),
        ];
        for (value, expected) in cases {
            assert_eq!(python_float(value), expected);
        }
    }

    #[test]
    fn generation_blocks_become_scopes() {
        assert_eq!(
            prepare("\u{feff}a\r\n{%- generation -%}b{% endgeneration %}{% set generation = 1 %}"),
            "a\n{%- with -%}b{% endwith %}{% set generation = 1 %}"
        );
    }
}
