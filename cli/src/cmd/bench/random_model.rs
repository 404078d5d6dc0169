//! Checkpoints of well-known shapes with random weights: what a model costs does not depend on what it knows.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use cider::bf16;
use cider::load::safetensors::{Dtype, Tensor, write};
use serde_json::{Value, json};

use super::peer::Exchange;
use super::random_tower::{QWEN3_VL_2B, Tower};
use super::values;
use crate::failure::Usage;

/// A checkpoint in a folder that goes with it.
pub(super) struct RandomModel {
    folder: Exchange,
}

/// The shape of a model; its head is its embedding.
struct Shape {
    name: &'static str,
    /// The family by its name in a configuration; the Qwen ones have norms of queries and keys.
    family: &'static str,
    hidden: usize,
    intermediate: usize,
    layers: usize,
    heads: usize,
    kv_heads: usize,
    head_size: usize,
    vocabulary: usize,
    /// The vision tower, of a model that sees.
    tower: Option<&'static Tower>,
}

impl RandomModel {
    /// Writes the checkpoint that `random:NAME` names; nothing for another MODEL.
    pub(super) fn find(model: &Path) -> Result<Option<Self>> {
        let Some(name) = model.to_str().and_then(|text| text.strip_prefix("random:")) else {
            return Ok(None);
        };
        let Some(shape) = SHAPES.iter().find(|shape| shape.name == name) else {
            let known: Vec<&str> = SHAPES.iter().map(|shape| shape.name).collect();
            let what = format!("random:{name}: expected one of {}", known.join(", "));
            return Err(Usage(what).into());
        };
        tracing::info!("writing {name} with random weights");
        let folder = Exchange::new()?;
        shape.write(folder.path())?;
        Ok(Some(Self { folder }))
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        self.folder.path()
    }
}

impl Shape {
    fn write(&self, folder: &Path) -> Result<()> {
        let mut files = vec![("config.json", self.config())];
        files.extend(
            self.tower
                .map(|_| ("preprocessor_config.json", Tower::processor())),
        );
        for (name, contents) in files {
            let path = folder.join(name);
            fs::write(&path, contents.to_string()).with_context(|| path.display().to_string())?;
        }
        let arrays: Vec<_> = self
            .tensors()
            .into_iter()
            .enumerate()
            .map(|(i, (name, shape))| {
                let bytes = elements(i as u64, &name, &shape);
                (name, shape, bytes)
            })
            .collect();
        let tensors: Vec<Tensor<'_>> = arrays
            .iter()
            .map(|(name, shape, bytes)| Tensor {
                name,
                dtype: Dtype::Bf16,
                shape,
                bytes,
            })
            .collect();
        Ok(write(&folder.join("model.safetensors"), &tensors, &[])?)
    }

    fn config(&self) -> Value {
        let Some(tower) = self.tower else {
            return self.text_config();
        };
        let pairs = self.head_size / 2;
        // As many pairs turn with the row as with the column, and the rest with the time.
        let side = pairs * 5 / 16;
        let mut text = self.text_config();
        text["rope_scaling"] = json!({
            "rope_type": "default", "mrope_interleaved": true, "mrope_section": [pairs - 2 * side, side, side],
        });
        json!({
            "architectures": ["Qwen3VLForConditionalGeneration"], "model_type": "qwen3_vl",
            "tie_word_embeddings": true, "text_config": text, "vision_config": tower.config(self.hidden),
            "vision_start_token_id": self.vocabulary - 3, "vision_end_token_id": self.vocabulary - 2,
            "image_token_id": self.vocabulary - 1,
        })
    }

    fn text_config(&self) -> Value {
        let class = match self.family {
            "qwen3" => "Qwen3ForCausalLM",
            _ => "LlamaForCausalLM",
        };
        json!({
            "architectures": [class], "model_type": self.family, "hidden_act": "silu", "rms_norm_eps": 1e-6,
            "vocab_size": self.vocabulary, "max_position_embeddings": 40960, "hidden_size": self.hidden,
            "intermediate_size": self.intermediate, "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads, "num_key_value_heads": self.kv_heads, "head_dim": self.head_size,
            "attention_bias": false, "mlp_bias": false, "tie_word_embeddings": true, "rope_theta": 1e6,
            "torch_dtype": "bfloat16",
        })
    }

    /// Names and shapes of all tensors.
    fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        let (hidden, inner) = (self.hidden, self.intermediate);
        let (queries, keys) = (self.heads * self.head_size, self.kv_heads * self.head_size);
        let mut of_layer = vec![
            ("input_layernorm", vec![hidden]),
            ("self_attn.q_proj", vec![queries, hidden]),
            ("self_attn.k_proj", vec![keys, hidden]),
            ("self_attn.v_proj", vec![keys, hidden]),
            ("self_attn.o_proj", vec![hidden, queries]),
            ("post_attention_layernorm", vec![hidden]),
            ("mlp.gate_proj", vec![inner, hidden]),
            ("mlp.up_proj", vec![inner, hidden]),
            ("mlp.down_proj", vec![hidden, inner]),
        ];
        if self.family == "qwen3" {
            of_layer.push(("self_attn.q_norm", vec![self.head_size]));
            of_layer.push(("self_attn.k_norm", vec![self.head_size]));
        }
        let decoder = match self.tower {
            Some(_) => "model.language_model",
            None => "model",
        };
        let layers = (0..self.layers).flat_map(|layer| {
            of_layer.iter().map(move |(part, shape)| {
                let name = format!("{decoder}.layers.{layer}.{part}.weight");
                (name, shape.clone())
            })
        });
        let ends = [
            (
                format!("{decoder}.embed_tokens.weight"),
                vec![self.vocabulary, hidden],
            ),
            (format!("{decoder}.norm.weight"), vec![hidden]),
        ];
        let tower = self.tower.iter().flat_map(|tower| tower.tensors(hidden));
        ends.into_iter().chain(layers).chain(tower).collect()
    }
}

