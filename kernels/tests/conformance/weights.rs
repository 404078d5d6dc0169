//! Filling weights and reading them back: the quantiser of weights.

use cider_kernels::{Backend, DType, Format, RowSource, Weights};

use crate::cases::{Case, Failure, Output, Prepared, Rng, round_to};

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for format in formats() {
        for k in [1, 15, 31, 33, 100, 127, 896, 4304] {
            cases.push(case(format, Source::Normal, 5, k));
        }
        for n in [1, 15, 16, 17, 33, 70] {
            cases.push(case(format, Source::Zeros, n, 130));
        }
        let sources = [0.0, 50.0, 99.5, 100.0].map(Source::Clipped);
        let sources =
            sources
                .into_iter()
                .chain([Source::Small, Source::Subnormal, Source::LastColumn]);
        cases.extend(sources.map(|source| case(format, source, 11, 300)));
        for dtype in [DType::F32, DType::Bf16, DType::F16] {
            for (n, k) in [(37, 300), (16, 31), (3, 4304)] {
                cases.push(case(format, Source::Stored(dtype), n, k));
            }
        }
        if let Some([low, high]) = range(format) {
            let constants = [low, low + 1, high].map(Source::Constant);
            let sources = constants.into_iter().chain([Source::Integers]);
            cases.extend(sources.map(|source| case(format, source, 19, 300)));
        }
    }
    cases
}

/// The weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Source {
    /// Normal floats.
    Normal,
    /// Every third row zeros, and the first 32 columns of every fifth.
    Zeros,
    /// 0.01, and 100 in the last column.
    LastColumn,
    /// Magnitudes of 1e-5.
    Small,
    /// Magnitudes of 2^-139 and less: scales are subnormal, or vanish.
    Subnormal,
    /// Normal floats, clipped at a percentile.
    Clipped(f64),
    /// Normal floats of this type, read from where they lie, at odd addresses.
    Stored(DType),
    /// Random integers.
    Integers,
    /// This integer everywhere.
    Constant(i8),
}

fn case(format: Format, source: Source, n: usize, k: usize) -> Case {
    let name = format!("{format}, {n} x {k}, {source:?}");
    let case = Case::new("weights", name, move |backend| {
        let mut weights = backend.weights(format, n, k)?;
        fill(backend, &mut weights, source, n as u64)?;
        Ok(Box::new(ReadBack(read_back(backend, &weights)?)))
    });
    if matches!(source, Source::Integers | Source::Constant(_)) {
        return case;
    }
    case.twin(move |outputs| {
        for row in 0..n {
            check_row(
                format,
                source,
                outputs,
                row,
                &floats(source, n as u64, row, k),
            )?;
        }
        Ok(0.0)
    })
}

/// What was read back, once.
struct ReadBack(Vec<Output>);

impl Prepared for ReadBack {
    fn run(&mut self, _: &dyn Backend) -> Result<(), Failure> {
        Ok(())
    }

    fn outputs(&self) -> Result<Vec<Output>, Failure> {
        Ok(self.0.clone())
    }
}

fn read_back(backend: &dyn Backend, weights: &Weights) -> Result<Vec<Output>, Failure> {
    let (format, n, k) = (weights.format(), weights.n(), weights.k());
    let groups = format.groups(k);
    let output = |name, dtype, cols| Output {
        name,
        dtype,
        rows: n,
        cols,
        bits: Vec::new(),
    };
    let mut values = output("values", DType::F32, k);
    let (mut integers, mut all_scales) = (
        output("integers", DType::I8, k),
        output("scales", DType::F32, groups),
    );
    let (mut row_values, mut q, mut scales) = (vec![0.0; k], vec![0; k], vec![0.0; groups]);
    for row in 0..n {
        backend.read_row(weights, row, &mut row_values)?;
        values.bits.extend(row_values.iter().map(|x| x.to_bits()));
        if groups > 0 {
            backend.read_integers(weights, row, &mut q, &mut scales)?;
            integers.bits.extend(q.iter().map(|&q| i32::from(q) as u32));
            all_scales.bits.extend(scales.iter().map(|x| x.to_bits()));
        }
    }
    if groups == 0 {
        return Ok(vec![values]);
    }
    Ok(vec![values, integers, all_scales])
}

/// A row against the definition, in f64. A quotient of two f32 rounded from f64 is rounded correctly.
fn check_row(
    format: Format,
    source: Source,
    outputs: &[Output],
    row: usize,
    w: &[f32],
) -> Result<(), String> {
    if let Format::Dense(dtype) = format {
        let mut w = w.to_vec();
        round_to(dtype, &mut w);
        let got = outputs[0].row(row);
        let same = got.iter().zip(&w).all(|(got, w)| *got == f64::from(*w));
        return if same {
            Ok(())
        } else {
            Err(format!("row {row} is not what was written"))
        };
    }
    let largest = if matches!(format, Format::W4 { .. }) {
        7.0
    } else {
        127.0
    };
    let size = format.group_size(w.len());
    for (g, w) in w.chunks(size).enumerate() {
        let scale = scale(w, source, largest);
        let got = outputs[2].row(row)[g];
        if got != scale {
            return Err(format!(
                "scale {g} of row {row} is {got:e}, expected {scale:e}"
            ));
        }
        for (k, w) in w.iter().enumerate() {
            let k = g * size + k;
            let quotient = f64::from((f64::from(*w) / scale) as f32);
            let q = quotient.round_ties_even().clamp(-largest, largest);
            let (got, value) = (outputs[1].row(row)[k], outputs[0].row(row)[k]);
            if got != q || value != f64::from((q * scale) as f32) {
                return Err(format!(
                    "row {row}, column {k}: {got} and {value:e}, expected {q}"
                ));
            }
        }
    }
    Ok(())
}

