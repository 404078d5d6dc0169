//! Requests, and when they are made.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cider::image::ImageLimits;
use hyper::body::Bytes;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::super::values::mix;
use super::client::{Failure, Reply, Target};
use crate::failure::Usage;

/// What the requests are like.
#[derive(Clone, Debug)]
pub(super) struct Requests {
    /// Words of a prompt, those that are shared included.
    pub(super) words: usize,
    pub(super) shared: usize,
    pub(super) tokens: usize,
    pub(super) image: Option<[usize; 2]>,
    pub(super) seed: u64,
}

/// When requests are made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Shape {
    /// So many clients ask, each again once it has its answer.
    Clients(usize),
    /// So many requests a second at random moments, whatever the server does.
    Rate(f64),
}

/// What came of a load.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) seconds: f64,
    pub(super) replies: Vec<Result<Reply, Failure>>,
}

impl Requests {
    /// Refuses pictures that are too large.
    pub(super) fn check(&self) -> Result<()> {
        let limit = ImageLimits::default().pixels;
        if let Some([width, height]) = self.image {
            let pixels = width as u64 * height as u64;
            let what = format!("--image: {pixels} pixels, expected at most {limit}");
            ensure!(pixels <= limit, Usage(what));
        }
        Ok(())
    }

    /// The requests of a load; those of another load are others.
    pub(super) fn of_load(&self, model: &str, load: usize, count: usize) -> Vec<Bytes> {
        let body = |number| {
            self.body(
                model,
                mix(self.seed ^ mix((load << 32 | number) as u64 + 1)),
            )
        };
        (0..count).map(body).collect()
    }

