//! Tensors where they lie: a name, a shape and a stretch of a mapped file, decoded row by row.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cider_kernels::{DType, MappedFile};

use super::blocks;
use crate::error::{Error, Result};

/// The tensors of a checkpoint by name. Nothing is copied: reading a row decodes it from the mapped
/// file, whose place, length and shape were checked when the file was opened.
#[derive(Clone, Debug, Default)]
pub struct TensorMap {
    path: PathBuf,
    entries: BTreeMap<String, Entry>,
    /// Tensors that are in the file but of a type that cannot be read, with that type's name.
    unreadable: BTreeMap<String, String>,
}

impl TensorMap {
    /// The tensor `name`, if the checkpoint has it in an encoding that can be read.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<TensorSource<'_>> {
        let (name, entry) = self.entries.get_key_value(name)?;
        Some(entry.source(name))
    }

    /// The tensor `name`, which must have the shape `shape`.
    ///
    /// # Errors
    ///
    /// [`Error::Tensor`] when it is missing, of a type that cannot be read, or of another shape.
    pub fn require(&self, name: &str, shape: &[usize]) -> Result<TensorSource<'_>> {
        let source = self.get(name).ok_or_else(|| self.absence(name))?;
        if source.shape() != shape {
            let what = format!("expected shape {shape:?}, found {:?}", source.shape());
            return Err(Error::tensor(self.file_of(name), name, what));
        }
        Ok(source)
    }

    /// The names of the tensors that can be read, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// The folder or file the tensors are in.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn new(path: &Path) -> Self {
        Self {
            path: path.to_path_buf(),
            ..Self::default()
        }
    }

    /// Adds a tensor; its name must be new.
    pub(super) fn insert(&mut self, name: String, entry: Entry) -> Result<()> {
        let path = entry.file.path().to_path_buf();
        self.check_new(&name, &path)?;
        self.entries.insert(name, entry);
        Ok(())
    }

    /// Adds the name of a tensor that cannot be read, with its type.
    pub(super) fn insert_unreadable(
        &mut self,
        name: String,
        kind: String,
        path: &Path,
    ) -> Result<()> {
        self.check_new(&name, path)?;
        self.unreadable.insert(name, kind);
        Ok(())
    }

    /// Moves the tensors of `other` here, under the names `rename` gives them; those it gives none
    /// are left out.
    pub(super) fn take_all(
        &mut self,
        other: Self,
        rename: impl Fn(&str) -> Option<String>,
    ) -> Result<()> {
        for (name, entry) in other.entries {
            if let Some(name) = rename(&name) {
                self.insert(name, entry)?;
            }
        }
        for (name, kind) in other.unreadable {
            if let Some(name) = rename(&name) {
                self.insert_unreadable(name, kind, &other.path)?;
            }
        }
        Ok(())
    }

    pub(super) fn remove(&mut self, name: &str) {
        self.entries.remove(name);
        self.unreadable.remove(name);
    }

    pub(super) fn entry_mut(&mut self, name: &str) -> Option<&mut Entry> {
        self.entries.get_mut(name)
    }

    /// Every name, of readable and unreadable tensors.
    pub(super) fn all_names(&self) -> impl Iterator<Item = &str> {
        self.entries
            .keys()
            .chain(self.unreadable.keys())
            .map(String::as_str)
    }

    pub(super) fn contains(&self, name: &str) -> bool {
        self.entries.contains_key(name) || self.unreadable.contains_key(name)
    }

    /// Why `name` cannot be had.
    fn absence(&self, name: &str) -> Error {
        match self.unreadable.get(name) {
            Some(kind) => Error::tensor(&self.path, name, format!("type {kind} is not supported")),
            None => Error::tensor(&self.path, name, "missing"),
        }
    }

    fn file_of(&self, name: &str) -> &Path {
        self.entries
            .get(name)
            .map_or(&self.path, |entry| entry.file.path())
    }

    fn check_new(&self, name: &str, path: &Path) -> Result<()> {
        if self.contains(name) {
            return Err(Error::tensor(path, name, "two tensors of this name"));
        }
        Ok(())
    }
}

