//! Filling weights and reading them back: the quantiser of weights.

use cider_kernels::{Backend, DType, Format, RowSource};

use crate::cases::{Case, Failure, Output, Prepared, round_to};
use crate::linear::{Source, fill, floats, formats};

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
        cases.extend(sources.map(|source| case(format, source, 7, 300)));
        if !matches!(format, Format::Dense(_)) {
            let sources = [Source::Integers, Source::Lowest, Source::Highest];
            cases.extend(sources.map(|source| case(format, source, 19, 300)));
        }
    }
    cases.extend(refusals());
    cases
}

fn case(format: Format, source: Source, n: usize, k: usize) -> Case {
    let name = format!("{format}, {n} x {k}, {source:?}");
    let case = Case::new("weights", name, move |backend| {
        let mut weights = backend.weights(format, n, k)?;
        fill(backend, &mut weights, source, n as u64)?;
        Ok(Box::new(ReadBack(read_back(backend, &weights)?)))
    });
    if matches!(source, Source::Integers | Source::Lowest | Source::Highest) {
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

fn read_back(
    backend: &dyn Backend,
    weights: &cider_kernels::Weights,
) -> Result<Vec<Output>, Failure> {
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

fn refusals() -> Vec<Case> {
    let w8 = Format::W8 { group: 0 };
    let floats = |format: Format, value: f32, clip_percentile: Option<f64>| {
        move |backend: &dyn Backend| {
            let mut weights = backend.weights(format, 3, 8)?;
            let read = |row: usize, w: &mut [f32]| w.fill(if row > 0 { value } else { 1.0 });
            let source = RowSource::Floats {
                read: &read,
                clip_percentile,
            };
            Ok(backend.fill_weights(&mut weights, 0, 3, source)?)
        }
    };
    let integers = |format: Format, k: usize, value: i8, scale: f32| {
        move |backend: &dyn Backend| {
            let mut weights = backend.weights(format, 1, k)?;
            let read = |_: usize, q: &mut [i8], scales: &mut [f32]| {
                q.fill(value);
                scales.fill(scale);
            };
            Ok(backend.fill_weights(&mut weights, 0, 1, RowSource::Integers { read: &read })?)
        }
    };
    let f16 = Format::Dense(DType::F16);
    let case =
        |name: &str, words: &[&str], call: Box<dyn Fn(&dyn Backend) -> Result<(), Failure>>| {
            let call = std::rc::Rc::new(call);
            Case::refused("weights", name, words, move |backend| call(backend))
        };
    vec![
        case(
            "a NaN",
            &["row 1", "column 0", "NaN"],
            Box::new(floats(w8, f32::NAN, None)),
        ),
        case(
            "an infinity",
            &["row 1", "inf"],
            Box::new(floats(w8, f32::INFINITY, None)),
        ),
        case(
            "a value beyond f16",
            &["row 1", "inf"],
            Box::new(floats(f16, 1e5, None)),
        ),
        case(
            "a percentile of 101",
            &["101"],
            Box::new(floats(w8, 1.0, Some(101.0))),
        ),
        case(
            "an 8 in 4 bits",
            &["8", "-8..=7"],
            Box::new(integers(Format::W4 { group: 32 }, 8, 8, 1.0)),
        ),
        case(
            "a scale of NaN",
            &["scale", "NaN"],
            Box::new(integers(w8, 8, 1, f32::NAN)),
        ),
        case(
            "integers for floats",
            &["dense f16"],
            Box::new(integers(f16, 8, 1, 1.0)),
        ),
        case(
            "-128 where K is too long",
            &["132105", "132104"],
            Box::new(integers(w8, 132_105, -128, 1.0)),
        ),
        case(
            "rows that do not exist",
            &["2 + 2", "3"],
            Box::new(move |backend| {
                let mut weights = backend.weights(w8, 3, 8)?;
                let read = |_: usize, w: &mut [f32]| w.fill(1.0);
                let source = RowSource::Floats {
                    read: &read,
                    clip_percentile: None,
                };
                Ok(backend.fill_weights(&mut weights, 2, 2, source)?)
            }),
        ),
        case(
            "a bias that is too long",
            &["0 + 4", "3"],
            Box::new(move |backend| {
                let mut weights = backend.weights(w8, 3, 8)?;
                Ok(backend.set_bias(&mut weights, 0, &[0.0; 4])?)
            }),
        ),
        case(
            "to read a row that does not exist",
            &["3 + 1", "3"],
            Box::new(move |backend| {
                Ok(backend.read_row(&backend.weights(w8, 3, 8)?, 3, &mut [0.0; 8])?)
            }),
        ),
        case(
            "to read into a short row",
            &["8", "7"],
            Box::new(move |backend| {
                Ok(backend.read_row(&backend.weights(w8, 3, 8)?, 0, &mut [0.0; 7])?)
            }),
        ),
        case(
            "to read integers of floats",
            &["dense f16"],
            Box::new(move |backend| {
                Ok(backend.read_integers(&backend.weights(f16, 3, 8)?, 0, &mut [0; 8], &mut [])?)
            }),
        ),
    ]
}
