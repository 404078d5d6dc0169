//! `cider bench linear`.

use std::path::Path;

use anyhow::{Context as _, Result};
use cider_kernels::{Caches, PlainRead};
use serde_json::json;

use super::contest::{self, Contender};
use super::linear_work::{Exact, LinearWork, PRODUCT, Scheme, Task};
use super::peer::{Ask, Exchange, Peers, Question};
use super::record::{self, Place, Row};
use super::timing::{self, Spread};
use super::{Bench, check_room, or, values};
use crate::args::{LINEAR_SCHEMES, LinearBench};

/// Runs the command.
pub(super) fn run(args: &LinearBench) -> Result<()> {
    let plan = Plan::new(args);
    check_room("layers of these shapes and rows", plan.elements())?;
    let mut bench = Bench::new(&args.options)?;
    let threads = bench.backend.threads();
    let mut peers = Peers::start(&args.options, "linear", threads)?;
    let folder = Exchange::new()?;
    for (i, &shape) in plan.shapes.iter().enumerate() {
        if i == plan.shapes.len() / 2 {
            bench.measure_ceilings()?;
        }
        measure_shape(&mut bench, &plan, shape, &mut peers, folder.path())?;
    }
    drop(folder);
    bench.finish("linear", peers)
}

/// What is measured.
struct Plan {
    m: Vec<usize>,
    shapes: Vec<[usize; 2]>,
    schemes: Vec<&'static Scheme>,
}

impl Plan {
    fn new(args: &LinearBench) -> Self {
        let quick = args.options.quick;
        let (m, shapes): (&[usize], &[[usize; 2]]) = if quick {
            (&QUICK_ROWS, &QUICK_SHAPES)
        } else {
            (&ROWS, &SHAPES)
        };
        let names: Vec<&str> = if args.scheme.is_empty() {
            LINEAR_SCHEMES.to_vec()
        } else {
            args.scheme.iter().map(String::as_str).collect()
        };
        Self {
            m: or(&args.m, m),
            shapes: or(&args.shape, shapes),
            schemes: names.into_iter().filter_map(Scheme::named).collect(),
        }
    }

    /// Numbers that each shape needs at least: weights, rows in and rows out.
    fn elements(&self) -> impl Iterator<Item = u128> {
        let most = self.m.iter().copied().max().unwrap_or(1) as u128;
        self.shapes.iter().map(move |&[n, k]| {
            let (n, k) = (n as u128, k as u128);
            n * k + most * (n + k)
        })
    }
}

fn measure_shape(
    bench: &mut Bench<'_>,
    plan: &Plan,
    shape: [usize; 2],
    peers: &mut Peers,
    folder: &Path,
) -> Result<()> {
    let backend = bench.backend.clone();
    let most = plan.m.iter().copied().max().unwrap_or(1);
    let mut work = LinearWork::new(&backend, shape, most)?;
    let beyond = 4 * Caches::detect().last;
    for scheme in &plan.schemes {
        work.prepare(scheme, &plan.m, &bench.best(), beyond)?;
    }
    let [n, k] = shape;
    if !peers.is_empty() {
        let file = folder.join("w");
        values::write(&file, n, k, LinearWork::weight_row)
            .with_context(|| file.display().to_string())?;
    }
    for &m in &plan.m {
        tracing::info!("{n}x{k}, M = {m}");
        let rows = measure(bench, plan, m, &mut work, (&mut *peers, folder))?;
        bench.rows.extend(rows);
    }
    Ok(())
}

