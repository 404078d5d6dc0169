//! `cider bench attention`.

use std::path::Path;

use anyhow::{Context as _, Result};
use cider_kernels::{Caches, DType, Phase};
use serde_json::json;

use super::attention_work::{AttentionWork, Exact, Geometry, Load, MATRICES, STEP, cache_types};
use super::contest::{self, Contender};
use super::peer::{Exchange, Peers, Question};
use super::record::{self, Place, Row};
use super::sample::Sample;
use super::timing::{self, Spread};
use super::{Bench, check_room, values};
use crate::args::AttentionBench;
use crate::failure::Usage;

/// Runs the command.
pub(super) fn run(args: &AttentionBench) -> Result<()> {
    let plan = Plan::new(args)?;
    check_room("caches of so many tokens", plan.elements())?;
    let mut bench = Bench::new(&args.options)?;
    let threads = bench.backend.threads();
    let mut peers = Peers::start(&args.options, "attention", threads)?;
    let folder = Exchange::new()?;
    for (i, &(name, geometry)) in plan.geometries.iter().enumerate() {
        if i == plan.geometries.len() / 2 {
            bench.measure_ceilings()?;
        }
        for &load in &plan.loads {
            let rows = measure(
                &bench,
                &plan,
                (name, geometry, load),
                &mut peers,
                folder.path(),
            )?;
            bench.rows.extend(rows);
        }
    }
    drop(folder);
    bench.finish("attention", peers)
}

/// What is measured.
struct Plan {
    geometries: Vec<(&'static str, Geometry)>,
    loads: Vec<Load>,
    caches: Vec<DType>,
}

impl Plan {
    fn new(args: &AttentionBench) -> Result<Self> {
        let (prefill, decode): (&[[usize; 2]], &[[usize; 2]]) = if args.options.quick {
            (&QUICK_PREFILL, &QUICK_DECODE)
        } else {
            (&PREFILL, &DECODE)
        };
        // To name one phase is to leave the other out.
        let named = !args.prefill.is_empty() || !args.decode.is_empty();
        let prefill = if named { &args.prefill } else { prefill };
        let decode = if named { &args.decode } else { decode };
        let prompts = prefill.iter().map(|&[rows, context]| Load {
            phase: Phase::Prompt,
            sequences: 1,
            rows,
            context,
        });
        let steps = decode.iter().map(|&[sequences, context]| Load {
            phase: Phase::Generated,
            sequences,
            rows: 1,
            context,
        });
        let geometries = GEOMETRIES.into_iter().filter(|(name, _)| {
            args.geometry.is_empty() || args.geometry.iter().any(|given| given == name)
        });
        Ok(Self {
            geometries: geometries.collect(),
            loads: prompts.chain(steps).collect(),
            caches: caches(&args.kv)?,
        })
    }

