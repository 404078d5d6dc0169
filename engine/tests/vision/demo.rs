//! The model that ships, on the held-out questions of `testdata/vl/heldout`.

use cider::{DType, Quantization, Scheme};

use crate::score::{Questions, Way, open};
use crate::support::repository;

fn questions() -> Questions {
    Questions::read(&repository("testdata/vl/heldout")).unwrap()
}

/// How many of the answers are `expected`; the others are printed.
fn right(scheme: Scheme, dtype: DType, way: Way, expected: fn(usize, &Questions) -> &str) -> usize {
    let questions = questions();
    assert_eq!(questions.0.len(), 40);
    let model = repository("models/demo-vlm");
    let mut engine = open(&model, Quantization::of(scheme), dtype).unwrap();
    let count = (0..questions.0.len()).filter(|&number| {
        let found = questions.ask(&mut engine, number, way).unwrap();
        let expected = expected(number, &questions);
        if found != expected && way == Way::Shown {
            let question = &questions.0[number];
            println!(
                "{} {:?}: {found:?}, not {expected:?}",
                question.kind, question.text
            );
        }
        found == expected
    });
    count.count()
}

fn reference(number: usize, questions: &Questions) -> &str {
    questions.0[number].reference.as_deref().unwrap()
}

fn truth(number: usize, questions: &Questions) -> &str {
    &questions.0[number].answer
}

#[test]
fn answers_are_those_of_the_reference() {
    assert_eq!(right(Scheme::None, DType::F32, Way::Shown, reference), 40);
}

#[test]
fn answers_in_bf16_are_those_of_the_reference() {
    let same = right(Scheme::None, DType::Bf16, Way::Shown, reference);
    println!("{same} of 40 with none, bf16");
    assert!(same >= 39, "{same} of 40");
}

#[test]
fn quantised_answers_are_nearly_those_of_the_reference() {
    let same = right(Scheme::W8A8, DType::Bf16, Way::Shown, reference);
    println!("{same} of 40 with w8a8, bf16");
    assert!(same >= 38, "{same} of 40");
}

#[test]
fn nothing_is_known_without_the_picture() {
    let shown = right(Scheme::None, DType::F32, Way::Shown, truth);
    for way in [Way::Blank, Way::Swapped] {
        let right = right(Scheme::None, DType::F32, way, truth);
        println!("{right} right answers with {way:?} pictures, {shown} with their own");
        assert!(2 * right <= shown, "{right} of {shown}");
    }
}