/// Checks, then times, everybody at `m` rows.
fn measure(
    bench: &Bench<'_>,
    plan: &Plan,
    m: usize,
    work: &mut LinearWork<'_>,
    (peers, folder): (&mut Peers, &Path),
) -> Result<Vec<Row>> {
    let exact = Exact::new(work, m);
    let tasks: Vec<Task> = plan
        .schemes
        .iter()
        .flat_map(|scheme| scheme.tasks())
        .collect();
    let mut contenders = Vec::new();
    for &task in &tasks {
        let error = work.check(task, m, &exact)?;
        contenders.push(Contender::ours(task.name(), work.cost(task, m)?, error));
    }
    let [n, k] = work.shape();
    let bytes = (n * k) as f64;
    let mut plain = None;
    let ceilings = bench.best();
    if contenders
        .iter()
        .any(|ours| ours.cost.is_memory_bound(&ceilings))
    {
        plain = Some(PlainRead::new()?);
        contenders.push(Contender::plain_read(bytes, Ask::Work));
    }
    for (peer, error) in check_peers(peers, work, m, &exact, folder)? {
        let cost = work.nominal_cost(Scheme::like(&peers.get(peer).variant), m);
        contenders.push(Contender::theirs(peers, peer, cost, Some(error)));
    }
    let found = contest::measure(bench, peers, contenders, |number, repetitions| {
        let Some(task) = tasks.get(number) else {
            let plain = plain.iter_mut().next();
            return Ok(plain.map_or_else(Vec::new, |plain| {
                contest::plain_reads(bench, plain, (bytes, repetitions))
            }));
        };
        work.quantize(m)?;
        timing::seconds(repetitions, || work.run(*task, m))
    })?;
    let row = |(contender, spread): &(Contender, Spread)| {
        let place = Place {
            label: format!("{n}x{k} M={m}"),
            plot: format!("{n}x{k}"),
            x: m,
        };
        let shape = [("m", m), ("n", n), ("k", k)];
        contender.row(peers, "linear", (shape, place), *spread)
    };
    let mut rows: Vec<Row> = found.iter().map(row).collect();
    // Peers to our counterpart where it was measured, everybody else to our first.
    record::compare(&mut rows, counterpart);
    Ok(rows)
}

/// Which of our variants does what a peer's variant of this name does.
fn counterpart(variant: &str) -> &'static str {
    if variant.contains("int_mm") || variant.contains("product") {
        PRODUCT
    } else {
        Scheme::like(variant).name
    }
}

/// Has each peer do the work once and checks its answer; gives those that can do it, with their errors.
fn check_peers(
    peers: &mut Peers,
    work: &LinearWork<'_>,
    m: usize,
    exact: &Exact,
    folder: &Path,
) -> Result<Vec<(usize, f64)>> {
    if peers.is_empty() {
        return Ok(Vec::new());
    }
    let ([n, k], rows) = (work.shape(), work.input(m));
    let (input, out) = (folder.join("x"), folder.join("y"));
    let copy = |row: usize, out: &mut [f32]| out.copy_from_slice(&rows[row * k..][..k]);
    values::write(&input, m, k, copy).with_context(|| input.display().to_string())?;
    // As many as integers need; of wider weights as many are further beyond the caches.
    let copies = match m {
        0..=FEW_ROWS => (4 * Caches::detect().last / (n * k) + 1).min(MOST_COPIES),
        _ => 1,
    };
    peers.check(&Question {
        request: json!({
            "work": "linear", "m": m, "n": n, "k": k, "input": input, "weights": folder.join("w"),
            "copies": copies, "out": out,
        }),
        out: &out,
        expected: &exact.values,
        read: &|path| exact.sample.read(path, [m, n]),
        limit: &|variant| {
            if Scheme::like(variant).has_coarse_weights() {
                COARSE_LIMIT
            } else {
                PEER_LIMIT
            }
        },
    })
    .with_context(|| format!("M = {m}, {n}x{k}"))
}

const ROWS: [usize; 9] = [1, 8, 32, 64, 128, 512, 1024, 4096, 8192];
const QUICK_ROWS: [usize; 3] = [1, 8, 33];
/// Rows x columns of the weights of several models' layers.
const SHAPES: [[usize; 2]; 6] = [
    [10240, 2560],
    [2560, 10240],
    [3584, 3584],
    [18944, 3584],
    [3584, 18944],
    [2560, 2560],
];
const QUICK_SHAPES: [[usize; 2]; 2] = [[192, 320], [320, 192]];
/// Up to so many rows the weights may be what the work waits for.
const FEW_ROWS: usize = 64;
/// A peer keeps its own copies, some of them as f32.
const MOST_COPIES: usize = 16;
/// What a peer's answer may be wrong by: room for quantised rows, and none for a mistake.
const PEER_LIMIT: f64 = 0.05;
/// The same with 4-bit weights, which err by a fifteenth of what they weigh.
const COARSE_LIMIT: f64 = 0.3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_compared_with_what_does_the_same() {
        let pairs = [
            ("fp32", "f32"),
            ("bf16", "bf16"),
            ("w8a8_dynamic", "w8a8"),
            ("int_mm", "int32 product"),
            ("q8_0", "w8a8"),
            ("q4_0", "w4a8"),
            ("w8a16", "w8a16"),
            ("w4a16", "w4a16"),
            ("w8a8_group128", "w8a8-g128"),
            ("w4a8_group128", "w4a8"),
            ("w8a32", "w8a16"),
            ("something", "w8a8"),
        ];
        for (theirs, ours) in pairs {
            assert_eq!(counterpart(theirs), ours, "{theirs}");
        }
    }
}
