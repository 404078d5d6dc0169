//! What a case is, the matrices it reads and writes, and its random numbers.

use std::fmt;
use std::ops::Range;
use std::rc::Rc;

use cider_kernels::{Backend, DType, Element, QuantizedRows, Tensor, TensorMut, TensorRef};
use half::{bf16, f16};

/// One problem: it can be prepared on any backend, then run as often as one likes.
pub(crate) struct Case {
    pub(crate) op: &'static str,
    pub(crate) name: String,
    pub(crate) prepare: Prepare,
    /// Checks what the reference gives against an independent computation; returns the largest share of a
    /// bound that was used.
    pub(crate) twin: Option<Twin>,
    /// Words that the refusal of the case must have; `None` for a case that must work.
    pub(crate) refused: Option<Vec<String>>,
    pub(crate) work: Work,
    /// How far an output may be off where subnormal bf16 and sums count as zeros.
    pub(crate) flushed: f64,
}

pub(crate) type Prepare = Box<dyn Fn(&dyn Backend) -> Result<Box<dyn Prepared>, Failure>>;
pub(crate) type Twin = Box<dyn Fn(&[Output]) -> Result<f64, String>>;

/// A case with its inputs and outputs in the memory of a backend.
pub(crate) trait Prepared {
    fn run(&mut self, backend: &dyn Backend) -> Result<(), Failure>;
    fn outputs(&self) -> Result<Vec<Output>, Failure>;
}

/// What a run moves and computes, for its speed.
#[derive(Clone, Copy, Default)]
pub(crate) struct Work {
    pub(crate) bytes: usize,
    pub(crate) operations: usize,
}

impl Case {
    pub(crate) fn new(
        op: &'static str,
        name: impl Into<String>,
        prepare: impl Fn(&dyn Backend) -> Result<Box<dyn Prepared>, Failure> + 'static,
    ) -> Self {
        Self {
            op,
            name: name.into(),
            prepare: Box::new(prepare),
            twin: None,
            refused: None,
            work: Work::default(),
            flushed: 0.0,
        }
    }

    pub(crate) fn twin(self, twin: impl Fn(&[Output]) -> Result<f64, String> + 'static) -> Self {
        Self {
            twin: Some(Box::new(twin)),
            ..self
        }
    }

    /// Allows for subnormals that count as zeros, on the instruction sets that do so.
    pub(crate) fn flushed(self, flushed: f64) -> Self {
        Self { flushed, ..self }
    }

    pub(crate) fn work(self, bytes: usize, operations: usize) -> Self {
        Self {
            work: Work { bytes, operations },
            ..self
        }
    }

    /// A case of one call that must be refused with these words.
    pub(crate) fn refused(
        op: &'static str,
        name: &str,
        words: &[&str],
        call: impl Fn(&dyn Backend) -> Result<(), Failure> + 'static,
    ) -> Self {
        let call = Rc::new(call);
        let refused = Some(words.iter().map(|word| (*word).to_owned()).collect());
        let case = Self::new(op, format!("refuses {name}"), move |_| {
            Ok(Box::new(Call(call.clone())))
        });
        Self { refused, ..case }
    }
}

struct Call<F>(Rc<F>);

impl<F: Fn(&dyn Backend) -> Result<(), Failure>> Prepared for Call<F> {
    fn run(&mut self, backend: &dyn Backend) -> Result<(), Failure> {
        (self.0)(backend)
    }

    fn outputs(&self) -> Result<Vec<Output>, Failure> {
        Ok(Vec::new())
    }
}

/// How a run can go wrong.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The backend refused, with this message.
    Refused(String),
    /// What it did is wrong.
    Wrong(String),
}

impl From<cider_kernels::Error> for Failure {
    fn from(error: cider_kernels::Error) -> Self {
        Self::Refused(error.to_string())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(what) => write!(f, "refused: {what}"),
            Self::Wrong(what) => f.write_str(what),
        }
    }
}

/// A named result: the bits of a matrix.
#[derive(Clone)]
pub(crate) struct Output {
    pub(crate) name: &'static str,
    pub(crate) dtype: DType,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) bits: Vec<u32>,
}

impl Output {
    pub(crate) fn at(&self, i: usize) -> f64 {
        decode(self.dtype, self.bits[i])
    }

    pub(crate) fn row(&self, row: usize) -> Vec<f64> {
        let range = row * self.cols..(row + 1) * self.cols;
        range.map(|i| self.at(i)).collect()
    }

