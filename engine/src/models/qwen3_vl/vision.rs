//! The vision tower: patches to tokens.

use cider_kernels::{
    AttentionArgs, AttentionRun, Backend, DType, Gelu, KV_BLOCK, KvAppendArgs, KvLayer, NormArgs,
    NormKind, Phase, RopeArgs, RopeTable, RowsOut, Sight, Tensor, TensorRef,
};

use super::positions::{corners, places};
use crate::error::{Error, Result};
use crate::generate::ImageFeatures;
use crate::image::Patches;
use crate::load::VisionConfig;
use crate::models::Loader;
use crate::nn::Linear;

/// The tower.
#[derive(Debug)]
pub(super) struct VisionTower {
    config: VisionConfig,
    dtype: DType,
    patch_embedding: Linear,
    /// f32 `[side * side, hidden]`.
    table: Vec<f32>,
    blocks: Vec<Block>,
    merger: Merger,
    /// One for each level of features that is taken out.
    stacked: Vec<Merger>,
}

#[derive(Debug)]
struct Block {
    attention_norm: LayerNorm,
    qkv: Linear,
    output: Linear,
    mlp_norm: LayerNorm,
    up: Linear,
    down: Linear,
}

/// Patches that lie in a square become one token.
#[derive(Debug)]
struct Merger {
    norm: LayerNorm,
    /// Whether the norm is over the square, not over each patch.
    over_square: bool,
    up: Linear,
    down: Linear,
}

#[derive(Debug)]
struct LayerNorm {
    weight: Vec<f32>,
    bias: Vec<f32>,
}

/// What all blocks of one picture share.
struct Picture<'a> {
    backend: &'a dyn Backend,
    config: &'a VisionConfig,
    dtype: DType,
    rows: usize,
    /// Rows, then columns, of all patches.
    positions: Vec<u32>,
    /// Which of the two each pair of a head turns with.
    axes: Vec<u8>,
    rope: RopeTable,
    slots: Vec<u32>,
    blocks: Vec<u32>,
}

impl VisionTower {
    /// Reads the weights.
    pub(super) fn load(loader: &mut Loader<'_>, config: &VisionConfig) -> Result<Self> {
        let out = loader.config().hidden_size;
        let (hidden, values) = (config.hidden_size, config.patch_values());
        let entries = config.table_side * config.table_side;
        let merged = config.merged_size();
        let blocks = (0..config.blocks)
            .map(|i| Block::load(loader, config, i))
            .collect::<Result<_>>()?;
        let stacked = (0..config.deepstack.len())
            .map(|i| {
                let name = format!("visual.deepstack_merger_list.{i}");
                Merger::load(loader, &name, (merged, merged, out))
            })
            .collect::<Result<_>>()?;
        Ok(Self {
            patch_embedding: loader.vision_linear("visual.patch_embed.proj", hidden, values)?,
            table: loader.matrix("visual.pos_embed.weight", entries, hidden)?,
            blocks,
            merger: Merger::load(loader, "visual.merger", (hidden, merged, out))?,
            stacked,
            dtype: loader.dtype(),
            config: config.clone(),
        })
    }

    /// The tokens of a picture.
    pub(super) fn encode(
        &self,
        backend: &dyn Backend,
        image: &Patches,
        watch: &mut dyn FnMut(usize, usize) -> bool,
    ) -> Result<ImageFeatures> {
        let picture = Picture::new(backend, &self.config, self.dtype, image.grid_thw)?;
        let mut hidden = self.embed(&picture, image)?;
        let size = self.config.head_size();
        let blocks = picture.rows.div_ceil(KV_BLOCK);
        let mut cache = KvLayer::new(self.dtype, self.dtype, blocks, self.config.heads, size)?;
        let mut levels = Vec::new();
        for (i, block) in self.blocks.iter().enumerate() {
            if !watch(i, self.blocks.len()) {
                return Err(Error::Cancelled);
            }
            block.attend(&picture, &mut hidden, &mut cache)?;
            block.widen(&picture, &mut hidden)?;
            if let Some(level) = self.config.deepstack.iter().position(|&index| index == i) {
                levels.push(self.stacked[level].merge(&picture, &hidden)?);
            }
        }
        let tokens = self.merger.merge(&picture, &hidden)?;
        Ok(ImageFeatures {
            tokens,
            levels,
            grid: image.grid_thw,
        })
    }

    /// Bytes of the weights.
    pub(super) fn weight_bytes(&self) -> usize {
        let block = |b: &Block| [&b.qkv, &b.output, &b.up, &b.down].map(|l| l.weights().bytes());
        let merger = |m: &Merger| [&m.up, &m.down].map(|l| l.weights().bytes());
        let mergers = self.stacked.iter().chain([&self.merger]).flat_map(merger);
        self.patch_embedding.weights().bytes()
            + self.table.len() * 4
            + self.blocks.iter().flat_map(block).sum::<usize>()
            + mergers.sum::<usize>()
    }

