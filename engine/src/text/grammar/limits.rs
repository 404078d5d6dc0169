//! What a client's grammar may cost.

use llguidance::api::ParserLimits;

use crate::{Error, Result};

/// The limits of the compiler and of a step: some tens of milliseconds of either, some tens of megabytes.
pub(super) fn parser() -> ParserLimits {
    ParserLimits {
        max_items_in_row: 2_000,
        initial_lexer_fuel: 1_000_000,
        step_lexer_fuel: 200_000,
        step_max_items: 50_000,
        max_lexer_states: 20_000,
        max_grammar_size: 200_000,
        precompute_large_lexemes: false,
        verbose_errors: false,
    }
}

/// Refuses an expression that is too long or nests too deep.
pub(super) fn check_regex(kind: &'static str, expression: &str) -> Result<()> {
    check_length(kind, expression.len(), REGEX_LENGTH)?;
    check_nesting(kind, expression)
}

/// Refuses a grammar that is too long or nests too deep.
pub(super) fn check_lark(kind: &'static str, grammar: &str) -> Result<()> {
    check_length(kind, grammar.len(), LARK_LENGTH)?;
    check_nesting(kind, grammar)
}

pub(super) fn check_length(kind: &'static str, length: usize, most: usize) -> Result<()> {
    if length <= most {
        return Ok(());
    }
    let what = format!("{length} bytes exceed the limit of {most}");
    Err(Error::Grammar { kind, what })
}

/// Counts brackets wherever they stand, so a text with many opening ones in literals may be refused too.
fn check_nesting(kind: &'static str, text: &str) -> Result<()> {
    let mut depth = 0_usize;
    for byte in text.bytes() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > NESTING {
            let what = format!("brackets nest deeper than {NESTING}");
            return Err(Error::Grammar { kind, what });
        }
    }
    Ok(())
}

/// Bytes of a JSON schema, written without blanks.
pub(super) const SCHEMA_LENGTH: usize = 128 << 10;
/// Bytes of an expression.
pub(super) const REGEX_LENGTH: usize = 16 << 10;
/// Bytes of a grammar in Lark's syntax.
const LARK_LENGTH: usize = 64 << 10;
/// Levels of brackets in an expression or grammar.
const NESTING: usize = 100;
