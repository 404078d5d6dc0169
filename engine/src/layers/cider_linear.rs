//! The linear layer of INT8 weights.

use cider_kernels::{Activations, Element, Format};

use crate::error::Result;
use crate::ops::{Matrix, Packed};

/// A linear layer of INT8 weights, packed once for the machine.
///
/// Where the public W8A8 package chooses by the number of rows (one row meets the weights in floats, more are
/// quantised), here the caller says what activations do: [`Activations::Int8`] for a prompt,
/// [`Activations::Float`] for generated tokens.
///
/// ```
/// use cider::ops::Matrix;
/// use cider::{Activations, CiderLinear};
///
/// let weight = Matrix::new(&[1.0, 2.0, 3.0, -4.0, 5.0, -6.0], 2, 3)?;
/// let layer = CiderLinear::from_float(weight, Some(&[0.5, 0.0]), 0, None)?;
/// assert_eq!((layer.input_dims(), layer.output_dims()), (3, 2));
/// let y = layer.forward(&[1.0_f32, 1.0, 1.0], Activations::Int8)?;
/// assert!((y[0] - 6.5).abs() < 0.05 && (y[1] + 5.0).abs() < 0.05);
/// # Ok::<(), cider::Error>(())
/// ```
#[derive(Debug)]
pub struct CiderLinear(Packed);

/// The other name of [`CiderLinear`].
pub type W8A8Linear = CiderLinear;

impl CiderLinear {
    /// A layer of weights that are quantised already: `w_int8` is `[out_features, in_features]`, `scale_w`
    /// `[out_features]` for a `group_size` of 0, else `[ceil(in_features / group_size), out_features]`;
    /// `group_size` is 0, 32, 64, 128 or 256.
    ///
    /// ```
    /// use cider::{Activations, CiderLinear};
    ///
    /// let layer = CiderLinear::new(&[1, 2, -3, 4], &[0.5, 0.25], 0, 2, 2, None)?;
    /// assert_eq!(layer.forward(&[2.0_f32, 2.0], Activations::Float)?, [3.0, 0.5]);
    /// # Ok::<(), cider::Error>(())
    /// ```
    ///
    /// # Errors
    /// When sizes do not fit together, a scale is not finite, the group is none of those, or a sum over
    /// `in_features` could overflow.
    pub fn new(
        w_int8: &[i8],
        scale_w: &[f32],
        group_size: usize,
        in_features: usize,
        out_features: usize,
        bias: Option<&[f32]>,
    ) -> Result<Self> {
        let w = Matrix::new(w_int8, out_features, in_features)?;
        let mut packed = Packed::int8(NAME, w, scale_w, group_size)?;
        packed.set_bias(bias)?;
        Ok(Self(packed))
    }

    /// A layer of float weights `[N, K]`, quantised as
    /// [`quantize_weight_int8`](crate::ops::quantize_weight_int8) does.
    ///
    /// # Errors
    /// When sizes do not fit together, a weight is not finite, or the group or the percentile is none that is
    /// served.
    pub fn from_float(
        weight: Matrix<'_, f32>,
        bias: Option<&[f32]>,
        group_size: usize,
        clip_percentile: Option<f64>,
    ) -> Result<Self> {
        let format = Format::W8 { group: group_size };
        let read = |row: usize, out: &mut [f32]| out.copy_from_slice(weight.row(row));
        let shape = (weight.rows(), weight.cols());
        let mut packed = Packed::quantized(NAME, format, shape, &read, clip_percentile)?;
        packed.set_bias(bias)?;
        Ok(Self(packed))
    }

    /// Runs `x`, f32 or bf16: rows of [`CiderLinear::input_dims`] values one after the other, whatever the
    /// shape they come from. Gives as many rows of [`CiderLinear::output_dims`] values, of the same type.
    ///
    /// # Errors
    /// When `x` ends inside a row, or memory is short.
    pub fn forward<T: Element>(&self, x: &[T], activations: Activations) -> Result<Vec<T>> {
        self.0.forward(x, activations)
    }

    /// Input features, K.
    #[must_use]
    pub fn input_dims(&self) -> usize {
        self.0.weights().k()
    }

    /// Output features, N.
    #[must_use]
    pub fn output_dims(&self) -> usize {
        self.0.weights().n()
    }

    /// Input features that share a scale, 0 for all of them.
    #[must_use]
    pub fn group_size(&self) -> usize {
        self.0.group_size()
    }

    /// Bytes of the packed weights with their scales and bias.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.0.weights().bytes()
    }

    /// The integers and scales in the layouts that [`CiderLinear::new`] takes.
    ///
    /// # Errors
    /// None with the backends there are.
    pub fn weights(&self) -> Result<(Vec<i8>, Vec<f32>)> {
        self.0.read()
    }
}

const NAME: &str = "CiderLinear";
