//! What the program can be asked.

use std::path::PathBuf;

use cider::generate::CacheType;
use cider::{DType, Head, Quantization, Scheme};
use clap::builder::TypedValueParser as _;
use clap::builder::{OsStringValueParser, PossibleValuesParser};
use clap::{Args, Parser, Subcommand};

use crate::failure::Usage;
use crate::numbers;
use crate::server::config::ServeFlags;

/// Runs language and vision-language models with online activation quantisation.
#[derive(Debug, Parser)]
#[command(name = "cider", version, about, after_help = AFTER_HELP)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
    /// Only warnings and errors on standard error
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Measures this machine's work against its own ceilings, and against other programs
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Tokens and logits, for comparison with other programs
    #[command(subcommand)]
    Debug(DebugCommand),
    Info(InfoArgs),
    Run(Box<RunArgs>),
    Serve(ServeArgs),
}

/// Answers a prompt, about pictures too; without one, on a terminal, chats
///
/// Without PROMPT, standard input is the prompt (a final line break is dropped), or, on a terminal, a chat begins.
/// Without MODEL, the small vision model that comes with the program answers. A single argument is the MODEL if a
/// file or folder of that name exists, or if it looks like one (an end in .gguf, a start with / ./ ../ or ~, or
/// owner/name in letters, digits, dots, hyphens and underscores); otherwise it is the PROMPT.
/// The answer goes to standard output as it comes, everything else to standard error.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// A GGUF file, or a folder with config.json and safetensors [default: the small vision model]
    #[arg(value_parser = OsStringValueParser::new().map(PathBuf::from))]
    pub(crate) model: Option<PathBuf>,
    /// What to answer; one that begins with a hyphen stands behind --
    pub(crate) prompt: Option<String>,
    #[command(flatten)]
    pub(crate) images: ImageOptions,
    #[command(flatten)]
    pub(crate) options: ModelOptions,
    #[command(flatten)]
    pub(crate) device: DeviceOptions,
    /// Tokens a conversation may have [default: what the model was made for, at most 8192]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = numbers::positive)]
    pub(crate) ctx: Option<usize>,
    /// A Jinja file that replaces the model's chat template
    #[arg(long, value_name = "FILE")]
    pub(crate) chat_template: Option<PathBuf>,
    /// Instructions that precede the conversation
    #[arg(long, value_name = "TEXT", conflicts_with = "raw")]
    pub(crate) system: Option<String>,
    /// Take the prompt as it is: no chat template, and control tokens in it count
    #[arg(long)]
    pub(crate) raw: bool,
    /// One JSON object with the answer and all figures instead of text
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) sampling: SamplingOptions,
}

/// Serves a model over HTTP, in the form of the chat completions API
///
/// Every setting is a flag, a key of the configuration file and an environment variable: --port is server.port and
/// `CIDER_SERVE_SERVER_PORT`. docs/server.md lists them.
#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    pub(crate) flags: ServeFlags,
}

/// How a model is loaded.
#[derive(Debug, Args)]
pub(crate) struct ModelOptions {
    /// Weights and activations of the decoder: auto, none, w8a16, w4a16, w8a8, w4a8; auto is what the checkpoint
    /// says, and w8a8 for 16-bit and GGUF files
    #[arg(long, value_name = "S", default_value = "auto")]
    pub(crate) scheme: Scheme,
    /// Weights that share a scale: 0 is one scale per output channel [default: 0 for w8, 64 for w4]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = PossibleValuesParser::new(["0", "32", "64", "128", "256"])
        .try_map(|size| size.parse::<usize>()))]
    pub(crate) group_size: Option<usize>,
    /// The output head: auto, int8, none; auto is int8 unless the scheme is none
    #[arg(long, value_name = "H", default_value = "auto")]
    pub(crate) head: Head,
    /// The type of activations: bf16, f32
    #[arg(long, value_name = "T", default_value = "bf16", value_parser = activations)]
    pub(crate) dtype: DType,
    /// The type of the key/value cache: auto, f32, bf16, f16, int8; auto is that of the activations
    #[arg(long, value_name = "T", default_value = "auto")]
    pub(crate) kv_cache: CacheType,
    /// Weights and activations of the vision tower: none, w8a16, w4a16, w8a8, w4a8 [default: none, as the
    /// checkpoint has them]
    #[arg(long, value_name = "S", value_parser = vision_scheme)]
    pub(crate) vision_scheme: Option<Scheme>,
}

