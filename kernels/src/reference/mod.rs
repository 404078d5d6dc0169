//! The definition of every op as plain loops, and a backend over it that whole models can run on. It is as
//! slow as it is short; every other backend is tested against it.

mod attention;
pub(crate) mod elementwise;
mod linear;
mod norm;
pub(crate) mod quantize;
mod rope;

use std::ops::Range;

use half::{bf16, f16};

use crate::backend::{
    AttentionArgs, Backend, Gelu, KvAppendArgs, LinearArgs, LinearInput, NormArgs, NormKind,
    RopeArgs, RowsOut,
};
use crate::buffer::Buffer;
use crate::check;
use crate::dtype::{DType, Element};
use crate::error::{Error, Result};
use crate::quant::Format;
use crate::rows::{QuantizedRows, RowLayout, UNIT};
use crate::tensor::{TensorMut, TensorRef};
use crate::weights::{RowSource, Weights};

pub(crate) use quantize::{check_finite, quantize_row, quantize_weights};

/// Runs the definition of each op on one thread. Weights are row-major, their scales `[groups][n]`.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReferenceBackend;

impl Backend for ReferenceBackend {
    fn describe(&self) -> String {
        "reference: plain loops, 1 thread".to_owned()
    }

    fn quantized_rows(&self, capacity: usize, cols: usize) -> Result<QuantizedRows> {
        let layout = RowLayout {
            bias: 0,
            panel_rows: 1,
        };
        QuantizedRows::new(capacity, cols, layout)
    }

    fn weights(&self, format: Format, n: usize, k: usize) -> Result<Weights> {
        format.check(n, k)?;
        let size = match format {
            Format::Dense(dtype) => dtype.size(),
            Format::W4 { .. } | Format::W8 { .. } => 1,
        };
        let bytes = |rows: usize, cols: usize, size: usize| {
            let elements = rows.checked_mul(cols);
            elements
                .and_then(|n| n.checked_mul(size))
                .ok_or_else(|| Error::shape("weights", format!("{rows} x {cols} overflows")))
        };
        Ok(Weights {
            format,
            n,
            k,
            data: Buffer::host(bytes(n, k, size)?)?,
            scales: Buffer::host(bytes(format.groups(k), n, 4)?)?,
            sums: Buffer::host(0)?,
            bias: Buffer::host(bytes(1, n, 4)?)?,
            has_minus_128: false,
        })
    }

    fn fill_weights(
        &self,
        weights: &mut Weights,
        first: usize,
        count: usize,
        source: RowSource<'_>,
    ) -> Result<()> {
        weights.check_rows(first, count)?;
        let (mut floats, mut q) = (vec![0.0; weights.k], vec![0; weights.k]);
        let mut scales = vec![0.0; weights.format.groups(weights.k)];
        for i in 0..count {
            let row = first + i;
            match (source, weights.format) {
                (RowSource::Floats { read, .. }, Format::Dense(dtype)) => {
                    read(i, &mut floats);
                    round(dtype, &mut floats);
                    check_finite(row, &floats)?;
                    store_dense(weights, dtype, row, &floats);
                    continue;
                }
                (
                    RowSource::Floats {
                        read,
                        clip_percentile,
                    },
                    format,
                ) => {
                    check::check_percentile(clip_percentile)?;
                    read(i, &mut floats);
                    let out = (&mut q[..], &mut scales[..]);
                    quantize_weights(format, clip_percentile, row, &floats, out)?;
                }
                (
                    RowSource::Stored {
                        dtype,
                        rows,
                        clip_percentile,
                    },
                    _,
                ) => {
                    check::check_stored(dtype, weights.k, rows(i))?;
                    let read = |_: usize, out: &mut [f32]| {
                        out.copy_from_slice(&widened(dtype, rows(i)));
                    };
                    let source = RowSource::Floats {
                        read: &read,
                        clip_percentile,
                    };
                    self.fill_weights(weights, row, 1, source)?;
                    continue;
                }
                (RowSource::Integers { read }, format) => {
                    read(i, &mut q, &mut scales);
                    weights.has_minus_128 |= check::check_integers(format, row, &q, &scales)?;
                }
            }
            store_integers(weights, row, &q, &scales);
        }
        Ok(())
    }

    fn set_bias(&self, weights: &mut Weights, first: usize, bias: &[f32]) -> Result<()> {
        weights.check_rows(first, bias.len())?;
        weights.bias.as_mut_slice::<f32>()[first..first + bias.len()].copy_from_slice(bias);
        Ok(())
    }

