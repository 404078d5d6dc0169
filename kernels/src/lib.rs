//! Integer and float transformer kernels.

mod backend;
mod buffer;
mod check;
mod cpu;
mod dtype;
mod error;
mod kv;
mod mapped;
mod pages;
mod panels;
mod quant;
mod reference;
mod rope;
mod rows;
mod tensor;
mod weights;

pub use backend::{
    AttentionArgs, AttentionRun, Backend, Gelu, KvAppendArgs, LinearArgs, LinearInput, NormArgs,
    NormKind, Phase, RopeArgs, RowsOut, Sight,
};
pub use buffer::Buffer;
pub use cpu::{Caches, Ceilings, CpuBackend, Isa, PlainRead, Topology};
pub use dtype::{DType, Element};
pub use error::{Error, Result};
pub use kv::{KV_BLOCK, KvLayer, KvRows};
pub use mapped::MappedFile;
pub use quant::{Activations, Format, SEGMENT, SMALLEST_MAX, check_sum};
pub use reference::ReferenceBackend;
pub use rope::{RopeConfig, RopeScaling, RopeTable};
pub use rows::QuantizedRows;
pub use tensor::{Tensor, TensorMut, TensorRef};
pub use weights::{ReadFloats, ReadIntegers, RowSource, StoredRows, Weights};
