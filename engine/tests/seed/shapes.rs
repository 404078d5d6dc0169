//! Sizes that do not fit together are refused with both numbers; odd sizes that do fit work.

use cider::ops::{
    Matrix, int8_matmul_int32, pack_weight_int4, perchannel_linear, pergroup_linear,
    quantize_weight_int8, w4a8_linear,
};
use cider::{Activations, CiderLinear, Error, W4A8Linear};

use crate::on_every_isa;

const INT8: Activations = Activations::Int8;

#[track_caller]
fn refused<T: std::fmt::Debug>(result: cider::Result<T>, words: &[&str]) {
    let message = result.unwrap_err().to_string();
    for word in words {
        assert!(message.contains(word), "{message}: {word} is not in it");
    }
    assert!(
        !message.contains('\n') && !message.ends_with('.'),
        "{message}"
    );
}

fn matrix<T>(data: &[T], rows: usize, cols: usize) -> Matrix<'_, T> {
    Matrix::new(data, rows, cols).unwrap()
}

#[test]
fn sizes_that_differ_are_refused_with_both_numbers() {
    let (x, w, packed) = ([1.0_f32; 64], [1_i8; 64], [0_u8; 64]);
    let (ones, none) = ([1.0_f32; 64], None);
    let x = matrix(&x, 4, 16);
    let shape = Matrix::new(&w, 4, 15).unwrap_err();
    assert!(
        matches!(
            shape,
            Error::Shape {
                op: "matrix",
                expected: 60,
                got: 64,
                ..
            }
        ),
        "{shape}"
    );
    refused(Matrix::new(&w, usize::MAX, 2), &["64"]);

    let per_channel = |w, scales: usize, bias| perchannel_linear(x, w, &ones[..scales], bias, INT8);
    refused(
        per_channel(matrix(&w, 8, 8), 8, none),
        &["columns of w", "16", "8"],
    );
    refused(
        per_channel(matrix(&w, 4, 16), 3, none),
        &["perchannel_linear: scales", "4", "3"],
    );
    let bias = Some(&ones[..5]);
    refused(per_channel(matrix(&w, 4, 16), 4, bias), &["bias", "4", "5"]);
    refused(per_channel(matrix(&w[..0], 0, 16), 0, none), &["0 x 16"]);

    let wide = [1_i8; 80];
    let wide_x = [1.0_f32; 40];
    let per_group = |rows, cols, group| {
        let scale = matrix(&ones[..rows * cols], rows, cols);
        let (x, w) = (matrix(&wide_x, 1, 40), matrix(&wide, 2, 40));
        pergroup_linear(x, w, scale, group, None, INT8)
    };
    assert!(per_group(2, 2, 32).is_ok());
    refused(per_group(1, 2, 32), &["pergroup_linear: scales", "4", "2"]);
    refused(per_group(2, 3, 32), &["columns of scale", "2", "3"]);
    refused(per_group(2, 2, 48), &["48", "32, 64, 128, 256"]);

    let four = |rows, cols, scales: usize| {
        let packed = matrix(&packed[..rows * cols], rows, cols);
        w4a8_linear(x, packed, &ones[..scales], None, INT8)
    };
    assert!(four(8, 3, 3).is_ok());
    refused(four(7, 3, 3), &["w4a8_linear", "packed weights", "8", "7"]);
    refused(four(8, 3, 2), &["scales", "3", "2"]);
    refused(
        W4A8Linear::new(matrix(&packed[..8], 4, 2), &ones[..2], 9),
        &["even K", "9"],
    );
    refused(
        pack_weight_int4(matrix(&ones[..15], 5, 3), 0),
        &["pack_weight_int4", "5"],
    );

    let product = int8_matmul_int32(matrix(&w, 4, 16), matrix(&w, 8, 8));
    refused(product, &["int8_matmul_int32: columns of b", "16", "8"]);
    let long = vec![1_i8; 131_072];
    let product = int8_matmul_int32(matrix(&long, 1, 131_072), matrix(&long, 1, 131_072));
    refused(product, &["131072", "131071"]);
}

