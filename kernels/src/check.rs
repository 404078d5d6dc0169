//! What every backend refuses, in one place: shapes, dtypes, places that do not exist, sums that could
//! overflow. A backend calls the check of an op before it reads or writes anything.

use crate::backend::{
    AttentionArgs, AttentionRun, KvAppendArgs, LinearArgs, LinearInput, NormArgs, NormKind,
    RopeArgs, RowsOut, Sight, check_activation,
};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kv::KV_BLOCK;
use crate::quant::{Format, check_sum};
use crate::rows::QuantizedRows;
use crate::tensor::{TensorMut, TensorRef};
use crate::weights::Weights;

/// Refuses a percentile that is none.
pub(crate) fn check_percentile(percentile: Option<f64>) -> Result<()> {
    match percentile {
        Some(p) if !(0.0..=100.0).contains(&p) => refuse(
            "weights",
            format!("clip percentile {p} is not between 0 and 100"),
        ),
        _ => Ok(()),
    }
}

/// Refuses a stored row that is no `k` floats.
pub(crate) fn check_stored(dtype: DType, k: usize, stored: &[u8]) -> Result<()> {
    if dtype.is_float() && stored.len() == k * dtype.size() {
        return Ok(());
    }
    let found = stored.len();
    refuse(
        "weights",
        format!("a stored row of {found} bytes of {dtype}, expected {k} floats"),
    )
}

/// Refuses a row of integers, or scales, that the format cannot hold; tells whether it has a -128.
pub(crate) fn check_integers(format: Format, row: usize, q: &[i8], scales: &[f32]) -> Result<bool> {
    if let Some(scale) = scales.iter().find(|scale| !scale.is_finite()) {
        return refuse(
            "weights",
            format!("a scale of row {row} is {scale}, expected a finite number"),
        );
    }
    let (low, high) = match format {
        Format::Dense(dtype) => {
            return refuse(
                "weights",
                format!("row {row} is of integers, the weights are dense {dtype}"),
            );
        }
        Format::W4 { .. } => (-8, 7),
        Format::W8 { .. } => (-128, 127),
    };
    if let Some(value) = q.iter().find(|&&value| value < low || value > high) {
        return refuse(
            "weights",
            format!("row {row} has {value}, {format} holds {low}..={high}"),
        );
    }
    let has_minus_128 = q.contains(&i8::MIN);
    if has_minus_128 {
        check_sum("weights", format.group_size(q.len()).min(q.len()), 127, 128)?;
    }
    Ok(has_minus_128)
}

/// Refuses to read a row that does not exist or does not fit.
pub(crate) fn check_read_row(weights: &Weights, row: usize, out: &[f32]) -> Result<()> {
    weights.check_rows(row, 1)?;
    same("weights", "columns of the row read", weights.k, out.len())
}

/// Refuses to read integers of a row that does not exist, does not fit, or has none.
pub(crate) fn check_read_integers(
    weights: &Weights,
    row: usize,
    out: &[i8],
    scales: &[f32],
) -> Result<()> {
    weights.check_rows(row, 1)?;
    if let Format::Dense(dtype) = weights.format {
        return refuse("weights", format!("dense {dtype} weights have no integers"));
    }
    same("weights", "columns of the row read", weights.k, out.len())?;
    same(
        "weights",
        "scales of the row read",
        weights.format.groups(weights.k),
        scales.len(),
    )
}

/// Checks the input of `quantize`; the room is checked by `QuantizedRows::start`.
pub(crate) fn check_quantize(x: TensorRef<'_>) -> Result<()> {
    check_activation("quantize", x.dtype())
}

/// Checks a linear layer.
pub(crate) fn check_linear(args: &LinearArgs<'_>) -> Result<()> {
    let weights = args.weights;
    check_activation("linear", args.out.dtype())?;
    match args.input {
        LinearInput::Float(x) => check_activation("linear", x.dtype())?,
        LinearInput::Int8(rows) => check_integer_product("linear", rows, weights)?,
    }
    same("linear", "input columns", weights.k, args.input.cols())?;
    same("linear", "output rows", args.input.rows(), args.out.rows())?;
    same("linear", "output columns", weights.n, args.out.cols())
}

/// Checks the bare integer product.
pub(crate) fn check_matmul_i32(
    input: &QuantizedRows,
    weights: &Weights,
    out: &TensorMut<'_>,
) -> Result<()> {
    if !weights.format.is_per_channel() {
        return refuse(
            "matmul",
            format!(
                "expected integer weights per channel, got {}",
                weights.format
            ),
        );
    }
    check_integer_product("matmul", input, weights)?;
    same_dtype("matmul", "output", DType::I32, out.dtype())?;
    same("matmul", "input columns", weights.k, input.cols())?;
    same("matmul", "output rows", input.rows(), out.rows())?;
    same("matmul", "output columns", weights.n, out.cols())
}

