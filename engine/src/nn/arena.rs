//! The memory of a step: every activation, allocated once.

use cider_kernels::{Backend, DType, QuantizedRows, Tensor};

use crate::error::Result;
use crate::load::ModelConfig;

/// How large the memory of a step is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// Rows (tokens) of a step.
    pub(crate) rows: usize,
    /// Rows whose logits can be asked for in one step.
    pub(crate) logits: usize,
    /// Type of activations.
    pub(crate) dtype: DType,
}

/// Activations of a step of a decoder.
#[derive(Debug)]
pub(crate) struct Arena {
    /// The residual stream, f32 `[rows, hidden]`: what every layer adds to keeps all its bits.
    pub(crate) hidden: Tensor,
    /// Queries, keys and values, `[rows, (heads + 2 * kv_heads) * head_size]`.
    pub(crate) qkv: Tensor,
    /// Normalised queries and keys, `[rows, (heads + kv_heads) * head_size]`; for models that have them.
    pub(crate) normed_qk: Tensor,
    /// What attention gives, `[rows, heads * head_size]`.
    pub(crate) attended: Tensor,
    /// Gate and up, `[rows, 2 * intermediate]`.
    pub(crate) gate_up: Tensor,
    /// What goes back to the residual stream, `[rows, hidden]`.
    pub(crate) delta: Tensor,
    /// The last hidden states whose logits are wanted, `[logits, hidden]`.
    pub(crate) last: Tensor,
    /// `[logits, vocabulary]` f32.
    pub(crate) logits: Tensor,
    pub(crate) staging: Staging,
}

/// Inputs of linear layers in the form they are wanted.
#[derive(Debug)]
pub(crate) struct Staging {
    /// `[rows, widest input]`.
    pub(crate) floats: Tensor,
    pub(crate) quantized: QuantizedRows,
}

impl Arena {
    /// Memory for steps of a model.
    pub(crate) fn new(backend: &dyn Backend, config: &ModelConfig, sizes: Sizes) -> Result<Self> {
        let Sizes {
            rows,
            logits,
            dtype,
        } = sizes;
        let (queries, kv) = (
            config.heads * config.head_size,
            config.kv_heads * config.head_size,
        );
        let hidden = config.hidden_size;
        let widest = hidden.max(queries).max(config.intermediate_size);
        let normed_qk = if config.qk_norm { queries + kv } else { 0 };
        let tensor = |cols| Tensor::zeros(dtype, rows, cols);
        Ok(Self {
            hidden: Tensor::zeros(DType::F32, rows, hidden)?,
            qkv: tensor(queries + 2 * kv)?,
            normed_qk: tensor(normed_qk)?,
            attended: tensor(queries)?,
            gate_up: tensor(2 * config.intermediate_size)?,
            delta: tensor(hidden)?,
            last: Tensor::zeros(dtype, logits, hidden)?,
            logits: Tensor::zeros(DType::F32, logits, config.vocab_size)?,
            staging: Staging {
                floats: tensor(widest)?,
                quantized: backend.quantized_rows(rows, widest)?,
            },
        })
    }

    /// Bytes it occupies, quantised rows aside.
    pub(crate) fn bytes(&self) -> usize {
        let tensors = [
            &self.hidden,
            &self.qkv,
            &self.normed_qk,
            &self.attended,
            &self.gate_up,
            &self.delta,
            &self.last,
            &self.logits,
            &self.staging.floats,
        ];
        tensors.into_iter().map(Tensor::bytes).sum()
    }
}
