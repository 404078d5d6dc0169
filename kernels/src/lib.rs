//! Integer and float transformer kernels.

mod error;

pub use error::{Error, Result};