    fn body(&self, model: &str, seed: u64) -> Bytes {
        let shared = self.shared.min(self.words);
        let mut words = words(mix(self.seed), shared);
        words.extend(self::words(seed, self.words - shared));
        let text = words.join(" ");
        let content = match self.image {
            None => Value::from(text),
            Some(size) => {
                let url = format!(
                    "data:image/bmp;base64,{}",
                    STANDARD.encode(picture(size, seed))
                );
                json!([{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": text}])
            }
        };
        let body = json!({
            "model": model, "messages": [{"role": "user", "content": content}], "max_tokens": self.tokens,
            "temperature": 0, "ignore_eos": true, "stream": true, "stream_options": {"include_usage": true},
        });
        body.to_string().into()
    }
}

/// Makes the requests and waits for all that comes of them.
pub(super) async fn run(
    target: &Target,
    shape: Shape,
    bodies: Vec<Bytes>,
    (seed, limit): (u64, Duration),
) -> Outcome {
    let began = Instant::now();
    let mut tasks = JoinSet::new();
    match shape {
        Shape::Clients(clients) => {
            let (bodies, next) = (Arc::new(bodies), Arc::new(AtomicUsize::new(0)));
            for _ in 0..clients {
                let (target, bodies, next) =
                    (target.clone(), Arc::clone(&bodies), Arc::clone(&next));
                tasks.spawn(async move {
                    let mut replies = Vec::new();
                    while let Some(body) = bodies.get(next.fetch_add(1, Ordering::Relaxed)) {
                        replies.push(target.ask(body.clone(), Instant::now(), limit).await);
                    }
                    replies
                });
            }
        }
        Shape::Rate(rate) => {
            for (body, at) in bodies.into_iter().zip(arrivals(rate, seed)) {
                let (target, due) = (target.clone(), began + at);
                tasks.spawn(async move {
                    tokio::time::sleep_until(due.into()).await;
                    vec![target.ask(body, due, limit).await]
                });
            }
        }
    }
    let replies = tasks.join_all().await.concat();
    Outcome {
        seconds: began.elapsed().as_secs_f64(),
        replies,
    }
}

/// Moments of a Poisson process: the times between them are independent and exponentially distributed.
fn arrivals(rate: f64, seed: u64) -> impl Iterator<Item = Duration> {
    let mut at = 0.0;
    (0u64..).map(move |number| {
        let random = mix(seed ^ mix(number + 1)) >> 11;
        // In [0, 1), in steps that f64 holds.
        let share = random as f64 / (1u64 << 53) as f64;
        at -= (1.0 - share).ln() / rate;
        Duration::from_secs_f64(at)
    })
}

/// Words in an order that looks random.
fn words(seed: u64, count: usize) -> Vec<&'static str> {
    let word =
        |number: usize| WORDS[(mix(seed ^ mix(number as u64)) % WORDS.len() as u64) as usize];
    (0..count).map(word).collect()
}

/// A picture of coloured squares as a BMP file.
fn picture([width, height]: [usize; 2], seed: u64) -> Vec<u8> {
    let row = (3 * width).next_multiple_of(4);
    let size = HEADER + row * height;
    let mut bytes = Vec::with_capacity(size);
    bytes.extend(b"BM");
    let fields = [
        size,
        0,
        HEADER,
        40,
        width,
        height,
        1 | 24 << 16,
        0,
        row * height,
        2835,
        2835,
        0,
        0,
    ];
    for field in fields {
        bytes.extend((field as u32).to_le_bytes());
    }
    for y in 0..height {
        for x in 0..width {
            let colour = mix(seed ^ mix((y / SQUARE * width + x / SQUARE) as u64));
            bytes.extend_from_slice(&colour.to_le_bytes()[..3]);
        }
        bytes.resize(HEADER + row * (y + 1), 0);
    }
    bytes
}

/// Bytes in front of the pixels.
const HEADER: usize = 54;
/// The side of a square of one colour.
const SQUARE: usize = 16;

/// Words that are one token in most vocabularies.
const WORDS: [&str; 48] = [
    "time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world",
    "school", "state", "family", "student", "group", "country", "problem", "hand", "part", "place",
    "case", "week", "company", "system", "program", "question", "work", "number", "night", "point",
    "home", "water", "room", "mother", "area", "money", "story", "fact", "month", "lot", "right",
    "study", "book", "eye", "job", "word", "business",
];

#[cfg(test)]
mod tests {
    use cider::image::{ImageSize, ImageSource};

    use super::*;

    fn requests(image: Option<[usize; 2]>) -> Requests {
        Requests {
            words: 40,
            shared: 10,
            tokens: 3,
            image,
            seed: 7,
        }
    }

    fn text(body: &Bytes) -> String {
        let body: Value = serde_json::from_slice(body).unwrap();
        body["messages"][0]["content"].as_str().unwrap().to_owned()
    }

    #[test]
    fn requests_are_the_same_in_each_run_and_all_different() {
        let all = |seed| {
            let requests = Requests {
                seed,
                ..requests(None)
            };
            [0, 1].map(|load| requests.of_load("m", load, 20)).concat()
        };
        assert_eq!(all(7), all(7));
        assert_ne!(all(7), all(8));
        let mut texts: Vec<String> = all(7).iter().map(text).collect();
        let begin: Vec<&str> = texts[0].split(' ').take(10).collect();
        assert!(texts.iter().all(|text| text.starts_with(&begin.join(" "))));
        assert!(texts.iter().all(|text| text.split(' ').count() == 40));
        texts.sort_unstable();
        texts.dedup();
        assert_eq!(texts.len(), 40);
    }

    #[test]
    fn pictures_can_be_read() {
        let bytes = picture([33, 20], 5);
        assert_eq!(bytes.len(), HEADER + 100 * 20);
        let source = ImageSource::Bytes {
            name: "a".to_owned(),
            bytes,
        };
        let image = source.decode(0, &ImageLimits::default()).unwrap();
        assert_eq!(
            image.size(),
            ImageSize {
                height: 20,
                width: 33
            }
        );
        assert!(
            requests(Some([1 << 15, 1 << 15]))
                .check()
                .unwrap_err()
                .is::<Usage>()
        );
        let body: Value =
            serde_json::from_slice(&requests(Some([8, 8])).of_load("m", 0, 1)[0]).unwrap();
        let url = body["messages"][0]["content"][0]["image_url"]["url"]
            .as_str()
            .unwrap();
        assert!(url.starts_with("data:image/bmp;base64,Qk"), "{url}");
    }

    #[test]
    fn arrivals_have_the_rate_that_was_asked_for() {
        let last = arrivals(50.0, 3).nth(9_999).unwrap().as_secs_f64();
        assert!((last - 200.0).abs() < 8.0, "{last}");
        let two: Vec<_> = arrivals(5.0, 1).take(50).collect();
        assert!(two.is_sorted());
        assert_eq!(two, arrivals(5.0, 1).take(50).collect::<Vec<_>>());
        // Of an exponential distribution, 1 - 1/e are below its mean.
        let gaps: Vec<f64> = arrivals(1.0, 9)
            .take(4000)
            .map(|at| at.as_secs_f64())
            .collect();
        let below = gaps.windows(2).filter(|two| two[1] - two[0] < 1.0).count();
        assert!((below as f64 / 3999.0 - 0.632).abs() < 0.03, "{below}");
    }
}
