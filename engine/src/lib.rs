//! Language models with online activation quantisation.
#![forbid(unsafe_code)]

mod engine;
mod error;
pub mod generate;
pub mod load;
mod models;
pub mod nn;
mod scheme;
pub mod text;

pub use cider_kernels::{Backend, CpuBackend, DType, Format, Isa, Topology};
pub use engine::{Engine, EngineOptions, Event, Generation, Request};
pub use error::{Error, Result};
pub use models::{LoadOptions, Progress};
pub use scheme::{Head, Quantization, Scheme};