    /// Patches as the tower's rows: projected, and with the table's value at their place.
    fn embed(&self, picture: &Picture<'_>, image: &Patches) -> Result<Tensor> {
        let (rows, values) = (picture.rows, self.config.patch_values());
        if image.pixel_values.len() != rows * values {
            let (found, expected) = (image.pixel_values.len(), rows * values);
            let what = format!("an image of {rows} patches has {expected} values, got {found}");
            return Err(Error::Request(what));
        }
        let pixels = Tensor::from_slice(&image.pixel_values, rows, values)?;
        let mut input = picture.tensor(values)?;
        picture.backend.copy(pixels.view(), input.view_mut())?;
        let mut hidden = Tensor::zeros(DType::F32, rows, self.config.hidden_size)?;
        self.patch_embedding
            .prompt_rows(picture.backend, input.view(), hidden.view_mut())?;
        let places = self.table_rows(image.grid_thw)?;
        picture.backend.add(hidden.view_mut(), places.view())?;
        Ok(hidden)
    }

    /// The table of positions at the places of all patches, f32 `[patches, hidden]`.
    fn table_rows(&self, grid: [usize; 3]) -> Result<Tensor> {
        let [frames, height, width] = grid;
        let columns = self.config.hidden_size;
        let mut out = Tensor::zeros(DType::F32, frames * height * width, columns)?;
        let places = places(height, width, self.config.merge_size);
        let rows = out.as_mut_slice::<f32>()?.chunks_exact_mut(columns);
        for (row, place) in rows.zip(places.iter().cycle()) {
            for (entry, weight) in corners(*place, [height, width], self.config.table_side) {
                let entry = &self.table[entry * columns..][..columns];
                for (value, entry) in row.iter_mut().zip(entry) {
                    *value += entry * weight;
                }
            }
        }
        Ok(out)
    }
}

impl<'a> Picture<'a> {
    fn new(
        backend: &'a dyn Backend,
        config: &'a VisionConfig,
        dtype: DType,
        grid: [usize; 3],
    ) -> Result<Self> {
        let [frames, height, width] = grid;
        let merge = config.merge_size;
        if frames != 1 || height == 0 || width == 0 || height % merge != 0 || width % merge != 0 {
            let what =
                format!("a grid of {grid:?} patches is not one frame of whole squares of {merge}");
            return Err(Error::Request(what));
        }
        let places = places(height, width, merge);
        let rows = places.len();
        // The first half of the pairs turn with the row, the second with the column.
        let half = config.head_size() / 4;
        let frequency = |i: usize| config.rope_base.powf(-(i as f64) / half as f64);
        let frequencies: Vec<f64> = (0..2 * half).map(|i| frequency(i % half)).collect();
        let place = |axis: usize| places.iter().map(move |place| place[axis] as u32);
        Ok(Self {
            backend,
            config,
            dtype,
            rows,
            positions: place(0).chain(place(1)).collect(),
            axes: (0..2 * half).map(|i| u8::from(i >= half)).collect(),
            rope: RopeTable::with_frequencies(&frequencies, 1.0, height.max(width))?,
            slots: (0..rows as u32).collect(),
            blocks: (0..rows.div_ceil(KV_BLOCK) as u32).collect(),
        })
    }

    /// Room for all patches, of the activations' type.
    fn tensor(&self, columns: usize) -> Result<Tensor> {
        Ok(Tensor::zeros(self.dtype, self.rows, columns)?)
    }

    /// A linear layer over rows, into a new tensor.
    fn linear(&self, layer: &Linear, x: TensorRef<'_>) -> Result<Tensor> {
        let mut out = Tensor::zeros(self.dtype, x.rows(), layer.weights().n())?;
        layer.prompt_rows(self.backend, x, out.view_mut())?;
        Ok(out)
    }

    /// Layer norm over rows, into a new tensor.
    fn norm(&self, norm: &LayerNorm, x: TensorRef<'_>) -> Result<Tensor> {
        let mut out = Tensor::zeros(self.dtype, x.rows(), x.cols())?;
        self.backend.norm(NormArgs {
            x,
            weight: &norm.weight,
            bias: Some(&norm.bias),
            eps: EPSILON,
            kind: NormKind::Layer,
            out: RowsOut::Float(out.view_mut()),
        })?;
        Ok(out)
    }

