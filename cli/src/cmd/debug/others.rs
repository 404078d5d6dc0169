//! The sequences of `--batch-with`: they keep the sequence that is looked at company in every step.

use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use cider::files::{self, shown};
use cider::generate::{Logits, Runner, Sequence, Work};

/// A sequence that runs beside another one, again and again. Its first half is its prompt.
pub(super) struct Other {
    sequence: Sequence,
    rows: usize,
}

impl Other {
    /// Rows it takes of a step at most.
    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    /// Tokens it has.
    pub(super) fn len(&self) -> usize {
        self.sequence.tokens().len()
    }

    /// Computes its prompt in steps of its own, so that it generates while the others still read.
    pub(super) fn run_prompt(&mut self, runner: &mut Runner) -> Result<()> {
        while self.sequence.computed() < self.sequence.prompt().len() {
            let left = self.sequence.prompt().len() - self.sequence.computed();
            let tokens = left.min(self.rows);
            runner.step(&mut [Work {
                sequence: &mut self.sequence,
                tokens,
                logits: Logits::None,
            }])?;
        }
        Ok(())
    }

    /// Begins anew where it has come to its end.
    pub(super) fn restart_at_end(&mut self, runner: &mut Runner) {
        if self.sequence.computed() == self.len() {
            runner.release(&mut self.sequence);
        }
    }

    /// What it computes in the next step: more of its prompt, running over into what counts as generated, or one
    /// generated token.
    pub(super) fn work(&mut self) -> Work<'_> {
        let (computed, prompt) = (self.sequence.computed(), self.sequence.prompt().len());
        let tokens = if computed < prompt {
            self.rows.min(self.len() - computed)
        } else {
            1
        };
        Work {
            sequence: &mut self.sequence,
            tokens,
            logits: Logits::Last,
        }
    }
}

/// Reads the file, whose ids must be of the vocabulary: a JSON list of lists, or a line of ids with commas for each sequence.
pub(super) fn read(path: &Path, chunk: usize, vocabulary: usize) -> Result<Vec<Other>> {
    let name = shown(path);
    let bytes = files::read(path, MAX_BYTES).with_context(|| name.to_string())?;
    let text = String::from_utf8(bytes).with_context(|| name.to_string())?;
    let lists = if text.trim_start().starts_with('[') {
        serde_json::from_str(&text).with_context(|| name.to_string())?
    } else {
        parse_lines(&text).with_context(|| name.to_string())?
    };
    ensure!(!lists.is_empty(), "{name}: no sequence in it");
    ensure!(
        lists.len() <= MOST,
        "{name}: {} sequences, the limit is {MOST}",
        lists.len()
    );
    let mut others = Vec::new();
    for (index, ids) in lists.iter().enumerate() {
        ensure!(
            !ids.is_empty(),
            "{name}: sequence {} has no tokens",
            index + 1
        );
        if let Some((place, id)) = (1..).zip(ids).find(|(_, id)| **id as usize >= vocabulary) {
            bail!(
                "{name}: sequence {}: id {id} in place {place} is outside the vocabulary of {vocabulary}",
                index + 1
            );
        }
        others.push(Other {
            sequence: Sequence::with_prompt(ids, ids.len().div_ceil(2), ids.len()),
            rows: ids.len().min(chunk),
        });
    }
    Ok(others)
}

fn parse_lines(text: &str) -> Result<Vec<Vec<u32>>> {
    let mut lists = Vec::new();
    for (number, line) in text
        .lines()
        .enumerate()
        .filter(|(_, line)| !line.trim().is_empty())
    {
        let ids = line.split(',').map(|id| id.trim().parse());
        match ids.collect() {
            Ok(ids) => lists.push(ids),
            Err(_) => bail!(
                "line {}: expected ids with commas between, found {line}",
                number + 1
            ),
        }
    }
    Ok(lists)
}

/// The largest file that is read: ids of far more tokens than fit any context.
const MAX_BYTES: u64 = 64 << 20;

/// Sequences at most: their rows must fit one step.
const MOST: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_lists_of_ids() {
        assert_eq!(
            parse_lines("1, 2,3\n\n4\n").unwrap(),
            [vec![1, 2, 3], vec![4]]
        );
        let error = parse_lines("1\n2,x\n").unwrap_err().to_string();
        assert!(error.contains("line 2") && error.contains("2,x"), "{error}");
    }
}