    /// Values and scales of quantised rows.
    pub(crate) fn quantized(rows: &QuantizedRows) -> [Self; 2] {
        let scales = (0..rows.rows()).map(|row| rows.scale(row).to_bits());
        let values = (0..rows.rows()).flat_map(|row| rows.row(row));
        [
            Self {
                name: "scale",
                dtype: DType::F32,
                rows: rows.rows(),
                cols: 1,
                bits: scales.collect(),
            },
            Self {
                name: "quantised",
                dtype: DType::I8,
                rows: rows.rows(),
                cols: rows.cols(),
                bits: values.map(|q| i32::from(q) as u32).collect(),
            },
        ]
    }

    pub(crate) fn integers(name: &'static str, values: &[u32]) -> Self {
        Self {
            name,
            dtype: DType::I32,
            rows: values.len(),
            cols: 1,
            bits: values.to_vec(),
        }
    }
}

/// A matrix inside a larger one; what is round about must never be read into a result, nor written.
pub(crate) struct Matrix {
    tensor: Tensor,
    rows: Range<usize>,
    cols: Range<usize>,
}

impl Matrix {
    /// A matrix of these values, rounded to `dtype`, with NaN round about.
    pub(crate) fn input(
        dtype: DType,
        rows: usize,
        cols: usize,
        values: &[f32],
    ) -> Result<Self, Failure> {
        let mut matrix = Self::output(dtype, rows, cols)?;
        let (width, top, left) = (matrix.tensor.cols(), matrix.rows.start, matrix.cols.start);
        let place = |i: usize| (top + i / cols) * width + left + i % cols;
        match dtype {
            DType::Bf16 => put(&mut matrix.tensor, values, place, bf16::from_f32)?,
            DType::F16 => put(&mut matrix.tensor, values, place, f16::from_f32)?,
            _ => put(&mut matrix.tensor, values, place, |value| value)?,
        }
        Ok(matrix)
    }

    /// A matrix to be written.
    pub(crate) fn output(dtype: DType, rows: usize, cols: usize) -> Result<Self, Failure> {
        // Odd and even margins, none at times: rows that are aligned, and rows that are not.
        let [top, left, right] = [[0, 0, 0], [1, 5, 3], [2, 16, 0]][(rows * 7 + cols) % 3];
        let (height, width) = (rows + 2 * top, cols + left + right);
        let mut tensor = Tensor::zeros(dtype, height, width)?;
        match dtype {
            DType::F32 => tensor.as_mut_slice()?.fill(f32::from_bits(GUARD)),
            DType::I32 => tensor.as_mut_slice()?.fill(GUARD as i32),
            DType::Bf16 => tensor.as_mut_slice()?.fill(bf16::from_bits(GUARD as u16)),
            _ => tensor.as_mut_slice()?.fill(f16::from_bits(GUARD as u16)),
        }
        Ok(Self {
            tensor,
            rows: top..top + rows,
            cols: left..left + cols,
        })
    }

    pub(crate) fn view(&self) -> TensorRef<'_> {
        let view = self.tensor.view().row_range(self.rows.clone());
        view.col_range(self.cols.clone())
    }

    pub(crate) fn view_mut(&mut self) -> TensorMut<'_> {
        let (rows, cols) = (self.rows.clone(), self.cols.clone());
        self.tensor.view_mut().row_range(rows).col_range(cols)
    }

    /// The values, once nothing round about was touched.
    pub(crate) fn read(&self, name: &'static str) -> Result<Output, Failure> {
        let all = bits(&self.tensor)?;
        let (width, guard) = (self.tensor.cols(), guard(self.tensor.dtype()));
        let mut inside = Vec::with_capacity(self.rows.len() * self.cols.len());
        for (i, &bits) in all.iter().enumerate() {
            if self.rows.contains(&(i / width)) && self.cols.contains(&(i % width)) {
                inside.push(bits);
            } else if bits != guard {
                return Err(Failure::Wrong(format!(
                    "{name}: wrote outside, row {} column {} of the memory round about",
                    i / width,
                    i % width
                )));
            }
        }
        Ok(Output {
            name,
            dtype: self.tensor.dtype(),
            rows: self.rows.len(),
            cols: self.cols.len(),
            bits: inside,
        })
    }
}

/// A small generator of reproducible numbers.
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// Uniform in -1..1.
    pub(crate) fn uniform(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    /// Near enough to a standard normal distribution.
    pub(crate) fn normal(&mut self) -> f32 {
        self.uniform() + self.uniform() + self.uniform()
    }

    pub(crate) fn normals(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.normal()).collect()
    }
}

