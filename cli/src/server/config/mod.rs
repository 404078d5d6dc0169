//! What the server is told: a file, the environment, and flags over both.

mod flags;
mod nearest;
mod parse;
mod setting;
mod settings;
mod sources;

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use cider::generate::CacheType;
use cider::{DType, Head, Scheme};

pub(crate) use self::flags::ServeFlags;
pub(super) use self::nearest::nearest;

/// All settings.
#[derive(Clone, Debug, Default)]
pub(crate) struct Config {
    /// The model's folder or file; the small one of the repository if none.
    pub(crate) model: Option<String>,
    pub(crate) loading: Loading,
    pub(crate) sampling: SamplingDefaults,
    pub(crate) server: Server,
    pub(crate) limits: Limits,
}

/// How the model is loaded.
#[derive(Clone, Debug, Default)]
pub(crate) struct Loading {
    pub(crate) w8a8: W8A8,
    /// None is `auto`.
    pub(crate) scheme: Option<Scheme>,
    pub(crate) group_size: Option<usize>,
    pub(crate) head: Head,
    pub(crate) dtype: Option<DType>,
    pub(crate) kv_cache: CacheType,
    pub(crate) vision_scheme: Option<Scheme>,
    pub(crate) threads: Option<usize>,
    pub(crate) ctx: Option<usize>,
    pub(crate) chat_template: Option<PathBuf>,
    pub(crate) min_image_tokens: Option<usize>,
    pub(crate) max_image_tokens: Option<usize>,
}

/// Whether prompts are quantised to INT8, in the words of the seed's configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum W8A8 {
    /// As the scheme says.
    #[default]
    Auto,
    /// They must be.
    On,
    /// They must not be.
    Off,
}

/// What requests that say nothing get; nothing here leaves it to the checkpoint.
#[derive(Clone, Debug, Default)]
pub(crate) struct SamplingDefaults {
    pub(crate) temperature: Option<f32>,
    pub(crate) top_p: Option<f32>,
    pub(crate) top_k: Option<usize>,
    pub(crate) min_p: Option<f32>,
    pub(crate) repetition_penalty: Option<f32>,
    pub(crate) max_new_tokens: Option<usize>,
}

/// Who may ask, and what is served.
#[derive(Clone, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a setting of its own"
)]
pub(crate) struct Server {
    pub(crate) host: IpAddr,
    pub(crate) port: u16,
    /// Idle time after which cached prefixes and pictures are dropped.
    pub(crate) ttl: Duration,
    pub(crate) model_name: Option<String>,
    pub(crate) strict_model: bool,
    pub(crate) api_keys: Vec<String>,
    pub(crate) api_key_file: Option<PathBuf>,
    pub(crate) no_auth: bool,
    pub(crate) allowed_hosts: Vec<String>,
    pub(crate) cors_origins: Vec<String>,
    pub(crate) share_cache: bool,
    pub(crate) image_urls: bool,
    pub(crate) media_root: Option<PathBuf>,
}

/// How much of everything there may be.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    pub(crate) running: usize,
    pub(crate) queue: usize,
    pub(crate) connections: usize,
    pub(crate) header_timeout: Duration,
    pub(crate) body_timeout: Duration,
    pub(crate) write_timeout: Duration,
    pub(crate) request_timeout: Duration,
    pub(crate) drain_timeout: Duration,
    pub(crate) keep_alive: Duration,
    pub(crate) body_bytes: usize,
    pub(crate) in_flight_bytes: usize,
    pub(crate) stream_bytes: usize,
    pub(crate) messages: usize,
    pub(crate) images: usize,
    pub(crate) image_bytes: u64,
    pub(crate) image_pixels: u64,
    pub(crate) max_tokens: Option<usize>,
    pub(crate) prepare_jobs: usize,
    pub(crate) fetch_timeout: Duration,
    pub(crate) grammar_bytes: usize,
    pub(crate) cache_tokens: Option<usize>,
    pub(crate) image_cache_bytes: usize,
}

impl Default for Server {
    fn default() -> Self {
        Self {
            host: IpAddr::from([127, 0, 0, 1]),
            port: 8000,
            ttl: Duration::from_mins(30),
            model_name: None,
            strict_model: false,
            api_keys: Vec::new(),
            api_key_file: None,
            no_auth: false,
            allowed_hosts: Vec::new(),
            cors_origins: Vec::new(),
            share_cache: false,
            image_urls: false,
            media_root: None,
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            running: 16,
            queue: 64,
            connections: 1024,
            header_timeout: Duration::from_secs(30),
            body_timeout: Duration::from_mins(1),
            write_timeout: Duration::from_secs(30),
            request_timeout: Duration::from_hours(1),
            drain_timeout: Duration::from_secs(30),
            keep_alive: Duration::from_secs(5),
            body_bytes: 64 << 20,
            in_flight_bytes: 1 << 30,
            stream_bytes: 1 << 20,
            messages: 1024,
            images: 64,
            image_bytes: 48 << 20,
            image_pixels: 1 << 26,
            max_tokens: None,
            prepare_jobs: 2,
            fetch_timeout: Duration::from_secs(10),
            grammar_bytes: 64 << 10,
            cache_tokens: None,
            image_cache_bytes: 256 << 20,
        }
    }
}
