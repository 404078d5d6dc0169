//! The server: HTTP in front of the engine, and nothing that computes.

mod address;
mod answers;
mod app;
mod auth;
mod body;
mod budget;
mod chat;
mod completions;
pub(crate) mod config;
mod error;
mod fetch;
mod io;
mod listen;
mod logprobs;
mod mail;
mod media;
mod messages;
mod metrics;
mod openapi;
mod page;
mod params;
mod prepare;
mod routes;
mod rules;
mod split;
mod status;
mod stream;
mod tokenize;
mod wire;
mod worker;

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context as _, Result};
use cider::generate::SamplingParams;
use cider::{BatchEngine, BatchOptions, Frontend};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Semaphore;

use self::app::{App, Ids, Slots, Unknown, unix_time};
use self::auth::Gate;
use self::budget::Budget;
use self::config::{Config, SamplingDefaults};
use self::fetch::Fetcher;
use self::media::MediaRoot;
use self::metrics::Metrics;
use self::params::Defaults;
use self::wire::ModelCard;
use self::worker::Worker;

/// A model that is to be served.
pub(crate) struct Model {
    /// What it is called.
    pub(crate) name: String,
    /// The scheme of its weights.
    pub(crate) scheme: String,
    /// Opens it, on the thread that it will live on.
    pub(crate) open: Box<dyn FnOnce(BatchOptions) -> Result<BatchEngine> + Send>,
}

/// Serves a model until a signal comes.
pub(crate) fn run(config: Config, model: Model) -> Result<()> {
    let Ready {
        app,
        listener,
        runtime,
        address,
    } = Ready::new(config, model)?;
    let served = runtime.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        tracing::info!("listening on http://{address}, model {}", app.card.id);
        listen::serve(Arc::clone(&app), listener, routes::router(app)).await
    });
    // What still runs is dropped, which cancels it.
    runtime.shutdown_background();
    served.with_context(|| format!("{address}"))
}

/// A server beside the work of its own process. It lasts for as long as this does.
pub(crate) struct Background {
    pub(crate) address: SocketAddr,
    runtime: Option<Runtime>,
}

impl Background {
    /// Serves a model; signals keep their usual effect.
    pub(crate) fn start(config: Config, model: Model) -> Result<Self> {
        let ready = Ready::new(config, model)?;
        let accept = async {
            let listener = tokio::net::TcpListener::from_std(ready.listener)?;
            let router = routes::router(Arc::clone(&ready.app));
            tokio::spawn(listen::accept(ready.app, listener, router));
            anyhow::Ok(())
        };
        ready.runtime.block_on(accept)?;
        Ok(Self {
            address: ready.address,
            runtime: Some(ready.runtime),
        })
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// A server that may begin.
struct Ready {
    app: Arc<App>,
    listener: TcpListener,
    runtime: Runtime,
    address: SocketAddr,
}

impl Ready {
    fn new(config: Config, model: Model) -> Result<Self> {
        // What can be refused is refused before the weights are read, and the port is taken before that.
        let gate = Gate::open(&config.server)?;
        let media = config
            .server
            .media_root
            .as_deref()
            .map(MediaRoot::open)
            .transpose()?;
        let address = SocketAddr::new(config.server.host, config.server.port);
        let listener = TcpListener::bind(address).with_context(|| format!("{address}"))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        warn(&config);
        let app = App::start(config, model, gate, media)?;
        let runtime = Builder::new_multi_thread()
            .worker_threads(HTTP_THREADS)
            .thread_name("http")
            .enable_all()
            .build()?;
        Ok(Self {
            app,
            listener,
            runtime,
            address,
        })
    }
}

fn warn(config: &Config) {
    let server = &config.server;
    if !server.host.is_loopback() && server.no_auth {
        tracing::warn!(
            "{} is reachable from other machines, and no key is needed",
            server.host
        );
    }
    if server.cors_origins.iter().any(|origin| origin == "*") {
        tracing::warn!("every web page may ask: server.cors_origins has *");
    }
}

impl App {
    fn start(
        config: Config,
        model: Model,
        gate: Gate,
        media: Option<MediaRoot>,
    ) -> Result<Arc<Self>> {
        let Config {
            sampling,
            server,
            limits,
            ..
        } = config;
        let metrics: Arc<Metrics> = Arc::default();
        let options = BatchOptions {
            max_running: limits.running,
            cache_tokens: limits.cache_tokens,
            image_cache_bytes: limits.image_cache_bytes,
            idle_ttl: server.ttl,
            ..BatchOptions::default()
        };
        let open = model.open;
        let (worker, frontend, _) = Worker::start(Arc::clone(&metrics), move || {
            let engine = open(options)?;
            let frontend = engine.frontend();
            Ok((engine, frontend))
        })?;
        let card = ModelCard {
            id: server.model_name.unwrap_or(model.name),
            object: "model",
            created: unix_time(),
            owned_by: "cider",
            max_model_len: frontend.context(),
            scheme: model.scheme,
            vision: frontend.vision().is_some(),
        };
        Ok(Arc::new(Self {
            gate,
            defaults: defaults(&sampling, &limits, &frontend),
            strict_model: server.strict_model,
            longest_token: longest_token(&frontend),
            card,
            frontend,
            worker,
            metrics,
            budget: Budget::new(limits.in_flight_bytes),
            fetcher: server
                .image_urls
                .then(|| Fetcher::new(limits.fetch_timeout, limits.image_bytes))
                .transpose()?,
            media: media.map(Arc::new),
            preparing: Arc::new(Semaphore::new(
                limits.prepare_jobs.min(Semaphore::MAX_PERMITS),
            )),
            slots: Slots::new(limits.running.saturating_add(limits.queue)),
            draining: AtomicBool::new(false),
            unknown: Unknown::default(),
            ids: Ids::default(),
            limits,
        }))
    }
}

/// What requests that say nothing get: the operator's word, else the checkpoint's.
fn defaults(sampling: &SamplingDefaults, limits: &config::Limits, frontend: &Frontend) -> Defaults {
    let model = frontend.sampling();
    Defaults {
        sampling: SamplingParams {
            temperature: sampling.temperature.unwrap_or(model.temperature),
            top_p: sampling.top_p.unwrap_or(model.top_p),
            top_k: sampling.top_k.unwrap_or(model.top_k),
            min_p: sampling.min_p.unwrap_or(model.min_p),
            repetition_penalty: sampling
                .repetition_penalty
                .unwrap_or(model.repetition_penalty),
            ..model
        },
        max_new_tokens: sampling.max_new_tokens,
        max_tokens: limits.max_tokens,
    }
}

fn longest_token(frontend: &Frontend) -> usize {
    let tokenizer = frontend.tokenizer();
    let ids = 0..u32::try_from(tokenizer.vocab_size()).unwrap_or(u32::MAX);
    let longest = ids
        .filter_map(|id| Some(tokenizer.token_bytes(id)?.len()))
        .max();
    longest.unwrap_or(1).max(1)
}

/// What a model is called if nobody says: the name of its folder or file.
pub(crate) fn name_of(path: &Path) -> String {
    let path = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    let name = path
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let name = name.strip_suffix(".gguf").unwrap_or(&name);
    if name.is_empty() {
        "model".to_owned()
    } else {
        name.to_owned()
    }
}

/// Threads that serve connections: they carry bytes, the engine has the cores.
const HTTP_THREADS: usize = 2;
