//! Asks a vision-language model the questions of a folder and counts the right answers: with the pictures as they
//! are, with grey ones of the same sizes, and with those of another question of the same kind. The last two show what
//! words alone give.
//!
//! ```text
//! python tools/heldout_questions.py make OUT
//! cargo run --release -p cider --example score -- models/demo-vlm OUT RECORD.json none:f32 none:bf16 w8a8:bf16
//! ```
//!
//! A line of `questions.jsonl` has `kind`, `images`, `question` and `answer`; an answer counts when it is equal to
//! the letter. Where a `reference.jsonl` lies beside it, answers are compared with those too.

use std::collections::BTreeMap;
use std::error::Error;
use std::io::{self, Write};
use std::path::Path;
use std::{env, fs};

use cider::generate::{RunnerOptions, SamplingParams};
use cider::image::{ImageLimits, ImageSource, RgbImage};
use cider::ops::default_backend;
use cider::text::{Content, Message, Part, RenderOptions, Role};
use cider::{DType, Engine, EngineOptions, ImageTimes, Quantization, Request};
use serde_json::{Map, Value, json};

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> Outcome<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [model, folder, record, runs @ ..] = &arguments[..] else {
        return Err(
            "expected a model, a folder of questions, a file to write, and runs such as w8a8:bf16"
                .into(),
        );
    };
    let questions = Questions::read(Path::new(folder))?;
    let mut results = Map::new();
    for run in runs {
        let (scheme, dtype) = run.split_once(':').unwrap_or((run, "bf16"));
        let mut engine = open(
            Path::new(model),
            Quantization::of(scheme.parse()?),
            dtype_named(dtype)?,
        )?;
        let result = questions.score(&mut engine)?;
        writeln!(io::stdout(), "{run} {}", result["accuracy"]["all"])?;
        results.insert(run.clone(), result);
    }
    let record_text = json!({"command": format!("score {}", arguments.join(" ")), "runs": results});
    fs::write(record, format!("{record_text:#}\n"))?;
    Ok(())
}

/// Opens a model on the processor.
pub(crate) fn open(model: &Path, quantization: Quantization, dtype: DType) -> Outcome<Engine> {
    let runner = RunnerOptions {
        quantization,
        dtype,
        context: Some(2048),
        ..RunnerOptions::default()
    };
    let options = EngineOptions {
        runner,
        ..EngineOptions::default()
    };
    Ok(Engine::open(
        model,
        default_backend()?,
        &options,
        &mut |_| {},
    )?)
}

/// What a question is shown with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Its own pictures.
    Shown,
    /// Grey ones of the same sizes.
    Blank,
    /// Those of the next question of its kind with as many.
    Swapped,
}

impl Way {
    pub(crate) const ALL: [Self; 3] = [Self::Shown, Self::Blank, Self::Swapped];
}

/// A question with its pictures and its answers.
pub(crate) struct Question {
    pub(crate) kind: String,
    pub(crate) text: String,
    pub(crate) answer: String,
    /// What the reference says.
    pub(crate) reference: Option<String>,
    pictures: Vec<RgbImage>,
    /// The question whose pictures are shown in place of its own.
    other: usize,
}

/// The questions of a folder.
pub(crate) struct Questions(pub(crate) Vec<Question>);

impl Questions {
    pub(crate) fn read(folder: &Path) -> Outcome<Self> {
        let references = references(folder)?;
        let mut questions = Vec::new();
        for line in fs::read_to_string(folder.join("questions.jsonl"))?.lines() {
            questions.push(Question::read(
                folder,
                &serde_json::from_str(line)?,
                &references,
            )?);
        }
        let mut alike: BTreeMap<(String, usize), Vec<usize>> = BTreeMap::new();
        for (i, question) in questions.iter().enumerate() {
            let key = (question.kind.clone(), question.pictures.len());
            alike.entry(key).or_default().push(i);
        }
        for group in alike.values() {
            for (&i, &other) in group.iter().zip(group.iter().cycle().skip(1)) {
                questions[i].other = other;
            }
        }
        Ok(Self(questions))
    }

    /// The model's answer to one question.
    pub(crate) fn ask(&self, engine: &mut Engine, number: usize, way: Way) -> Outcome<String> {
        let question = &self.0[number];
        let pictures = match way {
            Way::Shown => question.pictures.clone(),
            Way::Swapped => self.0[question.other].pictures.clone(),
            Way::Blank => {
                let grey = |picture: &RgbImage| {
                    RgbImage::new(picture.size(), vec![128; picture.bytes().len()])
                };
                question
                    .pictures
                    .iter()
                    .map(grey)
                    .collect::<Result<_, _>>()?
            }
        };
        answer(engine, &question.text, &pictures)
    }