impl ModelOptions {
    /// Refuses options that contradict each other.
    pub(crate) fn check(&self) -> Result<(), Usage> {
        // 0 asks for no groups, and there are none.
        let Some(size @ 1..) = self.group_size else {
            return Ok(());
        };
        if self.scheme == Scheme::None {
            let what = format!(
                "--group-size {size}: expected 0 with --scheme none, whose weights have no scales to share"
            );
            return Err(Usage(what));
        }
        Ok(())
    }

    /// The formats of the weights.
    pub(crate) fn quantization(&self) -> Quantization {
        Quantization {
            group_size: self.group_size,
            head: self.head,
            ..Quantization::of(self.scheme)
        }
    }

    /// The formats of the vision tower's weights.
    pub(crate) fn vision(&self) -> Quantization {
        Quantization::of(self.vision_scheme.unwrap_or(Scheme::None))
    }
}

/// Pictures that go with a prompt.
#[derive(Debug, Args)]
pub(crate) struct ImageOptions {
    /// A picture before the text: PNG, JPEG, WebP, GIF or BMP, a file or a data: URL; may be given several times
    #[arg(long = "image", value_name = "FILE")]
    pub(crate) files: Vec<String>,
    #[command(flatten)]
    pub(crate) bounds: ImageBounds,
}

/// How large pictures become before a vision tower reads them.
#[derive(Debug, Args)]
pub(crate) struct ImageBounds {
    /// Enlarge pictures to about the pixels of N tokens; sides are rounded, counts may be lower [default: what the model says]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = numbers::positive)]
    pub(crate) min_image_tokens: Option<usize>,
    /// Shrink pictures to about the pixels of N tokens; sides are rounded, counts may be higher [default: what the model says]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = numbers::positive)]
    pub(crate) max_image_tokens: Option<usize>,
}

impl ImageBounds {
    /// Whether there are any.
    pub(crate) fn are_given(&self) -> bool {
        self.min_image_tokens.is_some() || self.max_image_tokens.is_some()
    }
}

/// What a model runs on.
#[derive(Debug, Args)]
pub(crate) struct DeviceOptions {
    /// auto or cpu
    #[arg(long, value_name = "D", default_value = "auto", value_parser = check_device)]
    pub(crate) device: String,
    /// Threads [default: physical cores, or fewer where a quota says so]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = numbers::threads)]
    pub(crate) threads: Option<usize>,
}

/// How the next token is chosen. What is not given is what the checkpoint says.
#[derive(Debug, Args)]
pub(crate) struct SamplingOptions {
    /// Tokens to generate at most [default: what is left of the context]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = numbers::positive)]
    pub(crate) max_tokens: Option<usize>,
    /// 0 takes the likeliest token [default: what the checkpoint says; else 0, or 1 where --top-p, --top-k or --min-p
    /// is given]
    #[arg(long, value_name = "T", allow_negative_numbers = true)]
    pub(crate) temperature: Option<f32>,
    /// Keep the fewest tokens whose probabilities reach P together
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub(crate) top_p: Option<f32>,
    /// Keep the K likeliest tokens; 0 keeps all
    #[arg(long, value_name = "K", allow_negative_numbers = true, value_parser = numbers::count)]
    pub(crate) top_k: Option<usize>,
    /// Keep tokens with at least this part of the largest probability
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub(crate) min_p: Option<f32>,
    /// Divide (negative: multiply) the logits of tokens seen before; 1 is no penalty
    #[arg(long, value_name = "R", allow_negative_numbers = true)]
    pub(crate) repetition_penalty: Option<f32>,
    /// Take this from the logit of each token generated before, -2 to 2
    #[arg(long, value_name = "R", allow_negative_numbers = true)]
    pub(crate) presence_penalty: Option<f32>,
    /// Take this from the logit of a token for each time it was generated, -2 to 2
    #[arg(long, value_name = "R", allow_negative_numbers = true)]
    pub(crate) frequency_penalty: Option<f32>,
    /// Where the random numbers begin [default: anywhere; it is reported]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = numbers::seed)]
    pub(crate) seed: Option<u64>,
    /// A text that ends the answer and is not part of it; may be given several times
    #[arg(long, value_name = "S", allow_hyphen_values = true)]
    pub(crate) stop: Vec<String>,
}

