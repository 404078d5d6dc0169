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

pub use cider_kernels::{Backend, CpuBackend, DType, Format, Isa, KV_BLOCK, Topology};
pub use engine::{Cancel, Engine, EngineOptions, Event, Generation, Request, TextSide};
pub use error::{Error, Result};
pub use models::{LoadOptions, Progress, WeightPlan};
pub use scheme::{Head, Quantization, Scheme};