/// Checks a norm, output shape included.
pub(crate) fn check_norm(args: &NormArgs<'_>) -> Result<()> {
    check_activation("norm", args.x.dtype())?;
    let length = args.weight.len();
    if length == 0 || !args.x.cols().is_multiple_of(length) {
        return refuse(
            "norm",
            format!(
                "{} columns are no multiple of the {length} weights",
                args.x.cols()
            ),
        );
    }
    if let Some(bias) = args.bias {
        if args.kind == NormKind::Rms {
            return refuse("norm", "an RMS norm has no bias, got one");
        }
        same("norm", "values of the bias", length, bias.len())?;
    }
    check_rows_out("norm", args.x, &args.out)
}

/// Checks rope, positions included.
pub(crate) fn check_rope(args: &RopeArgs<'_>) -> Result<()> {
    check_activation("rope", args.x.dtype())?;
    let (cols, head) = (args.x.cols(), args.head_size);
    if head == 0 || !cols.is_multiple_of(head) {
        return refuse(
            "rope",
            format!("{cols} columns are no multiple of head size {head}"),
        );
    }
    let (rotary, positions) = (args.table.rotary_size(), args.table.positions());
    if rotary > head {
        return refuse(
            "rope",
            format!("rotary size {rotary} is above head size {head}"),
        );
    }
    let axes = args.axes.iter().map(|&axis| usize::from(axis) + 1).max();
    if !args.axes.is_empty() {
        same("rope", "axes of pairs", rotary / 2, args.axes.len())?;
    }
    let expected = args.x.rows() * axes.unwrap_or(1);
    same("rope", "positions", expected, args.positions.len())?;
    within("rope", "position", args.positions, positions)
}

/// Checks an append to the cache, slots included.
pub(crate) fn check_kv_append(args: &KvAppendArgs<'_>) -> Result<()> {
    let op = "kv append";
    check_activation(op, args.keys.dtype())?;
    same_dtype(op, "values", args.keys.dtype(), args.values.dtype())?;
    let cols = args.cache.kv_heads() * args.cache.head_size();
    same(op, "columns of the keys", cols, args.keys.cols())?;
    same(op, "columns of the values", cols, args.values.cols())?;
    same(
        op,
        "rows of the values",
        args.keys.rows(),
        args.values.rows(),
    )?;
    same(op, "slots", args.keys.rows(), args.slots.len())?;
    within(op, "slot", args.slots, args.cache.blocks() * KV_BLOCK)
}

/// Checks attention: shapes, and that the runs cover the rows in order and find every block they need.
pub(crate) fn check_attention(args: &AttentionArgs<'_>) -> Result<()> {
    let op = "attention";
    let (heads, kv_heads) = (args.heads, args.cache.kv_heads());
    if heads == 0 || kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
        return refuse(
            op,
            format!("{heads} heads are no multiple of {kv_heads} KV heads"),
        );
    }
    check_activation(op, args.queries.dtype())?;
    same_dtype(op, "output", args.queries.dtype(), args.out.dtype())?;
    let cols = heads * args.cache.head_size();
    same(op, "columns of the queries", cols, args.queries.cols())?;
    same(op, "output columns", cols, args.out.cols())?;
    same(op, "output rows", args.queries.rows(), args.out.rows())?;
    if args.sight == Sight::Window(0) {
        return refuse(op, "a window of 0 keys sees nothing");
    }
    let mut next = 0;
    for run in args.runs {
        same(op, "first row of the run", next, run.first_row)?;
        next = next
            .checked_add(run.rows)
            .ok_or_else(|| Error::shape(op, format!("{} rows overflow", run.rows)))?;
        check_run(run, args)?;
    }
    same(op, "rows in runs", args.queries.rows(), next)
}

/// Checks a gated product, output shape included.
pub(crate) fn check_gated(gate: TensorRef<'_>, up: TensorRef<'_>, out: &RowsOut<'_>) -> Result<()> {
    check_activation("gated", gate.dtype())?;
    same_dtype("gated", "up", gate.dtype(), up.dtype())?;
    same("gated", "rows of up", gate.rows(), up.rows())?;
    same("gated", "columns of up", gate.cols(), up.cols())?;
    check_rows_out("gated", gate, out)
}