/// Shows devices and instruction sets, and with MODEL what is in it
#[derive(Debug, Args)]
pub(crate) struct InfoArgs {
    /// A GGUF file, or a folder with config.json and safetensors
    pub(crate) model: Option<PathBuf>,
    /// One JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    Attention(AttentionBench),
    Linear(LinearBench),
    Model(ModelBench),
    Serve(ServeBench),
}

/// Attention over a cache of keys and values: milliseconds, operations and bytes per second, shares of the ceilings
///
/// Every answer is checked before anything is timed. Caches that are read once per token are rotated through copies
/// that no processor cache holds.
#[derive(Debug, Args)]
pub(crate) struct AttentionBench {
    /// Prompts: rows x tokens of context, with commas between [default: 512x512, 1536x1536, 128x4096]
    #[arg(long, value_name = "RxC", value_delimiter = ',', allow_hyphen_values = true, value_parser = numbers::prompt)]
    pub(crate) prefill: Vec<[usize; 2]>,
    /// Generated tokens: sequences x tokens of context [default: 1x512, 1x1536, 1x8192, 8x1536]
    #[arg(long, value_name = "SxC", value_delimiter = ',', allow_hyphen_values = true, value_parser = numbers::generated)]
    pub(crate) decode: Vec<[usize; 2]>,
    /// Whose heads, with commas between [default: all]
    #[arg(long, value_name = "MODEL", value_delimiter = ',', value_parser = PossibleValuesParser::new(GEOMETRIES))]
    pub(crate) geometry: Vec<String>,
    /// Types of the cache, with commas between [default: all that there are]
    #[arg(long, value_name = "T", value_delimiter = ',')]
    pub(crate) kv: Vec<String>,
    #[command(flatten)]
    pub(crate) options: BenchOptions,
}

/// A whole model: tokens per second of prompts and of generated tokens, beside what the machine could do
///
/// Prompts are compared with the time that the products of the linear layers need at the peak of the integer units (of
/// the float units where activations are floats), generated tokens with the time that their weights, scales, keys and
/// values need to be read. Without MODEL, the small vision model that comes with the program is measured, its text
/// side alone.
///
/// With --image it is what a picture costs until the first token: preprocessing, the vision tower, the prompt. Each is
/// compared with the time that its products need, attention's included.
#[derive(Debug, Args)]
pub(crate) struct ModelBench {
    /// A GGUF file, a folder with config.json and safetensors, or random weights in the shape of a model:
    /// random:qwen3-0.6b, random:llama-3.2-1b, random:qwen3-vl-2b, random:qwen3-vl-2b-text (without its vision tower)
    /// [default: the small vision model]
    pub(crate) model: Option<PathBuf>,
    /// Tokens of the prompt, with commas between [default: 512,1536, or 300 behind a picture]
    #[arg(long, value_name = "N", value_delimiter = ',', allow_hyphen_values = true, value_parser = numbers::positive)]
    pub(crate) prompt: Vec<usize>,
    /// Tokens that are generated in each round [default: 32]
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = numbers::positive)]
    pub(crate) tokens: Option<usize>,
    /// A picture of this size in front of the prompt. Where --vision-scheme quantises the tower, the divergence of the
    /// text's next tokens from those behind an unquantised tower is measured too
    #[arg(long, value_name = "WxH", allow_hyphen_values = true, value_parser = numbers::picture, conflicts_with_all = ["tokens", "peer"])]
    pub(crate) image: Option<[usize; 2]>,
    #[command(flatten)]
    pub(crate) model_options: ModelOptions,
    #[command(flatten)]
    pub(crate) options: BenchOptions,
}

