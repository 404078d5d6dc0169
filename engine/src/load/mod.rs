//! Reading checkpoints: whatever the files, a configuration and tensors by their canonical names.
//!
//! Opening checks everything that can be checked without reading weights: lengths, ranges, shapes
//! and that no tensor is missing. Rows are then decoded from the mapped files one at a time. Nothing
//! here opens a connection.

mod blocks;
mod config;
mod config_json;
mod folder;
mod generation;
pub mod gguf;
mod inventory;
pub(crate) mod json;
mod names;
mod rope_json;
pub mod safetensors;
mod sniff;
mod tensor;
mod vision_json;

use std::path::{Path, PathBuf};

use self::gguf::{Gguf, Metadata};
use self::sniff::Kind;
use crate::error::Result;

pub use config::{Architecture, Biases, ModelConfig, VisionConfig};
pub use generation::GenerationConfig;
pub use tensor::{Encoding, TensorMap, TensorSource};

/// A model on disk.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    /// The shape of the model.
    pub config: ModelConfig,
    /// Its weights: exactly the tensors that the configuration asks for, in their shapes.
    pub tensors: TensorMap,
    /// The format it was read from.
    pub source: SourceKind,
    /// The folder of a safetensors checkpoint (its tokenizer is there), or the GGUF file.
    pub path: PathBuf,
    /// How its makers generate with it.
    pub generation: GenerationConfig,
    metadata: Option<Metadata>,
}

/// The formats of checkpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceKind {
    /// A GGUF file.
    Gguf,
    /// A folder with `config.json` and safetensors files.
    Safetensors,
}

impl Checkpoint {
    /// Opens the model at `path`: a folder, a safetensors file or index in one, or a GGUF file.
    ///
    /// # Errors
    ///
    /// The error names the file, and the key or tensor, that is missing, damaged or not supported.
    pub fn open(path: &Path) -> Result<Self> {
        match sniff::kind(path)? {
            Kind::Folder => Self::open_safetensors(path, folder::open),
            Kind::Gguf(file) => Self::open_gguf(&file),
            Kind::Safetensors => {
                let folder = path
                    .parent()
                    .filter(|folder| !folder.as_os_str().is_empty());
                Self::open_safetensors(folder.unwrap_or(Path::new(".")), |_| {
                    folder::open_file(path)
                })
            }
        }
    }

    /// The metadata of a GGUF file, which has the tokenizer and the chat template.
    #[must_use]
    pub fn gguf_metadata(&self) -> Option<&Metadata> {
        self.metadata.as_ref()
    }

    fn open_safetensors(
        folder: &Path,
        weights: impl FnOnce(&Path) -> Result<TensorMap>,
    ) -> Result<Self> {
        let path = folder.join("config.json");
        let mut config = config_json::read(&path, &json::read_object(&path)?)?;
        let path = folder.join("generation_config.json");
        let generation = match json::read_optional_object(&path)? {
            Some(object) => GenerationConfig::read(&path, &object, &config)?,
            None => GenerationConfig::of(&config),
        };
        let mut tensors = weights(folder)?;
        inventory::settle(&mut config, &mut tensors)?;
        let (source, path) = (SourceKind::Safetensors, folder.to_path_buf());
        Ok(Self {
            config,
            tensors,
            source,
            path,
            generation,
            metadata: None,
        })
    }

    fn open_gguf(path: &Path) -> Result<Self> {
        let mut gguf = Gguf::open(path)?;
        let mut config = gguf::model_config(&mut gguf)?;
        let generation = gguf::generation(&gguf.metadata, &config)?;
        let Gguf {
            metadata,
            mut tensors,
        } = gguf;
        inventory::settle(&mut config, &mut tensors)?;
        let (source, path) = (SourceKind::Gguf, path.to_path_buf());
        Ok(Self {
            config,
            tensors,
            source,
            path,
            generation,
            metadata: Some(metadata),
        })
    }
}