    fn read_row(&self, weights: &Weights, row: usize, out: &mut [f32]) -> Result<()> {
        check::check_read_row(weights, row, out)?;
        out.copy_from_slice(&weight_row(weights, row));
        Ok(())
    }

    fn read_integers(
        &self,
        weights: &Weights,
        row: usize,
        out: &mut [i8],
        scales: &mut [f32],
    ) -> Result<()> {
        check::check_read_integers(weights, row, out, scales)?;
        out.copy_from_slice(integer_row(weights, row));
        scales.copy_from_slice(&row_scales(weights, row));
        Ok(())
    }

    fn quantize(&self, x: TensorRef<'_>, out: &mut QuantizedRows) -> Result<()> {
        check::check_quantize(x)?;
        out.start(x.rows(), x.cols())?;
        for row in 0..x.rows() {
            quantize_into(out, row, &load(x, row)?);
        }
        Ok(())
    }

    fn linear(&self, args: LinearArgs<'_>) -> Result<()> {
        check::check_linear(&args)?;
        let mut out = args.out;
        for row in 0..out.rows() {
            let y = match args.input {
                LinearInput::Float(x) => float_linear(args.weights, &load(x, row)?),
                LinearInput::Int8(x) => int8_linear(args.weights, &x.row(row), x.scale(row)),
            };
            store(&mut out, row, &y)?;
        }
        Ok(())
    }

    fn matmul_i32(
        &self,
        input: &QuantizedRows,
        weights: &Weights,
        mut out: TensorMut<'_>,
    ) -> Result<()> {
        check::check_matmul_i32(input, weights, &out)?;
        for row in 0..out.rows() {
            let x = input.row(row);
            for (n, out) in out.row_mut::<i32>(row)?.iter_mut().enumerate() {
                *out = linear::dot_i32(&x, integer_row(weights, n));
            }
        }
        Ok(())
    }

    fn norm(&self, mut args: NormArgs<'_>) -> Result<()> {
        check::check_norm(&args)?;
        start_rows(&mut args.out, args.x)?;
        for row in 0..args.x.rows() {
            let x = load(args.x, row)?;
            let segments = x.chunks(args.weight.len()).flat_map(|x| match args.kind {
                NormKind::Rms => norm::rms_norm(x, args.weight, args.eps),
                NormKind::Layer => norm::layer_norm(x, args.weight, args.bias, args.eps),
            });
            let y: Vec<f32> = segments.collect();
            store_rows(&mut args.out, args.x.dtype(), row, y)?;
        }
        Ok(())
    }

    fn rope(&self, args: RopeArgs<'_>) -> Result<()> {
        check::check_rope(&args)?;
        let mut x = args.x;
        let (cosines, sines) = (args.table.cos().as_slice()?, args.table.sin().as_slice()?);
        for row in 0..x.rows() {
            let mut heads = load(x.as_ref(), row)?;
            let angles = rope::Angles {
                row,
                rows: x.rows(),
                positions: args.positions,
                axes: args.axes,
            };
            let (cos, sin) = (angles.of(cosines, args.table), angles.of(sines, args.table));
            for head in heads.chunks_mut(args.head_size) {
                rope::rotate(head, &cos, &sin);
            }
            store(&mut x, row, &heads)?;
        }
        Ok(())
    }

    fn kv_append(&self, args: KvAppendArgs<'_>) -> Result<()> {
        check::check_kv_append(&args)?;
        attention::append(args)
    }

    fn attention(&self, mut args: AttentionArgs<'_>) -> Result<()> {
        check::check_attention(&args)?;
        for run in args.runs {
            attention::attend_run(&mut args, run)?;
        }
        Ok(())
    }

    fn gated(&self, gate: TensorRef<'_>, up: TensorRef<'_>, mut out: RowsOut<'_>) -> Result<()> {
        check::check_gated(gate, up, &out)?;
        start_rows(&mut out, gate)?;
        for row in 0..gate.rows() {
            let (gates, ups) = (load(gate, row)?, load(up, row)?);
            let pairs = gates.iter().zip(&ups);
            let y = pairs.map(|(&gate, up)| elementwise::silu(gate) * up);
            store_rows(&mut out, gate.dtype(), row, y.collect())?;
        }
        Ok(())
    }

