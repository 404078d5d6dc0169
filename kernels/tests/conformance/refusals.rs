//! What weights, linear layers, norms, attention and the cache must refuse, and in which words.
#![expect(clippy::type_complexity, reason = "the rows of the tables are tuples")]

use cider_kernels::{
    AttentionArgs, AttentionRun, Backend, DType, Format, KvAppendArgs, KvLayer, LinearArgs,
    LinearInput, NormArgs, NormKind, Phase, QuantizedRows, RowSource, RowsOut, Sight,
};

use crate::cases::{Case, Failure, Matrix};

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = formats();
    cases.extend(float_weights());
    cases.extend(integer_weights());
    cases.extend(rows_of_weights());
    cases.extend(linears());
    cases.extend(linear_kinds());
    cases.extend(norms());
    cases.extend(attentions());
    cases.extend(appends());
    cases
}

fn formats() -> Vec<Case> {
    let table: [(&str, &[&str], Format, usize, usize); 4] = [
        ("K = 133,145", &["133145", "133144"], W8, 1, 133_145),
        ("a group of 48", &["48"], Format::W8 { group: 48 }, 1, 96),
        ("no rows", &["0 x 8"], W8, 0, 8),
        ("dense i8", &["i8"], Format::Dense(DType::I8), 1, 8),
    ];
    let cases = table.map(|(name, words, format, n, k)| {
        Case::refused("weights", name, words, move |backend| {
            backend.weights(format, n, k)?;
            Ok(())
        })
    });
    cases.into()
}

fn float_weights() -> Vec<Case> {
    let table: [(&str, &[&str], Format, f32, Option<f64>); 6] = [
        ("a NaN", &["row 1", "column 0", "NaN"], W8, f32::NAN, None),
        ("infinity", &["row 1", "inf"], W8, f32::INFINITY, None),
        ("a NaN in floats", &["row 1"], F16, f32::NAN, None),
        ("a value beyond f16", &["row 1", "inf"], F16, 1e5, None),
        ("percentile 101", &["101"], W8, 1.0, Some(101.0)),
        ("percentile -1", &["-1"], W8, 1.0, Some(-1.0)),
    ];
    let cases = table.map(|(name, words, format, value, clip_percentile)| {
        Case::refused("weights", name, words, move |backend| {
            let mut weights = backend.weights(format, 40, 8)?;
            let read = |row: usize, w: &mut [f32]| w.fill(if row > 0 { value } else { 1.0 });
            let source = RowSource::Floats {
                read: &read,
                clip_percentile,
            };
            Ok(backend.fill_weights(&mut weights, 0, 40, source)?)
        })
    });
    cases.into()
}

fn integer_weights() -> Vec<Case> {
    let w4 = Format::W4 { group: 32 };
    let table: [(&str, &[&str], Format, usize, i8, f32); 5] = [
        ("8 in 4 bits", &["8", "-8..=7"], w4, 8, 8, 1.0),
        ("-9 in 4 bits", &["-9", "-8..=7"], w4, 8, -9, 1.0),
        ("a scale of NaN", &["scale", "NaN"], W8, 8, 1, f32::NAN),
        ("integers for floats", &["dense f16"], F16, 8, 1, 1.0),
        ("-128", &["132105", "132104"], W8, 132_105, -128, 1.0),
    ];
    let cases = table.map(|(name, words, format, k, value, scale)| {
        Case::refused("weights", name, words, move |backend| {
            let mut weights = backend.weights(format, 1, k)?;
            let read = |_: usize, q: &mut [i8], scales: &mut [f32]| {
                q.fill(value);
                scales.fill(scale);
            };
            let source = RowSource::Integers { read: &read };
            Ok(backend.fill_weights(&mut weights, 0, 1, source)?)
        })
    });
    cases.into()
}

/// Fills three rows of three columns with stored rows of `bytes` bytes; the second value of the last one has these bits.
fn refuse_stored(
    backend: &dyn Backend,
    dtype: DType,
    bytes: usize,
    bits: u16,
) -> Result<(), Failure> {
    let mut weights = backend.weights(W8, 3, 3)?;
    let [low, high] = bits.to_le_bytes();
    let (good, bad) = ([0; 6], [0, 0, low, high, 0, 0]);
    let source = RowSource::Stored {
        dtype,
        rows: &|row| {
            if row == 2 {
                &bad[..bytes]
            } else {
                &good[..bytes]
            }
        },
        clip_percentile: None,
    };
    Ok(backend.fill_weights(&mut weights, 0, 3, source)?)
}

