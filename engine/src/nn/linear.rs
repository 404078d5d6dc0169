//! Linear layers that take what comes before them in the form they want.

use std::ops::Range;

use cider_kernels::{
    Activations, Backend, LinearArgs, LinearInput, QuantizedRows, RowSource, RowsOut, TensorMut,
    TensorRef, Weights,
};

use super::arena::Staging;
use super::context::Context;
use crate::error::Result;
use crate::scheme::Quantization;

/// A linear layer: weights, and whether prompt tokens meet them quantised.
#[derive(Debug)]
pub struct Linear {
    weights: Weights,
    prompt: Activations,
}

impl Linear {
    /// A layer over weights.
    #[must_use]
    pub fn new(weights: Weights, prompt: Activations) -> Self {
        Self { weights, prompt }
    }

    /// Its weights.
    #[must_use]
    pub fn weights(&self) -> &Weights {
        &self.weights
    }

    /// What prompt tokens do with their activations.
    #[must_use]
    pub fn prompt_activations(&self) -> Activations {
        self.prompt
    }

    /// Quantises the weights anew, from what they are now.
    ///
    /// # Errors
    /// When the format does not allow the shape, or memory is short.
    pub fn convert(&mut self, backend: &dyn Backend, plan: &Quantization) -> Result<()> {
        let stored = cider_kernels::DType::F32;
        let (n, k) = (self.weights.n(), self.weights.k());
        let mut weights = backend.weights(plan.linear_format(stored), n, k)?;
        let old = &self.weights;
        // Every row exists and has k values, so reading one cannot fail.
        let read = |row: usize, out: &mut [f32]| drop(backend.read_row(old, row, out));
        let source = RowSource::Floats {
            read: &read,
            clip_percentile: plan.clip_percentile,
        };
        backend.fill_weights(&mut weights, 0, n, source)?;
        weights.copy_bias(old)?;
        self.weights = weights;
        self.prompt = plan.scheme.prompt_activations();
        Ok(())
    }

    /// Runs prompt rows and generated rows, each in the form its phase has.
    pub(crate) fn forward(
        &self,
        context: Context<'_>,
        source: Source<'_>,
        staging: &mut Staging,
        mut out: TensorMut<'_>,
    ) -> Result<()> {
        let rows = context.rows();
        if self.prompt == Activations::Float {
            return self.floats(context, source, staging, 0..rows.all, out);
        }
        if rows.prompt > 0 {
            let range = rows.prompt_range();
            let quantized = &mut staging.quantized;
            source.quantize(context, range.clone(), quantized)?;
            context.backend.linear(LinearArgs {
                input: LinearInput::Int8(quantized),
                weights: &self.weights,
                out: out.reborrow().row_range(range),
            })?;
        }
        if rows.all > rows.prompt {
            self.floats(context, source, staging, rows.generated_range(), out)?;
        }
        Ok(())
    }

    /// Runs rows that are all prompt rows, as a vision tower's are.
    pub(crate) fn prompt_rows(
        &self,
        backend: &dyn Backend,
        x: TensorRef<'_>,
        out: TensorMut<'_>,
    ) -> Result<()> {
        if self.prompt == Activations::Float {
            return self.rows(backend, x, out);
        }
        let mut quantized = backend.quantized_rows(x.rows(), x.cols())?;
        backend.quantize(x, &mut quantized)?;
        let (input, weights) = (LinearInput::Int8(&quantized), &self.weights);
        Ok(backend.linear(LinearArgs {
            input,
            weights,
            out,
        })?)
    }

    /// Runs float rows, whatever their phase: for the head.
    pub(crate) fn rows(
        &self,
        backend: &dyn Backend,
        x: TensorRef<'_>,
        out: TensorMut<'_>,
    ) -> Result<()> {
        let (input, weights) = (LinearInput::Float(x), &self.weights);
        Ok(backend.linear(LinearArgs {
            input,
            weights,
            out,
        })?)
    }

    fn floats(
        &self,
        context: Context<'_>,
        source: Source<'_>,
        staging: &mut Staging,
        range: Range<usize>,
        out: TensorMut<'_>,
    ) -> Result<()> {
        let input = if let Source::Rows(x) = source {
            x.row_range(range.clone())
        } else {
            let columns = 0..self.weights.k();
            let floats = staging.floats.view_mut().row_range(range.clone());
            let floats = floats.col_range(columns.clone());
            source.produce(context, range.clone(), RowsOut::Float(floats))?;
            staging
                .floats
                .view()
                .row_range(range.clone())
                .col_range(columns)
        };
        Ok(context.backend.linear(LinearArgs {
            input: LinearInput::Float(input),
            weights: &self.weights,
            out: out.row_range(range),
        })?)
    }
}

/// What comes before a linear layer.
#[derive(Clone, Copy)]
pub(crate) enum Source<'a> {
    /// `silu(gate) * up`.
    Gated {
        gate: TensorRef<'a>,
        up: TensorRef<'a>,
    },
    /// An RMS norm.
    Norm {
        x: TensorRef<'a>,
        weight: &'a [f32],
        eps: f32,
    },
    /// Rows that are there.
    Rows(TensorRef<'a>),
}

impl Source<'_> {
    fn quantize(
        self,
        context: Context<'_>,
        range: Range<usize>,
        out: &mut QuantizedRows,
    ) -> Result<()> {
        match self {
            Self::Rows(x) => Ok(context.backend.quantize(x.row_range(range), out)?),
            _ => self.produce(context, range, RowsOut::Int8(out)),
        }
    }

    fn produce(self, context: Context<'_>, range: Range<usize>, out: RowsOut<'_>) -> Result<()> {
        match self {
            Self::Gated { gate, up } => {
                let (gate, up) = (gate.row_range(range.clone()), up.row_range(range));
                Ok(context.backend.gated(gate, up, out)?)
            }
            Self::Norm { x, weight, eps } => context.rms_norm(x.row_range(range), weight, eps, out),
            Self::Rows(_) => Ok(()),
        }
    }
}
