//! The vision tower: patches to tokens.

use cider_kernels::{
    AttentionArgs, AttentionRun, Backend, DType, Gelu, KV_BLOCK, KvAppendArgs, KvLayer, NormArgs,
    NormKind, Phase, RopeArgs, RopeTable, RowsOut, Sight, Tensor, TensorMut, TensorRef,
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

/// A picture on its way through the tower.
#[derive(Debug)]
pub(crate) struct ImageEncoding {
    places: Places,
    hidden: Tensor,
    cache: KvLayer,
    room: Room,
    levels: Vec<Tensor>,
    grid: [usize; 3],
    done: usize,
    blocks: usize,
}

impl ImageEncoding {
    /// How many blocks of how many are done.
    pub(crate) fn progress(&self) -> (usize, usize) {
        (self.done, self.blocks)
    }

    /// Patches of the picture.
    pub(crate) fn patches(&self) -> usize {
        self.places.rows
    }
}

/// What all blocks of one picture share.
#[derive(Clone, Copy)]
struct Picture<'a> {
    backend: &'a dyn Backend,
    config: &'a VisionConfig,
    dtype: DType,
    places: &'a Places,
}

/// Where the patches of a picture are.
#[derive(Debug)]
struct Places {
    rows: usize,
    /// Rows, then columns, of all patches.
    positions: Vec<u32>,
    /// Which of the two each pair of a head turns with.
    axes: Vec<u8>,
    rope: RopeTable,
    slots: Vec<u32>,
    blocks: Vec<u32>,
}

/// Where the ops of a block write, so that the memory is had once for all blocks.
#[derive(Debug)]
struct Room {
    normed: Tensor,
    qkv: Tensor,
    attended: Tensor,
    /// Before and behind the GELU, of [`ROWS`] patches.
    wide: Tensor,
    bent: Tensor,
    delta: Tensor,
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

    /// A picture at the start of its way.
    pub(super) fn begin(&self, backend: &dyn Backend, image: &Patches) -> Result<ImageEncoding> {
        let places = Places::new(&self.config, image.grid_thw)?;
        let picture = self.picture(backend, &places);
        let hidden = self.embed(&picture, image)?;
        let (blocks, size) = (places.blocks.len(), self.config.head_size());
        let cache = KvLayer::new(self.dtype, self.dtype, blocks, self.config.heads, size)?;
        let room = Room::new(&picture)?;
        Ok(ImageEncoding {
            places,
            hidden,
            cache,
            room,
            levels: Vec::new(),
            grid: image.grid_thw,
            done: 0,
            blocks: self.blocks.len(),
        })
    }

    /// Takes a picture through the next block; behind the last it is tokens.
    pub(super) fn advance(
        &self,
        backend: &dyn Backend,
        encoding: &mut ImageEncoding,
    ) -> Result<Option<ImageFeatures>> {
        let ImageEncoding {
            places,
            hidden,
            cache,
            room,
            levels,
            done,
            ..
        } = encoding;
        let picture = self.picture(backend, places);
        if let Some(block) = self.blocks.get(*done) {
            block.attend(&picture, hidden, cache, room)?;
            block.widen(&picture, hidden, room)?;
            if let Some(level) = self.config.deepstack.iter().position(|index| index == done) {
                levels.push(self.stacked[level].merge(&picture, hidden)?);
            }
            *done += 1;
        }
        if *done < self.blocks.len() {
            return Ok(None);
        }
        Ok(Some(ImageFeatures {
            tokens: self.merger.merge(&picture, hidden)?,
            levels: std::mem::take(levels),
            grid: encoding.grid,
        }))
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
        let (rows, values) = (picture.places.rows, self.config.patch_values());
        if image.pixel_values.len() != rows * values {
            let (found, expected) = (image.pixel_values.len(), rows * values);
            let what = format!("an image of {rows} patches has {expected} values, got {found}");
            return Err(Error::Request(what));
        }
        let pixels = Tensor::from_slice(&image.pixel_values, rows, values)?;
        let mut input = picture.tensor(rows, values)?;
        picture.backend.copy(pixels.view(), input.view_mut())?;
        let mut hidden = Tensor::zeros(DType::F32, rows, self.config.hidden_size)?;
        self.patch_embedding
            .prompt_rows(picture.backend, input.view(), hidden.view_mut())?;
        let places = self.table_rows(image.grid_thw)?;
        picture.backend.add(hidden.view_mut(), places.view())?;
        Ok(hidden)
    }

    fn picture<'a>(&'a self, backend: &'a dyn Backend, places: &'a Places) -> Picture<'a> {
        Picture {
            backend,
            config: &self.config,
            dtype: self.dtype,
            places,
        }
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

impl Places {
    fn new(config: &VisionConfig, grid: [usize; 3]) -> Result<Self> {
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
            rows,
            positions: place(0).chain(place(1)).collect(),
            axes: (0..2 * half).map(|i| u8::from(i >= half)).collect(),
            rope: RopeTable::with_frequencies(&frequencies, 1.0, height.max(width))?,
            slots: (0..rows as u32).collect(),
            blocks: (0..rows.div_ceil(KV_BLOCK) as u32).collect(),
        })
    }
}

