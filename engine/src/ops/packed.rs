//! Weights in the layout of a backend, from arrays and back.

use std::sync::Arc;

use cider_kernels::{
    Activations, Backend, Element, Format, LinearArgs, LinearInput, ReadFloats, ReadIntegers,
    RowSource, Tensor, Weights,
};

use super::{Matrix, default_backend};
use crate::error::{Error, Result};

/// Packed weights with the backend that packed them.
#[derive(Debug)]
pub(crate) struct Packed {
    /// What errors call it.
    op: &'static str,
    backend: Arc<dyn Backend>,
    weights: Weights,
}

impl Packed {
    /// INT8 weights `[N, K]` and scales `[groups, N]`.
    pub(crate) fn int8(
        op: &'static str,
        w: Matrix<'_, i8>,
        scales: &[f32],
        group: usize,
    ) -> Result<Self> {
        let format = Format::W8 { group };
        let (n, k) = (w.rows(), w.cols());
        check_scales(op, format, (n, k), scales)?;
        Self::integers(op, format, (n, k), &|row, q, row_scales| {
            q.copy_from_slice(w.row(row));
            copy_scales(scales, row, row_scales);
        })
    }

    /// INT4 weights packed as `[K / 2, N]` and scales `[groups, N]`.
    pub(crate) fn int4(
        op: &'static str,
        packed: Matrix<'_, u8>,
        scales: &[f32],
        (k, group): (usize, usize),
    ) -> Result<Self> {
        check_even(op, k)?;
        Error::expect_size(op, "rows of the packed weights", k / 2, packed.rows())?;
        let (format, n) = (Format::W4 { group }, packed.cols());
        check_scales(op, format, (n, k), scales)?;
        Self::integers(op, format, (n, k), &|row, q, row_scales| {
            for (pair, q) in q.chunks_mut(2).enumerate() {
                let byte = packed.data()[pair * n + row];
                q.copy_from_slice(&[
                    (byte >> 4) as i8 - ZERO_POINT,
                    (byte & 15) as i8 - ZERO_POINT,
                ]);
            }
            copy_scales(scales, row, row_scales);
        })
    }

    /// Float weights, quantised; `clip_percentile` of the magnitudes replaces their maximum.
    pub(crate) fn quantized(
        op: &'static str,
        format: Format,
        (n, k): (usize, usize),
        read: ReadFloats<'_>,
        clip_percentile: Option<f64>,
    ) -> Result<Self> {
        let source = RowSource::Floats {
            read,
            clip_percentile,
        };
        Self::fill(op, format, (n, k), source)
    }

    /// The backend.
    pub(crate) fn backend(&self) -> &dyn Backend {
        &*self.backend
    }

    /// The weights.
    pub(crate) fn weights(&self) -> &Weights {
        &self.weights
    }

    /// Columns that share a scale, 0 for all.
    pub(crate) fn group_size(&self) -> usize {
        match self.weights.format() {
            Format::W4 { group } | Format::W8 { group } => group,
            Format::Dense(_) => 0,
        }
    }

    /// Sets the bias `[N]`, if there is one.
    pub(crate) fn set_bias(&mut self, bias: Option<&[f32]>) -> Result<()> {
        let Some(bias) = bias else {
            return Ok(());
        };
        Error::expect_size(self.op, "values of the bias", self.weights.n(), bias.len())?;
        Ok(self.backend.set_bias(&mut self.weights, 0, bias)?)
    }

    /// Runs rows of K values; gives rows of N.
    pub(crate) fn forward<T: Element>(&self, x: &[T], activations: Activations) -> Result<Vec<T>> {
        let (n, k) = (self.weights.n(), self.weights.k());
        let (m, rest) = (x.len() / k, x.len() % k);
        if rest > 0 {
            Error::expect_size(self.op, "values of the last row of x", k, rest)?;
        }
        if m == 0 {
            return Ok(Vec::new());
        }
        let x = Tensor::from_slice(x, m, k)?;
        let mut out = Tensor::zeros(T::DTYPE, m, n)?;
        let mut quantized = None;
        let input = match activations {
            Activations::Float => LinearInput::Float(x.view()),
            Activations::Int8 => {
                let rows = quantized.insert(self.backend.quantized_rows(m, k)?);
                self.backend.quantize(x.view(), rows)?;
                LinearInput::Int8(rows)
            }
        };
        self.backend.linear(LinearArgs {
            input,
            weights: &self.weights,
            out: out.view_mut(),
        })?;
        Ok(out.as_slice()?.to_vec())
    }

    /// The integers `[N, K]` and the scales `[groups, N]`.
    pub(crate) fn read(&self) -> Result<(Vec<i8>, Vec<f32>)> {
        let (n, k) = (self.weights.n(), self.weights.k());
        let groups = self.weights.format().groups(k);
        let (mut values, mut scales) = (vec![0; n * k], vec![0.0; groups * n]);
        let mut row_scales = vec![0.0; groups];
        for (row, q) in values.chunks_mut(k).enumerate() {
            let weights = &self.weights;
            self.backend
                .read_integers(weights, row, q, &mut row_scales)?;
            for (group, scale) in row_scales.iter().enumerate() {
                scales[group * n + row] = *scale;
            }
        }
        Ok((values, scales))
    }

    /// The integers packed as `[K / 2, N]`, and the scales `[groups, N]`.
    pub(crate) fn read_packed(&self) -> Result<(Vec<u8>, Vec<f32>)> {
        let (n, k) = (self.weights.n(), self.weights.k());
        check_even(self.op, k)?;
        let (values, scales) = self.read()?;
        let mut packed = vec![0; k / 2 * n];
        for (row, q) in values.chunks(k).enumerate() {
            for (pair, q) in q.chunks(2).enumerate() {
                let [high, low] = [0, 1].map(|i| (q[i] + ZERO_POINT) as u8);
                packed[pair * n + row] = high << 4 | low;
            }
        }
        Ok((packed, scales))
    }

    fn integers(
        op: &'static str,
        format: Format,
        shape: (usize, usize),
        read: ReadIntegers<'_>,
    ) -> Result<Self> {
        Self::fill(op, format, shape, RowSource::Integers { read })
    }

    fn fill(
        op: &'static str,
        format: Format,
        (n, k): (usize, usize),
        source: RowSource<'_>,
    ) -> Result<Self> {
        let backend = default_backend()?;
        let mut weights = backend.weights(format, n, k)?;
        backend.fill_weights(&mut weights, 0, n, source)?;
        Ok(Self {
            op,
            backend,
            weights,
        })
    }
}

/// Refuses scales that are not `[groups, N]`.
fn check_scales(
    op: &'static str,
    format: Format,
    (n, k): (usize, usize),
    scales: &[f32],
) -> Result<()> {
    format.check(n, k)?;
    let expected = format.groups(k).saturating_mul(n);
    Error::expect_size(op, "scales", expected, scales.len())
}

/// The scales of a row out of `[groups, N]`.
fn copy_scales(scales: &[f32], row: usize, out: &mut [f32]) {
    let n = scales.len() / out.len();
    for (group, out) in out.iter_mut().enumerate() {
        *out = scales[group * n + row];
    }
}

/// Two weights share a byte.
fn check_even(op: &'static str, k: usize) -> Result<()> {
    if k.is_multiple_of(2) {
        return Ok(());
    }
    let what = format!("packed weights need an even K, got {k}");
    Err(cider_kernels::Error::shape(op, what).into())
}

/// What is added to an integer of 4 bits before it is packed.
const ZERO_POINT: i8 = 8;
