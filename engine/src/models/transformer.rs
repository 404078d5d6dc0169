//! The dense decoder: Llama 2 and 3, `SmolLM2`, Mistral, Qwen2, Qwen2.5, Qwen3. They differ in what the
//! configuration says: biases, norms of queries and keys, windows, rope.

use cider_kernels::{Backend, KvLayer, RopeTable, RowsOut};

use super::{Loader, Model};
use crate::error::Result;
use crate::generate::Batch;
use crate::load::ModelConfig;
use crate::nn::{Arena, Context, Linear, Source};

/// A decoder-only transformer.
#[derive(Debug)]
pub(super) struct Transformer {
    config: ModelConfig,
    /// Rows of the vocabulary; the head too, where the two are tied.
    embedding: Linear,
    layers: Vec<Layer>,
    norm: Vec<f32>,
    /// Absent where the head is the embedding.
    head: Option<Linear>,
    rope: RopeTable,
}

#[derive(Debug)]
struct Layer {
    input_norm: Vec<f32>,
    qkv: Linear,
    /// Norms of the heads of queries and keys.
    qk_norms: Option<(Vec<f32>, Vec<f32>)>,
    output: Linear,
    mlp_norm: Vec<f32>,
    gate_up: Linear,
    down: Linear,
    window: Option<usize>,
}

impl Transformer {
    /// Reads the weights.
    pub(super) fn load(mut loader: Loader<'_>) -> Result<Self> {
        let config = loader.config().clone();
        let (vocabulary, hidden) = (config.vocab_size, config.hidden_size);
        let table = "model.embed_tokens.weight";
        let embedding = if config.tied {
            loader.head(table, vocabulary, hidden)?
        } else {
            loader.embedding(table, vocabulary, hidden)?
        };
        let layers = (0..config.layers).map(|i| Layer::load(&mut loader, &config, i));
        let layers = layers.collect::<Result<_>>()?;
        let norm = loader.vector("model.norm.weight", hidden)?;
        let head = if config.tied {
            None
        } else {
            Some(loader.head("lm_head.weight", vocabulary, hidden)?)
        };
        let rope = RopeTable::new(&config.rope, loader.positions())?;
        Ok(Self {
            config,
            embedding,
            layers,
            norm,
            head,
            rope,
        })
    }

    /// The logits of the rows that ask for them.
    fn logits(&self, context: Context<'_>, arena: &mut Arena) -> Result<()> {
        let wanted = context.batch.logits();
        for (i, row) in wanted.iter().enumerate() {
            let x = arena.hidden.view().row_range(*row..row + 1);
            let out = RowsOut::Float(arena.last.view_mut().row_range(i..i + 1));
            context.rms_norm(x, &self.norm, self.config.rms_norm_eps, out)?;
        }
        if wanted.is_empty() {
            return Ok(());
        }
        let head = self.head.as_ref().unwrap_or(&self.embedding);
        let rows = 0..wanted.len();
        let x = arena.last.view().row_range(rows.clone());
        head.rows(context.backend, x, arena.logits.view_mut().row_range(rows))
    }
}

impl Model for Transformer {
    fn config(&self) -> &ModelConfig {
        &self.config
    }

    fn forward(
        &self,
        backend: &dyn Backend,
        batch: &Batch,
        cache: &mut [KvLayer],
        arena: &mut Arena,
    ) -> Result<()> {
        let context = Context { backend, batch };
        let rows = 0..context.rows().all;
        let hidden = arena.hidden.view_mut().row_range(rows);
        backend.embedding(self.embedding.weights(), batch.ids(), hidden)?;
        for image in batch.images() {
            let rows = image.first_row..image.first_row + image.rows;
            let tokens = image.part(&image.features.tokens);
            backend.copy(tokens, arena.hidden.view_mut().row_range(rows))?;
        }
        for (i, (layer, cache)) in self.layers.iter().zip(cache).enumerate() {
            layer.attention(context, &self.config, &self.rope, cache, arena)?;
            layer.mlp(context, &self.config, arena)?;
            for image in batch.images() {
                let rows = image.first_row..image.first_row + image.rows;
                if let Some(level) = image.features.levels.get(i) {
                    let hidden = arena.hidden.view_mut().row_range(rows);
                    backend.add(hidden, image.part(level))?;
                }
            }
        }
        self.logits(context, arena)
    }

    fn linears_mut(&mut self) -> Vec<&mut Linear> {
        self.layers
            .iter_mut()
            .flat_map(Layer::linears_mut)
            .collect()
    }

    fn weight_bytes(&self) -> usize {
        let of_layer = |layer: &Layer| {
            let linears = [&layer.qkv, &layer.output, &layer.gate_up, &layer.down];
            linears
                .map(|linear| linear.weights().bytes())
                .iter()
                .sum::<usize>()
        };
        let tables = [Some(&self.embedding), self.head.as_ref()]
            .into_iter()
            .flatten();
        self.layers.iter().map(of_layer).sum::<usize>()
            + tables.map(|table| table.weights().bytes()).sum::<usize>()
    }
}