/// A tensor of a [`TensorMap`].
#[derive(Clone, Copy, Debug)]
pub struct TensorSource<'a> {
    name: &'a str,
    shape: &'a [usize],
    encoding: Encoding,
    order: RowOrder,
    bytes: &'a [u8],
}

impl<'a> TensorSource<'a> {
    /// The canonical name.
    #[must_use]
    pub fn name(&self) -> &'a str {
        self.name
    }

    /// The shape, slowest dimension first.
    #[must_use]
    pub fn shape(&self) -> &'a [usize] {
        self.shape
    }

    /// How the values are stored.
    #[must_use]
    pub fn encoding(&self) -> Encoding {
        self.encoding
    }

    /// Rows of the two-dimensional view; a vector is one row.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.shape
            .split_last()
            .map_or(1, |(_, rows)| rows.iter().product())
    }

    /// Values in a row.
    #[must_use]
    pub fn cols(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// Bytes in the file.
    #[must_use]
    pub fn nbytes(&self) -> usize {
        self.bytes.len()
    }

    /// The bytes of `row` as they are stored.
    ///
    /// # Panics
    ///
    /// When there is no such row.
    #[must_use]
    pub fn row_bytes(&self, row: usize) -> &'a [u8] {
        let stride = self.encoding.row_bytes(self.cols());
        let stored = self.order.stored_index(row, self.rows());
        &self.bytes[stored * stride..][..stride]
    }

    /// The type of rows of `cols` values that can be taken from where they lie: they are floats, and one row follows
    /// the other or they are the tensor's own.
    pub(crate) fn float_rows(&self, cols: usize) -> Option<DType> {
        let dtype = match self.encoding {
            Encoding::F32 => DType::F32,
            Encoding::F16 => DType::F16,
            Encoding::Bf16 => DType::Bf16,
            _ => return None,
        };
        let plain = self.order == RowOrder::AsStored || (cols == self.cols() && self.rows() > 1);
        plain.then_some(dtype)
    }

    /// Row `row` of rows of `cols` values, where [`TensorSource::float_rows`] knows them.
    pub(crate) fn float_row(&self, row: usize, cols: usize) -> &'a [u8] {
        let stride = self.encoding.row_bytes(cols);
        let stored = self.order.stored_index(row, self.rows());
        &self.bytes[stored * stride..][..stride]
    }

    /// Decodes `row` into `out`, which has [`cols`](Self::cols) values.
    ///
    /// # Panics
    ///
    /// When there is no such row.
    pub fn read_row(&self, row: usize, out: &mut [f32]) {
        debug_assert_eq!(out.len(), self.cols(), "{}", self.name);
        self.encoding.decode(self.row_bytes(row), out);
        if let (1, RowOrder::Interleaved { .. }) = (self.rows(), self.order) {
            let stored = out.to_vec();
            for (i, out) in out.iter_mut().enumerate() {
                *out = stored[self.order.stored_index(i, stored.len())];
            }
        }
    }

    /// All values, row after row: for norms and biases.
    #[must_use]
    pub fn read_all(&self) -> Vec<f32> {
        let cols = self.cols();
        let mut values = vec![0.0; self.rows() * cols];
        for (row, out) in values.chunks_exact_mut(cols.max(1)).enumerate() {
            self.read_row(row, out);
        }
        values
    }

    /// Whether both hold the same bytes in the same shape, order and encoding.
    pub(super) fn same_as(&self, other: &Self) -> bool {
        self.shape == other.shape
            && self.encoding == other.encoding
            && self.order == other.order
            && self.bytes == other.bytes
    }
}

