//! Linear layers over packed integer weights, under the names of the public W8A8 package for MLX.

mod cider_linear;
mod w4a8_linear;

pub use cider_linear::{CiderLinear, W8A8Linear};
pub use w4a8_linear::W4A8Linear;