    /// Right answers per kind and for all, and how many are those of the reference.
    fn score(&self, engine: &mut Engine) -> Outcome<Value> {
        let mut right: BTreeMap<&str, [usize; 4]> = BTreeMap::new();
        let (mut same, mut known) = (0, 0);
        let mut wrong = Vec::new();
        for (number, question) in self.0.iter().enumerate() {
            let row = right.entry(&question.kind).or_default();
            row[3] += 1;
            for (i, way) in Way::ALL.into_iter().enumerate() {
                let given = self.ask(engine, number, way)?;
                row[i] += usize::from(given == question.answer);
                if way == Way::Shown {
                    known += usize::from(question.reference.is_some());
                    same += usize::from(question.reference.as_ref() == Some(&given));
                    if given != question.answer {
                        wrong.push(json!({"kind": question.kind, "question": question.text, "answer": question.answer, "given": given}));
                    }
                }
            }
        }
        let all = right
            .values()
            .fold([0; 4], |sum, row| std::array::from_fn(|i| sum[i] + row[i]));
        let rows = [("all", all)].into_iter().chain(right);
        let accuracy: Map<String, Value> = rows
            .map(|(kind, row)| (kind.to_owned(), counts(row)))
            .collect();
        Ok(json!({
            "accuracy": accuracy,
            "answers_of_the_reference": {"equal": same, "of": known},
            "weight_bytes": engine.runner().weight_bytes(),
            "wrong": wrong,
        }))
    }
}

impl Question {
    fn read(folder: &Path, line: &Value, references: &BTreeMap<String, String>) -> Outcome<Self> {
        let text = |key: &str| line[key].as_str().map(str::to_owned);
        let names = line["images"]
            .as_array()
            .ok_or("a question without images")?;
        let mut pictures = Vec::new();
        for (i, name) in names.iter().filter_map(Value::as_str).enumerate() {
            pictures.push(ImageSource::Path(folder.join(name)).decode(i, &ImageLimits::default())?);
        }
        let id = text("id").unwrap_or_default();
        Ok(Self {
            kind: text("kind").ok_or("a question without a kind")?,
            text: text("question").ok_or("a line without a question")?,
            answer: text("answer").ok_or("a question without an answer")?,
            reference: text("reference").or_else(|| references.get(&id).cloned()),
            pictures,
            other: 0,
        })
    }
}

/// One user turn: the pictures, then the question; greedily answered.
pub(crate) fn answer(
    engine: &mut Engine,
    question: &str,
    pictures: &[RgbImage],
) -> Outcome<String> {
    let images = pictures.iter().map(|_| Part::Image);
    let text = Part::Text {
        text: question.to_owned(),
    };
    let mut message = Message::new(Role::User, "");
    message.content = Content::Parts(images.chain([text]).collect());
    let prompt = engine.chat_prompt(&[message], &RenderOptions::default())?;
    let (prompt, images) = engine.see(&prompt, pictures, &mut ImageTimes::default())?;
    let request = Request {
        images,
        sampling: SamplingParams {
            temperature: 0.0,
            ..SamplingParams::default()
        },
        max_tokens: Some(200),
        ..Request::new(prompt)
    };
    Ok(engine.generate(&request, &mut |_| {})?.text)
}

fn counts([shown, blank, swapped, questions]: [usize; 4]) -> Value {
    json!({"shown": shown, "blank": blank, "swapped": swapped, "questions": questions})
}

fn references(folder: &Path) -> Outcome<BTreeMap<String, String>> {
    let Ok(text) = fs::read_to_string(folder.join("reference.jsonl")) else {
        return Ok(BTreeMap::new());
    };
    let mut references = BTreeMap::new();
    for line in text.lines() {
        let line: Value = serde_json::from_str(line)?;
        if let (Some(id), Some(shown)) = (line["id"].as_str(), line["shown"].as_str()) {
            references.insert(id.to_owned(), shown.to_owned());
        }
    }
    Ok(references)
}

fn dtype_named(name: &str) -> Outcome<DType> {
    match name {
        "f32" => Ok(DType::F32),
        "bf16" => Ok(DType::Bf16),
        _ => Err(format!("activations are bf16 or f32, got {name}").into()),
    }
}