/// How values are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Encoding {
    /// 32-bit floats.
    F32,
    /// 16-bit floats.
    F16,
    /// bfloat16.
    Bf16,
    /// Blocks of 32: signed bytes, one scale.
    Q8_0,
    /// Blocks of 32: nibbles of zero point 8, one scale.
    Q4_0,
    /// Blocks of 32: nibbles, scale and minimum.
    Q4_1,
    /// Blocks of 32: five bits of zero point 16, one scale.
    Q5_0,
    /// Blocks of 32: five bits, scale and minimum.
    Q5_1,
    /// Blocks of 256: nibbles in groups of 32.
    Q4K,
    /// Blocks of 256: five bits in groups of 32.
    Q5K,
    /// Blocks of 256: six bits in groups of 16.
    Q6K,
}

impl Encoding {
    /// The encoding's name, as the formats spell it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::Bf16 => "BF16",
            Self::Q8_0 => "Q8_0",
            Self::Q4_0 => "Q4_0",
            Self::Q4_1 => "Q4_1",
            Self::Q5_0 => "Q5_0",
            Self::Q5_1 => "Q5_1",
            Self::Q4K => "Q4_K",
            Self::Q5K => "Q5_K",
            Self::Q6K => "Q6_K",
        }
    }

    /// Values per block, and bytes per block.
    #[must_use]
    pub fn block(self) -> (usize, usize) {
        match self {
            Self::F32 => (1, 4),
            Self::F16 | Self::Bf16 => (1, 2),
            Self::Q8_0 => (32, 34),
            Self::Q4_0 => (32, 18),
            Self::Q4_1 => (32, 20),
            Self::Q5_0 => (32, 22),
            Self::Q5_1 => (32, 24),
            Self::Q4K => (256, 144),
            Self::Q5K => (256, 176),
            Self::Q6K => (256, 210),
        }
    }

    /// Bytes of a row of `cols` values, which are whole blocks.
    fn row_bytes(self, cols: usize) -> usize {
        let (values, bytes) = self.block();
        cols / values * bytes
    }

    /// Decodes whole blocks.
    pub fn decode(self, bytes: &[u8], out: &mut [f32]) {
        match self {
            Self::F32 => blocks::decode_f32(bytes, out),
            Self::F16 => blocks::decode_f16(bytes, out),
            Self::Bf16 => blocks::decode_bf16(bytes, out),
            Self::Q8_0 => blocks::decode_q8_0(bytes, out),
            Self::Q4_0 => blocks::decode_q4_0(bytes, out),
            Self::Q4_1 => blocks::decode_q4_1(bytes, out),
            Self::Q5_0 => blocks::decode_q5_0(bytes, out),
            Self::Q5_1 => blocks::decode_q5_1(bytes, out),
            Self::Q4K => blocks::decode_q4_k(bytes, out),
            Self::Q5K => blocks::decode_q5_k(bytes, out),
            Self::Q6K => blocks::decode_q6_k(bytes, out),
        }
    }
}

/// The order of a tensor's rows in its file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum RowOrder {
    /// As the model wants them.
    #[default]
    AsStored,
    /// Query or key rows of a rope that rotates neighbours: in each head, row `i` of the first half
    /// is stored at `2 i` and row `i` of the second half at `2 i + 1`.
    Interleaved {
        /// Rows of a head.
        head_size: usize,
    },
}

impl RowOrder {
    /// Where row `row` of `rows` is stored.
    fn stored_index(self, row: usize, rows: usize) -> usize {
        match self {
            Self::Interleaved { head_size } if rows > 1 => {
                let (head, in_head) = (row / head_size, row % head_size);
                let (half, i) = (in_head / (head_size / 2), in_head % (head_size / 2));
                head * head_size + 2 * i + half
            }
            _ => row,
        }
    }
}

/// What the map knows of a tensor. `range` lies inside the file and is as long as shape and
/// encoding say; a row is whole blocks.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) file: Arc<MappedFile>,
    pub(super) range: Range<usize>,
    pub(super) shape: Vec<usize>,
    pub(super) encoding: Encoding,
    pub(super) order: RowOrder,
}

impl Entry {
    fn source<'a>(&'a self, name: &'a str) -> TensorSource<'a> {
        TensorSource {
            name,
            shape: &self.shape,
            encoding: self.encoding,
            order: self.order,
            bytes: &self.file.bytes()[self.range.clone()],
        }
    }
}
