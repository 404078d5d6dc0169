//! The linear layer of INT4 weights.

use cider_kernels::{Activations, Element};

use crate::error::Result;
use crate::ops::{Matrix, Packed, quantized_int4};

/// A linear layer of INT4 weights, packed once for the machine.
///
/// ```
/// use cider::ops::Matrix;
/// use cider::{Activations, W4A8Linear};
///
/// // An output feature is a column of the float weights.
/// let weights = Matrix::new(&[7.0, 1.0, -3.0, 2.0], 2, 2)?;
/// let layer = W4A8Linear::from_weights(weights, 0)?.with_bias(&[0.0, 10.0])?;
/// let y = layer.forward(&[1.0_f32, 1.0], Activations::Int8)?;
/// assert!((y[0] - 4.0).abs() < 0.1 && (y[1] - 13.0).abs() < 0.2);
/// # Ok::<(), cider::Error>(())
/// ```
#[derive(Debug)]
pub struct W4A8Linear(Packed);

impl W4A8Linear {
    /// A layer of packed weights with one scale per output feature: `packed` is `[k / 2, N]` with the even k
    /// in the high nibble and 8 added to each integer, `scale` `[N]`.
    ///
    /// # Errors
    /// When sizes do not fit together, `k` is odd, or a scale is not finite.
    pub fn new(packed: Matrix<'_, u8>, scale: &[f32], k: usize) -> Result<Self> {
        Ok(Self(Packed::int4(NAME, packed, scale, (k, 0))?))
    }

    /// The same with one scale per `group_size` (32, 64, 128 or 256) input features: `scale` is
    /// `[ceil(k / group_size), N]`.
    ///
    /// # Errors
    /// When sizes do not fit together, `k` is odd, the group is none of those, or a scale is not finite.
    pub fn new_per_group(
        packed: Matrix<'_, u8>,
        scale: Matrix<'_, f32>,
        group_size: usize,
        k: usize,
    ) -> Result<Self> {
        let (columns, what) = (packed.cols(), "columns of the scales");
        crate::Error::expect_size(NAME, what, columns, scale.cols())?;
        let packed = Packed::int4(NAME, packed, scale.data(), (k, group_size))?;
        Ok(Self(packed))
    }

    /// A layer of float weights `W[K, N]`, quantised as [`pack_weight_int4`](crate::ops::pack_weight_int4)
    /// does; K may be odd here. A `group_size` of 0 is one scale per output feature.
    ///
    /// # Errors
    /// When a weight is not finite, the group is none that is served, or there are no weights.
    pub fn from_weights(w: Matrix<'_, f32>, group_size: usize) -> Result<Self> {
        Ok(Self(quantized_int4(NAME, w, group_size)?))
    }

    /// The layer with this bias `[N]`.
    ///
    /// # Errors
    /// When it does not have one value per output feature.
    pub fn with_bias(mut self, bias: &[f32]) -> Result<Self> {
        self.0.set_bias(Some(bias))?;
        Ok(self)
    }

    /// Runs `x`, f32 or bf16: rows of [`W4A8Linear::input_dims`] values one after the other, whatever the
    /// shape they come from. Gives as many rows of [`W4A8Linear::output_dims`] values, of the same type.
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

    /// The bytes `[K / 2, N]` and scales that [`W4A8Linear::new`] takes.
    ///
    /// # Errors
    /// When K is odd: two integers share a byte.
    pub fn packed(&self) -> Result<(Vec<u8>, Vec<f32>)> {
        self.0.read_packed()
    }
}

const NAME: &str = "W4A8Linear";