/// Linear layers: milliseconds, operations per second, shares of the machine's peak and of the roofline
///
/// Every answer is checked before anything is timed; a wrong one ends the program. Shares are of what loops of the
/// machine's own instructions reach in the same run, on the same threads. The roofline is what the bytes need to be
/// read or the operations to be done, whichever takes longer; where memory is the limit, the weights are rotated through
/// copies that no cache holds.
#[derive(Debug, Args)]
pub(crate) struct LinearBench {
    /// Numbers of rows, with commas between [default: 1,8,32,64,128,512,1024,4096,8192]
    #[arg(long, value_name = "M", value_delimiter = ',', allow_hyphen_values = true, value_parser = numbers::positive)]
    pub(crate) m: Vec<usize>,
    /// Shapes of weights, output rows x input columns, with commas between [default: 10240x2560, 2560x10240, 3584x3584,
    /// 18944x3584, 3584x18944, 2560x2560]
    #[arg(long, value_name = "NxK", value_delimiter = ',', allow_hyphen_values = true, value_parser = numbers::shape)]
    pub(crate) shape: Vec<[usize; 2]>,
    /// What is measured, with commas between [default: all]
    #[arg(long, value_name = "S", value_delimiter = ',', value_parser = PossibleValuesParser::new(LINEAR_SCHEMES))]
    pub(crate) scheme: Vec<String>,
    #[command(flatten)]
    pub(crate) options: BenchOptions,
}

/// A server under load: time to the first token, time between tokens, tokens and answers per second
///
/// Without --url, MODEL is served within this process, as `cider serve` would; `CIDER_SERVE_...` and --config set it up.
/// Each server gets the same requests, one load after the other. In a closed loop so many clients ask again as soon
/// as they have their answer; in an open one requests come at random moments, and times count from the moment at which a
/// request was due. A key for servers that want one is read from `CIDER_BENCH_API_KEY`.
#[derive(Debug, Args)]
pub(crate) struct ServeBench {
    /// A GGUF file, or a folder with config.json and safetensors [default: the small vision model]
    pub(crate) model: Option<PathBuf>,
    /// A server that runs already, with a name to go by, as in llama.cpp=http://127.0.0.1:8080; may be given several times
    #[arg(long, value_name = "[NAME=]URL")]
    pub(crate) url: Vec<String>,
    /// Closed loops: numbers of clients, with commas between [default: 1,4,16, or none with --rate]
    #[arg(long, value_name = "N", value_delimiter = ',', allow_hyphen_values = true, value_parser = numbers::clients)]
    pub(crate) clients: Vec<usize>,
    /// Open loops: requests per second, with commas between
    #[arg(long, value_name = "R", value_delimiter = ',', allow_hyphen_values = true, value_parser = numbers::rate)]
    pub(crate) rate: Vec<f64>,
    /// Requests of each load [default: 32, or 4 with --quick]
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = numbers::rounds)]
    pub(crate) requests: Option<usize>,
    /// Words of each prompt; most are one token [default: 128, or 16 with --quick]
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = numbers::positive)]
    pub(crate) words: Option<usize>,
    /// Words with which all prompts begin, before their own: what a cache of prefixes is good for
    #[arg(long, value_name = "N", default_value = "0", allow_hyphen_values = true, value_parser = numbers::count)]
    pub(crate) shared: usize,
    /// Tokens of each answer, where the server honours `ignore_eos` [default: 128, or 8 with --quick]
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = numbers::positive)]
    pub(crate) tokens: Option<usize>,
    /// A picture of this size in each prompt, another one each time
    #[arg(long, value_name = "WxH", allow_hyphen_values = true, value_parser = numbers::picture)]
    pub(crate) image: Option<[usize; 2]>,
    /// Where the random numbers begin
    #[arg(long, value_name = "N", default_value = "0", allow_hyphen_values = true, value_parser = numbers::seed)]
    pub(crate) seed: u64,
    /// Seconds that an answer may take; one that takes longer has failed
    #[arg(long, value_name = "S", default_value = "600", allow_hyphen_values = true, value_parser = numbers::seconds)]
    pub(crate) timeout: u64,
    /// Settings of the server within this process, as of `cider serve`
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Threads [default: physical cores, or fewer where a quota says so]
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = numbers::threads)]
    pub(crate) threads: Option<usize>,
    /// Few short requests: to see that everything works, not how fast it is
    #[arg(long)]
    pub(crate) quick: bool,
    /// The JSON record to write; it appears whole or not at all
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// The plot to write
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
}

