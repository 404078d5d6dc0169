//! candle as a peer: dense and quantised linears, through the protocol of `../README.md`.

use std::error::Error;
use std::fs;
use std::hint::black_box;
use std::io::{self, BufRead, Write};
use std::thread::sleep;
use std::time::{Duration, Instant};

use candle_core::quantized::{GgmlDType, QMatMul, QTensor};
use candle_core::{DType, Device, Module, Tensor};
use serde_json::{Value, json};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let threads = limit_threads()?;
    let variants = chosen_variants()?;
    let mut replies = io::stdout();
    let hello = json!({
        "peer": "candle",
        "version": CANDLE_VERSION,
        "threads": threads,
        "variants": {"linear": variants},
    });
    writeln!(replies, "{hello}")?;
    let mut linear = None;
    for line in io::stdin().lock().lines() {
        let reply = answer(&mut linear, &line?).unwrap_or_else(|error| {
            // What fails before there is anything to run is what candle cannot do.
            let key = if linear.is_none() {
                "unsupported"
            } else {
                "error"
            };
            json!({key: format!("failed: {error}")})
        });
        writeln!(replies, "{reply}")?;
        replies.flush()?;
    }
    Ok(())
}

/// Gives every pool of candle as many threads as the peers have, and says how many.
fn limit_threads() -> Result<usize> {
    let threads = std::env::var("CIDER_PEER_THREADS").map_or(Ok(2), |text| text.parse())?;
    // SAFETY: this is the first thing the program does, and it has one thread.
    unsafe { std::env::set_var("RAYON_NUM_THREADS", threads.to_string()) };
    rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build_global()?;
    Ok(threads)
}

/// The variants that the arguments name, or all of them.
fn chosen_variants() -> Result<Vec<String>> {
    let names: Vec<String> = std::env::args().skip(1).collect();
    if let Some(unknown) = names
        .iter()
        .find(|name| VARIANTS.iter().all(|(known, _)| name != known))
    {
        return Err(format!("no such variant: {unknown}").into());
    }
    if names.is_empty() {
        return Ok(VARIANTS.map(|(name, _)| name.to_owned()).to_vec());
    }
    Ok(names)
}

fn answer(linear: &mut Option<Linear>, line: &str) -> Result<Value> {
    let request: Value = serde_json::from_str(line)?;
    if request["op"] == "prepare" {
        // Two sets of weights at once may be more than the memory holds.
        *linear = None;
        let Some(kind) = kind_of(&request) else {
            let reason = format!("no {} variant {}", request["work"], request["variant"]);
            return Ok(json!({"unsupported": reason}));
        };
        let prepared = Linear::new(&request, kind)?;
        prepared.write_answer(text(&request, "out")?)?;
        *linear = Some(prepared);
        return Ok(json!({"ready": true}));
    }
    let Some(linear) = linear.as_ref() else {
        return Ok(json!({"error": "run before a prepare that worked"}));
    };
    let seconds = (0..number(&request, "repetitions")?)
        .map(|turn| linear.timed(turn))
        .collect::<Result<Vec<f64>>>()?;
    sleep(SETTLE);
    Ok(json!({"seconds": seconds}))
}

fn kind_of(request: &Value) -> Option<Kind> {
    let named = VARIANTS
        .iter()
        .find(|(name, _)| request["variant"] == *name);
    named
        .filter(|_| request["work"] == "linear")
        .map(|(_, kind)| *kind)
}

#[derive(Clone, Copy)]
enum Kind {
    Dense(DType),
    /// The input is quantised in groups of 32 at each call.
    Quantized(GgmlDType),
}

/// A linear layer with its input and some copies of its weights.
struct Linear {
    input: Tensor,
    weights: Vec<Weights>,
}

enum Weights {
    Dense(Tensor),
    Quantized(QMatMul),
}

impl Linear {
    fn new(request: &Value, kind: Kind) -> Result<Self> {
        let (m, n, k) = (
            number(request, "m")?,
            number(request, "n")?,
            number(request, "k")?,
        );
        let input = read(text(request, "input")?, m, k)?;
        let weights = read(text(request, "weights")?, n, k)?;
        let copies = request["copies"].as_u64().unwrap_or(1);
        Ok(Self {
            input: match kind {
                Kind::Dense(dtype) => input.to_dtype(dtype)?,
                Kind::Quantized(_) => input,
            },
            weights: (0..copies)
                .map(|_| Weights::new(&weights, kind))
                .collect::<Result<_>>()?,
        })
    }

    fn timed(&self, turn: usize) -> Result<f64> {
        let weights = &self.weights[turn % self.weights.len()];
        let start = Instant::now();
        let result = weights.forward(&self.input)?;
        let seconds = start.elapsed().as_secs_f64();
        black_box(result);
        Ok(seconds)
    }

    /// Runs every copy once, since the first call may do more than the others, and writes the last result.
    fn write_answer(&self, path: &str) -> Result<()> {
        for turn in 0..self.weights.len() {
            self.timed(turn)?;
        }
        let result = self.weights[0].forward(&self.input)?.to_dtype(DType::F32)?;
        let values = result.flatten_all()?.to_vec1::<f32>()?;
        let bytes: Vec<u8> = values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect();
        Ok(fs::write(path, bytes)?)
    }
}

impl Weights {
    fn new(weights: &Tensor, kind: Kind) -> Result<Self> {
        Ok(match kind {
            // `copy` has memory of its own, also where the type stays the same.
            Kind::Dense(dtype) => Self::Dense(weights.to_dtype(dtype)?.copy()?),
            Kind::Quantized(format) => {
                Self::Quantized(QMatMul::from_qtensor(QTensor::quantize(weights, format)?)?)
            }
        })
    }

    fn forward(&self, input: &Tensor) -> candle_core::Result<Tensor> {
        match self {
            Self::Dense(weights) => input.matmul(&weights.t()?),
            Self::Quantized(product) => product.forward(input),
        }
    }
}

/// The matrix of `rows` by `columns` values in the file.
fn read(path: &str, rows: usize, columns: usize) -> Result<Tensor> {
    let bytes = fs::read(path)?;
    let values: Vec<f32> = bytes
        .as_chunks()
        .0
        .iter()
        .map(|value| f32::from_le_bytes(*value))
        .collect();
    Ok(Tensor::from_vec(values, (rows, columns), &Device::Cpu)?)
}

fn text<'a>(request: &'a Value, key: &str) -> Result<&'a str> {
    request[key]
        .as_str()
        .ok_or_else(|| format!("request without a text {key}").into())
}

fn number(request: &Value, key: &str) -> Result<usize> {
    let number = request[key]
        .as_u64()
        .ok_or_else(|| format!("request without a number {key}"))?;
    Ok(usize::try_from(number)?)
}

const CANDLE_VERSION: &str = "0.11.1";

const VARIANTS: [(&str, Kind); 4] = [
    ("fp32", Kind::Dense(DType::F32)),
    ("fp16", Kind::Dense(DType::F16)),
    ("q8_0", Kind::Quantized(GgmlDType::Q8_0)),
    ("q4_0", Kind::Quantized(GgmlDType::Q4_0)),
];

/// Threads that wait in a busy loop have left it after this, and take no core from whoever is measured next.
const SETTLE: Duration = Duration::from_millis(50);
