//! `cider bench`: how fast this machine works, as shares of what it could, and beside other programs.

mod attention;
mod attention_work;
mod contest;
mod linear;
mod linear_work;
mod model;
mod model_work;
mod peer;
mod peer_process;
mod picture;
mod picture_work;
mod random_model;
mod random_tower;
mod record;
mod roofline;
mod sample;
mod serve;
mod svg;
mod table;
mod timing;
mod values;

use std::cell::OnceCell;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, ensure};
use cider::generate::available_memory;
use cider_kernels::{Ceilings, CpuBackend, Isa};

use self::peer::Peers;
use self::record::{Record, Row};
use crate::args::{BenchCommand, BenchOptions};
use crate::console;
use crate::targets::{self, Targets};

/// Runs the command.
pub(crate) fn run(command: &BenchCommand, quiet: bool) -> Result<()> {
    let (targets, model) = match command {
        BenchCommand::Attention(args) => (args.options.targets(), None),
        BenchCommand::Linear(args) => (args.options.targets(), None),
        BenchCommand::Model(args) => (args.options.targets(), args.model.as_deref()),
        BenchCommand::Serve(args) => (
            targets_of(args.json.as_deref(), args.svg.as_deref()),
            args.model.as_deref(),
        ),
    };
    targets?.are_not(model)?;
    match command {
        BenchCommand::Attention(args) => attention::run(args),
        BenchCommand::Linear(args) => linear::run(args),
        BenchCommand::Model(args) => model::run(args),
        BenchCommand::Serve(args) => serve::run(args, quiet),
    }
}

/// Refuses work of so many elements of four bytes, the largest of all that is asked for, where memory is short of it.
fn check_room(what: &str, elements: impl Iterator<Item = u128>) -> Result<()> {
    let bytes = 4 * elements.max().unwrap_or(0);
    let available = available_memory().unwrap_or(u64::MAX);
    ensure!(
        bytes < u128::from(available),
        "{what} need {:.1} GB, {:.1} GB of memory is available",
        bytes as f64 / 1e9,
        available as f64 / 1e9
    );
    Ok(())
}

/// What every measurement needs: the device, its ceilings, and where the results go.
struct Bench<'a> {
    options: &'a BenchOptions,
    backend: Arc<CpuBackend>,
    /// One per time they were measured.
    ceilings: Vec<Ceilings>,
    /// Those of the best instructions, where ours are forced to others.
    free: OnceCell<Ceilings>,
    rows: Vec<Row>,
}

impl BenchOptions {
    fn targets(&self) -> Result<Targets<'_>> {
        targets_of(self.json.as_deref(), self.svg.as_deref())
    }
}

/// The files to write; refuses those that could not be written in the end, before hours are spent.
fn targets_of<'a>(json: Option<&'a Path>, svg: Option<&'a Path>) -> Result<Targets<'a>> {
    let both = [("--json", json), ("--svg", svg)];
    let given = both
        .into_iter()
        .filter_map(|(option, path)| Some((option, path?)));
    Targets::check(given)
}

impl<'a> Bench<'a> {
    fn new(options: &'a BenchOptions) -> Result<Self> {
        let backend = CpuBackend::from_env(options.threads)?;
        Self::with_backend(options, Arc::new(backend))
    }

    fn with_backend(options: &'a BenchOptions, backend: Arc<CpuBackend>) -> Result<Self> {
        let mut bench = Self {
            options,
            backend,
            ceilings: Vec::new(),
            free: OnceCell::new(),
            rows: Vec::new(),
        };
        bench.measure_ceilings()?;
        Ok(bench)
    }

    fn rounds(&self) -> usize {
        let default = if self.options.quick { 2 } else { 7 };
        self.options.rounds.unwrap_or(default)
    }

    /// Measures the ceilings once more: the machine may have been busy before.
    fn measure_ceilings(&mut self) -> Result<()> {
        let rounds = if self.options.quick { 1 } else { 7 };
        let found = Ceilings::measure_with(&self.backend, rounds)?;
        self.ceilings.push(found);
        Ok(())
    }

    /// The best that was measured so far.
    fn best(&self) -> Ceilings {
        let all = self.ceilings.iter().copied();
        // Measured when the bench was made; a machine without any is not a case.
        all.reduce(Ceilings::best).unwrap_or(Ceilings {
            int8: 1.0,
            bf16: None,
            f32: 1.0,
            read: 1.0,
        })
    }

    /// The ceilings of programs that choose their instructions themselves.
    fn utmost(&self) -> Result<Ceilings> {
        if self.backend.isa() == Isa::best() {
            return Ok(self.best());
        }
        let free = if let Some(free) = self.free.get() {
            *free
        } else {
            let backend = CpuBackend::new(Isa::best(), self.backend.threads())?;
            let found = Ceilings::measure_with(&backend, 1)?;
            *self.free.get_or_init(|| found)
        };
        Ok(free.best(self.best()))
    }

    /// Measures the ceilings for the last time, fills in the shares, and gives everything out: the files first, so
    /// that a reader of the table who goes away costs no record.
    fn finish(mut self, command: &'static str, peers: Peers) -> Result<()> {
        let given_up = peers.end();
        self.measure_ceilings()?;
        let best = self.best();
        for row in &mut self.rows {
            row.take_shares(&best);
        }
        let mut record = Record::new(command, &self.backend, &self.ceilings, self.rows);
        record.given_up = given_up;
        if self.options.quick {
            // So few rounds tell nothing.
            record.ceilings.disturbed.clear();
        }
        for what in &record.ceilings.disturbed {
            tracing::warn!("disturbed: {what}");
        }
        if let Some(path) = &self.options.json {
            write(path, &record.text()?)?;
        }
        if let Some(path) = &self.options.svg {
            write(path, &svg::draw(&record))?;
        }
        console::text(&table::render(&record))
    }
}

fn write(path: &Path, text: &str) -> Result<()> {
    targets::write(path, |file| file.write_all(text.as_bytes()))
}

/// What was given, or else the default.
fn or<T: Clone>(given: &[T], default: &[T]) -> Vec<T> {
    if given.is_empty() { default } else { given }.to_vec()
}
