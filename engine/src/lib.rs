//! Language models with online activation quantisation.
#![forbid(unsafe_code)]

mod error;
pub mod generate;
pub mod load;
pub mod text;

pub use error::{Error, Result};
