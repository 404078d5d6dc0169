//! A compiled grammar and the place in it that an answer has reached.

use llguidance::Matcher;

use super::refused;
use crate::generate::Constraint;
use crate::{Error, Result};

/// Follows an answer through a grammar.
pub(crate) struct GrammarConstraint {
    kind: &'static str,
    matcher: Matcher,
    ended: bool,
}

impl GrammarConstraint {
    pub(super) fn new(kind: &'static str, matcher: Matcher) -> Self {
        Self {
            kind,
            matcher,
            ended: false,
        }
    }
}

impl Constraint for GrammarConstraint {
    fn mask(&mut self, logits: &mut [f32]) -> Result<()> {
        let allowed = self
            .matcher
            .compute_mask_or_eos()
            .map_err(|error| refused(self.kind, &error.to_string()))?;
        for (words, logits) in allowed
            .as_slice()
            .iter()
            .zip(logits.chunks_mut(u32::BITS as usize))
        {
            for (bit, logit) in logits.iter_mut().enumerate() {
                if words >> bit & 1 == 0 {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
        let known = allowed.len().min(logits.len());
        logits[known..].fill(f32::NEG_INFINITY);
        Ok(())
    }

    fn accept(&mut self, token: u32) -> Result<()> {
        if self.finished() {
            let what = format!("token {token} after the end of the answer");
            return Err(Error::Grammar {
                kind: self.kind,
                what,
            });
        }
        self.matcher
            .consume_token(token)
            .map_err(|error| refused(self.kind, &error.to_string()))?;
        self.ended = self.matcher.is_stopped();
        Ok(())
    }

    fn finished(&self) -> bool {
        self.ended
    }
}
