//! `cider bench serve`.

mod client;
mod figures;
mod load;

use std::env;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use cider_kernels::CpuBackend;
use tokio::runtime::Builder;

use self::client::{KEY, Target, check_names};
use self::figures::Record;
use self::load::{Requests, Shape};
use super::record::{CIDER, Machine};
use super::write;
use crate::args::ServeBench;
use crate::cmd::serve::model_of;
use crate::console;
use crate::failure::Usage;
use crate::server::Background;
use crate::server::config::{Config, ServeFlags};

/// Runs the command.
pub(super) fn run(args: &ServeBench, quiet: bool) -> Result<()> {
    let requests = requests(args);
    requests.check()?;
    let key = env::var(KEY).ok();
    let given = args
        .url
        .iter()
        .map(|url| Target::parse(url, key.as_deref()));
    let mut targets = given.collect::<Result<Vec<_>>>()?;
    let own = (targets.is_empty() || args.model.is_some())
        .then(|| start(args, quiet))
        .transpose()?;
    if let Some(own) = &own {
        targets.insert(
            0,
            Target::parse(&format!("{CIDER}=http://{}", own.address), None)?,
        );
    }
    check_names(&targets)?;
    let machine = Machine::new(&CpuBackend::from_env(args.threads)?);
    let mut record = Record::new(machine, &requests);
    // The cores are the server's: one thread is enough to ask.
    let runtime = Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(measure(args, &requests, &targets, &mut record))?;
    drop(own);
    if let Some(path) = &args.json {
        write(path, &record.text()?)?;
    }
    if let Some(path) = &args.svg {
        write(path, &record.plots())?;
    }
    console::text(&record.table())
}

fn requests(args: &ServeBench) -> Requests {
    let (words, tokens) = if args.quick { (16, 8) } else { (128, 128) };
    Requests {
        words: args.words.unwrap_or(words.max(args.shared)),
        shared: args.shared,
        tokens: args.tokens.unwrap_or(tokens),
        image: args.image,
        seed: args.seed,
    }
}

/// Serves the model within this process, at a port that is free.
fn start(args: &ServeBench, quiet: bool) -> Result<Background> {
    let mut given = vec![("server.port", vec!["0".to_owned()])];
    if let Some(model) = &args.model {
        let model = model
            .to_str()
            .ok_or_else(|| Usage("MODEL is not UTF-8".to_owned()))?;
        given.push(("model_name_or_path", vec![model.to_owned()]));
    }
    if let Some(threads) = args.threads {
        given.push(("threads", vec![threads.to_string()]));
    }
    let flags = ServeFlags {
        config: args.config.clone(),
        given,
    };
    let environment = env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let mut config = Config::read(&flags, environment)?;
    // It is asked from here alone.
    config.server.host = [127, 0, 0, 1].into();
    config.server.api_keys.clear();
    config.server.api_key_file = None;
    let most = loads(args).into_iter().map(|shape| match shape {
        Shape::Clients(clients) => clients,
        Shape::Rate(_) => 0,
    });
    config.limits.queue = config.limits.queue.max(most.max().unwrap_or(0));
    let model = model_of(&config, quiet)?;
    Background::start(config, model)
}

/// The loads, in the order in which they are put on.
fn loads(args: &ServeBench) -> Vec<Shape> {
    let default: &[usize] = match (args.rate.is_empty(), args.quick) {
        (false, _) => &[],
        (true, true) => &[1, 4],
        (true, false) => &[1, 4, 16],
    };
    let clients = super::or(&args.clients, default);
    let closed = clients.into_iter().map(Shape::Clients);
    closed
        .chain(args.rate.iter().copied().map(Shape::Rate))
        .collect()
}

/// Puts each load on each server.
async fn measure(
    args: &ServeBench,
    requests: &Requests,
    targets: &[Target],
    record: &mut Record,
) -> Result<()> {
    let limit = Duration::from_secs(args.timeout);
    let count = args.requests.unwrap_or(if args.quick { 4 } else { 32 });
    let mut models = Vec::new();
    for target in targets {
        let model = target.model().await.with_context(|| target.name.clone())?;
        warm_up(target, &model, requests, limit).await?;
        models.push(model);
    }
    for (number, shape) in loads(args).into_iter().enumerate() {
        for (target, model) in targets.iter().zip(&models) {
            let bodies = requests.of_load(model, number + 1, count);
            let outcome = load::run(target, shape, bodies, (args.seed, limit)).await;
            record.add(&target.name, model, shape, &outcome);
            if let Some(load) = record.loads.last() {
                tracing::info!("{}, {}: {:.1} s", load.server, load.name(), outcome.seconds);
            }
        }
    }
    Ok(())
}

/// One answer before any is timed: a server that gives none is no contender.
async fn warm_up(target: &Target, model: &str, requests: &Requests, limit: Duration) -> Result<()> {
    let [body] = requests
        .of_load(model, 0, 1)
        .try_into()
        .map_err(|_| anyhow!("no request to begin with"))?;
    let reply = target.ask(body, Instant::now(), limit).await;
    let reply = reply.map_err(|failure| anyhow!("{}: {failure}", target.name))?;
    ensure!(reply.generated_tokens > 0, "{}: no token", target.name);
    let wanted = requests.tokens as u64;
    if reply.generated_tokens != wanted {
        tracing::warn!(
            "{} gave {} tokens, asked were {wanted}",
            target.name,
            reply.generated_tokens
        );
    }
    Ok(())
}