impl Picture<'_> {
    /// Room for rows, of the activations' type.
    fn tensor(&self, rows: usize, columns: usize) -> Result<Tensor> {
        Ok(Tensor::zeros(self.dtype, rows, columns)?)
    }

    /// Layer norm over rows.
    fn norm(&self, norm: &LayerNorm, x: TensorRef<'_>, out: TensorMut<'_>) -> Result<()> {
        Ok(self.backend.norm(NormArgs {
            x,
            weight: &norm.weight,
            bias: Some(&norm.bias),
            eps: EPSILON,
            kind: NormKind::Layer,
            out: RowsOut::Float(out),
        })?)
    }

    /// Attention of all patches over all patches.
    fn attention(&self, queries: TensorRef<'_>, cache: &KvLayer, out: TensorMut<'_>) -> Result<()> {
        let run = AttentionRun {
            first_row: 0,
            rows: self.places.rows,
            first_position: 0,
            first_block: 0,
            blocks: self.places.blocks.len(),
            phase: Phase::Prompt,
        };
        Ok(self.backend.attention(AttentionArgs {
            queries,
            cache,
            runs: &[run],
            table: &self.places.blocks,
            heads: self.config.heads,
            scale: (1.0 / (self.config.head_size() as f64).sqrt()) as f32,
            sight: Sight::All,
            out,
        })?)
    }
}

impl Room {
    fn new(picture: &Picture<'_>) -> Result<Self> {
        let (rows, config) = (picture.places.rows, picture.config);
        let (hidden, inner) = (config.hidden_size, config.intermediate_size);
        // Rows a power of two apart would all compete for the same places of a cache.
        let tensor = |rows, columns| picture.tensor(rows, columns + GAP);
        Ok(Self {
            normed: tensor(rows, hidden)?,
            qkv: tensor(rows, 3 * hidden)?,
            attended: tensor(rows, hidden)?,
            wide: tensor(rows.min(ROWS), inner)?,
            bent: tensor(rows.min(ROWS), inner)?,
            delta: tensor(rows, hidden)?,
        })
    }
}

/// The first rows and columns of working memory.
fn part(tensor: &mut Tensor, rows: usize, columns: usize) -> TensorMut<'_> {
    tensor.view_mut().row_range(0..rows).col_range(0..columns)
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
        room: &mut Room,
    ) -> Result<()> {
        let (backend, width) = (picture.backend, picture.config.hidden_size);
        let rows = picture.places.rows;
        let mut normed = part(&mut room.normed, rows, width);
        picture.norm(&self.attention_norm, hidden.view(), normed.reborrow())?;
        let mut qkv = part(&mut room.qkv, rows, 3 * width);
        self.qkv
            .prompt_rows(backend, normed.as_ref(), qkv.reborrow())?;
        backend.rope(RopeArgs {
            x: qkv.reborrow().col_range(0..2 * width),
            head_size: picture.config.head_size(),
            positions: &picture.places.positions,
            axes: &picture.places.axes,
            table: &picture.places.rope,
        })?;
        let third = |i: usize| qkv.as_ref().col_range(i * width..(i + 1) * width);
        backend.kv_append(KvAppendArgs {
            keys: third(1),
            values: third(2),
            slots: &picture.places.slots,
            cache,
        })?;
        let mut attended = part(&mut room.attended, rows, width);
        picture.attention(third(0), cache, attended.reborrow())?;
        let mut delta = part(&mut room.delta, rows, width);
        self.output
            .prompt_rows(backend, attended.as_ref(), delta.reborrow())?;
        Ok(backend.add(hidden.view_mut(), delta.as_ref())?)
    }

    /// Norm, MLP, residual: some rows after the others, so that what is wide stays in a cache.
    fn widen(&self, picture: &Picture<'_>, hidden: &mut Tensor, room: &mut Room) -> Result<()> {
        let (backend, config) = (picture.backend, picture.config);
        let (narrow, broad) = (config.hidden_size, config.intermediate_size);
        for start in (0..picture.places.rows).step_by(ROWS) {
            let rows = ROWS.min(picture.places.rows - start);
            let mut hidden = hidden.view_mut().row_range(start..start + rows);
            let mut normed = part(&mut room.normed, rows, narrow);
            picture.norm(&self.mlp_norm, hidden.as_ref(), normed.reborrow())?;
            let mut wide = part(&mut room.wide, rows, broad);
            self.up
                .prompt_rows(backend, normed.as_ref(), wide.reborrow())?;
            let mut bent = part(&mut room.bent, rows, broad);
            backend.gelu(wide.as_ref(), Gelu::Tanh, bent.reborrow())?;
            let mut delta = part(&mut room.delta, rows, narrow);
            self.down
                .prompt_rows(backend, bent.as_ref(), delta.reborrow())?;
            backend.add(hidden.reborrow(), delta.as_ref())?;
        }
        Ok(())
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
        let (backend, square) = (picture.backend, picture.config.merged_size());
        let x = if self.over_square {
            hidden.view().reshape(square)?
        } else {
            hidden.view()
        };
        let mut normed = picture.tensor(x.rows(), x.cols())?;
        picture.norm(&self.norm, x, normed.view_mut())?;
        let normed = normed.view().reshape(square)?;
        let mut wide = picture.tensor(normed.rows(), square)?;
        self.up.prompt_rows(backend, normed, wide.view_mut())?;
        let mut bent = picture.tensor(normed.rows(), square)?;
        backend.gelu(wide.view(), Gelu::Erf, bent.view_mut())?;
        let mut tokens = picture.tensor(normed.rows(), self.down.weights().n())?;
        self.down
            .prompt_rows(backend, bent.view(), tokens.view_mut())?;
        Ok(tokens)
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

/// Patches that are widened at once: enough for a linear layer, and no more than a cache holds.
const ROWS: usize = 1024;

/// Columns between the rows of working memory.
const GAP: usize = 32;