#[test]
fn layers_refuse_what_they_cannot_hold() {
    refused(
        CiderLinear::new(&[1; 6], &[1.0; 2], 0, 4, 2, None),
        &["8", "6"],
    );
    refused(
        CiderLinear::new(&[1; 6], &[1.0, f32::NAN], 0, 3, 2, None),
        &["row 1", "NaN"],
    );
    let layer = CiderLinear::new(&[1; 6], &[1.0; 2], 0, 3, 2, None).unwrap();
    refused(
        layer.forward(&[1.0_f32; 7], INT8),
        &["CiderLinear", "last row", "3", "1"],
    );
    refused(layer.forward(&[1_i8; 3], INT8), &["bf16 or f32", "i8"]);
    assert!(layer.forward::<f32>(&[], INT8).unwrap().is_empty());

    let w = [0.5, f32::INFINITY];
    refused(
        quantize_weight_int8(matrix(&w, 1, 2), 0, None),
        &["column 1", "inf"],
    );
    refused(
        quantize_weight_int8(matrix(&w[..1], 1, 1), 0, Some(101.0)),
        &["101"],
    );
    let layer = W4A8Linear::from_weights(matrix(&[1.0; 6], 3, 2), 0).unwrap();
    refused(layer.with_bias(&[1.0]), &["W4A8Linear", "bias", "2", "1"]);
    // An odd K is held, but not packed.
    let layer = W4A8Linear::from_weights(matrix(&[1.0; 6], 3, 2), 0).unwrap();
    refused(layer.packed(), &["even K", "3"]);
}

#[test]
fn groups_that_do_not_divide_k_have_a_shorter_last_one() {
    // 100.0 in the last column alone: a tail that is skipped would be seen.
    let (n, k) = (3, 70);
    let mut w = vec![0.01; n * k];
    w.iter_mut().skip(k - 1).step_by(k).for_each(|w| *w = 100.0);
    let transposed: Vec<f32> = (0..n * k).map(|i| w[i % n * k + i / n]).collect();
    let x: Vec<f32> = (0..2 * k).map(|i| i as f32 / k as f32 - 1.0).collect();
    let expected: Vec<f64> = x
        .chunks(k)
        .flat_map(|x| {
            w.chunks(k)
                .map(|w| x.iter().zip(w).map(|(x, w)| f64::from(x * w)).sum())
        })
        .collect();
    // The tail's own products are exact up to half a step of x.
    let step = 100.0 / 254.0 + 0.1;
    on_every_isa(|isa| {
        for activations in [Activations::Int8, Activations::Float] {
            let w8 = CiderLinear::from_float(matrix(&w, n, k), None, 32, None).unwrap();
            let w4 = W4A8Linear::from_weights(matrix(&transposed, k, n), 32).unwrap();
            let results = [w8.forward(&x, activations), w4.forward(&x, activations)];
            for y in results.map(Result::unwrap) {
                for (y, expected) in y.iter().zip(&expected) {
                    let error = (f64::from(*y) - expected).abs();
                    assert!(error < step, "{isa}: {y} for {expected}");
                }
            }
        }
    });
}

#[test]
fn a_row_that_is_not_finite_gives_a_row_that_is_not_finite() {
    let x = [
        1.0,
        2.0,
        f32::NAN,
        1.0,
        3.0,
        f32::NEG_INFINITY,
        5.0,
        6.0_f32,
    ];
    on_every_isa(|isa| {
        let layer = CiderLinear::new(&[1, 2, 3, 0], &[1.0; 2], 0, 2, 2, None).unwrap();
        for activations in [Activations::Int8, Activations::Float] {
            let y = layer.forward(&x, activations).unwrap();
            let finite: Vec<bool> = y.iter().map(|y| y.is_finite()).collect();
            assert!(
                y[0].is_finite() && y[1].is_finite() && y[6].is_finite(),
                "{isa}: {y:?}"
            );
            assert_eq!(finite[2..6], [false; 4], "{isa}: {y:?}");
        }
    });
}

#[test]
fn any_leading_shape_is_rows() {
    // 2 x 3 x 8 with an outlier in row (1, 2), as six rows.
    let mut x = [0.25_f32; 48];
    x[47] = 100.0;
    let w: Vec<f32> = (0..16).map(|i| i as f32 / 16.0 - 0.4).collect();
    let layer = CiderLinear::from_float(matrix(&w, 2, 8), None, 0, None).unwrap();
    let together = layer.forward(&x, INT8).unwrap();
    assert_eq!(together.len(), 12);
    for (row, expected) in x.chunks(8).zip(together.chunks(2)) {
        assert_eq!(layer.forward(row, INT8).unwrap(), expected);
    }
    assert!(together[..10].chunks(2).all(|row| row == &together[..2]));
}
