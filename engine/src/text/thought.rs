//! Thoughts before a constrained answer, and their budget.

use std::sync::Arc;

use super::answer::{END_THINK, Opening, THINK};
use super::tokenizer::{Controls, Tokenizer};
use crate::generate::Constraint;
use crate::{Error, Result};

/// What a vocabulary says of thoughts; made once for a model.
#[derive(Clone, Debug, Default)]
pub(crate) struct ThoughtTokens {
    /// By id: the bytes of the token as text; control tokens that are marks of thoughts among them.
    bytes: Vec<Box<[u8]>>,
    /// The token that is the opening mark alone.
    open: Option<u32>,
    /// What closes a thought by force.
    close: Vec<u32>,
    ends: Vec<u32>,
    /// Tokens of blanks alone.
    blanks: Vec<u32>,
    /// Tokens that may hold the end of the closing mark and words behind it.
    tails: Vec<u32>,
}

/// Lets a thought pass, for a while, and holds the answer behind it to a rule.
pub(crate) struct ThoughtConstraint {
    tokens: Arc<ThoughtTokens>,
    place: Place,
    /// Tokens the thought may have.
    budget: usize,
    rule: Option<Box<dyn Constraint>>,
    kept: Vec<(u32, f32)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    /// A thought may open; what stands here so far are blanks and the beginning of its mark.
    Start(Vec<u8>),
    /// So many tokens of a thought; its last bytes.
    Thought(usize, Vec<u8>),
    /// The thought is closed by force; so many tokens of that are done.
    Closing(usize),
    /// Behind a thought; so many tokens of blanks.
    Behind(usize),
    Answer,
}

impl ThoughtTokens {
    pub(crate) fn new(tokenizer: &Tokenizer, ends: &[u32]) -> Result<Self> {
        let words: Vec<Box<[u8]>> = (0..tokenizer.vocab_size() as u32)
            .map(|id| word(tokenizer, id).into_boxed_slice())
            .collect();
        let having = |fits: &dyn Fn(&[u8]) -> bool| -> Vec<u32> {
            let fitting = (0_u32..).zip(&words).filter(|(_, bytes)| fits(bytes));
            fitting.map(|(id, _)| id).collect()
        };
        // A vocabulary that cannot spell the mark closes nothing.
        let close = tokenizer.encode(CLOSE, Controls::Recognised)?;
        let spelt = tokenizer.decode(&close)?.contains(END_THINK);
        Ok(Self {
            open: tokenizer.token_id(THINK),
            blanks: having(&|bytes| !bytes.is_empty() && is_blank(bytes)),
            tails: having(&|bytes| {
                let behind = bytes.iter().position(|&byte| byte == b'>');
                behind.is_some_and(|at| !is_blank(&bytes[at + 1..]))
            }),
            close: if spelt { close } else { Vec::new() },
            ends: ends.to_vec(),
            bytes: words,
        })
    }

    fn bytes(&self, id: u32) -> &[u8] {
        self.bytes.get(id as usize).map_or(&[], AsRef::as_ref)
    }
}

impl ThoughtConstraint {
    pub(crate) fn new(
        tokens: Arc<ThoughtTokens>,
        opening: Opening,
        budget: Option<usize>,
        rule: Option<Box<dyn Constraint>>,
    ) -> Self {
        let mut constraint = Self {
            tokens,
            place: match opening {
                Opening::MayOpen => Place::Start(Vec::new()),
                Opening::Open => Place::Thought(0, Vec::new()),
                Opening::Closed => Place::Answer,
            },
            budget: budget.unwrap_or(usize::MAX),
            rule,
            kept: Vec::new(),
        };
        constraint.close_at_budget();
        constraint
    }

    /// Closes a thought whose budget is spent.
    fn close_at_budget(&mut self) {
        let closes = !self.tokens.close.is_empty();
        if matches!(self.place, Place::Thought(count, _) if count >= self.budget) && closes {
            self.place = Place::Closing(0);
        }
    }

    /// The rule's mask, with these tokens as they were.
    fn mask_beside(
        &mut self,
        logits: &mut [f32],
        beside: fn(&ThoughtTokens) -> &[u32],
    ) -> Result<()> {
        let Some(rule) = &mut self.rule else {
            return Ok(());
        };
        let logit_of = |id: u32| Some((id, *logits.get(id as usize)?));
        self.kept.clear();
        let beside = beside(&self.tokens).iter();
        self.kept.extend(beside.filter_map(|&id| logit_of(id)));
        rule.mask(logits)?;
        for &(id, logit) in &self.kept {
            if let Some(place) = logits.get_mut(id as usize) {
                *place = logit;
            }
        }
        Ok(())
    }

