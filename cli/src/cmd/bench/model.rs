//! `cider bench model`.

use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use cider::load::Checkpoint;
use cider_kernels::CpuBackend;
use serde_json::{Value, json};

use super::model_work::{ModelWork, SHORT, Start, decode_cost, prefill_cost, start, tokens};
use super::peer::Peer;
use super::random_model::RandomModel;
use super::record::{CIDER, Place, Row};
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
    let mut peers = Peer::start_all(&args.options.peer, "model", threads)?;
    bench.rows.extend(plan.start_rows(began, &work));
    for (i, &prompt) in plan.prompts.iter().enumerate() {
        if i == plan.prompts.len() / 2 {
            bench.measure_ceilings()?;
        }
        let rows = plan.measure(bench.rounds(), (&mut work, &checkpoint), prompt, &mut peers)?;
        bench.rows.extend(rows);
    }
    bench.finish("model")
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

/// One of the two phases, measured for one contender.
struct Phase<'a> {
    what: &'static str,
    prompt: usize,
    /// Tokens of which the time is measured.
    tokens: usize,
    who: &'a str,
    variant: &'a str,
    cost: Cost,
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

    fn start_rows(&self, start: Start, work: &ModelWork) -> [Row; 2] {
        let cost = Cost {
            bytes: work.weight_bytes() as f64,
            ..Cost::NOTHING
        };
        let rows = [
            ("load", 0, start.load),
            ("first token", SHORT, start.first_token),
        ];
        rows.map(|(what, prompt, seconds)| {
            let phase = Phase {
                what,
                prompt,
                tokens: 0,
                who: CIDER,
                variant: self.args.model_options.scheme.name(),
                cost,
            };
            self.row(&phase, Spread::new(vec![seconds]))
        })
    }

    /// Times a prompt and what is generated after it, of everybody in turn.
    fn measure(
        &self,
        rounds: usize,
        (work, checkpoint): (&mut ModelWork, &Checkpoint),
        prompt: usize,
        peers: &mut [Peer],
    ) -> Result<Vec<Row>> {
        tracing::info!("{}, {prompt} tokens", self.name);
        work.set_prompt(tokens(checkpoint, prompt))?;
        let able = self.prepare_peers(work, peers)?;
        // The first may be left out of a round, as the first of some repetitions is.
        let decoded = self.tokens + 1;
        let spreads = timing::interleave(2 * (1 + able.len()), rounds, |contender, count| {
            let is_decode = contender % 2 == 1;
            let Some(place) = (contender / 2).checked_sub(1) else {
                return if is_decode {
                    work.decode(decoded)
                } else {
                    timing::seconds(count, || work.prefill())
                };
            };
            let peer = &mut peers[able[place].0];
            if is_decode {
                return peer.run(json!({ "phase": "decode", "tokens": decoded }), decoded);
            }
            peer.run(json!({ "phase": "prefill", "repetitions": count }), count)
        })?;
        let (config, options) = (work.config(), &self.args.model_options);
        let costs = [
            prefill_cost(config, options, prompt),
            decode_cost(config, options, prompt),
        ];
        let mut rows = Vec::new();
        for (i, &spread) in spreads.iter().enumerate() {
            let peer = (i / 2).checked_sub(1).map(|place| able[place]);
            let (who, variant) = match peer {
                Some((peer, _)) => (peers[peer].name.as_str(), peers[peer].variant.as_str()),
                None => (CIDER, options.scheme.name()),
            };
            let phase = Phase {
                what: ["prefill", "decode"][i % 2],
                prompt,
                tokens: [prompt, 1][i % 2],
                who,
                variant,
                cost: costs[i % 2],
            };
            let mut row = self.row(&phase, spread);
            let base = spreads[i % 2];
            row.ratio_to_cider = Some(spread.median / base.median);
            row.compared_with = Some(options.scheme.name().to_owned());
            if let Some((_, next)) = peer {
                let same = next.map(|next| next == u64::from(work.next()));
                row.more.insert("same_next_token".to_owned(), json!(same));
            }
            rows.push(row);
        }
        // Phase by phase, so that those who did the same stand together.
        rows.sort_by_key(|row| row.rate.is_some() && row.place.label.contains("decode"));
        Ok(rows)
    }

    fn row(&self, phase: &Phase<'_>, spread: Spread) -> Row {
        let place = Place {
            label: match phase.prompt {
                0 => format!("{} {}", self.name, phase.what),
                tokens => format!("{} {} {tokens}", self.name, phase.what),
            },
            plot: format!("{} {}", self.name, phase.what),
            x: phase.prompt,
        };
        let mut row = Row::new(
            "model",
            [("prompt", phase.prompt)],
            place,
            (phase.cost, spread),
        );
        phase.who.clone_into(&mut row.who);
        phase.variant.clone_into(&mut row.variant);
        row.rate = (phase.tokens > 0).then(|| phase.tokens as f64 / (spread.median / 1e3));
        let more = [
            ("model", Value::from(self.name.clone())),
            ("phase", phase.what.into()),
            ("operations", phase.cost.operations.into()),
            ("bytes", phase.cost.bytes.into()),
        ];
        row.more
            .extend(more.map(|(key, value)| (key.to_owned(), value)));
        row
    }

    /// Has each peer read the prompt; gives those that can, with the token that they continue with.
    fn prepare_peers(
        &self,
        work: &ModelWork,
        peers: &mut [Peer],
    ) -> Result<Vec<(usize, Option<u64>)>> {
        let mut able = Vec::new();
        for (i, peer) in peers.iter_mut().enumerate() {
            let request = json!({
                "work": "model", "model": self.path, "prompt": work.prompt(), "context": self.context(),
            });
            let Some(reply) = peer.prepare(request)? else {
                continue;
            };
            let next = reply.get("next").and_then(Value::as_u64);
            if next != Some(u64::from(work.next())) {
                // Other formats of weights may well mean another token.
                tracing::warn!(
                    "{peer} continues with token {}, cider with {}",
                    next.map_or_else(|| "none".to_owned(), |next| next.to_string()),
                    work.next()
                );
            }
            able.push((i, next));
        }
        Ok(able)
    }
}

const PROMPTS: [usize; 2] = [512, 1536];
const QUICK_PROMPTS: [usize; 2] = [16, 40];