/// The bytes of bf16: zeros for a bias, ones for a norm, small numbers for a matrix, so that sums stay about as large
/// as their parts.
fn elements(matrix: u64, name: &str, shape: &[usize]) -> Vec<u8> {
    let rows = shape[0];
    let cols: usize = shape[1..].iter().product();
    if shape.len() == 1 {
        let part = name.rsplit('.').next();
        let value = if part == Some("bias") {
            bf16::ZERO
        } else {
            bf16::ONE
        };
        return value.to_le_bytes().repeat(rows);
    }
    // A power of two keeps the values exact.
    let step = 0.5f32.powi(6 + (cols.ilog2() / 2) as i32);
    let mut values = vec![0.0; cols];
    let mut bytes = Vec::with_capacity(2 * rows * cols);
    for row in 0..rows {
        values::fill(matrix, row, step, &mut values);
        bytes.extend(
            values
                .iter()
                .flat_map(|&value| bf16::from_f32(value).to_le_bytes()),
        );
    }
    bytes
}

const SHAPES: [Shape; 4] = [
    Shape {
        name: "qwen3-0.6b",
        family: "qwen3",
        hidden: 1024,
        intermediate: 3072,
        layers: 28,
        heads: 16,
        kv_heads: 8,
        head_size: 128,
        vocabulary: 151_936,
        tower: None,
    },
    Shape {
        name: "llama-3.2-1b",
        family: "llama",
        hidden: 2048,
        intermediate: 8192,
        layers: 16,
        heads: 32,
        kv_heads: 8,
        head_size: 64,
        vocabulary: 128_256,
        tower: None,
    },
    Shape {
        name: "qwen3-vl-2b",
        tower: Some(&QWEN3_VL_2B),
        ..QWEN3_VL_2B_TEXT
    },
    QWEN3_VL_2B_TEXT,
];

/// The same without its tower.
const QWEN3_VL_2B_TEXT: Shape = Shape {
    name: "qwen3-vl-2b-text",
    family: "qwen3",
    hidden: 2048,
    intermediate: 6144,
    layers: 28,
    heads: 16,
    kv_heads: 8,
    head_size: 128,
    vocabulary: 151_936,
    tower: None,
};

#[cfg(test)]
mod tests {
    use super::*;
    use cider::image::ImageProcessor;
    use cider::load::Checkpoint;
    use cider::{CpuBackend, LoadOptions, WeightPlan};
    use cider_kernels::Isa;

    const TOWER: Tower = Tower {
        hidden: 32,
        intermediate: 48,
        blocks: 2,
        heads: 2,
        table_side: 4,
        levels: &[0],
    };

    #[test]
    fn checkpoints_of_all_families_load() {
        for (i, (family, tower)) in [("llama", None), ("qwen3", None), ("qwen3", Some(&TOWER))]
            .into_iter()
            .enumerate()
        {
            let shape = Shape {
                name: "tiny",
                family,
                hidden: 64,
                intermediate: 96,
                layers: 2,
                heads: 4,
                kv_heads: 2,
                head_size: 16,
                vocabulary: 300,
                tower,
            };
            let folder =
                std::env::temp_dir().join(format!("cider-random-{}-{i}", std::process::id()));
            fs::create_dir_all(&folder).unwrap();
            shape.write(&folder).unwrap();
            let checkpoint = Checkpoint::open(&folder).unwrap();
            let backend = CpuBackend::new(Isa::Scalar, 1).unwrap();
            let plan = WeightPlan::of(&checkpoint, &backend, &LoadOptions::default());
            let processor = ImageProcessor::open(&folder);
            fs::remove_dir_all(&folder).unwrap();
            let config = checkpoint.config;
            assert_eq!(
                (config.hidden_size, config.layers, config.tied),
                (64, 2, true)
            );
            assert_eq!(config.qk_norm, family == "qwen3");
            assert!(plan.unwrap().bytes > 0);
            assert_eq!(processor.is_ok(), tower.is_some());
            let levels = config.vision.map(|vision| vision.deepstack);
            assert_eq!(levels, tower.map(|_| vec![0]));
        }
    }

    #[test]
    fn an_unknown_shape_lists_the_known() {
        assert!(
            RandomModel::find(Path::new("some/folder"))
                .unwrap()
                .is_none()
        );
        let error = RandomModel::find(Path::new("random:gpt")).err().unwrap();
        assert!(
            error.to_string().contains("qwen3-vl-2b, qwen3-vl-2b-text"),
            "{error}"
        );
    }
}
