//! What an answer may be: a rule that forbids tokens before one is chosen.

use crate::Result;

/// A rule over the tokens of one answer, with the state the tokens so far led to.
///
/// Before a token is chosen [`mask`](Self::mask) forbids some; the one that was chosen goes to
/// [`accept`](Self::accept). End tokens are part of the rule: they are allowed where the answer may
/// end, and nothing but them where it must.
pub trait Constraint: Send {
    /// Sets the logits of forbidden tokens to negative infinity; the others stay as they are.
    ///
    /// # Errors
    /// When the rule cannot go on, as after a limit on its work; the request then fails.
    fn mask(&mut self, logits: &mut [f32]) -> Result<()>;

    /// Takes the token that was chosen.
    ///
    /// # Errors
    /// When the token is one that [`mask`](Self::mask) forbids.
    fn accept(&mut self, token: u32) -> Result<()>;

    /// Whether the answer is complete and nothing may follow.
    fn finished(&self) -> bool;

    /// The only token that may come next, where that is known without a search.
    fn forced(&self) -> Option<u32> {
        None
    }
}
