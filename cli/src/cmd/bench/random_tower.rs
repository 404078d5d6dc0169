//! The vision tower of a checkpoint with random weights.

use serde_json::{Value, json};

/// The shape of a tower of the Qwen3-VL family.
pub(super) struct Tower {
    pub(super) hidden: usize,
    pub(super) intermediate: usize,
    pub(super) blocks: usize,
    pub(super) heads: usize,
    /// Entries along a side of the table of positions.
    pub(super) table_side: usize,
    /// The blocks after which features are taken out.
    pub(super) levels: &'static [usize],
}

impl Tower {
    /// Its part of a configuration; tokens are `out` wide.
    pub(super) fn config(&self, out: usize) -> Value {
        json!({
            "model_type": "qwen3_vl", "hidden_act": "gelu_pytorch_tanh", "in_channels": 3, "depth": self.blocks,
            "hidden_size": self.hidden, "intermediate_size": self.intermediate, "num_heads": self.heads,
            "num_position_embeddings": self.table_side * self.table_side, "out_hidden_size": out,
            "patch_size": PATCH, "temporal_patch_size": FRAMES, "spatial_merge_size": MERGE,
            "deepstack_visual_indexes": self.levels,
        })
    }

    /// How its pictures are cut, as `preprocessor_config.json` says it.
    pub(super) fn processor() -> Value {
        json!({
            "image_processor_type": "Qwen2VLImageProcessorFast", "patch_size": PATCH, "temporal_patch_size": FRAMES,
            "merge_size": MERGE, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5],
            "size": { "shortest_edge": 65_536, "longest_edge": 16_777_216 },
        })
    }

    /// Names and shapes of all tensors.
    pub(super) fn tensors(&self, out: usize) -> Vec<(String, Vec<usize>)> {
        let (hidden, inner) = (self.hidden, self.intermediate);
        let square = MERGE * MERGE * hidden;
        let table = vec![self.table_side * self.table_side, hidden];
        let mut tensors = vec![("model.visual.pos_embed.weight".to_owned(), table)];
        let mut layer = |name: &str, shape: &[usize]| {
            tensors.push((format!("model.visual.{name}.weight"), shape.to_vec()));
            tensors.push((format!("model.visual.{name}.bias"), vec![shape[0]]));
        };
        layer("patch_embed.proj", &[hidden, 3, FRAMES, PATCH, PATCH]);
        for block in 0..self.blocks {
            for (part, shape) in [
                ("norm1", &[hidden][..]),
                ("attn.qkv", &[3 * hidden, hidden]),
                ("attn.proj", &[hidden, hidden]),
                ("norm2", &[hidden]),
                ("mlp.linear_fc1", &[inner, hidden]),
                ("mlp.linear_fc2", &[hidden, inner]),
            ] {
                layer(&format!("blocks.{block}.{part}"), shape);
            }
        }
        let levels = (0..self.levels.len()).map(|i| (format!("deepstack_merger_list.{i}"), square));
        for (merger, norm) in levels.chain([("merger".to_owned(), hidden)]) {
            layer(&format!("{merger}.norm"), &[norm]);
            layer(&format!("{merger}.linear_fc1"), &[square, square]);
            layer(&format!("{merger}.linear_fc2"), &[out, square]);
        }
        tensors
    }
}

/// The tower of Qwen3-VL-2B: 400 million parameters.
pub(super) const QWEN3_VL_2B: Tower = Tower {
    hidden: 1024,
    intermediate: 4096,
    blocks: 24,
    heads: 16,
    table_side: 48,
    levels: &[5, 11, 17],
};

/// Pixels along a side of a patch.
const PATCH: usize = 16;
/// Frames of a patch.
const FRAMES: usize = 2;
/// Patches along a side of the square that becomes a token.
const MERGE: usize = 2;