fn scale(w: &[f32], source: Source, largest: f64) -> f64 {
    let mut magnitudes: Vec<f64> = w.iter().map(|w| f64::from(w.abs())).collect();
    magnitudes.sort_unstable_by(f64::total_cmp);
    let last = magnitudes.len() - 1;
    let clip = match source {
        Source::Clipped(percentile) => {
            let place = percentile / 100.0 * last as f64;
            let (low, high) = (
                magnitudes[place.floor() as usize],
                magnitudes[place.ceil() as usize],
            );
            f64::from((low + (high - low) * place.fract()) as f32)
        }
        _ => magnitudes[last],
    };
    let max = if clip == 0.0 { magnitudes[last] } else { clip };
    let scale = f64::from((max / largest) as f32);
    if scale == 0.0 { 1.0 } else { scale }
}

/// Fills weights from a source; on every backend the same.
pub(crate) fn fill(
    backend: &dyn Backend,
    weights: &mut Weights,
    source: Source,
    seed: u64,
) -> Result<(), Failure> {
    let (format, n, k) = (weights.format(), weights.n(), weights.k());
    let clip_percentile = match source {
        Source::Clipped(percentile) => Some(percentile),
        _ => None,
    };
    if matches!(source, Source::Integers | Source::Constant(_)) {
        let read = |row: usize, q: &mut [i8], scales: &mut [f32]| {
            integers(source, format, seed + row as u64, q, scales);
        };
        return Ok(backend.fill_weights(weights, 0, n, RowSource::Integers { read: &read })?);
    }
    // In two parts, so that the first row of a part is not always that of the matrix.
    let half = n / 2;
    for (first, count) in [(0, half), (half, n - half)] {
        if let Source::Stored(dtype) = source {
            let rows: Vec<_> = (first..first + count)
                .map(|row| stored(dtype, &floats(source, seed, row, k)))
                .collect();
            let source = RowSource::Stored {
                dtype,
                rows: &|row| &rows[row][1..],
                clip_percentile,
            };
            backend.fill_weights(weights, first, count, source)?;
            continue;
        }
        let read = |row: usize, w: &mut [f32]| {
            w.copy_from_slice(&floats(source, seed, first + row, k));
        };
        let source = RowSource::Floats {
            read: &read,
            clip_percentile,
        };
        backend.fill_weights(weights, first, count, source)?;
    }
    Ok(())
}

/// Row `row` of float weights.
pub(crate) fn floats(source: Source, seed: u64, row: usize, k: usize) -> Vec<f32> {
    let mut rng = Rng::new(seed * 10_007 + row as u64);
    let factor = match source {
        Source::Small => 1e-5,
        Source::Subnormal => 2f64.powi(-140 - (row % 10) as i32) as f32,
        _ => 0.05,
    };
    let mut w: Vec<f32> = (0..k).map(|_| rng.normal() * factor).collect();
    match source {
        Source::Zeros if row.is_multiple_of(3) => w.fill(0.0),
        Source::Zeros if row % 5 == 1 => w.iter_mut().take(32).for_each(|w| *w = -0.0),
        Source::LastColumn => {
            w.fill(0.01);
            w[k - 1] = 100.0;
        }
        Source::Stored(dtype) => round_to(dtype, &mut w),
        _ => {}
    }
    w
}

/// A byte, then the values as they are stored.
pub(crate) fn stored(dtype: DType, values: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0];
    for &value in values {
        match dtype {
            DType::Bf16 => bytes.extend(half::bf16::from_f32(value).to_le_bytes()),
            DType::F16 => bytes.extend(half::f16::from_f32(value).to_le_bytes()),
            _ => bytes.extend(value.to_le_bytes()),
        }
    }
    bytes
}

fn integers(source: Source, format: Format, seed: u64, q: &mut [i8], scales: &mut [f32]) {
    let mut rng = Rng::new(seed);
    let [low, high] = range(format).unwrap_or([0, 0]);
    for q in q {
        let width = i32::from(high) - i32::from(low) + 1;
        *q = match source {
            Source::Constant(value) => value,
            _ => (i32::from(low) + rng.below(width as usize) as i32) as i8,
        };
    }
    for scale in scales {
        *scale = (rng.uniform() + 1.5) * 0.01;
    }
}

/// Every format.
pub(crate) fn formats() -> Vec<Format> {
    let dense = [DType::F32, DType::Bf16, DType::F16].map(Format::Dense);
    let w8 = GROUPS.map(|group| Format::W8 { group });
    let w4 = GROUPS.map(|group| Format::W4 { group });
    [&dense[..], &w8, &w4].concat()
}

/// The integers that a format holds.
pub(crate) fn range(format: Format) -> Option<[i8; 2]> {
    match format {
        Format::Dense(_) => None,
        Format::W4 { .. } => Some([-8, 7]),
        Format::W8 { .. } => Some([-128, 127]),
    }
}

const GROUPS: [usize; 5] = [0, 32, 64, 128, 256];
