//! From tensors on disk to layers, one tensor at a time.

use cider_kernels::{Activations, Backend, DType, Format, RowSource, Weights};

use crate::error::{Error, Result};
use crate::load::{Checkpoint, Encoding, ModelConfig, TensorSource};
use crate::nn::Linear;
use crate::scheme::{Quantization, Scheme};

/// How a model is loaded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoadOptions {
    /// The formats of its weights.
    pub quantization: Quantization,
    /// The formats of the vision tower's weights.
    pub vision: Quantization,
    /// Positions to make tables for: the context.
    pub positions: usize,
    /// The type of activations: bf16 or f32. Floats that a file has packed become this type too.
    pub dtype: DType,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self {
            quantization: Quantization::default(),
            vision: Quantization::of(Scheme::None),
            positions: 8192,
            dtype: DType::Bf16,
        }
    }
}

/// How far loading is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of tensors read.
    pub done: usize,
    /// Bytes of all tensors.
    pub total: usize,
}

/// Reads the tensors of a model into a backend.
pub(crate) struct Loader<'a> {
    checkpoint: &'a Checkpoint,
    backend: &'a dyn Backend,
    options: &'a LoadOptions,
    /// Hears how far it is; false ends it.
    watch: &'a mut dyn FnMut(Progress) -> bool,
    done: usize,
    total: usize,
    /// Whether weights are read, or only their memory laid out.
    contents: bool,
}

impl<'a> Loader<'a> {
    pub(crate) fn new(
        checkpoint: &'a Checkpoint,
        backend: &'a dyn Backend,
        options: &'a LoadOptions,
        watch: &'a mut dyn FnMut(Progress) -> bool,
    ) -> Self {
        let tensors = &checkpoint.tensors;
        let sizes = tensors
            .names()
            .filter_map(|name| tensors.get(name))
            .map(|t| t.nbytes());
        let total = sizes.sum();
        Self {
            checkpoint,
            backend,
            options,
            watch,
            done: 0,
            total,
            contents: true,
        }
    }

    /// A loader that lays the memory of the weights out and leaves it untouched, which costs nothing.
    pub(crate) fn without_contents(mut self) -> Self {
        self.contents = false;
        self
    }