/// What all measurements share.
#[derive(Debug, Args)]
pub(crate) struct BenchOptions {
    /// Threads [default: physical cores, or fewer where a quota says so]
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = numbers::threads)]
    pub(crate) threads: Option<usize>,
    /// Rounds; in each, everybody runs once [default: 7, or 2 with --quick]
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = numbers::rounds)]
    pub(crate) rounds: Option<usize>,
    /// Another program to measure in the same rounds: a command that answers requests as bench/peers/README.md says; may be
    /// given several times
    #[arg(long, value_name = "CMD")]
    pub(crate) peer: Vec<String>,
    /// Seconds that a peer may take for one answer; one that takes longer is ended, and everybody else goes on
    #[arg(long, value_name = "S", default_value = "120", allow_hyphen_values = true, value_parser = numbers::seconds)]
    pub(crate) peer_timeout: u64,
    /// Small shapes and few rounds: to see that everything works, not how fast it is
    #[arg(long)]
    pub(crate) quick: bool,
    /// The JSON record to write; it appears whole or not at all
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// The plot to write
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum DebugCommand {
    Logits(Box<LogitsArgs>),
    Preprocess(PreprocessArgs),
    Tokenize(TokenizeArgs),
}

/// Writes the logits of every token of a text
///
/// The output gets the tensors ids [T] i64, positions i64 and logits [T, vocabulary] f32. Positions are [T], and of
/// models with vision input [3, T]: time, row, column. With pictures there are `pixel_values` f32 [patches, values] and
/// `image_grid_thw` i64 [pictures, 3] too.
#[derive(Debug, Args)]
pub(crate) struct LogitsArgs {
    /// A GGUF file, or a folder with config.json and safetensors
    pub(crate) model: PathBuf,
    #[command(flatten)]
    pub(crate) input: LogitsInput,
    #[command(flatten)]
    pub(crate) images: ImageOptions,
    /// The safetensors file to write; it appears whole or not at all
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: PathBuf,
    #[command(flatten)]
    pub(crate) options: ModelOptions,
    #[command(flatten)]
    pub(crate) device: DeviceOptions,
    /// Tokens a sequence may have [default: those of the longest one]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = numbers::positive)]
    pub(crate) ctx: Option<usize>,
    /// A Jinja file that replaces the model's chat template
    #[arg(long, value_name = "FILE")]
    pub(crate) chat_template: Option<PathBuf>,
    /// Prompt tokens computed in one step
    #[arg(long, value_name = "N", allow_negative_numbers = true, default_value = "128", value_parser = numbers::positive)]
    pub(crate) chunk: usize,
    /// From token N on, tokens run as generated ones, one at a time
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = numbers::count)]
    pub(crate) decode_from: Option<usize>,
    /// Sequences that run in the same steps: one per line as ids with commas, or a JSON list of lists; the first half
    /// of each counts as prompt
    #[arg(long, value_name = "FILE")]
    pub(crate) batch_with: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct LogitsInput {
    /// The tokens, with commas between
    #[arg(long, value_name = "IDS", value_delimiter = ',', allow_hyphen_values = true, value_parser = numbers::token)]
    pub(crate) tokens: Option<Vec<u32>>,
    /// Raw text; control tokens in it count. Each picture stands in it as
    /// `<|vision_start|><|image_pad|><|vision_end|>`, whatever its size
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) prompt: Option<String>,
    /// The message of a user; it goes through the chat template, pictures before it
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) chat: Option<String>,
}

