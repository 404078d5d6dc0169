//! Quantises a random weight and compares the layers made of it with f32: error, size, speed.
//!
//! ```text
//! cargo run --release -p cider --example linear [M N K]
//! ```

use std::error::Error;
use std::io::{self, Write};
use std::time::{Duration, Instant};

use cider::ops::Matrix;
use cider::{Activations, CiderLinear, W4A8Linear, is_available};

fn main() -> Result<(), Box<dyn Error>> {
    let sizes = std::env::args().skip(1).map(|text| text.parse());
    let sizes = sizes.collect::<Result<Vec<usize>, _>>()?;
    let sizes = match sizes[..] {
        [] => [64, 1024, 1024],
        [m, n, k] => [m, n, k],
        _ => return Err("expected no sizes, or three: M N K".into()),
    };
    run(sizes, &mut io::stdout().lock())
}

/// Makes the layers of `[M, N, K]`, runs them and prints a table.
pub(crate) fn run([m, n, k]: [usize; 3], out: &mut dyn Write) -> Result<(), Box<dyn Error>> {
    let mut random = Random(7);
    let weight = random.normals(n * k, 0.02);
    let transposed: Vec<f32> = (0..n * k).map(|i| weight[i % n * k + i / n]).collect();
    let (bias, x) = (random.normals(n, 1.0), random.normals(m * k, 1.0));

    // W8 weights are [N, K], W4 weights [K, N], as in the public W8A8 package for MLX.
    let rows = Matrix::new(&weight, n, k)?;
    let columns = Matrix::new(&transposed, k, n)?;
    let w8 = CiderLinear::from_float(rows, Some(&bias), 0, None)?;
    let w8_grouped = CiderLinear::from_float(rows, Some(&bias), 64, None)?;
    let w4 = W4A8Linear::from_weights(columns, 0)?.with_bias(&bias)?;
    let w4_grouped = W4A8Linear::from_weights(columns, 64)?.with_bias(&bias)?;

    let (int8, float) = (Activations::Int8, Activations::Float);
    let layers: [(&str, usize, Forward<'_>); 6] = [
        ("w8a8", w8.bytes(), &|| w8.forward(&x, int8)),
        ("w8a8 group 64", w8_grouped.bytes(), &|| {
            w8_grouped.forward(&x, int8)
        }),
        ("w8a16", w8.bytes(), &|| w8.forward(&x, float)),
        ("w4a8", w4.bytes(), &|| w4.forward(&x, int8)),
        ("w4a8 group 64", w4_grouped.bytes(), &|| {
            w4_grouped.forward(&x, int8)
        }),
        ("w4a16 group 64", w4_grouped.bytes(), &|| {
            w4_grouped.forward(&x, float)
        }),
    ];

    writeln!(out, "{}\nM = {m}, N = {n}, K = {k}", is_available())?;
    writeln!(
        out,
        "{:<18}{:>10}{:>12}{:>12}{:>10}",
        "", "KiB", "error", "ms", "GOPS"
    )?;
    let (expected, elapsed) = timed(|| float_linear(&x, &weight, &bias));
    let mut line = |name: &str, bytes: usize, error: f64, elapsed: Duration| {
        let seconds = elapsed.as_secs_f64();
        let rate = 2.0 * (m * n * k) as f64 / seconds / 1e9;
        let (kib, ms) = (bytes / 1024, seconds * 1e3);
        writeln!(
            out,
            "{name:<18}{kib:>10}{error:>12.5}{ms:>12.3}{rate:>10.1}"
        )
    };
    line("f32, plain loop", 4 * n * k, 0.0, elapsed)?;
    for (name, bytes, forward) in layers {
        // The first run grows the working memory of the threads.
        let y = forward()?;
        let fastest = (0..5).map(|_| timed(forward).1).min().unwrap_or_default();
        line(name, bytes, distance(&y, &expected), fastest)?;
    }
    Ok(())
}

type Forward<'a> = &'a dyn Fn() -> cider::Result<Vec<f32>>;

fn timed<R>(body: impl FnOnce() -> R) -> (R, Duration) {
    let started = Instant::now();
    let result = body();
    (result, started.elapsed())
}

fn float_linear(x: &[f32], weight: &[f32], bias: &[f32]) -> Vec<f32> {
    let k = weight.len() / bias.len();
    let row = |x: &[f32]| {
        let rows = weight.chunks(k).zip(bias);
        let dots = rows.map(|(w, bias)| x.iter().zip(w).map(|(x, w)| x * w).sum::<f32>() + bias);
        dots.collect::<Vec<_>>()
    };
    x.chunks(k).flat_map(row).collect()
}

/// The length of the difference over the length of what was expected.
fn distance(found: &[f32], expected: &[f32]) -> f64 {
    let square = |x: f32| f64::from(x) * f64::from(x);
    let difference: f64 = found.iter().zip(expected).map(|(a, b)| square(a - b)).sum();
    (difference / expected.iter().map(|&b| square(b)).sum::<f64>()).sqrt()
}

/// A small generator of reproducible numbers.
struct Random(u64);

impl Random {
    /// Near enough to a normal distribution of this deviation.
    fn normals(&mut self, count: usize, deviation: f32) -> Vec<f32> {
        let mut normal = || (0..3).map(|_| self.uniform()).sum::<f32>() * deviation;
        (0..count).map(|_| normal()).collect()
    }

    /// Uniform in -1..1.
    fn uniform(&mut self) -> f32 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}
