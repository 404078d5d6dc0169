//! What every layer of a step is given.

use std::ops::Range;

use cider_kernels::{
    AttentionArgs, Backend, KvAppendArgs, KvLayer, NormArgs, NormKind, RopeArgs, RopeTable,
    RowsOut, Sight, TensorMut, TensorRef,
};

use crate::error::Result;
use crate::generate::Batch;

/// The rows of a step: prompt rows first, then generated ones.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows {
    /// Prompt rows.
    pub(crate) prompt: usize,
    /// All rows.
    pub(crate) all: usize,
}

impl Rows {
    /// The prompt rows.
    pub(crate) fn prompt_range(self) -> Range<usize> {
        0..self.prompt
    }

    /// The generated rows.
    pub(crate) fn generated_range(self) -> Range<usize> {
        self.prompt..self.all
    }
}

/// A backend and the rows of the step.
#[derive(Clone, Copy)]
pub(crate) struct Context<'a> {
    pub(crate) backend: &'a dyn Backend,
    pub(crate) batch: &'a Batch,
}

impl Context<'_> {
    /// The rows of the step.
    pub(crate) fn rows(&self) -> Rows {
        self.batch.rows()
    }

    /// RMS norm of rows, whole or in segments as wide as the weight.
    pub(crate) fn rms_norm(
        &self,
        x: TensorRef<'_>,
        weight: &[f32],
        eps: f32,
        out: RowsOut<'_>,
    ) -> Result<()> {
        let kind = NormKind::Rms;
        Ok(self.backend.norm(NormArgs {
            x,
            weight,
            bias: None,
            eps,
            kind,
            out,
        })?)
    }

    /// Rotates the heads of all rows.
    pub(crate) fn rope(&self, x: TensorMut<'_>, head_size: usize, table: &RopeTable) -> Result<()> {
        let positions = self.batch.positions();
        Ok(self.backend.rope(RopeArgs {
            x,
            head_size,
            positions,
            axes: self.batch.axes(),
            table,
        })?)
    }

    /// Writes the keys and values of all rows into the cache.
    pub(crate) fn kv_append(
        &self,
        keys: TensorRef<'_>,
        values: TensorRef<'_>,
        cache: &mut KvLayer,
    ) -> Result<()> {
        let slots = self.batch.slots();
        Ok(self.backend.kv_append(KvAppendArgs {
            keys,
            values,
            slots,
            cache,
        })?)
    }

    /// Attention of all rows; `window` is how many keys a row sees, if not all.
    pub(crate) fn attention(
        &self,
        queries: TensorRef<'_>,
        cache: &KvLayer,
        heads: usize,
        window: Option<usize>,
        out: TensorMut<'_>,
    ) -> Result<()> {
        let scale = (1.0 / (cache.head_size() as f64).sqrt()) as f32;
        let (runs, table) = (self.batch.runs(), self.batch.table());
        let args = AttentionArgs {
            queries,
            cache,
            runs,
            table,
            heads,
            scale,
            sight: Sight::causal(window),
            out,
        };
        Ok(self.backend.attention(args)?)
    }
}