impl Layer {
    fn load(loader: &mut Loader<'_>, config: &ModelConfig, index: usize) -> Result<Self> {
        let name = |part: &str| format!("model.layers.{index}.{part}");
        let (hidden, inner) = (config.hidden_size, config.intermediate_size);
        let (queries, kv) = (
            config.heads * config.head_size,
            config.kv_heads * config.head_size,
        );
        let qkv = [
            (name("self_attn.q_proj"), queries),
            (name("self_attn.k_proj"), kv),
            (name("self_attn.v_proj"), kv),
        ];
        let gate_up = [(name("mlp.gate_proj"), inner), (name("mlp.up_proj"), inner)];
        let qk_norms = if config.qk_norm {
            let query = loader.vector(&name("self_attn.q_norm.weight"), config.head_size)?;
            let key = loader.vector(&name("self_attn.k_norm.weight"), config.head_size)?;
            Some((query, key))
        } else {
            None
        };
        Ok(Self {
            input_norm: loader.vector(&name("input_layernorm.weight"), hidden)?,
            qkv: loader.linear(&qkv, hidden)?,
            qk_norms,
            output: loader.linear(&[(name("self_attn.o_proj"), hidden)], queries)?,
            mlp_norm: loader.vector(&name("post_attention_layernorm.weight"), hidden)?,
            gate_up: loader.linear(&gate_up, hidden)?,
            down: loader.linear(&[(name("mlp.down_proj"), hidden)], inner)?,
            window: config.window.get(index).copied().flatten(),
        })
    }

    fn linears_mut(&mut self) -> [&mut Linear; 4] {
        [
            &mut self.qkv,
            &mut self.output,
            &mut self.gate_up,
            &mut self.down,
        ]
    }

    /// Norm, queries, keys and values, rope, cache, attention, output, residual.
    fn attention(
        &self,
        context: Context<'_>,
        config: &ModelConfig,
        rope: &RopeTable,
        cache: &mut KvLayer,
        arena: &mut Arena,
    ) -> Result<()> {
        let rows = 0..context.rows().all;
        let size = config.head_size;
        let (queries, kv) = (config.heads * size, config.kv_heads * size);
        self.queries_and_keys(context, config, rope, arena)?;

        let Arena {
            hidden,
            qkv,
            normed_qk,
            attended,
            delta,
            staging,
            ..
        } = arena;
        let qk = if self.qk_norms.is_some() {
            &*normed_qk
        } else {
            &*qkv
        };
        let qk = qk.view().row_range(rows.clone());
        let values = queries + kv..queries + 2 * kv;
        let values = qkv.view().row_range(rows.clone()).col_range(values);
        context.kv_append(qk.col_range(queries..queries + kv), values, cache)?;
        let out = attended.view_mut().row_range(rows.clone());
        let heads = config.heads;
        context.attention(qk.col_range(0..queries), cache, heads, self.window, out)?;

        let x = Source::Rows(attended.view());
        self.output.forward(context, x, staging, delta.view_mut())?;
        add(context.backend, hidden, delta, rows.end)
    }

    /// Queries, keys and values of the normalised rows; queries and keys normalised where the model does
    /// that, and rotated.
    fn queries_and_keys(
        &self,
        context: Context<'_>,
        config: &ModelConfig,
        rope: &RopeTable,
        arena: &mut Arena,
    ) -> Result<()> {
        let rows = 0..context.rows().all;
        let (size, eps) = (config.head_size, config.rms_norm_eps);
        let (queries, kv) = (config.heads * size, config.kv_heads * size);
        let Arena {
            hidden,
            qkv,
            normed_qk,
            staging,
            ..
        } = arena;
        let x = Source::Norm {
            x: hidden.view(),
            weight: &self.input_norm,
            eps,
        };
        self.qkv.forward(context, x, staging, qkv.view_mut())?;
        let qk = if let Some((query_norm, key_norm)) = &self.qk_norms {
            for (columns, weight) in [(0..queries, query_norm), (queries..queries + kv, key_norm)] {
                let x = qkv
                    .view()
                    .row_range(rows.clone())
                    .col_range(columns.clone());
                let out = normed_qk
                    .view_mut()
                    .row_range(rows.clone())
                    .col_range(columns);
                context.rms_norm(x, weight, eps, RowsOut::Float(out))?;
            }
            normed_qk
        } else {
            qkv
        };
        let both = qk.view_mut().row_range(rows).col_range(0..queries + kv);
        context.rope(both, size, rope)
    }

    /// Norm, gate and up, gated product, down, residual.
    fn mlp(&self, context: Context<'_>, config: &ModelConfig, arena: &mut Arena) -> Result<()> {
        let inner = config.intermediate_size;
        let Arena {
            hidden,
            gate_up,
            delta,
            staging,
            ..
        } = arena;
        let (weight, eps) = (&self.mlp_norm, config.rms_norm_eps);
        let x = Source::Norm {
            x: hidden.view(),
            weight,
            eps,
        };
        self.gate_up
            .forward(context, x, staging, gate_up.view_mut())?;
        let both = gate_up.view();
        let x = Source::Gated {
            gate: both.col_range(0..inner),
            up: both.col_range(inner..2 * inner),
        };
        self.down.forward(context, x, staging, delta.view_mut())?;
        add(context.backend, hidden, delta, context.rows().all)
    }
}

/// Adds the first rows of `delta` to the residual stream.
fn add(
    backend: &dyn Backend,
    hidden: &mut cider_kernels::Tensor,
    delta: &cider_kernels::Tensor,
    rows: usize,
) -> Result<()> {
    let (x, y) = (
        hidden.view_mut().row_range(0..rows),
        delta.view().row_range(0..rows),
    );
    Ok(backend.add(x, y)?)
}