    /// Numbers that each load needs at least: keys and values.
    fn elements(&self) -> impl Iterator<Item = u128> {
        let widest = self
            .geometries
            .iter()
            .map(|(_, geometry)| geometry.kv_heads * geometry.head_size);
        let widest = 2 * widest.max().unwrap_or(1) as u128;
        let tokens = |load: &Load| load.sequences as u128 * load.context as u128;
        self.loads.iter().map(move |load| widest * tokens(load))
    }
}

fn caches(names: &[String]) -> Result<Vec<DType>> {
    let served = cache_types();
    if names.is_empty() {
        return Ok(served);
    }
    let mut chosen = Vec::new();
    for name in names {
        let Some(&dtype) = served.iter().find(|dtype| dtype.to_string() == *name) else {
            let known: Vec<String> = served.iter().map(DType::to_string).collect();
            let what = format!("--kv {name}: expected one of {}", known.join(", "));
            return Err(Usage(what).into());
        };
        chosen.push(dtype);
    }
    Ok(chosen)
}

/// Checks, then times, everybody at one load.
fn measure(
    bench: &Bench<'_>,
    plan: &Plan,
    (name, geometry, load): (&str, Geometry, Load),
    peers: &mut Peers,
    folder: &Path,
) -> Result<Vec<Row>> {
    tracing::info!("{}", place(name, load).label);
    let exact = Exact::new(geometry, load);
    let beyond = 4 * Caches::detect().last;
    let (mut works, mut contenders) = (Vec::new(), Vec::new());
    for &dtype in &plan.caches {
        let mut work = AttentionWork::new(&bench.backend, geometry, load, dtype)?;
        let error = work.check(&exact)?;
        work.rotate(&bench.best(), beyond)?;
        contenders.push(Contender::ours(
            &format!("kv {dtype}"),
            work.cost(),
            Some(error),
        ));
        works.push(work);
    }
    for (peer, error) in check_peers(peers, (geometry, load), &exact, folder)? {
        let is_wide = peers.get(peer).variant.contains("32");
        let like = plan
            .caches
            .iter()
            .position(|&dtype| (dtype == DType::F32) == is_wide);
        let cost = works[like.unwrap_or(0)].cost();
        contenders.push(Contender::theirs(peers, peer, cost, Some(error)));
    }
    let found = contest::measure(bench, peers, contenders, |number, repetitions| {
        timing::seconds(repetitions, || works[number].run())
    })?;
    let mut rows: Vec<Row> = found
        .iter()
        .map(|(contender, spread)| row(peers, (name, load), contender, *spread))
        .collect();
    // f32 peers to our f32 cache, others to our bf16 one, everybody of ours to our first.
    record::compare(&mut rows, |variant| {
        if variant.contains("32") {
            "kv f32"
        } else {
            "kv bf16"
        }
    });
    Ok(rows)
}

fn phase_of(load: Load) -> (&'static str, usize) {
    match load.phase {
        Phase::Prompt => ("prefill", load.rows),
        Phase::Generated => ("decode", load.sequences),
    }
}

fn place(name: &str, load: Load) -> Place {
    let ((what, count), context) = (phase_of(load), load.context);
    Place {
        label: format!("{name} {what} {count} at {context}"),
        plot: format!("{name} {what}"),
        x: context,
    }
}

fn row(peers: &Peers, (name, load): (&str, Load), contender: &Contender, spread: Spread) -> Row {
    let shape = [
        ("sequences", load.sequences),
        ("rows", load.rows),
        ("context", load.context),
    ];
    let mut row = contender.row(peers, "attention", (shape, place(name, load)), spread);
    row.more.insert("model".to_owned(), name.into());
    row.more.insert("phase".to_owned(), phase_of(load).0.into());
    row
}

/// Has each peer do the work once and checks its answer; gives those that can do it, with their errors. One sequence
/// is what they are asked for.
fn check_peers(
    peers: &mut Peers,
    (geometry, load): (Geometry, Load),
    exact: &Exact,
    folder: &Path,
) -> Result<Vec<(usize, f64)>> {
    if peers.is_empty() || load.sequences > 1 {
        return Ok(Vec::new());
    }
    let Geometry {
        heads,
        kv_heads,
        head_size,
    } = geometry;
    let files = ["q", "k", "v"].map(|name| folder.join(name));
    let sizes = [
        (load.rows, heads),
        (load.context, kv_heads),
        (load.context, kv_heads),
    ];
    for ((file, (count, heads)), matrix) in files.iter().zip(sizes).zip(MATRICES) {
        let fill = |row: usize, out: &mut [f32]| values::fill(matrix, row, STEP, out);
        values::write(file, count, heads * head_size, fill)
            .with_context(|| file.display().to_string())?;
    }
    let out = folder.join("y");
    let read = |path: &Path| {
        let mut got = Vec::new();
        for &(row, head) in &exact.places {
            let sample = Sample {
                rows: vec![row],
                cols: (head * head_size..(head + 1) * head_size).collect(),
            };
            got.extend(sample.read(path, [load.rows, heads * head_size])?);
        }
        Ok(got)
    };
    peers.check(&Question {
        request: json!({
            "work": "attention", "rows": load.rows, "context": load.context, "heads": heads, "kv_heads": kv_heads,
            "head_size": head_size, "queries": files[0], "keys": files[1], "values": files[2], "out": out,
        }),
        out: &out,
        expected: &exact.values,
        read: &read,
        limit: &|_| PEER_LIMIT,
    })
}

/// Heads of the models that are measured.
const GEOMETRIES: [(&str, Geometry); 3] = {
    const fn geometry(heads: usize, kv_heads: usize, head_size: usize) -> Geometry {
        Geometry {
            heads,
            kv_heads,
            head_size,
        }
    }
    [
        ("smollm2-135m", geometry(9, 3, 64)),
        ("llama-3-8b", geometry(32, 8, 128)),
        ("qwen3-vl-2b", geometry(16, 8, 128)),
    ]
};
/// Rows and tokens of context.
const PREFILL: [[usize; 2]; 3] = [[512, 512], [1536, 1536], [128, 4096]];
/// Sequences and tokens of context.
const DECODE: [[usize; 2]; 4] = [[1, 512], [1, 1536], [1, 8192], [8, 1536]];
const QUICK_PREFILL: [[usize; 2]; 1] = [[40, 100]];
const QUICK_DECODE: [[usize; 2]; 2] = [[1, 100], [2, 100]];
const PEER_LIMIT: f64 = 0.1;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::GEOMETRIES as NAMES;

    #[test]
    fn the_command_line_names_all_geometries() {
        assert_eq!(GEOMETRIES.map(|(name, _)| name), NAMES);
    }
}