/// How the rows of an input are filled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Fill {
    Normal,
    /// A row of zeros, of negative zeros, of extremes, with an outlier, of tiny, subnormal and huge values, and
    /// a normal one, in turn.
    Mixed,
    /// Row 1 has this value in its last column, the others are normal.
    Poisoned(f32),
    /// All 127.
    Extreme,
    /// 0.01, and 100 in the last column.
    LastColumn,
}

/// `rows * cols` values of a fill, rounded to `dtype`.
pub(crate) fn filled(
    fill: Fill,
    dtype: DType,
    (rows, cols): (usize, usize),
    rng: &mut Rng,
) -> Vec<f32> {
    let mut values = rng.normals(rows * cols);
    for (row, x) in values.chunks_mut(cols).enumerate() {
        match fill {
            Fill::Mixed => mix(row, x),
            Fill::Poisoned(value) if row == 1 % rows => x[cols - 1] = value,
            Fill::Normal | Fill::Poisoned(_) => {}
            Fill::Extreme => x.fill(127.0),
            Fill::LastColumn => {
                x.fill(0.01);
                x[cols - 1] = 100.0;
            }
        }
    }
    round_to(dtype, &mut values);
    values
}

pub(crate) fn round_to(dtype: DType, values: &mut [f32]) {
    for value in values {
        *value = match dtype {
            DType::Bf16 => bf16::from_f32(*value).to_f32(),
            DType::F16 => f16::from_f32(*value).to_f32(),
            _ => *value,
        };
    }
}

/// The name of a dtype list that most ops go through.
pub(crate) const ACTIVATIONS: [DType; 2] = [DType::F32, DType::Bf16];

/// Lengths that leave every kind of tail.
pub(crate) const TAILS: [usize; 17] = [
    1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 576,
];

fn mix(row: usize, x: &mut [f32]) {
    let last = x.len() - 1;
    let scale = |x: &mut [f32], factor: f32| x.iter_mut().for_each(|x| *x *= factor);
    match row % 9 {
        1 => x.fill(0.0),
        2 => x.fill(-0.0),
        3 => x.iter_mut().for_each(|x| *x = x.signum() * 127.0),
        4 => x[last] = 1000.0 * x[last].signum(),
        5 => scale(x, 2f64.powi(-104) as f32),
        6 => scale(x, 2f64.powi(-135) as f32),
        7 => scale(x, 1e30),
        8 => scale(x, 1e-30),
        _ => {}
    }
}

fn put<T: Element>(
    tensor: &mut Tensor,
    values: &[f32],
    place: impl Fn(usize) -> usize,
    convert: impl Fn(f32) -> T,
) -> Result<(), Failure> {
    let all = tensor.as_mut_slice::<T>()?;
    for (i, value) in values.iter().enumerate() {
        all[place(i)] = convert(*value);
    }
    Ok(())
}

/// The bits of every element of a tensor.
pub(crate) fn bits(tensor: &Tensor) -> Result<Vec<u32>, Failure> {
    Ok(match tensor.dtype() {
        DType::F32 => tensor
            .as_slice::<f32>()?
            .iter()
            .map(|x| x.to_bits())
            .collect(),
        DType::I32 => tensor
            .as_slice::<i32>()?
            .iter()
            .map(|x| *x as u32)
            .collect(),
        DType::Bf16 => {
            let values = tensor.as_slice::<bf16>()?.iter();
            values.map(|x| u32::from(x.to_bits())).collect()
        }
        _ => {
            let values = tensor.as_slice::<f16>()?.iter();
            values.map(|x| u32::from(x.to_bits())).collect()
        }
    })
}

pub(crate) fn decode(dtype: DType, bits: u32) -> f64 {
    match dtype {
        DType::F32 => f64::from(f32::from_bits(bits)),
        DType::Bf16 => f64::from(bf16::from_bits(bits as u16).to_f32()),
        DType::F16 => f64::from(f16::from_bits(bits as u16).to_f32()),
        DType::I32 | DType::I8 => f64::from(bits as i32),
        DType::U8 => f64::from(bits),
    }
}

fn guard(dtype: DType) -> u32 {
    if dtype.size() == 2 {
        GUARD & 0xffff
    } else {
        GUARD
    }
}

/// A NaN in each float type, and unlike anything computed.
const GUARD: u32 = 0x7fde_7fde;