    /// The shape of the model.
    pub(crate) fn config(&self) -> &'a ModelConfig {
        &self.checkpoint.config
    }

    /// Positions to make tables for.
    pub(crate) fn positions(&self) -> usize {
        self.options.positions
    }

    /// A vector of floats.
    pub(crate) fn vector(&mut self, name: &str, len: usize) -> Result<Vec<f32>> {
        let source = self.checkpoint.tensors.require(name, &[len])?;
        let values = source.read_all();
        if let Some(value) = values.iter().find(|value| !value.is_finite()) {
            let what = format!("has {value}, expected finite numbers");
            return Err(Error::tensor(self.checkpoint.tensors.path(), name, what));
        }
        self.advance(source.nbytes())?;
        Ok(values)
    }

    /// One linear layer over several of the checkpoint's, which share their input: names (without
    /// `.weight` and `.bias`) and output features.
    pub(crate) fn linear(&mut self, parts: &[(String, usize)], k: usize) -> Result<Linear> {
        let mut sources = Vec::new();
        for (name, n) in parts {
            let name = format!("{name}.weight");
            sources.push((self.checkpoint.tensors.require(&name, &[*n, k])?, name));
        }
        let stored = widest(sources.iter().map(|(source, _)| self.float_type(source)));
        let quantization = &self.options.quantization;
        let n = parts.iter().map(|(_, n)| n).sum();
        let format = quantization.linear_format(stored);
        let mut weights = self.weights(&sources[0].1, format, n, k)?;
        let mut row = 0;
        for ((source, name), (part, n)) in sources.iter().zip(parts) {
            self.fill(&mut weights, row, source, name)?;
            let bias = format!("{part}.bias");
            if self.checkpoint.tensors.get(&bias).is_some() {
                let values = self.vector(&bias, *n)?;
                self.backend.set_bias(&mut weights, row, &values)?;
            }
            row += n;
        }
        Ok(Linear::new(
            weights,
            quantization.scheme.prompt_activations(),
        ))
    }

    /// A linear layer of the vision tower; a kernel of a convolution without overlap is one too.
    pub(crate) fn vision_linear(&mut self, name: &str, n: usize, k: usize) -> Result<Linear> {
        let (weight, bias) = (format!("{name}.weight"), format!("{name}.bias"));
        let source = self.vision_source(&weight, n, k)?;
        let plan = self.options.vision;
        let format = plan.linear_format(self.float_type(&source));
        let mut weights = self.weights(&weight, format, n, k)?;
        self.fill_clipped(&mut weights, 0, (&source, &weight), plan.clip_percentile)?;
        let values = self.vector(&bias, n)?;
        self.backend.set_bias(&mut weights, 0, &values)?;
        Ok(Linear::new(weights, plan.scheme.prompt_activations()))
    }

    /// A matrix of floats that stays on the host.
    pub(crate) fn matrix(&mut self, name: &str, n: usize, k: usize) -> Result<Vec<f32>> {
        let source = self.checkpoint.tensors.require(name, &[n, k])?;
        self.advance(source.nbytes())?;
        Ok(if self.contents {
            source.read_all()
        } else {
            vec![0.0; n * k]
        })
    }

    /// The type of activations.
    pub(crate) fn dtype(&self) -> DType {
        self.options.dtype
    }

    /// A tensor of `n` rows with `k` values in all of their dimensions.
    fn vision_source(&self, name: &str, n: usize, k: usize) -> Result<TensorSource<'a>> {
        let tensors = &self.checkpoint.tensors;
        let source = tensors
            .get(name)
            .ok_or_else(|| Error::tensor(tensors.path(), name, "missing"))?;
        let shape = source.shape();
        if shape.first() != Some(&n) || shape.iter().product::<usize>() != n * k {
            let what = format!("expected {n} rows of {k} values, found shape {shape:?}");
            return Err(Error::tensor(tensors.path(), name, what));
        }
        Ok(source)
    }

    /// A table of rows: the head, or an embedding that is one too. Its products take float activations.
    pub(crate) fn head(&mut self, name: &str, n: usize, k: usize) -> Result<Linear> {
        let source = self.checkpoint.tensors.require(name, &[n, k])?;
        let format = self
            .options
            .quantization
            .head_format(self.float_type(&source));
        self.table(name, format, n, k)
    }

    /// A table of rows that are only looked up; floats.
    pub(crate) fn embedding(&mut self, name: &str, n: usize, k: usize) -> Result<Linear> {
        let source = self.checkpoint.tensors.require(name, &[n, k])?;
        self.table(name, Format::Dense(self.float_type(&source)), n, k)
    }

    fn table(&mut self, name: &str, format: Format, n: usize, k: usize) -> Result<Linear> {
        let source = self.checkpoint.tensors.require(name, &[n, k])?;
        let mut weights = self.weights(name, format, n, k)?;
        self.fill(&mut weights, 0, &source, name)?;
        Ok(Linear::new(weights, Activations::Float))
    }

    /// Room for the tensor `name`, and for those that share its input.
    fn weights(&self, name: &str, format: Format, n: usize, k: usize) -> Result<Weights> {
        let weights = self.backend.weights(format, n, k);
        weights.map_err(|error| self.refused(name, &error))
    }

    fn refused(&self, name: &str, error: &cider_kernels::Error) -> Error {
        Error::tensor(self.checkpoint.tensors.path(), name, error.to_string())
    }

    fn fill(
        &mut self,
        weights: &mut Weights,
        row: usize,
        source: &TensorSource<'_>,
        name: &str,
    ) -> Result<()> {
        let clip_percentile = self.options.quantization.clip_percentile;
        self.fill_clipped(weights, row, (source, name), clip_percentile)
    }

    /// Fills all rows that a tensor has for weights of `k` columns.
    fn fill_clipped(
        &mut self,
        weights: &mut Weights,
        first: usize,
        (source, name): (&TensorSource<'_>, &str),
        clip_percentile: Option<f64>,
    ) -> Result<()> {
        if !self.contents {
            return Ok(());
        }
        let k = weights.k();
        // A row of the weights may be several rows of the file.
        let (cols, parts) = (source.cols(), k / source.cols());
        let read = |row: usize, out: &mut [f32]| {
            for (part, out) in out.chunks_exact_mut(cols).enumerate() {
                source.read_row(row * parts + part, out);
            }
        };
        let stored = |row: usize| source.float_row(row, k);
        let rows = match source.float_rows(k) {
            Some(dtype) => RowSource::Stored {
                dtype,
                rows: &stored,
                clip_percentile,
            },
            None => RowSource::Floats {
                read: &read,
                clip_percentile,
            },
        };
        let count = source.rows() / parts;
        let filled = self.backend.fill_weights(weights, first, count, rows);
        filled.map_err(|error| self.refused(name, &error))?;
        self.advance(source.nbytes())
    }

    fn advance(&mut self, bytes: usize) -> Result<()> {
        self.done += bytes;
        let (done, total) = (self.done, self.total);
        if (self.watch)(Progress { done, total }) {
            Ok(())
        } else {
            Err(Error::Cancelled)
        }
    }

    /// The float type that keeps a tensor as it is; packed ones become the activations' type.
    fn float_type(&self, source: &TensorSource<'_>) -> DType {
        match source.encoding() {
            Encoding::F32 => DType::F32,
            Encoding::F16 => DType::F16,
            Encoding::Bf16 => DType::Bf16,
            _ => self.options.dtype,
        }
    }
}

/// One type that holds all: f32 unless they agree.
fn widest(mut types: impl Iterator<Item = DType>) -> DType {
    let first = types.next().unwrap_or(DType::F32);
    if types.all(|dtype| dtype == first) {
        first
    } else {
        DType::F32
    }
}
