//! INT8 and INT4 products over plain arrays, under the names and in the array layouts of the public W8A8
//! package for MLX: arrays made with it can be read here, and the other way round.
//!
//! | array | type and shape | layout |
//! |---|---|---|
//! | `x` | f32 or bf16 `[M, K]` | row-major, one token a row |
//! | W8 weights | i8 `[N, K]` | row-major, one output feature a row |
//! | their scales | f32 `[N]`, or `[K / group, N]` per group | weight `[n, k]` is `w[n, k] * scale[k / group, n]` |
//! | W4 weights | u8 `[K / 2, N]` | packed from `W[K, N]`; the high nibble is the even k; a nibble is the integer + 8 |
//! | bias | f32 `[N]` | |
//! | results | the type of `x`, `[M, N]` | row-major |
//!
//! The arithmetic is that of `docs/numerics.md`. With [`Activations::Int8`] every row of `x` is quantised on
//! its own in every call, as prompt tokens are; with [`Activations::Float`] it stays as it is and meets the
//! same integers, as generated tokens do. The caller says which: the number of rows never decides.
//!
//! A function of this module packs the weights for the machine in each call. A layer does it once:
//! [`CiderLinear`](crate::CiderLinear), [`W4A8Linear`](crate::W4A8Linear).
//!
//! Differences from that package: weights may hold -128 but are never quantised to it; activations do not go
//! through f16 and are rounded half to even; K need not be a multiple of the group, the last group is then
//! shorter; groups of 32 are served; INT4 products take a bias; shapes are checked; a row of `x` that is not
//! finite gives a row that is not finite.

mod backend;
mod matrix;
mod packed;
mod weights;

use cider_kernels::{Activations, DType, Element, Tensor};

pub use self::backend::{default_backend, with_backend};
pub use self::matrix::Matrix;
pub(crate) use self::packed::Packed;
pub(crate) use self::weights::quantized_int4;
pub use self::weights::{pack_weight_int4, quantize_weight_int8};
use crate::error::{Error, Result};

/// `x . w^T * scale + bias` with one scale per output feature.
///
/// `x` is `[M, K]`, `w` `[N, K]`, `scale` and `bias` `[N]`; gives `[M, N]`.
///
/// ```
/// use cider::Activations;
/// use cider::ops::{Matrix, perchannel_linear};
///
/// let x = Matrix::new(&[1.0_f32, -2.0], 1, 2)?;
/// let w = Matrix::new(&[127_i8, 0, 0, -127, 64, 64], 3, 2)?;
/// let scale = [1.0 / 127.0; 3];
/// let y = perchannel_linear(x, w, &scale, Some(&[0.0, 0.0, 10.0]), Activations::Float)?;
/// assert!((y[0] - 1.0).abs() < 1e-6 && (y[1] - 2.0).abs() < 1e-6 && (y[2] - 9.496).abs() < 1e-3);
/// # Ok::<(), cider::Error>(())
/// ```
///
/// # Errors
/// When sizes do not fit together, a scale is not finite, or K is so large that a sum could overflow.
pub fn perchannel_linear<T: Element>(
    x: Matrix<'_, T>,
    w: Matrix<'_, i8>,
    scale: &[f32],
    bias: Option<&[f32]>,
    activations: Activations,
) -> Result<Vec<T>> {
    const OP: &str = "perchannel_linear";
    Error::expect_size(OP, "columns of w", x.cols(), w.cols())?;
    let mut packed = Packed::int8(OP, w, scale, 0)?;
    packed.set_bias(bias)?;
    packed.forward(x.data(), activations)
}

