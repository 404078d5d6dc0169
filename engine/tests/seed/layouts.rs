//! Arrays in the layouts of the package: quantised to the same bits, read back as they were, multiplied.

use cider::ops::{
    Matrix, int8_matmul_int32, pack_weight_int4, perchannel_linear, pergroup_linear,
    quantize_weight_int8, w4a8_linear,
};
use cider::{Activations, CiderLinear, W4A8Linear, bf16};

use crate::arrays::Arrays;
use crate::on_every_isa;

/// An INT8 form of the weights in the file.
struct Int8 {
    name: &'static str,
    group: usize,
    percentile: Option<f64>,
    /// Scales that differ from numpy's by one unit in the last place: it interpolates percentiles of f32 in
    /// f32, the contract in f64. Counted when the file was made; there are 24 per channel, 96 per group.
    inexact: usize,
}

const INT8: [Int8; 5] = {
    const fn of(name: &'static str, group: usize, clipped: bool, inexact: usize) -> Int8 {
        let percentile = if clipped { Some(99.0) } else { None };
        Int8 {
            name,
            group,
            percentile,
            inexact,
        }
    }
    [
        of("channel", 0, false, 0),
        of("channel_clip99", 0, true, 0),
        of("group64", 64, false, 0),
        of("group128", 128, false, 0),
        of("group64_clip99", 64, true, 2),
    ]
};

#[test]
fn int8_weights_are_quantised_to_the_bits_of_numpy() {
    let file = Arrays::read("quantise.safetensors");
    let w = file.f32("w");
    on_every_isa(|isa| {
        for form in INT8 {
            let name = form.name;
            let w = file.matrix("w", &w);
            let (values, scales) = quantize_weight_int8(w, form.group, form.percentile).unwrap();
            assert_eq!(values, file.i8(&format!("w_{name}")), "{isa}, {name}");
            let expected = file.f32(&format!("scale_{name}"));
            assert_eq!(scales.len(), expected.len(), "{isa}, {name}");
            let pairs = scales.iter().zip(&expected);
            let inexact = pairs
                .filter(|(a, b)| a.to_bits() != b.to_bits())
                .map(|(a, b)| {
                    assert_eq!(
                        a.to_bits().abs_diff(b.to_bits()),
                        1,
                        "{isa}, {name}: {a}, {b}"
                    );
                });
            assert_eq!(inexact.count(), form.inexact, "{isa}, {name}");
        }
    });
}

#[test]
fn int4_weights_are_packed_to_the_bytes_of_numpy() {
    let file = Arrays::read("quantise.safetensors");
    let (w, (k, n)) = columns(&file);
    let w = Matrix::new(&w, k, n).unwrap();
    on_every_isa(|isa| {
        let (packed, scales) = pack_weight_int4(w, 0).unwrap();
        assert_eq!(packed, file.u8("w_int4"), "{isa}");
        assert_eq!(scales, file.f32("scale_int4"), "{isa}");
        let layer = W4A8Linear::from_weights(w, 0).unwrap();
        assert_eq!(layer.packed().unwrap(), (packed, scales), "{isa}");
    });
}

#[test]
fn layers_give_arrays_back_as_they_were() {
    let file = Arrays::read("quantise.safetensors");
    on_every_isa(|isa| {
        for Int8 { name, group, .. } in INT8 {
            let (w, scale) = (
                file.i8(&format!("w_{name}")),
                file.f32(&format!("scale_{name}")),
            );
            let [n, k] = *file.shape("w") else { panic!() };
            let layer = CiderLinear::new(&w, &scale, group, k, n, None).unwrap();
            assert_eq!(layer.weights().unwrap(), (w, scale), "{isa}, {name}");
            assert_eq!(
                (layer.group_size(), layer.input_dims(), layer.output_dims()),
                (group, k, n)
            );
        }
        let (packed, scale) = (file.u8("w_int4"), file.f32("scale_int4"));
        let layer = W4A8Linear::new(file.matrix("w_int4", &packed), &scale, 256).unwrap();
        assert_eq!(layer.packed().unwrap(), (packed, scale), "{isa}");
        // Every byte, so that a nibble of 0, the integer -8, is among them; the last of the groups is of 16.
        let bytes: Vec<u8> = (0..=255).chain(0..16).collect();
        let scales = [0.5, 2.0].repeat(9);
        let packed = Matrix::new(&bytes, 136, 2).unwrap();
        let grouped = Matrix::new(&scales, 9, 2).unwrap();
        let layer = W4A8Linear::new_per_group(packed, grouped, 32, 272).unwrap();
        assert_eq!(layer.packed().unwrap(), (bytes, scales), "{isa}");
    });
}

