//! The safetensors container: eight bytes of length, a JSON header, the data.

mod write;

use std::collections::HashSet;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};

use super::sniff::refuse_pointer;
use super::tensor::{Encoding, Entry, RowOrder, TensorMap};
use crate::error::{Error, Result};
use crate::files;

pub use write::{Tensor, write};

/// The element types of the format that are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// Truth values, a byte each.
    Bool,
    /// Unsigned bytes.
    U8,
    /// Signed bytes.
    I8,
    /// Unsigned 16-bit integers.
    U16,
    /// Signed 16-bit integers.
    I16,
    /// Unsigned 32-bit integers.
    U32,
    /// Signed 32-bit integers.
    I32,
    /// Unsigned 64-bit integers.
    U64,
    /// Signed 64-bit integers.
    I64,
    /// 8-bit floats of 5 exponent bits.
    F8E5M2,
    /// 8-bit floats of 4 exponent bits.
    F8E4M3,
    /// 16-bit floats.
    F16,
    /// bfloat16.
    Bf16,
    /// 32-bit floats.
    F32,
    /// 64-bit floats.
    F64,
}

impl Dtype {
    /// Bytes of an element.
    #[must_use]
    pub fn size(self) -> usize {
        match self {
            Self::Bool | Self::U8 | Self::I8 | Self::F8E5M2 | Self::F8E4M3 => 1,
            Self::U16 | Self::I16 | Self::F16 | Self::Bf16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
        }
    }

    /// The name in a header.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Bool => "BOOL",
            Self::U8 => "U8",
            Self::I8 => "I8",
            Self::U16 => "U16",
            Self::I16 => "I16",
            Self::U32 => "U32",
            Self::I32 => "I32",
            Self::U64 => "U64",
            Self::I64 => "I64",
            Self::F8E5M2 => "F8_E5M2",
            Self::F8E4M3 => "F8_E4M3",
            Self::F16 => "F16",
            Self::Bf16 => "BF16",
            Self::F32 => "F32",
            Self::F64 => "F64",
        }
    }

    fn of(name: &str) -> Option<Self> {
        DTYPES.into_iter().find(|dtype| dtype.name() == name)
    }

    /// As an encoding of weights, if it is one.
    fn encoding(self) -> Option<Encoding> {
        match self {
            Self::F32 => Some(Encoding::F32),
            Self::F16 => Some(Encoding::F16),
            Self::Bf16 => Some(Encoding::Bf16),
            _ => None,
        }
    }
}

/// Opens one file and checks its header against its size: every byte of the data belongs to exactly
/// one tensor. Names are as in the file.
///
/// # Errors
///
/// [`Error::Io`] for a file that cannot be mapped, [`Error::File`] for a container that is cut or
/// malformed, [`Error::Tensor`] for a tensor whose entry cannot be true.
pub fn open(path: &Path) -> Result<TensorMap> {
    let file = files::map(path)?;
    let data = check_length(path, file.bytes())?;
    let header = parse_header(path, &file.bytes()[8..data])?;
    check_cover(path, &header, file.bytes().len() - data)?;
    let file = Arc::new(file);
    let mut tensors = TensorMap::new(path);
    for (name, info) in header {
        let Some(encoding) = info.dtype.encoding() else {
            tensors.insert_unreadable(name, info.dtype.name().to_owned(), path)?;
            continue;
        };
        let [begin, end] = info.data_offsets;
        tensors.insert(
            name,
            Entry {
                file: Arc::clone(&file),
                range: data + begin..data + end,
                shape: info.shape,
                encoding,
                order: RowOrder::AsStored,
            },
        )?;
    }
    Ok(tensors)
}

/// A tensor's entry in the header.
#[derive(Debug)]
struct Info {
    dtype: Dtype,
    shape: Vec<usize>,
    data_offsets: [usize; 2],
}

/// An entry as it stands there.
#[derive(Deserialize)]
struct RawInfo {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: [usize; 2],
}

