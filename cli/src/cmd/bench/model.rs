//! `cider bench model`.

use std::iter;
use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use cider::load::Checkpoint;
use cider_kernels::{CpuBackend, PlainRead};
use serde_json::{Value, json};

use super::contest::{self, Contender};
use super::model_work::{ModelWork, SHORT, Start, decode_cost, prefill_cost, start, tokens};
use super::peer::{Ask, Peers};
use super::random_model::RandomModel;
use super::record::{MACHINE, Place, Row};
use super::roofline::Cost;
use super::timing::{self, Spread};
use super::{Bench, or, picture};
use crate::args::ModelBench;
use crate::bundled;

/// Runs the command.
pub(super) fn run(args: &ModelBench) -> Result<()> {
    args.model_options.check()?;
    let given = args.model.clone().map_or_else(bundled::find, Ok)?;
    let random = RandomModel::find(&given)?;
    let path = random.as_ref().map_or(given.as_path(), RandomModel::path);
    if let Some(size) = args.image {
        return picture::run(args, path, &name_of(&given), size);
    }
    let plan = Plan::new(args, path, &given);
    let backend = Arc::new(CpuBackend::from_env(args.options.threads)?);
    // Before anything else is measured: the start is what a user waits for.
    let (mut work, checkpoint, began) = start(path, &backend, &args.model_options, plan.context())?;
    let mut bench = Bench::with_backend(&args.options, backend)?;
    let threads = bench.backend.threads();
    let mut peers = Peers::start(&args.options, "model", threads)?;
    bench.rows.extend(plan.start_rows(began, &work, &peers));
    for (i, &prompt) in plan.prompts.iter().enumerate() {
        if i == plan.prompts.len() / 2 {
            bench.measure_ceilings()?;
        }
        let rows = plan.measure(&bench, (&mut work, &checkpoint), prompt, &mut peers)?;
        bench.rows.extend(rows);
    }
    bench.finish("model", peers)
}

fn name_of(given: &Path) -> String {
    let name = given.file_name().unwrap_or(given.as_os_str());
    name.to_string_lossy().into_owned()
}

/// What is measured.
struct Plan<'a> {
    args: &'a ModelBench,
    path: &'a Path,
    name: String,
    /// Tokens of prompts.
    prompts: Vec<usize>,
    /// Tokens that are generated in a round.
    tokens: usize,
}

impl<'a> Plan<'a> {
    fn new(args: &'a ModelBench, path: &'a Path, given: &Path) -> Self {
        let (prompts, tokens): (&[usize], usize) = if args.options.quick {
            (&QUICK_PROMPTS, 4)
        } else {
            (&PROMPTS, 32)
        };
        Self {
            args,
            path,
            name: name_of(given),
            prompts: or(&args.prompt, prompts),
            tokens: args.tokens.unwrap_or(tokens),
        }
    }

    /// Tokens of the longest sequence there will be.
    fn context(&self) -> usize {
        let longest = self.prompts.iter().copied().max().unwrap_or(0).max(SHORT);
        longest + self.tokens + 1
    }

    fn start_rows(&self, start: Start, work: &ModelWork, peers: &Peers) -> [Row; 2] {
        let cost = Cost {
            bytes: work.weight_bytes() as f64,
            ..Cost::NOTHING
        };
        let rows = [
            ("load", 0, start.load),
            ("first token", SHORT, start.first_token),
        ];
        rows.map(|(what, prompt, seconds)| {
            let contender = Contender::ours(self.args.model_options.scheme.name(), cost, None);
            let spread = Spread::new(vec![seconds]);
            self.row(peers, (what, prompt), &contender, spread)
        })
    }