fn rows_of_weights() -> Vec<Case> {
    let case = |name, words, call: fn(&dyn Backend) -> Result<(), Failure>| {
        Case::refused("weights", name, words, call)
    };
    vec![
        case("rows that do not exist", &["2 + 2", "3"], |backend| {
            let mut weights = backend.weights(W8, 3, 8)?;
            let source = RowSource::Floats {
                read: &|_, w| w.fill(1.0),
                clip_percentile: None,
            };
            Ok(backend.fill_weights(&mut weights, 2, 2, source)?)
        }),
        case("a stored NaN", &["row 2", "column 1", "NaN"], |backend| {
            refuse_stored(backend, DType::Bf16, 6, 0x7fc0)
        }),
        case(
            "a stored infinity",
            &["row 2", "column 1", "inf"],
            |backend| refuse_stored(backend, DType::F16, 6, 0x7c00),
        ),
        case("a stored row that is cut", &["4 bytes", "3"], |backend| {
            refuse_stored(backend, DType::Bf16, 4, 0)
        }),
        case("a stored row of integers", &["i8", "3"], |backend| {
            refuse_stored(backend, DType::I8, 3, 0)
        }),
        case("a bias that is too long", &["0 + 4", "3"], |backend| {
            let mut weights = backend.weights(W8, 3, 8)?;
            Ok(backend.set_bias(&mut weights, 0, &[0.0; 4])?)
        }),
        case("to read a row too far", &["3 + 1", "3"], |backend| {
            Ok(backend.read_row(&backend.weights(W8, 3, 8)?, 3, &mut [0.0; 8])?)
        }),
        case("to read into a short row", &["8", "7"], |backend| {
            Ok(backend.read_row(&backend.weights(W8, 3, 8)?, 0, &mut [0.0; 7])?)
        }),
        case("to read integers of floats", &["dense f16"], |backend| {
            let weights = backend.weights(F16, 3, 8)?;
            Ok(backend.read_integers(&weights, 0, &mut [0; 8], &mut [])?)
        }),
        case("to read too few scales", &["2", "1"], |backend| {
            let weights = backend.weights(Format::W8 { group: 32 }, 3, 40)?;
            Ok(backend.read_integers(&weights, 0, &mut [0; 40], &mut [0.0])?)
        }),
    ]
}

fn linears() -> Vec<Case> {
    // Shapes of the input and the output of a layer of 4 x 8.
    let table: [(&str, &[&str], [usize; 2], DType, [usize; 2]); 4] = [
        ("a wrong K", &["8", "7"], [2, 7], DType::F32, [2, 4]),
        ("a wrong M", &["2", "3"], [2, 8], DType::F32, [3, 4]),
        ("a wrong N", &["4", "5"], [2, 8], DType::F32, [2, 5]),
        ("an f16 output", &["f16"], [2, 8], DType::F16, [2, 4]),
    ];
    let cases = table.map(|(name, words, [m, k], dtype, [rows, cols])| {
        Case::refused("linear", name, words, move |backend| {
            let weights = backend.weights(W8, 4, 8)?;
            let x = Matrix::input(DType::F32, m, k, &vec![1.0; m * k])?;
            let mut y = Matrix::output(dtype, rows, cols)?;
            let input = LinearInput::Float(x.view());
            Ok(backend.linear(LinearArgs {
                input,
                weights: &weights,
                out: y.view_mut(),
            })?)
        })
    });
    cases.into()
}

fn linear_kinds() -> Vec<Case> {
    let product = |format: Format, dtype: DType| {
        move |backend: &dyn Backend| {
            let weights = backend.weights(format, 4, 8)?;
            let mut out = Matrix::output(dtype, 1, 4)?;
            Ok(backend.matmul_i32(&one_row(backend)?, &weights, out.view_mut())?)
        }
    };
    let (grouped, i32, f32) = (Format::W8 { group: 32 }, DType::I32, DType::F32);
    let words = &["per channel", "group 32"];
    vec![
        Case::refused("matmul_i32", "groups", words, product(grouped, i32)),
        Case::refused("matmul_i32", "f32", &["i32", "f32"], product(W8, f32)),
        Case::refused("linear", "INT8 rows with floats", &["f16"], |backend| {
            let weights = backend.weights(F16, 4, 8)?;
            let rows = one_row(backend)?;
            let mut out = Matrix::output(DType::F32, 1, 4)?;
            let input = LinearInput::Int8(&rows);
            Ok(backend.linear(LinearArgs {
                input,
                weights: &weights,
                out: out.view_mut(),
            })?)
        }),
    ]
}

