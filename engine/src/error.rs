//! What can go wrong, each time naming the thing: the file, the tensor, the key, the numbers.

use std::io;
use std::path::{Path, PathBuf};

use crate::files::{shown, shown_name};
use crate::image::ImageFault;

/// The error of this crate. Every message is one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A key of a configuration file is missing, has the wrong type or a value that cannot be served.
    #[error("{}: {key}: {what}", shown(path))]
    Config {
        /// The configuration file.
        path: PathBuf,
        /// The key, with dots between levels.
        key: String,
        /// What was expected and what was found.
        what: String,
    },
    /// The prompt does not fit the context.
    #[error("prompt of {prompt} tokens exceeds the context of {limit} tokens")]
    ContextExceeded {
        /// Tokens in the prompt.
        prompt: usize,
        /// Tokens that fit, the first generated one included.
        limit: usize,
    },
    /// However the prompt is cut into tokens, it does not fit the context.
    #[error("prompt of at least {least} tokens exceeds the context of {limit} tokens")]
    ContextSurelyExceeded {
        /// No way of cutting it has fewer tokens.
        least: usize,
        /// Tokens that fit, the first generated one included.
        limit: usize,
    },
    /// A file's container is malformed: header, index, lengths, offsets.
    #[error("{}: {what}", shown(path))]
    File {
        /// The file.
        path: PathBuf,
        /// What was expected and what was found.
        what: String,
    },
    /// The work was ended before its time by the one who asked for it.
    #[error("stopped")]
    Cancelled,
    /// A JSON schema, expression or grammar that an answer is to keep to is refused, or took too much work.
    #[error("{kind}: {what}")]
    Grammar {
        /// The kind of rule, as in `json_schema`.
        kind: &'static str,
        /// What is wrong with it.
        what: String,
    },
    /// An image is refused.
    #[error("image {} ({}): {fault}", index + 1, shown_name(name))]
    Image {
        /// Which of the request's images it is, counted from 0; the message counts from 1.
        index: usize,
        /// The file, or what else it is called.
        name: String,
        /// What is wrong with it.
        fault: ImageFault,
    },
    /// The images of a prompt do not fit the context.
    #[error(
        "{images} image{} of {tokens} tokens{} exceed{} the context of {limit} tokens",
        plural(*images),
        and_text(*text),
        if *images == 1 && *text == 0 { "s" } else { "" }
    )]
    ImagesExceedContext {
        /// Images of the prompt.
        images: usize,
        /// Tokens of the images.
        tokens: usize,
        /// Tokens of the text, as far as they were counted.
        text: usize,
        /// Tokens that fit, the first generated one included.
        limit: usize,
    },
    /// The operating system refused to read or write a file.
    #[error("{}: {source}", shown(path))]
    Io {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// A kernel refused its arguments.
    #[error(transparent)]
    Kernel(#[from] cider_kernels::Error),
    /// A row of logits has a NaN or an infinity: nothing is sampled from it.
    #[error("numerical error: the logits of token {position} are not finite")]
    NonFinite {
        /// The position of the token in its sequence.
        position: usize,
    },
    /// The program went wrong while it worked at a request; what others asked for goes on.
    #[error("internal error: {0}")]
    Panicked(String),
    /// A request asks for something that cannot be done.
    #[error("{0}")]
    Request(String),
    /// A size of an array is not what goes with the others.
    #[error("{op}: {what}: expected {expected}, got {got}")]
    Shape {
        /// The function or layer.
        op: &'static str,
        /// What is counted, and of which array.
        what: &'static str,
        /// What the other arrays ask for.
        expected: usize,
        /// What there is.
        got: usize,
    },
    /// The chat template failed, or refused the messages.
    #[error("chat template ({}): {what}", shown_name(source_name))]
    Template {
        /// Where the template came from.
        source_name: String,
        /// What the template engine, or the template itself, said.
        what: String,
    },
    /// A tensor is missing, surplus, or not what the model needs.
    #[error("{}: tensor {tensor}: {what}", shown(path))]
    Tensor {
        /// The file or folder the tensor was looked for in.
        path: PathBuf,
        /// The tensor's name as the file spells it.
        tensor: String,
        /// What was expected and what was found.
        what: String,
    },
    /// The tokenizer's files are missing, damaged or of a kind that is not known.
    #[error("tokenizer: {0}")]
    Tokenizer(String),
}

/// The end of a noun of which there are `count`.
pub(crate) fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}

fn and_text(tokens: usize) -> String {
    match tokens {
        0 => String::new(),
        tokens => format!(" and {tokens} token{} of text", plural(tokens)),
    }
}

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An [`Error::Io`] of `path`, for `map_err`.
    pub fn io(path: impl AsRef<Path>) -> impl FnOnce(io::Error) -> Self {
        let path = path.as_ref().to_path_buf();
        move |source| Self::Io { path, source }
    }

    /// An [`Error::File`] of `path`.
    pub fn file(path: impl AsRef<Path>, what: impl Into<String>) -> Self {
        Self::File {
            path: path.as_ref().to_path_buf(),
            what: what.into(),
        }
    }

    /// An [`Error::Config`] of `key` in `path`.
    pub fn config(path: impl AsRef<Path>, key: impl Into<String>, what: impl Into<String>) -> Self {
        Self::Config {
            path: path.as_ref().to_path_buf(),
            key: key.into(),
            what: what.into(),
        }
    }

    /// Refuses a size that is not the one expected.
    pub(crate) fn expect_size(
        op: &'static str,
        what: &'static str,
        expected: usize,
        got: usize,
    ) -> Result<()> {
        if expected == got {
            return Ok(());
        }
        Err(Self::Shape {
            op,
            what,
            expected,
            got,
        })
    }

    /// An [`Error::Tensor`] of `tensor` in `path`.
    pub fn tensor(
        path: impl AsRef<Path>,
        tensor: impl Into<String>,
        what: impl Into<String>,
    ) -> Self {
        Self::Tensor {
            path: path.as_ref().to_path_buf(),
            tensor: tensor.into(),
            what: what.into(),
        }
    }
}