    /// In a thought: where a rule waits, the answer must not end, nor begin within a token.
    fn mask_thought(&self, logits: &mut [f32], tail: &[u8]) {
        if self.rule.is_none() {
            return;
        }
        let tokens = &self.tokens;
        let mut forbid = |id: u32| {
            if let Some(logit) = logits.get_mut(id as usize) {
                *logit = f32::NEG_INFINITY;
            }
        };
        tokens.ends.iter().for_each(|&id| forbid(id));
        let begun =
            (1..END_THINK.len()).any(|length| tail.ends_with(&END_THINK.as_bytes()[..length]));
        for &id in &tokens.tails {
            let bytes = tokens.bytes(id);
            if !begun && bytes.len() < END_THINK.len() {
                continue;
            }
            let text = [tail, bytes].concat();
            if behind_close(&text).is_some_and(|rest| !is_blank(rest)) {
                forbid(id);
            }
        }
    }

    /// The token that was chosen at the start of the answer.
    fn accept_start(&mut self, token: u32, mut text: Vec<u8>) -> Result<()> {
        let tokens = &self.tokens;
        if let Some(rule) = &mut self.rule {
            if tokens.open == Some(token) {
                self.place = Place::Thought(0, Vec::new());
                return Ok(());
            }
            self.place = Place::Answer;
            return rule.accept(token);
        }
        text.extend_from_slice(tokens.bytes(token));
        let mark = text.trim_ascii_start();
        self.place = if mark.starts_with(THINK.as_bytes()) {
            Place::Thought(0, Vec::new())
        } else if THINK.as_bytes().starts_with(mark) && text.len() <= LONGEST_START {
            Place::Start(text)
        } else {
            Place::Answer
        };
        Ok(())
    }
}

impl Constraint for ThoughtConstraint {
    fn mask(&mut self, logits: &mut [f32]) -> Result<()> {
        match &self.place {
            Place::Start(_) => self.mask_beside(logits, |tokens| tokens.open.as_slice()),
            Place::Thought(_, tail) => {
                let tail = tail.clone();
                self.mask_thought(logits, &tail);
                Ok(())
            }
            Place::Closing(_) => {
                let forced = self.forced();
                for (id, logit) in (0_u32..).zip(logits) {
                    if Some(id) != forced {
                        *logit = f32::NEG_INFINITY;
                    }
                }
                Ok(())
            }
            Place::Behind(blanks) if *blanks < MOST_BLANKS => {
                self.mask_beside(logits, |tokens| &tokens.blanks)
            }
            Place::Behind(_) | Place::Answer => match &mut self.rule {
                Some(rule) => rule.mask(logits),
                None => Ok(()),
            },
        }
    }

    fn accept(&mut self, token: u32) -> Result<()> {
        match std::mem::replace(&mut self.place, Place::Answer) {
            Place::Start(text) => self.accept_start(token, text)?,
            Place::Thought(count, mut tail) => {
                tail.extend_from_slice(self.tokens.bytes(token));
                if behind_close(&tail).is_some() {
                    self.place = Place::Behind(0);
                } else {
                    let kept = tail.len().saturating_sub(END_THINK.len() - 1);
                    self.place = Place::Thought(count + 1, tail.split_off(kept));
                }
            }
            Place::Closing(done) => {
                let close = &self.tokens.close;
                if close.get(done) != Some(&token) {
                    let what = format!("token {token} instead of the end of the thought");
                    return Err(Error::Request(what));
                }
                if done + 1 < close.len() {
                    self.place = Place::Closing(done + 1);
                } else {
                    self.place = Place::Behind(MOST_BLANKS);
                }
            }
            Place::Behind(blanks)
                if blanks < MOST_BLANKS && self.tokens.blanks.contains(&token) =>
            {
                self.place = Place::Behind(blanks + 1);
            }
            Place::Behind(_) | Place::Answer => {
                if let Some(rule) = &mut self.rule {
                    rule.accept(token)?;
                }
            }
        }
        self.close_at_budget();
        Ok(())
    }

    fn finished(&self) -> bool {
        let rule = self.rule.as_ref();
        self.place == Place::Answer && rule.is_some_and(|rule| rule.finished())
    }

    fn forced(&self) -> Option<u32> {
        match self.place {
            Place::Closing(done) => self.tokens.close.get(done).copied(),
            Place::Answer => self.rule.as_ref()?.forced(),
            _ => None,
        }
    }
}

/// The bytes of a token as text. Control tokens are none, except the marks of thoughts.
fn word(tokenizer: &Tokenizer, id: u32) -> Vec<u8> {
    let bytes = tokenizer.token_bytes(id).unwrap_or_default();
    let mark = bytes == THINK.as_bytes() || bytes == END_THINK.as_bytes();
    if tokenizer.is_special(id) && !mark {
        return Vec::new();
    }
    bytes
}

/// What stands behind the closing mark.
fn behind_close(text: &[u8]) -> Option<&[u8]> {
    let mark = END_THINK.as_bytes();
    let at = text.windows(mark.len()).position(|window| window == mark)?;
    text.get(at + mark.len()..)
}

fn is_blank(bytes: &[u8]) -> bool {
    bytes.iter().all(u8::is_ascii_whitespace)
}

/// What closes a thought by force.
const CLOSE: &str = "\n</think>\n\n";
/// Tokens of blanks between a thought and the answer.
const MOST_BLANKS: usize = 4;
/// Bytes that may stand before the mark of a thought, the mark included.
const LONGEST_START: usize = 256;

#[cfg(test)]
mod tests;
