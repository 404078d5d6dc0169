//! What models are made of: layers over the ops of a backend.

mod arena;
mod context;
mod linear;

pub(crate) use arena::{Arena, Sizes};
pub(crate) use context::{Context, Rows};
pub use linear::Linear;
pub(crate) use linear::Source;