#[test]
fn products_are_those_of_numpy_within_their_bounds() {
    let file = Arrays::read("quantise.safetensors");
    let (x, bias) = (file.f32("x"), file.f32("bias"));
    on_every_isa(|isa| {
        for Int8 { name, group, .. } in INT8 {
            let (w, scale) = (
                file.i8(&format!("w_{name}")),
                file.f32(&format!("scale_{name}")),
            );
            let magnitudes = Magnitudes::of(&file, &w, &scale, group);
            for (kind, activations) in [("w8a8", Activations::Int8), ("w8a16", Activations::Float)]
            {
                let (x, w) = (file.matrix("x", &x), file.matrix("w", &w));
                let y = if group == 0 {
                    perchannel_linear(x, w, &scale, Some(&bias), activations)
                } else {
                    let scale = file.matrix(&format!("scale_{name}"), &scale);
                    pergroup_linear(x, w, scale, group, Some(&bias), activations)
                };
                let expected = file.f64(&format!("y_{name}_{kind}"));
                magnitudes.check(&y.unwrap(), &expected, &format!("{isa}, {name}, {kind}"));
            }
        }
        let (packed, scale) = (file.u8("w_int4"), file.f32("scale_int4"));
        let integers: Vec<i8> = unpack(&packed, file.shape("w_int4")[1]);
        let packed = file.matrix("w_int4", &packed);
        let x = file.matrix("x", &x);
        let y = w4a8_linear(x, packed, &scale, None, Activations::Int8).unwrap();
        let expected = file.f64("y_int4_w4a8");
        Magnitudes::of(&file, &integers, &scale, 0).check(&y, &expected, &format!("{isa}, int4"));
        // With a bias each product is that much further, to within the same bound and one rounding.
        let y = w4a8_linear(x, packed, &scale, Some(&bias), Activations::Int8).unwrap();
        let shifted = expected.iter().zip(bias.iter().cycle());
        let shifted: Vec<f64> = shifted.map(|(y, bias)| y + f64::from(*bias)).collect();
        Magnitudes::of(&file, &integers, &scale, 0).check(&y, &shifted, &format!("{isa}, biased"));
    });
}

#[test]
fn rows_do_not_depend_on_their_neighbours_nor_on_the_instruction_set() {
    let file = Arrays::read("quantise.safetensors");
    let (x, w, bias) = (file.f32("x"), file.f32("w"), file.f32("bias"));
    let [n, k] = *file.shape("w") else { panic!() };
    let mut all = Vec::new();
    on_every_isa(|isa| {
        let w = file.matrix("w", &w);
        let layer = CiderLinear::from_float(w, Some(&bias), 64, None).unwrap();
        let results = [Activations::Int8, Activations::Float].map(|activations| {
            let together = layer.forward(&x, activations).unwrap();
            for (row, expected) in x.chunks(k).zip(together.chunks(n)) {
                assert_eq!(layer.forward(row, activations).unwrap(), expected, "{isa}");
            }
            together
        });
        assert_ne!(results[0], results[1], "{isa}");
        all.push(results);
    });
    assert!(all.iter().all(|results| *results == all[0]));
}

