use super::*;
use crate::text::grammar::{Grammar, Grammars};
use crate::text::tests::fixture;

const FORBIDDEN: f32 = f32::NEG_INFINITY;

struct Text {
    tokenizer: Tokenizer,
    grammars: Grammars,
    end: u32,
}

impl Text {
    fn new() -> Self {
        let tokenizer = fixture("qwen");
        let end = tokenizer.token_id("<|im_end|>").unwrap();
        let grammars = Grammars::new(&tokenizer, &[end]).unwrap();
        Self {
            tokenizer,
            grammars,
            end,
        }
    }

    fn constrain(
        &self,
        opening: Opening,
        budget: Option<usize>,
        regex: Option<&str>,
    ) -> Box<dyn Constraint> {
        let grammar = regex.map(|regex| Grammar::Regex(regex.to_owned()));
        self.grammars
            .constrain(opening, budget, grammar.as_ref())
            .unwrap()
            .unwrap()
    }

    fn allowed(&self, rule: &mut dyn Constraint) -> Vec<u32> {
        let mut logits = vec![0.0; self.tokenizer.vocab_size() + 3];
        rule.mask(&mut logits).unwrap();
        (0..logits.len() as u32)
            .filter(|&id| logits[id as usize] > FORBIDDEN)
            .collect()
    }

    fn id(&self, token: &str) -> u32 {
        self.tokenizer.token_id(token).unwrap()
    }

    /// Takes the tokens of a text, each of which must be allowed.
    fn take(&self, rule: &mut dyn Constraint, text: &str) {
        for id in self.tokenizer.encode(text, Controls::Recognised).unwrap() {
            assert!(
                self.allowed(rule).contains(&id),
                "{:?} of {text:?}",
                self.tokenizer.token(id)
            );
            rule.accept(id).unwrap();
        }
    }
}

#[test]
fn a_thought_over_its_budget_is_closed() {
    let text = Text::new();
    let close = text.tokenizer.encode(CLOSE, Controls::Recognised).unwrap();
    for regex in [None, Some("ok")] {
        let mut rule = text.constrain(Opening::Open, Some(3), regex);
        for _ in 0..3 {
            assert_eq!(rule.forced(), None);
            rule.accept(text.id("a")).unwrap();
        }
        for &id in &close {
            assert_eq!(rule.forced(), Some(id));
            assert_eq!(text.allowed(rule.as_mut()), [id]);
            rule.accept(id).unwrap();
        }
        assert!(!rule.finished());
        if regex.is_some() {
            text.take(rule.as_mut(), "ok");
            assert!(rule.finished());
        } else {
            assert!(
                text.allowed(rule.as_mut()).len() > 300,
                "the answer is free"
            );
        }
    }
    let mut rule = text.constrain(Opening::Open, Some(0), None);
    assert_eq!(rule.forced(), close.first().copied());
    assert!(rule.accept(text.id("a")).is_err());
}

#[test]
fn a_thought_within_its_budget_ends_by_itself() {
    let text = Text::new();
    let mut rule = text.constrain(Opening::Open, Some(100), None);
    text.take(rule.as_mut(), "ab</think>");
    for _ in 0..200 {
        assert_eq!(rule.forced(), None);
        rule.accept(text.id("a")).unwrap();
    }
}

#[test]
fn a_rule_holds_behind_the_thought_alone() {
    let text = Text::new();
    let mut rule = text.constrain(Opening::Open, None, Some("o+k"));
    assert!(
        !text.allowed(rule.as_mut()).contains(&text.end),
        "no end within the thought"
    );
    text.take(rule.as_mut(), "anything { </thin </think>");
    assert!(!text.allowed(rule.as_mut()).contains(&text.id("a")));
    text.take(rule.as_mut(), "\n\nook");
    assert!(rule.finished());
}

/// The mark spelt in characters counts too, and no token may begin the answer within it.
#[test]
fn marks_of_several_tokens_close_a_thought() {
    let text = Text::new();
    let mut rule = text.constrain(Opening::Open, None, Some("ok"));
    for character in "a</think".chars() {
        rule.accept(text.id(&character.to_string())).unwrap();
    }
    for id in text.allowed(rule.as_mut()) {
        let bytes = text.tokenizer.token_bytes(id).unwrap_or_default();
        let behind = bytes.strip_prefix(b">");
        assert!(
            behind.is_none_or(is_blank),
            "{:?}",
            text.tokenizer.token(id)
        );
    }
    text.take(rule.as_mut(), ">");
    text.take(rule.as_mut(), "ok");
    assert!(rule.finished());
}

#[test]
fn blanks_between_thought_and_answer_have_a_bound() {
    let text = Text::new();
    let mut rule = text.constrain(Opening::Open, None, Some("ok"));
    text.take(rule.as_mut(), "</think>");
    let blank = text.tokenizer.encode(" ", Controls::Plain).unwrap()[0];
    for _ in 0..MOST_BLANKS {
        assert!(text.allowed(rule.as_mut()).contains(&blank));
        rule.accept(blank).unwrap();
    }
    assert!(!text.allowed(rule.as_mut()).contains(&blank));
    text.take(rule.as_mut(), "ok");
    assert!(rule.finished());
}

#[test]
fn a_thought_may_open_before_a_rule() {
    let text = Text::new();
    let mut rule = text.constrain(Opening::MayOpen, Some(2), Some("ok"));
    let think = text.id("<think>");
    let allowed = text.allowed(rule.as_mut());
    assert!(allowed.contains(&think) && !allowed.contains(&text.id("a")));
    rule.accept(think).unwrap();
    text.take(rule.as_mut(), "ab");
    assert!(rule.forced().is_some());
    let mut rule = text.constrain(Opening::MayOpen, Some(2), Some("ok"));
    text.take(rule.as_mut(), "ok");
    assert!(rule.finished());
    // Without a rule only the budget counts, and only within a thought.
    let mut rule = text.constrain(Opening::MayOpen, Some(1), None);
    for character in "\n<think>".chars() {
        let id = text
            .tokenizer
            .encode(&character.to_string(), Controls::Plain)
            .unwrap()[0];
        assert_eq!(rule.forced(), None);
        rule.accept(id).unwrap();
    }
    rule.accept(text.id("a")).unwrap();
    assert!(rule.forced().is_some());
    let mut rule = text.constrain(Opening::MayOpen, Some(1), None);
    text.take(rule.as_mut(), "<thunder and more");
    assert_eq!(rule.forced(), None);
}

#[test]
fn thoughts_that_are_off_need_no_constraint() {
    let text = Text::new();
    let none = |opening, budget| {
        text.grammars
            .constrain(opening, budget, None)
            .unwrap()
            .is_none()
    };
    assert!(
        none(Opening::Closed, Some(3)) && none(Opening::Open, None) && none(Opening::MayOpen, None)
    );
}
