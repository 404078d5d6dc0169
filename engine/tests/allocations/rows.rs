//! More rows at once never cost more than they bring: tokens a second rise with the rows of a linear layer, and there
//! is no cliff from one number of rows to the next.

use std::time::{Duration, Instant};

use cider::{CpuBackend, Isa};
use cider_kernels::{
    Activations, Backend, DType, Format, LinearArgs, LinearInput, QuantizedRows, RowSource, Tensor,
    Weights,
};

/// Checks INT8 and float activations.
pub(super) fn check() {
    let backend = CpuBackend::new(Isa::best(), 1).unwrap();
    let mut weights = backend.weights(Format::W8 { group: 0 }, N, K).unwrap();
    let read = |row: usize, out: &mut [f32]| {
        for (k, value) in out.iter_mut().enumerate() {
            *value = ((row * 31 + k * 17) % 255) as f32 - 127.0;
        }
    };
    let source = RowSource::Floats {
        read: &read,
        clip_percentile: None,
    };
    backend.fill_weights(&mut weights, 0, N, source).unwrap();
    for activations in [Activations::Int8, Activations::Float] {
        for attempt in 1.. {
            let rates = rates(&backend, &weights, activations);
            println!("{activations:?}, attempt {attempt}: tokens a second by rows {rates:.0?}");
            let falls = rates.windows(2).find(|pair| {
                // A cliff: rows computed one by one, or weights read for each. Tests check every addition for
                // overflow, which costs blocks of many rows a part that the program does not pay.
                pair[1].1 < 0.5 * pair[0].1
            });
            let Some(falls) = falls else { break };
            assert!(
                attempt < ATTEMPTS,
                "{activations:?}: {falls:.0?} of {rates:.0?}"
            );
        }
        let rates = rates(&backend, &weights, activations);
        // Rows share what is read of the weights: many are worth more than one, or they were computed one by one.
        assert!(
            rates[ROWS.len() - 1].1 > 1.2 * rates[0].1,
            "{activations:?}: {rates:.0?}"
        );
    }
}

/// Rows, and tokens a second with them.
fn rates(
    backend: &CpuBackend,
    weights: &Weights,
    activations: Activations,
) -> [(usize, f64); ROWS.len()] {
    let mut works = ROWS.map(|rows| Work::new(backend, rows, activations));
    let mut shortest = [Duration::MAX; ROWS.len()];
    // In turn, so that a busy moment is everybody's.
    for _ in 0..ROUNDS {
        for (work, shortest) in works.iter_mut().zip(&mut shortest) {
            *shortest = (*shortest).min(work.time(backend, weights));
        }
    }
    let mut rates = [(0, 0.0); ROWS.len()];
    for (i, rate) in rates.iter_mut().enumerate() {
        *rate = (ROWS[i], ROWS[i] as f64 / shortest[i].as_secs_f64());
    }
    rates
}

/// A linear layer with its rows.
struct Work {
    x: Tensor,
    quantized: Option<QuantizedRows>,
    out: Tensor,
}

impl Work {
    fn new(backend: &CpuBackend, rows: usize, activations: Activations) -> Self {
        let values: Vec<_> = (0..rows * K).map(|i| (i % 97) as f32 - 48.0).collect();
        let x = Tensor::from_slice(&values, rows, K).unwrap();
        let quantized =
            (activations == Activations::Int8).then(|| backend.quantized_rows(rows, K).unwrap());
        Self {
            x,
            quantized,
            out: Tensor::zeros(DType::F32, rows, N).unwrap(),
        }
    }

    fn time(&mut self, backend: &CpuBackend, weights: &Weights) -> Duration {
        let started = Instant::now();
        let input = match &mut self.quantized {
            Some(rows) => {
                backend.quantize(self.x.view(), rows).unwrap();
                LinearInput::Int8(rows)
            }
            None => LinearInput::Float(self.x.view()),
        };
        let args = LinearArgs {
            input,
            weights,
            out: self.out.view_mut(),
        };
        backend.linear(args).unwrap();
        started.elapsed()
    }
}

/// Numbers of rows: those of the field's reports, with their neighbours.
const ROWS: [usize; 8] = [1, 2, 4, 8, 9, 32, 33, 512];

/// Output features.
const N: usize = 4096;

/// Input features.
const K: usize = 1024;

/// Times that everybody is measured.
const ROUNDS: usize = 12;

/// Tries until a busy machine is no excuse.
const ATTEMPTS: usize = 5;
