//! Language models with online activation quantisation.
#![forbid(unsafe_code)]

mod available;
mod convert;
mod engine;
mod error;
pub mod files;
pub mod generate;
pub mod image;
mod layers;
pub mod load;
mod models;
pub mod nn;
pub mod ops;
mod scheme;
pub mod text;

pub use available::{Availability, Choice, PathReport, is_available};
pub use cider_kernels::{
    Activations, Backend, CpuBackend, DType, Element, Format, Isa, KV_BLOCK, Topology,
};
pub use convert::{Convert, ConvertOptions, ConvertReport, convert_model};
pub use engine::{
    BatchEngine, BatchEvent, BatchOptions, BatchRequest, BatchStats, Cancel, ChatPrompt, Engine,
    EngineOptions, Event, Frontend, Generation, ImageTimes, Outcome, PreparedImage, Request,
    RequestId, Step, TextSide, TokenInfo, VisionSide,
};
pub use error::{Error, Result};
pub use half::bf16;
pub use layers::{CiderLinear, W4A8Linear, W8A8Linear};
pub use models::{LoadOptions, Progress, WeightPlan};
pub use scheme::{Head, Quantization, Scheme};