    fn gelu(&self, x: TensorRef<'_>, kind: Gelu, mut out: TensorMut<'_>) -> Result<()> {
        check::check_gelu(x, &out)?;
        for row in 0..x.rows() {
            let x = load(x, row)?;
            let y: Vec<f32> = x.iter().map(|&x| elementwise::gelu(kind, x)).collect();
            store(&mut out, row, &y)?;
        }
        Ok(())
    }

    fn add(&self, mut x: TensorMut<'_>, y: TensorRef<'_>) -> Result<()> {
        check::check_add(&x, y)?;
        for row in 0..y.rows() {
            let (left, right) = (load(x.as_ref(), row)?, load(y, row)?);
            let sums: Vec<f32> = left.iter().zip(&right).map(|(x, y)| x + y).collect();
            store(&mut x, row, &sums)?;
        }
        Ok(())
    }

    fn copy(&self, x: TensorRef<'_>, mut out: TensorMut<'_>) -> Result<()> {
        check::check_copy(x, &out)?;
        for row in 0..x.rows() {
            store(&mut out, row, &load(x, row)?)?;
        }
        Ok(())
    }

    fn embedding(&self, table: &Weights, ids: &[u32], mut out: TensorMut<'_>) -> Result<()> {
        check::check_embedding(table, ids, &out)?;
        for (row, &id) in ids.iter().enumerate() {
            store(&mut out, row, &weight_row(table, id as usize))?;
        }
        Ok(())
    }

    fn argmax(&self, x: TensorRef<'_>, out: &mut [u32]) -> Result<()> {
        check::check_argmax(x, out)?;
        for (row, out) in out.iter_mut().enumerate() {
            *out = elementwise::argmax(&load(x, row)?);
        }
        Ok(())
    }
}

/// A sum in 16 lanes: element i is folded into lane i mod 16, then halves of the lanes are added.
pub(crate) fn fold_lanes(range: Range<usize>, step: impl Fn(f32, usize) -> f32) -> f32 {
    let mut lanes = [0.0f32; 16];
    for i in range {
        lanes[i % 16] = step(lanes[i % 16], i);
    }
    for half in [8, 4, 2, 1] {
        for lane in 0..half {
            lanes[lane] += lanes[lane + half];
        }
    }
    lanes[0]
}

fn float_linear(weights: &Weights, x: &[f32]) -> Vec<f32> {
    let (bias, group) = (
        weights.bias.as_slice::<f32>(),
        weights.format.group_size(weights.k),
    );
    let outputs = bias.iter().enumerate();
    let outputs = outputs.map(|(n, &bias)| {
        if let Format::Dense(_) = weights.format {
            let pairs = weights.format == Format::Dense(DType::Bf16);
            return linear::dense(x, &weight_row(weights, n), pairs, bias);
        }
        let (q, scales) = (integer_row(weights, n), row_scales(weights, n));
        if weights.format.is_per_channel() {
            linear::float_per_channel(x, q, scales[0], bias)
        } else {
            linear::float_per_group(x, q, &scales, group, bias)
        }
    });
    outputs.collect()
}

fn int8_linear(weights: &Weights, x: &[i8], x_scale: f32) -> Vec<f32> {
    let (bias, group) = (
        weights.bias.as_slice::<f32>(),
        weights.format.group_size(weights.k),
    );
    let outputs = bias.iter().enumerate();
    let outputs = outputs.map(|(n, &bias)| {
        let (q, scales) = (integer_row(weights, n), row_scales(weights, n));
        if weights.format.is_per_channel() {
            linear::int8_per_channel(x, x_scale, q, scales[0], bias)
        } else {
            linear::int8_per_group((x, x_scale), q, &scales, group, bias)
        }
    });
    outputs.collect()
}

/// A row of weights as floats.
fn weight_row(weights: &Weights, row: usize) -> Vec<f32> {
    let range = row * weights.k..(row + 1) * weights.k;
    if let Format::Dense(dtype) = weights.format {
        return match dtype {
            DType::Bf16 => widen(&weights.data.as_slice::<bf16>()[range]),
            DType::F16 => widen(&weights.data.as_slice::<f16>()[range]),
            _ => weights.data.as_slice::<f32>()[range].to_vec(),
        };
    }
    let (scales, group) = (
        row_scales(weights, row),
        weights.format.group_size(weights.k),
    );
    let q = integer_row(weights, row).iter().enumerate();
    q.map(|(k, &q)| f32::from(q) * scales[k / group]).collect()
}

fn integer_row(weights: &Weights, row: usize) -> &[i8] {
    &weights.data.as_slice()[row * weights.k..(row + 1) * weights.k]
}