/// Where the data begins.
fn check_length(path: &Path, bytes: &[u8]) -> Result<usize> {
    refuse_pointer(path, bytes)?;
    let Some(prefix) = bytes.first_chunk() else {
        let what = format!("expected at least 8 bytes, found {}", bytes.len());
        return Err(Error::file(path, what));
    };
    let (length, left) = (u64::from_le_bytes(*prefix), bytes.len() - 8);
    match usize::try_from(length) {
        Ok(length) if length <= left.min(MAX_HEADER) => Ok(8 + length),
        Ok(length) if length <= left => {
            let what = format!("header of {length} bytes exceeds the limit of {MAX_HEADER}");
            Err(Error::file(path, what))
        }
        _ => {
            let what = format!(
                "header of {length} bytes in a file of {} (cut?)",
                bytes.len()
            );
            Err(Error::file(path, what))
        }
    }
}

fn parse_header(path: &Path, json: &[u8]) -> Result<Vec<(String, Info)>> {
    let Header(entries) = serde_json::from_slice(json)
        .map_err(|error| Error::file(path, format!("header: {error}")))?;
    let mut names = HashSet::with_capacity(entries.len());
    if let Some((name, _)) = entries
        .iter()
        .find(|(name, _)| !names.insert(name.as_str()))
    {
        return Err(Error::tensor(path, name, "two tensors of this name"));
    }
    let typed = entries.into_iter().map(
        |(
            name,
            RawInfo {
                dtype,
                shape,
                data_offsets,
            },
        )| {
            match Dtype::of(&dtype) {
                Some(dtype) => Ok((
                    name,
                    Info {
                        dtype,
                        shape,
                        data_offsets,
                    },
                )),
                None => Err(Error::tensor(
                    path,
                    name,
                    format!("type {dtype:?} is not known"),
                )),
            }
        },
    );
    typed.collect()
}

/// The entries in file order: a map would hide that a name stands twice.
struct Header(Vec<(String, RawInfo)>);

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;

        impl<'de> Visitor<'de> for Entries {
            type Value = Header;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
                let mut entries = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        map.next_value::<IgnoredAny>()?;
                    } else {
                        let info = map.next_value().map_err(|error| {
                            A::Error::custom(format_args!("tensor {name}: {error}"))
                        })?;
                        entries.push((name, info));
                    }
                }
                Ok(Header(entries))
            }
        }

        deserializer.deserialize_map(Entries)
    }
}

/// The entries, put in order, must cover the data without gap, overlap or rest.
fn check_cover(path: &Path, header: &[(String, Info)], data: usize) -> Result<()> {
    let mut ordered: Vec<_> = header.iter().collect();
    ordered.sort_by_key(|(_, info)| info.data_offsets);
    let mut covered = 0;
    for (name, info) in ordered {
        let [begin, end] = info.data_offsets;
        let wrong = |what: String| Err(Error::tensor(path, name, what));
        if begin > end {
            return wrong(format!("begins at {begin}, after its end at {end}"));
        }
        let elements = info
            .shape
            .iter()
            .try_fold(1, |product: usize, &n| product.checked_mul(n));
        let Some(bytes) = elements.and_then(|count| count.checked_mul(info.dtype.size())) else {
            return wrong(format!("shape {:?} is too large to count", info.shape));
        };
        if bytes != end - begin {
            let (dtype, shape) = (info.dtype.name(), &info.shape);
            return wrong(format!(
                "{dtype} of shape {shape:?} is {bytes} bytes, the range {}",
                end - begin
            ));
        }
        if end > data {
            return wrong(format!("ends at byte {end} of {data} bytes of data (cut?)"));
        }
        if begin < covered {
            return wrong(format!(
                "begins at {begin}, inside the tensor that ends at {covered}"
            ));
        }
        if begin > covered {
            return wrong(format!("begins at {begin}, after a gap from {covered}"));
        }
        covered = end;
    }
    if covered < data {
        let what = format!("the tensors end at byte {covered} of {data} bytes of data");
        return Err(Error::file(path, what));
    }
    Ok(())
}

/// All element types.
const DTYPES: [Dtype; 15] = [
    Dtype::Bool,
    Dtype::U8,
    Dtype::I8,
    Dtype::U16,
    Dtype::I16,
    Dtype::U32,
    Dtype::I32,
    Dtype::U64,
    Dtype::I64,
    Dtype::F8E5M2,
    Dtype::F8E4M3,
    Dtype::F16,
    Dtype::Bf16,
    Dtype::F32,
    Dtype::F64,
];

/// The format's own limit.
const MAX_HEADER: usize = 100_000_000;