    /// Two linear layers with a GELU between.
    fn mlp(&self, up: &Linear, kind: Gelu, down: &Linear, x: TensorRef<'_>) -> Result<Tensor> {
        let wide = self.linear(up, x)?;
        let mut bent = Tensor::zeros(self.dtype, wide.rows(), wide.cols())?;
        self.backend.gelu(wide.view(), kind, bent.view_mut())?;
        self.linear(down, bent.view())
    }
}

impl Block {
    fn load(loader: &mut Loader<'_>, config: &VisionConfig, index: usize) -> Result<Self> {
        let name = |part: &str| format!("visual.blocks.{index}.{part}");
        let (hidden, inner) = (config.hidden_size, config.intermediate_size);
        Ok(Self {
            attention_norm: LayerNorm::load(loader, &name("norm1"), hidden)?,
            qkv: loader.vision_linear(&name("attn.qkv"), 3 * hidden, hidden)?,
            output: loader.vision_linear(&name("attn.proj"), hidden, hidden)?,
            mlp_norm: LayerNorm::load(loader, &name("norm2"), hidden)?,
            up: loader.vision_linear(&name("mlp.linear_fc1"), inner, hidden)?,
            down: loader.vision_linear(&name("mlp.linear_fc2"), hidden, inner)?,
        })
    }

    /// Norm, queries, keys and values, rope, attention over the whole picture, output, residual.
    fn attend(
        &self,
        picture: &Picture<'_>,
        hidden: &mut Tensor,
        cache: &mut KvLayer,
    ) -> Result<()> {
        let (backend, width) = (picture.backend, picture.config.hidden_size);
        let normed = picture.norm(&self.attention_norm, hidden.view())?;
        let mut qkv = picture.linear(&self.qkv, normed.view())?;
        backend.rope(RopeArgs {
            x: qkv.view_mut().col_range(0..2 * width),
            head_size: picture.config.head_size(),
            positions: &picture.positions,
            axes: &picture.axes,
            table: &picture.rope,
        })?;
        let part = |i: usize| qkv.view().col_range(i * width..(i + 1) * width);
        backend.kv_append(KvAppendArgs {
            keys: part(1),
            values: part(2),
            slots: &picture.slots,
            cache,
        })?;
        let mut attended = picture.tensor(width)?;
        let run = AttentionRun {
            first_row: 0,
            rows: picture.rows,
            first_position: 0,
            first_block: 0,
            blocks: picture.blocks.len(),
            phase: Phase::Prompt,
        };
        backend.attention(AttentionArgs {
            queries: part(0),
            cache,
            runs: &[run],
            table: &picture.blocks,
            heads: picture.config.heads,
            scale: (1.0 / (picture.config.head_size() as f64).sqrt()) as f32,
            sight: Sight::All,
            out: attended.view_mut(),
        })?;
        let delta = picture.linear(&self.output, attended.view())?;
        Ok(backend.add(hidden.view_mut(), delta.view())?)
    }

    /// Norm, MLP, residual.
    fn widen(&self, picture: &Picture<'_>, hidden: &mut Tensor) -> Result<()> {
        let normed = picture.norm(&self.mlp_norm, hidden.view())?;
        let delta = picture.mlp(&self.up, Gelu::Tanh, &self.down, normed.view())?;
        Ok(picture.backend.add(hidden.view_mut(), delta.view())?)
    }
}

impl Merger {
    /// Reads a merger; sizes are the norm's, the square's and the token's.
    fn load(
        loader: &mut Loader<'_>,
        name: &str,
        (norm, square, out): (usize, usize, usize),
    ) -> Result<Self> {
        Ok(Self {
            norm: LayerNorm::load(loader, &format!("{name}.norm"), norm)?,
            over_square: norm == square,
            up: loader.vision_linear(&format!("{name}.linear_fc1"), square, square)?,
            down: loader.vision_linear(&format!("{name}.linear_fc2"), out, square)?,
        })
    }

    /// The tokens of the patches in `hidden`.
    fn merge(&self, picture: &Picture<'_>, hidden: &Tensor) -> Result<Tensor> {
        let square = picture.config.merged_size();
        let x = if self.over_square {
            hidden.view().reshape(square)?
        } else {
            hidden.view()
        };
        let normed = picture.norm(&self.norm, x)?;
        picture.mlp(
            &self.up,
            Gelu::Erf,
            &self.down,
            normed.view().reshape(square)?,
        )
    }
}

impl LayerNorm {
    fn load(loader: &mut Loader<'_>, name: &str, size: usize) -> Result<Self> {
        Ok(Self {
            weight: loader.vector(&format!("{name}.weight"), size)?,
            bias: loader.vector(&format!("{name}.bias"), size)?,
        })
    }
}

/// The epsilon of the tower's norms.
const EPSILON: f32 = 1e-6;
