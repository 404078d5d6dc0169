//! What a kernel refuses, with the op and the numbers.

use std::io;
use std::path::PathBuf;

/// The error of this crate. Every message is one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An environment variable or a flag forces something this machine does not have.
    #[error("{what}")]
    Device {
        /// What was asked for, and what there is.
        what: String,
    },
    /// A file could not be opened or mapped.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// Shapes, dtypes or numbers that do not fit together.
    #[error("{op}: {what}")]
    Shape {
        /// The op.
        op: &'static str,
        /// What was expected and what came.
        what: String,
    },
}

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An [`Error::Shape`] of `op`.
    pub fn shape(op: &'static str, what: impl Into<String>) -> Self {
        Self::Shape {
            op,
            what: what.into(),
        }
    }
}
