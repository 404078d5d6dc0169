//! Language models with online activation quantisation.
#![forbid(unsafe_code)]

mod error;
pub mod load;

pub use error::{Error, Result};