    /// Times a prompt and what is generated after it, of everybody in turn.
    fn measure(
        &self,
        bench: &Bench<'_>,
        (work, checkpoint): (&mut ModelWork, &Checkpoint),
        prompt: usize,
        peers: &mut Peers,
    ) -> Result<Vec<Row>> {
        tracing::info!("{}, {prompt} tokens", self.name);
        work.set_prompt(tokens(checkpoint, prompt))?;
        let able = self.prepare_peers(work, peers)?;
        let (config, options) = (work.config(), &self.args.model_options);
        // The first may be left out of a round, as the first of some repetitions is.
        let decoded = self.tokens + 1;
        let phases = [
            (Ask::Prefill, prefill_cost(config, options, prompt)),
            (Ask::Decode(decoded), decode_cost(config, options, prompt)),
        ];
        let mut contenders = Vec::new();
        let bytes = phases[1].1.bytes;
        let mut plain = PlainRead::new()?;
        for number in iter::once(None).chain(able.iter().map(|(number, _)| Some(*number))) {
            for (ask, cost) in phases {
                let contender = match number {
                    Some(number) => Contender::theirs(peers, number, cost, None),
                    None => Contender::ours(options.scheme.name(), cost, None),
                };
                contenders.push(Contender { ask, ..contender });
            }
            if number.is_none() {
                contenders.push(Contender::plain_read(bytes, phases[1].0));
            }
        }
        let found = contest::measure(bench, peers, contenders, |number, count| match number {
            0 => timing::seconds(count, || work.prefill()),
            1 => work.decode(decoded),
            _ => Ok(contest::plain_reads(bench, &mut plain, (bytes, decoded))),
        })?;
        let mut rows = Vec::new();
        // Phase by phase, so that those who did the same stand together.
        for (what, is_decode) in [("prefill", false), ("decode", true)] {
            let of_phase = found
                .iter()
                .filter(|(contender, _)| matches!(contender.ask, Ask::Decode(_)) == is_decode);
            let mut base = None;
            for (contender, spread) in of_phase {
                let mut row = self.row(peers, (what, prompt), contender, *spread);
                // Ours is the first.
                let base = *base.get_or_insert(spread.median);
                row.ratio_to_cider = Some(spread.median / base);
                row.compared_with = Some(options.scheme.name().to_owned());
                if let Some((_, next)) = able.iter().find(|(peer, _)| Some(*peer) == contender.peer)
                {
                    let same = next.map(|next| next == u64::from(work.next()));
                    row.more.insert("same_next_token".to_owned(), json!(same));
                }
                rows.push(row);
            }
        }
        Ok(rows)
    }

    fn row(
        &self,
        peers: &Peers,
        (what, prompt): (&'static str, usize),
        contender: &Contender,
        spread: Spread,
    ) -> Row {
        let place = Place {
            label: match prompt {
                0 => format!("{} {what}", self.name),
                tokens => format!("{} {what} {tokens}", self.name),
            },
            plot: format!("{} {what}", self.name),
            x: prompt,
        };
        let shape = [("prompt", prompt)];
        let mut row = contender.row(peers, "model", (shape, place), spread);
        // Tokens of which this is the time.
        let tokens = match contender.ask {
            Ask::Work => None,
            Ask::Prefill => Some(prompt),
            // The machine reads, and generates nothing.
            Ask::Decode(_) => (contender.who != MACHINE).then_some(1),
        };
        row.rate = tokens.map(|tokens| tokens as f64 / (spread.median / 1e3));
        let more = [
            ("model", Value::from(self.name.clone())),
            ("phase", what.into()),
            ("operations", contender.cost.operations.into()),
            ("bytes", contender.cost.bytes.into()),
        ];
        row.more
            .extend(more.map(|(key, value)| (key.to_owned(), value)));
        row
    }

    /// Has each peer read the prompt; gives those that can, with the token that they continue with.
    fn prepare_peers(
        &self,
        work: &ModelWork,
        peers: &mut Peers,
    ) -> Result<Vec<(usize, Option<u64>)>> {
        let request = json!({
            "work": "model", "model": self.path, "prompt": work.prompt(), "context": self.context(),
        });
        let mut able = Vec::new();
        for (number, reply) in peers.prepare(&request)? {
            let next = reply.get("next").and_then(Value::as_u64);
            if next != Some(u64::from(work.next())) {
                // Other formats of weights may well mean another token.
                tracing::warn!(
                    "{} continues with token {}, cider with {}",
                    peers.get(number),
                    next.map_or_else(|| "none".to_owned(), |next| next.to_string()),
                    work.next()
                );
            }
            able.push((number, next));
        }
        Ok(able)
    }
}

const PROMPTS: [usize; 2] = [512, 1536];
const QUICK_PROMPTS: [usize; 2] = [16, 40];
