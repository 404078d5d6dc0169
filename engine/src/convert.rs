//! Quantising a model that is loaded.

use std::time::Instant;

use crate::engine::Engine;
use crate::error::Result;
use crate::generate::Runner;
use crate::scheme::{Quantization, Scheme};

/// What a model is converted to.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ConvertOptions {
    /// The scheme of the decoder's linear layers, anything but [`Scheme::None`].
    pub scheme: Scheme,
    /// Input features that share a scale, 0 for all of them; the scheme's default if not given.
    pub group_size: Option<usize>,
    /// The percentile (0..=100) of the magnitudes that replaces their maximum, per scale.
    pub clip_percentile: Option<f64>,
}

/// What was converted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ConvertReport {
    /// Linear layers that were converted; queries, keys and values are one, gate and up are one.
    pub n_converted: usize,
    /// Seconds it took.
    pub elapsed_s: f64,
}

/// Quantises the linear layers of a loaded model in place, one after the other: there is never more than one
/// of them twice. `progress` is told how many are done, of how many.
///
/// The result is that of loading with the scheme, bit for bit, when the checkpoint has floats and was loaded
/// with [`Scheme::None`]; a model that was quantised before is quantised from what it is now.
///
/// Differences from the public W8A8 package: schemes and group sizes are chosen here rather than implied by
/// the checkpoint; the head is not touched, `Quantization::head` decides it when the model is loaded;
/// `clip_percentile` works per group too; a format that does not fit one of the layers is refused before any
/// is changed.
///
/// ```no_run
/// use std::path::Path;
///
/// use cider::{ConvertOptions, Engine, EngineOptions, Quantization, Scheme, convert_model};
///
/// let mut options = EngineOptions::default();
/// options.runner.quantization = Quantization::of(Scheme::None);
/// let backend = cider::ops::default_backend()?;
/// let mut engine = Engine::open(Path::new("model"), backend, &options, &mut |_| {})?;
/// let options = ConvertOptions { clip_percentile: Some(99.9), ..Default::default() };
/// let report = convert_model(&mut engine, &options, &mut |done, total| {
///     eprintln!("{done} of {total}");
/// })?;
/// println!("{} layers in {:.1} s", report.n_converted, report.elapsed_s);
/// # Ok::<(), cider::Error>(())
/// ```
///
/// # Errors
/// When the scheme is [`Scheme::None`], the format does not allow the shape of a layer, the percentile is
/// none, or memory is short; in the last case the layers before are converted.
pub fn convert_model(
    model: &mut impl Convert,
    options: &ConvertOptions,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<ConvertReport> {
    let started = Instant::now();
    let plan = Quantization {
        group_size: options.group_size,
        clip_percentile: options.clip_percentile,
        ..Quantization::of(options.scheme)
    };
    let n_converted = model.convert_linears(&plan, progress)?;
    let elapsed_s = started.elapsed().as_secs_f64();
    Ok(ConvertReport {
        n_converted,
        elapsed_s,
    })
}

/// What can be converted: an engine or a runner.
pub trait Convert {
    /// Quantises the linear layers and gives how many there are; `progress` as in [`convert_model`].
    ///
    /// # Errors
    /// As in [`convert_model`].
    fn convert_linears(
        &mut self,
        plan: &Quantization,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<usize>;
}

impl Convert for Engine {
    fn convert_linears(
        &mut self,
        plan: &Quantization,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<usize> {
        // What is in the cache was computed with the old weights.
        self.forget();
        self.runner_mut().convert_linears(plan, progress)
    }
}

/// Sequences that were computed before hold keys and values of the old weights: release them.
impl Convert for Runner {
    fn convert_linears(
        &mut self,
        plan: &Quantization,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<usize> {
        self.convert_with(plan, progress)
    }
}