fn row_scales(weights: &Weights, row: usize) -> Vec<f32> {
    let scales = weights.scales.as_slice::<f32>();
    scales
        .iter()
        .skip(row)
        .step_by(weights.n)
        .copied()
        .collect()
}

fn store_integers(weights: &mut Weights, row: usize, q: &[i8], scales: &[f32]) {
    let (n, k) = (weights.n, weights.k);
    weights.data.as_mut_slice()[row * k..(row + 1) * k].copy_from_slice(q);
    for (g, scale) in scales.iter().enumerate() {
        weights.scales.as_mut_slice::<f32>()[g * n + row] = *scale;
    }
}

fn store_dense(weights: &mut Weights, dtype: DType, row: usize, w: &[f32]) {
    let range = row * weights.k..(row + 1) * weights.k;
    match dtype {
        DType::Bf16 => narrow(&mut weights.data.as_mut_slice()[range], w, bf16::from_f32),
        DType::F16 => narrow(&mut weights.data.as_mut_slice()[range], w, f16::from_f32),
        _ => weights.data.as_mut_slice()[range].copy_from_slice(w),
    }
}

/// Prepares rows of the shape of `x` where they are to be quantised.
fn start_rows(out: &mut RowsOut<'_>, x: TensorRef<'_>) -> Result<()> {
    match out {
        RowsOut::Float(_) => Ok(()),
        RowsOut::Int8(out) => out.start(x.rows(), x.cols()),
    }
}

fn store_rows(out: &mut RowsOut<'_>, dtype: DType, row: usize, mut y: Vec<f32>) -> Result<()> {
    match out {
        RowsOut::Float(out) => return store(out, row, &y),
        RowsOut::Int8(out) => {
            round(dtype, &mut y);
            quantize_into(out, row, &y);
        }
    }
    Ok(())
}

fn quantize_into(out: &mut QuantizedRows, row: usize, x: &[f32]) {
    let mut q = vec![0; x.len()];
    out.scales.as_mut_slice::<f32>()[row] = quantize_row(x, &mut q);
    let (first, step) = out.panels.place(row, out.stride / UNIT);
    let bytes = out.data.as_mut_slice::<u8>();
    for (k, q) in q.into_iter().enumerate() {
        bytes[(first + k / UNIT * step) * UNIT + k % UNIT] = q as u8 ^ out.bias;
    }
}

/// A row of floats, widened exactly.
fn load(x: TensorRef<'_>, row: usize) -> Result<Vec<f32>> {
    Ok(match x.dtype() {
        DType::Bf16 => widen(x.row::<bf16>(row)?),
        DType::F16 => widen(x.row::<f16>(row)?),
        _ => x.row::<f32>(row)?.to_vec(),
    })
}

/// Writes a row, each value rounded once.
fn store(out: &mut TensorMut<'_>, row: usize, y: &[f32]) -> Result<()> {
    match out.dtype() {
        DType::Bf16 => narrow(out.row_mut(row)?, y, bf16::from_f32),
        DType::F16 => narrow(out.row_mut(row)?, y, f16::from_f32),
        _ => out.row_mut(row)?.copy_from_slice(y),
    }
    Ok(())
}

/// A stored row as f32.
pub(crate) fn widened(dtype: DType, stored: &[u8]) -> Vec<f32> {
    let pairs = || stored.as_chunks().0.iter();
    match dtype {
        DType::Bf16 => pairs()
            .map(|&pair| bf16::from_le_bytes(pair).to_f32())
            .collect(),
        DType::F16 => pairs()
            .map(|&pair| f16::from_le_bytes(pair).to_f32())
            .collect(),
        _ => {
            let quads = stored.as_chunks().0.iter();
            quads.map(|&quad| f32::from_le_bytes(quad)).collect()
        }
    }
}

/// Rounds to what `dtype` can hold.
pub(crate) fn round(dtype: DType, y: &mut [f32]) {
    for y in y {
        *y = match dtype {
            DType::Bf16 => bf16::from_f32(*y).to_f32(),
            DType::F16 => f16::from_f32(*y).to_f32(),
            _ => *y,
        };
    }
}

fn widen<T: Element + Into<f32>>(values: &[T]) -> Vec<f32> {
    values.iter().map(|&value| value.into()).collect()
}

fn narrow<T: Element>(out: &mut [T], y: &[f32], convert: impl Fn(f32) -> T) {
    for (out, y) in out.iter_mut().zip(y) {
        *out = convert(*y);
    }
}