/// Writes pictures as a vision tower reads them
///
/// The output gets the tensors `pixel_values` f32 [patches, values], `image_grid_thw` i64 [pictures, 3], and i64
/// [pictures, 2] with height and width: sizes as decoded, `resized_sizes` as cut into patches.
#[derive(Debug, Args)]
pub(crate) struct PreprocessArgs {
    /// Pictures: files or data: URLs
    #[arg(required = true, value_name = "IMAGE")]
    pub(crate) files: Vec<String>,
    /// The folder of the model whose settings count [default: the small vision model]
    #[arg(long, value_name = "FOLDER")]
    pub(crate) model: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) bounds: ImageBounds,
    /// The safetensors file to write; it appears whole or not at all
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: PathBuf,
}

/// Shows the tokens of a text
#[derive(Debug, Args)]
pub(crate) struct TokenizeArgs {
    /// A GGUF file, or a folder with config.json and safetensors
    pub(crate) model: PathBuf,
    #[command(flatten)]
    pub(crate) input: TokenizeInput,
    /// A Jinja file that replaces the model's chat template
    #[arg(long, value_name = "FILE")]
    pub(crate) chat_template: Option<PathBuf>,
    /// One JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct TokenizeInput {
    /// Raw text; control tokens in it count
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) prompt: Option<String>,
    /// The message of a user; it goes through the chat template
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) chat: Option<String>,
    /// Raw text from standard input, every byte of it
    #[arg(long)]
    pub(crate) stdin: bool,
}

pub(crate) fn vision_scheme(name: &str) -> Result<Scheme, String> {
    let known = Scheme::ALL.into_iter().find(|scheme| scheme.name() == name);
    known.ok_or_else(|| {
        format!(
            "expected one of {}",
            Scheme::ALL.map(Scheme::name).join(", ")
        )
    })
}

pub(crate) fn activations(name: &str) -> Result<DType, String> {
    match name {
        "bf16" => Ok(DType::Bf16),
        "f32" => Ok(DType::F32),
        _ => Err("activations are bf16 or f32".to_owned()),
    }
}

pub(crate) fn check_device(name: &str) -> Result<String, String> {
    let kind = name.split(':').next().unwrap_or_default();
    match kind {
        "auto" | "cpu" if kind == name => Ok(name.to_owned()),
        "cuda" | "metal" => Err(format!("{kind} is not in this build, only cpu is")),
        _ => Err("a device is auto or cpu".to_owned()),
    }
}

/// The models whose heads are measured.
pub(crate) const GEOMETRIES: [&str; 3] = ["smollm2-135m", "llama-3-8b", "qwen3-vl-2b"];

/// The kinds of linear layers that are measured.
pub(crate) const LINEAR_SCHEMES: [&str; 8] = [
    "w8a8",
    "w8a8-g128",
    "w4a8",
    "w4a8-channel",
    "w8a16",
    "w4a16",
    "bf16",
    "f32",
];

const AFTER_HELP: &str = "\
Environment:
  CIDER_CPU      forces an instruction set: scalar, avx2, avx_vnni, avx512_vnni, avx512_bf16
  CIDER_DATA     the folder above models/, in which models/demo-vlm is looked for
  CIDER_THREADS  the number of threads; --threads wins

Exit codes: 0 done, 1 failed, 2 wrong use";

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn devices_that_are_not_in_the_build_say_so() {
        assert!(check_device("auto").is_ok() && check_device("cpu").is_ok());
        assert!(
            check_device("cuda:0")
                .unwrap_err()
                .contains("not in this build")
        );
        assert!(check_device("metal").unwrap_err().contains("only cpu"));
        assert!(check_device("cpu:0").is_err() && check_device("tpu").is_err());
    }
}