#[test]
fn bf16_results_are_f32_results_rounded_once() {
    let file = Arrays::read("quantise.safetensors");
    let x: Vec<bf16> = file.f32("x").into_iter().map(bf16::from_f32).collect();
    let widened: Vec<f32> = x.iter().map(|x| x.to_f32()).collect();
    let w = file.f32("w");
    on_every_isa(|isa| {
        let layer = CiderLinear::from_float(file.matrix("w", &w), None, 0, None).unwrap();
        let y = layer.forward(&x, Activations::Int8).unwrap();
        let expected = layer.forward(&widened, Activations::Int8).unwrap();
        let expected: Vec<bf16> = expected.into_iter().map(bf16::from_f32).collect();
        assert_eq!(y, expected, "{isa}");
    });
}

#[test]
fn integer_products_are_exact() {
    let file = Arrays::read("int8_matmul.safetensors");
    let (a, b) = (file.i8("a"), file.i8("b"));
    on_every_isa(|isa| {
        let (a, b) = (file.matrix("a", &a), file.matrix("b", &b));
        assert_eq!(int8_matmul_int32(a, b).unwrap(), file.i32("c"), "{isa}");
        let lowest = vec![-128; 131_071];
        let lowest = Matrix::new(&lowest, 1, 131_071).unwrap();
        let product = int8_matmul_int32(lowest, lowest).unwrap();
        assert_eq!(product, [131_071 * 128 * 128], "{isa}");
    });
}

/// The float weights as `[K, N]`.
fn columns(file: &Arrays) -> (Vec<f32>, (usize, usize)) {
    let w = file.f32("w");
    let [n, k] = *file.shape("w") else { panic!() };
    ((0..n * k).map(|i| w[i % n * k + i / n]).collect(), (k, n))
}

/// The integers `[N, K]` of bytes `[K / 2, N]`.
fn unpack(packed: &[u8], n: usize) -> Vec<i8> {
    let bytes = (0..n).flat_map(|row| packed.iter().skip(row).step_by(n));
    bytes
        .flat_map(|byte| [byte >> 4, byte & 15].map(|nibble| nibble as i8 - 8))
        .collect()
}

/// How far an f32 result may be from the exact one.
struct Magnitudes {
    /// `[M, N]`
    bounds: Vec<f64>,
}

impl Magnitudes {
    /// From the sums of magnitudes of what is added up, and the number of roundings.
    fn of(file: &Arrays, w: &[i8], scale: &[f32], group: usize) -> Self {
        let (x, bias) = (file.f32("x"), file.f32("bias"));
        let (n, k) = (bias.len(), w.len() / bias.len());
        let size = if group == 0 { k } else { group };
        let steps = (k + 3 * k.div_ceil(size) + 4) as f64;
        let bound = |x: &[f32], row: usize| {
            // A quantised value may be half a step beyond the float it stands for.
            let half = f64::from(x.iter().fold(0.0, |max: f32, x| max.max(x.abs()))) / 254.0;
            let terms = x
                .iter()
                .zip(&w[row * k..][..k])
                .enumerate()
                .map(|(i, (x, q))| {
                    let w = f64::from(*q) * f64::from(scale[i / size * n + row]);
                    (f64::from(x.abs()) + half) * w.abs()
                });
            let magnitude = terms.sum::<f64>() + f64::from(bias[row].abs());
            let unit = steps * 2f64.powi(-24);
            // Products of two scales may be subnormal, and lose as much once per step and unit of the sum.
            unit / (1.0 - unit) * magnitude + steps * 127.0 * 128.0 * 2f64.powi(-150)
        };
        let bounds = x.chunks(k).flat_map(|x| (0..n).map(move |row| (x, row)));
        Self {
            bounds: bounds.map(|(x, row)| bound(x, row)).collect(),
        }
    }

    fn check(&self, found: &[f32], expected: &[f64], what: &str) {
        assert_eq!(
            (found.len(), expected.len()),
            (self.bounds.len(), self.bounds.len()),
            "{what}"
        );
        for (i, ((y, exact), bound)) in found.iter().zip(expected).zip(&self.bounds).enumerate() {
            let error = (f64::from(*y) - exact).abs();
            assert!(
                error <= *bound,
                "{what}, value {i}: {y} for {exact}, beyond {bound}"
            );
        }
    }
}