fn one_row(backend: &dyn Backend) -> Result<QuantizedRows, Failure> {
    let mut rows = backend.quantized_rows(1, 8)?;
    let x = Matrix::input(DType::F32, 1, 8, &[1.0; 8])?;
    backend.quantize(x.view(), &mut rows)?;
    Ok(rows)
}

fn norms() -> Vec<Case> {
    use NormKind::{Layer, Rms};
    // Columns of the input and the output of a norm of 8 weights, and values of its bias.
    let table: [(&str, &[&str], NormKind, usize, DType, usize, usize); 5] = [
        ("a wrong width", &["12", "8"], Rms, 12, DType::F32, 12, 0),
        ("a wrong output", &["16", "8"], Rms, 16, DType::F32, 8, 0),
        ("an f16 output", &["f16"], Rms, 16, DType::F16, 16, 0),
        ("a bias of RMS", &["bias"], Rms, 8, DType::F32, 8, 8),
        ("a short bias", &["8", "3"], Layer, 8, DType::F32, 8, 3),
    ];
    let cases = table.map(|(name, words, kind, cols, dtype, out, bias)| {
        Case::refused("norm", name, words, move |backend| {
            let x = Matrix::input(DType::F32, 2, cols, &vec![1.0; 2 * cols])?;
            let mut y = Matrix::output(dtype, 2, out)?;
            Ok(backend.norm(NormArgs {
                x: x.view(),
                weight: &[1.0; 8],
                bias: (bias > 0).then_some(&[0.0; 8][..bias]),
                eps: 1e-5,
                kind,
                out: RowsOut::Float(y.view_mut()),
            })?)
        })
    });
    let words = &["2 x 70", "1 x 64"];
    let room = Case::refused("norm", "rows without room", words, |backend| {
        let x = Matrix::input(DType::F32, 2, 70, &[1.0; 140])?;
        Ok(backend.norm(NormArgs {
            x: x.view(),
            weight: &[1.0; 70],
            bias: None,
            eps: 1e-5,
            kind: Rms,
            out: RowsOut::Int8(&mut backend.quantized_rows(1, 64)?),
        })?)
    });
    cases.into_iter().chain([room]).collect()
}

fn attentions() -> Vec<Case> {
    // Heads and keys of two rows of 64 columns, over a cache of three blocks of two heads of 16.
    let table: [(&str, &[&str], usize, usize, &[u32], Option<usize>); 6] = [
        ("a ratio of 3 / 2", &["3", "2"], 3, 2, &[0], None),
        ("a wrong width", &["32", "64"], 2, 2, &[0], None),
        ("too few blocks", &["65", "2", "1"], 4, 65, &[0], None),
        ("no blocks", &["2 keys", "1", "0"], 4, 2, &[], None),
        ("block 3", &["block 3", "3"], 4, 65, &[0, 3], None),
        ("an empty window", &["window"], 4, 65, &[0, 1], Some(0)),
    ];
    let cases = table.map(|(name, words, heads, length, table, window)| {
        Case::refused("attention", name, words, move |backend| {
            let cache = KvLayer::new(DType::F32, DType::F32, 3, 2, 16)?;
            let q = Matrix::input(DType::F32, 2, 64, &[1.0; 128])?;
            let mut out = Matrix::output(DType::F32, 2, 64)?;
            let run = AttentionRun {
                first_row: 0,
                rows: 2,
                first_position: length - 2,
                first_block: 0,
                blocks: table.len(),
                phase: Phase::Prompt,
            };
            Ok(backend.attention(AttentionArgs {
                queries: q.view(),
                cache: &cache,
                runs: &[run],
                table,
                heads,
                scale: 1.0,
                sight: Sight::causal(window),
                out: out.view_mut(),
            })?)
        })
    });
    cases.into()
}

fn appends() -> Vec<Case> {
    let table: [(&str, &[&str], usize, &[u32]); 3] = [
        ("slot 192", &["slot 192", "192"], 32, &[0, 192]),
        ("too few slots", &["2", "1"], 32, &[0]),
        ("a wrong width", &["32", "31"], 31, &[0, 1]),
    ];
    let cases = table.map(|(name, words, cols, slots)| {
        Case::refused("kv_append", name, words, move |backend| {
            let mut cache = KvLayer::new(DType::F32, DType::F32, 3, 2, 16)?;
            let x = Matrix::input(DType::F32, 2, cols, &vec![1.0; 2 * cols])?;
            Ok(backend.kv_append(KvAppendArgs {
                keys: x.view(),
                values: x.view(),
                slots,
                cache: &mut cache,
            })?)
        })
    });
    cases.into()
}

const W8: Format = Format::W8 { group: 0 };
const F16: Format = Format::Dense(DType::F16);