/// `x . w^T + bias` with one scale per `group_size` input features of an output feature.
///
/// `x` is `[M, K]`, `w` `[N, K]`, `scale` `[ceil(K / group_size), N]`, `bias` `[N]`; gives `[M, N]`. Groups
/// are of 32, 64, 128 or 256.
///
/// ```
/// use cider::Activations;
/// use cider::ops::{Matrix, pergroup_linear};
///
/// // K = 48: a group of 32 and a shorter one of 16.
/// let x = Matrix::new(&[1.0_f32; 48], 1, 48)?;
/// let w = Matrix::new(&[1_i8; 48], 1, 48)?;
/// let scale = Matrix::new(&[0.5, 2.0], 2, 1)?;
/// let y = pergroup_linear(x, w, scale, 32, None, Activations::Int8)?;
/// assert!((y[0] - 48.0).abs() < 1e-4);
/// # Ok::<(), cider::Error>(())
/// ```
///
/// # Errors
/// When sizes do not fit together, or the group is not one of those.
pub fn pergroup_linear<T: Element>(
    x: Matrix<'_, T>,
    w: Matrix<'_, i8>,
    scale: Matrix<'_, f32>,
    group_size: usize,
    bias: Option<&[f32]>,
    activations: Activations,
) -> Result<Vec<T>> {
    const OP: &str = "pergroup_linear";
    Error::expect_size(OP, "columns of w", x.cols(), w.cols())?;
    Error::expect_size(OP, "columns of scale", w.rows(), scale.cols())?;
    let mut packed = Packed::int8(OP, w, scale.data(), group_size)?;
    packed.set_bias(bias)?;
    packed.forward(x.data(), activations)
}

/// `x . W * scale + bias` with packed INT4 weights and one scale per output feature.
///
/// `x` is `[M, K]`, `packed` `[K / 2, N]` as [`pack_weight_int4`] makes it, `scale` and `bias` `[N]`; gives
/// `[M, N]`. For scales per group there is
/// [`W4A8Linear::new_per_group`](crate::W4A8Linear::new_per_group).
///
/// ```
/// use cider::Activations;
/// use cider::ops::{Matrix, pack_weight_int4, w4a8_linear};
///
/// // K = 2, N = 3: the weights of an output feature stand in a column.
/// let w = Matrix::new(&[7.0, 0.0, 3.5, 0.0, -14.0, 3.5], 2, 3)?;
/// let (packed, scale) = pack_weight_int4(w, 0)?;
/// let packed = Matrix::new(&packed, 1, 3)?;
/// let x = Matrix::new(&[1.0_f32, -1.0], 1, 2)?;
/// let y = w4a8_linear(x, packed, &scale, None, Activations::Int8)?;
/// assert!((y[0] - 7.0).abs() < 1e-4 && (y[1] - 14.0).abs() < 1e-4 && y[2].abs() < 1e-4);
/// # Ok::<(), cider::Error>(())
/// ```
///
/// # Errors
/// When sizes do not fit together, or a scale is not finite.
pub fn w4a8_linear<T: Element>(
    x: Matrix<'_, T>,
    packed: Matrix<'_, u8>,
    scale: &[f32],
    bias: Option<&[f32]>,
    activations: Activations,
) -> Result<Vec<T>> {
    let mut packed = Packed::int4("w4a8_linear", packed, scale, (x.cols(), 0))?;
    packed.set_bias(bias)?;
    packed.forward(x.data(), activations)
}

/// The exact products `a . b^T` in 32 bits: `a` is `[M, K]`, `b` `[N, K]`; gives i32 `[M, N]`.
///
/// Every value of an i8 is allowed on both sides, -128 too.
///
/// ```
/// use cider::ops::{Matrix, int8_matmul_int32};
///
/// let a = Matrix::new(&[-128_i8, -128, 1, 2], 2, 2)?;
/// let b = Matrix::new(&[-128_i8, -128], 1, 2)?;
/// assert_eq!(int8_matmul_int32(a, b)?, [32_768, -384]);
/// # Ok::<(), cider::Error>(())
/// ```
///
/// # Errors
/// When the columns differ, there are none, or they are more than 131,071: a sum could then overflow.
pub fn int8_matmul_int32(a: Matrix<'_, i8>, b: Matrix<'_, i8>) -> Result<Vec<i32>> {
    const OP: &str = "int8_matmul_int32";
    let (m, n, k) = (a.rows(), b.rows(), a.cols());
    Error::expect_size(OP, "columns of b", k, b.cols())?;
    cider_kernels::check_sum(OP, k, 128, 128)?;
    if m == 0 || n == 0 {
        return Ok(Vec::new());
    }
    let packed = Packed::int8(OP, b, &vec![1.0; n], 0)?;
    let backend = packed.backend();
    let mut rows = backend.quantized_rows(m, k)?;
    rows.set(k, a.data(), &vec![1.0; m])?;
    let mut out = Tensor::zeros(DType::I32, m, n)?;
    backend.matmul_i32(&rows, packed.weights(), out.view_mut())?;
    Ok(out.as_slice()?.to_vec())
}