/// Checks GELU.
pub(crate) fn check_gelu(x: TensorRef<'_>, out: &TensorMut<'_>) -> Result<()> {
    check_activation("gelu", x.dtype())?;
    same_shape("gelu", x, out)
}

/// Checks an addition.
pub(crate) fn check_add(x: &TensorMut<'_>, y: TensorRef<'_>) -> Result<()> {
    check_activation("add", y.dtype())?;
    same_shape("add", y, x)
}

/// Checks a copy.
pub(crate) fn check_copy(x: TensorRef<'_>, out: &TensorMut<'_>) -> Result<()> {
    check_activation("copy", x.dtype())?;
    same_shape("copy", x, out)
}

/// Checks a lookup, ids included.
pub(crate) fn check_embedding(table: &Weights, ids: &[u32], out: &TensorMut<'_>) -> Result<()> {
    check_activation("embedding", out.dtype())?;
    same("embedding", "output rows", ids.len(), out.rows())?;
    same("embedding", "output columns", table.k, out.cols())?;
    within("embedding", "id", ids, table.n)
}

/// Checks an argmax.
pub(crate) fn check_argmax(x: TensorRef<'_>, out: &[u32]) -> Result<()> {
    check_activation("argmax", x.dtype())?;
    if x.cols() == 0 || x.cols() >= u32::MAX as usize {
        return refuse("argmax", format!("rows of {} columns", x.cols()));
    }
    same("argmax", "results", x.rows(), out.len())
}

fn check_rows_out(op: &'static str, x: TensorRef<'_>, out: &RowsOut<'_>) -> Result<()> {
    match out {
        RowsOut::Float(out) => same_shape(op, x, out),
        // Its room is checked when it is started.
        RowsOut::Int8(_) => Ok(()),
    }
}

fn check_integer_product(op: &'static str, rows: &QuantizedRows, weights: &Weights) -> Result<()> {
    let largest = match weights.format {
        Format::Dense(dtype) => {
            return refuse(op, format!("INT8 rows meet dense {dtype} weights"));
        }
        Format::W4 { .. } => 8,
        Format::W8 { .. } if weights.has_minus_128 => 128,
        Format::W8 { .. } => 127,
    };
    let columns = weights.format.group_size(weights.k).min(weights.k);
    check_sum(op, columns, rows.largest, largest)
}

fn check_run(run: &AttentionRun, args: &AttentionArgs<'_>) -> Result<()> {
    if run.rows == 0 {
        return Ok(());
    }
    let end = run
        .first_position
        .checked_add(run.rows)
        .ok_or_else(|| Error::shape("attention", "a position overflows"))?;
    let needed = end.div_ceil(KV_BLOCK);
    if needed > run.blocks {
        return refuse(
            "attention",
            format!("{end} keys need {needed} blocks, got {}", run.blocks),
        );
    }
    let table = args.table.len();
    if run
        .first_block
        .checked_add(run.blocks)
        .is_none_or(|end| end > table)
    {
        let what = format!("blocks {} + {} of {table}", run.first_block, run.blocks);
        return refuse("attention", what);
    }
    let first = args.sight.keys(run.first_position, end).start / KV_BLOCK;
    within(
        "attention",
        "block",
        &run.blocks_in(args.table)[first..needed],
        args.cache.blocks(),
    )
}

fn within(op: &'static str, what: &str, values: &[u32], limit: usize) -> Result<()> {
    match values.iter().find(|&&value| value as usize >= limit) {
        Some(value) => refuse(
            op,
            format!("{what} {value} is beyond the {limit} there are"),
        ),
        None => Ok(()),
    }
}

/// The output may be of either activation type: it is rounded once.
fn same_shape(op: &'static str, x: TensorRef<'_>, out: &TensorMut<'_>) -> Result<()> {
    check_activation(op, out.dtype())?;
    same(op, "output rows", x.rows(), out.rows())?;
    same(op, "output columns", x.cols(), out.cols())
}

fn same_dtype(op: &'static str, what: &str, expected: DType, got: DType) -> Result<()> {
    if expected == got {
        return Ok(());
    }
    refuse(op, format!("{what}: expected {expected}, got {got}"))
}

fn same(op: &'static str, what: &str, expected: usize, got: usize) -> Result<()> {
    if expected == got {
        return Ok(());
    }
    refuse(op, format!("{what}: expected {expected}, got {got}"))
}

fn refuse<T>(op: &'static str, what: impl Into<String>) -> Result<T> {
    Err(Error::shape(op, what))
}
