//! The GGUF container, versions 2 and 3, little endian: metadata, a table of tensors, aligned data.

mod config;
mod cursor;
mod metadata;
mod values;

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use self::cursor::Cursor;
use super::names;
use super::sniff::refuse_pointer;
use super::tensor::{Encoding, Entry, RowOrder, TensorMap};
use crate::error::{Error, Result};
use crate::files;

pub use metadata::{Metadata, Strings};

pub(super) use config::{generation, model_config};

/// A GGUF file whose every count, length and range was checked.
#[derive(Clone, Debug)]
pub struct Gguf {
    /// What the file says about the model.
    pub metadata: Metadata,
    /// Its tensors. Those of a decoder have their canonical names, the others the file's.
    pub tensors: TensorMap,
}

impl Gguf {
    /// Opens `path`.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] or [`Error::Kernel`] for a file that cannot be mapped, [`Error::File`] for a
    /// container that is cut, malformed, or of another version, [`Error::Tensor`] for a tensor whose
    /// entry cannot be true or whose type is not supported.
    pub fn open(path: &Path) -> Result<Self> {
        let file = Arc::new(files::map(path)?);
        refuse_pointer(path, file.bytes())?;
        let mut cursor = Cursor::new(path, file.bytes());
        check_version(&mut cursor)?;
        // Each tensor takes at least 24 bytes of the table, each value 13.
        let tensors = cursor.count("number of tensors", 24)?;
        let values = cursor.count("number of metadata values", 13)?;
        let metadata = Metadata::parse(&mut cursor, &file, values)?;
        let infos = read_infos(&mut cursor, tensors)?;
        let alignment = alignment(&metadata)?;
        let data = cursor.at().next_multiple_of(alignment);
        check_ranges(
            path,
            &infos,
            alignment,
            file.bytes().len().checked_sub(data),
        )?;
        let mut map = TensorMap::new(path);
        for Info {
            name,
            shape,
            encoding,
            offset,
            bytes,
        } in infos
        {
            let begin = data + offset;
            let range = begin..begin + bytes;
            let name = names::of_gguf(name).unwrap_or_else(|| name.to_owned());
            let (file, order) = (Arc::clone(&file), RowOrder::AsStored);
            map.insert(
                name,
                Entry {
                    file,
                    range,
                    shape,
                    encoding,
                    order,
                },
            )?;
        }
        Ok(Self {
            metadata,
            tensors: map,
        })
    }
}

/// A row of the table of tensors.
struct Info<'a> {
    name: &'a str,
    /// Slowest dimension first.
    shape: Vec<usize>,
    encoding: Encoding,
    /// From the beginning of the data.
    offset: usize,
    bytes: usize,
}

fn check_version(cursor: &mut Cursor<'_>) -> Result<()> {
    let magic = cursor.take(4, "magic")?;
    if magic != b"GGUF" {
        let reversed = if magic == b"FUGG" {
            " (a big-endian file?)"
        } else {
            ""
        };
        return Err(cursor.error(format!("not a GGUF file: magic is {magic:02x?}{reversed}")));
    }
    match cursor.u32("version")? {
        2 | 3 => Ok(()),
        version if (2..=3).contains(&version.swap_bytes()) => {
            Err(cursor.error("a big-endian GGUF file is not supported"))
        }
        version => Err(cursor.error(format!("expected GGUF version 2 or 3, found {version}"))),
    }
}

fn alignment(metadata: &Metadata) -> Result<usize> {
    let key = "general.alignment";
    match metadata.unsigned(key)? {
        None => Ok(32),
        Some(found) if (8..=1 << 16).contains(&found) && found.is_power_of_two() => {
            Ok(found as usize)
        }
        Some(found) => {
            let what = format!("expected a power of two from 8 to 65536, found {found}");
            Err(metadata.error(key, what))
        }
    }
}

fn read_infos<'a>(cursor: &mut Cursor<'a>, count: usize) -> Result<Vec<Info<'a>>> {
    let mut names = HashSet::new();
    let mut infos = Vec::new();
    for _ in 0..count {
        let info = read_info(cursor)?;
        if !names.insert(info.name) {
            return Err(Error::tensor(
                cursor.path(),
                info.name,
                "two tensors of this name",
            ));
        }
        infos.push(info);
    }
    Ok(infos)
}

fn read_info<'a>(cursor: &mut Cursor<'a>) -> Result<Info<'a>> {
    let path = cursor.path();
    let name = cursor.text("a tensor's name")?;
    let wrong = |what: String| Err(Error::tensor(path, name, what));
    let dimensions = cursor.u32("a tensor's number of dimensions")?;
    if !(1..=4).contains(&dimensions) {
        return wrong(format!("expected 1 to 4 dimensions, found {dimensions}"));
    }
    let mut shape = Vec::with_capacity(4);
    for _ in 0..dimensions {
        shape.push(cursor.u64("a tensor's dimension")?);
    }
    let kind = cursor.u32("a tensor's type")?;
    let offset = cursor.u64("a tensor's offset")?;
    let Some(encoding) = encoding(kind) else {
        return wrong(format!("type {} is not supported", kind_name(kind)));
    };
    let (block_values, block_bytes) = encoding.block();
    if !shape[0].is_multiple_of(block_values as u64) {
        let (cols, name) = (shape[0], encoding.name());
        return wrong(format!(
            "{name} comes in blocks of {block_values}, found rows of {cols}"
        ));
    }
    let values = shape
        .iter()
        .try_fold(1, |product: u64, &n| product.checked_mul(n));
    let bytes = values
        .and_then(|values| (values / block_values as u64).checked_mul(block_bytes as u64))
        .filter(|&bytes| i64::try_from(bytes).is_ok());
    let Some(bytes) = bytes else {
        return wrong(format!("dimensions {shape:?} are too large to count"));
    };
    if bytes == 0 {
        return wrong(format!("dimensions {shape:?} leave no values"));
    }
    let (Ok(offset), Ok(bytes)) = (usize::try_from(offset), usize::try_from(bytes)) else {
        return wrong(format!(
            "{bytes} bytes at offset {offset} exceed this machine"
        ));
    };
    // The file has the fastest dimension first. All are below the product, which fits.
    let shape = shape.into_iter().rev().map(|n| n as usize).collect();
    Ok(Info {
        name,
        shape,
        encoding,
        offset,
        bytes,
    })
}

/// The tensors must lie aligned, apart from each other, and inside the data.
fn check_ranges(
    path: &Path,
    infos: &[Info<'_>],
    alignment: usize,
    data: Option<usize>,
) -> Result<()> {
    let Some(data) = data.or(infos.is_empty().then_some(0)) else {
        return Err(Error::file(
            path,
            "ends before the data of its tensors (cut?)",
        ));
    };
    let mut ordered: Vec<_> = infos.iter().collect();
    ordered.sort_by_key(|info| info.offset);
    let mut free = 0;
    for &&Info {
        name,
        offset,
        bytes,
        ..
    } in &ordered
    {
        let wrong = |what: String| Err(Error::tensor(path, name, what));
        if !offset.is_multiple_of(alignment) {
            return wrong(format!("offset {offset} is not aligned to {alignment}"));
        }
        if offset < free {
            return wrong(format!(
                "begins at {offset}, inside the tensor that ends at {free}"
            ));
        }
        match offset.checked_add(bytes) {
            Some(end) if end <= data => free = end,
            _ => {
                let what =
                    format!("{bytes} bytes at offset {offset} of {data} bytes of data (cut?)");
                return wrong(what);
            }
        }
    }
    // Writers fill the last tensor up to the alignment too, or not at all: half-filled is cut.
    if free < data && data < free.next_multiple_of(alignment) {
        let padded = free.next_multiple_of(alignment);
        let what = format!("expected {padded} bytes of data, found {data} (cut?)");
        return Err(Error::file(path, what));
    }
    Ok(())
}

fn encoding(kind: u32) -> Option<Encoding> {
    Some(match kind {
        0 => Encoding::F32,
        1 => Encoding::F16,
        2 => Encoding::Q4_0,
        3 => Encoding::Q4_1,
        6 => Encoding::Q5_0,
        7 => Encoding::Q5_1,
        8 => Encoding::Q8_0,
        12 => Encoding::Q4K,
        13 => Encoding::Q5K,
        14 => Encoding::Q6K,
        30 => Encoding::Bf16,
        _ => return None,
    })
}

/// The format's name of a type that is not supported.
fn kind_name(kind: u32) -> String {
    match UNSUPPORTED.iter().find(|(number, _)| *number == kind) {
        Some((_, name)) => (*name).to_owned(),
        None => format!("number {kind}"),
    }
}

const UNSUPPORTED: [(u32, &str); 22] = [
    (9, "Q8_1"),
    (10, "Q2_K"),
    (11, "Q3_K"),
    (15, "Q8_K"),
    (16, "IQ2_XXS"),
    (17, "IQ2_XS"),
    (18, "IQ3_XXS"),
    (19, "IQ1_S"),
    (20, "IQ4_NL"),
    (21, "IQ3_S"),
    (22, "IQ2_S"),
    (23, "IQ4_XS"),
    (24, "I8"),
    (25, "I16"),
    (26, "I32"),
    (27, "I64"),
    (28, "F64"),
    (29, "IQ1_M"),
    (34, "TQ1_0"),
    (35, "TQ2_0"),
    (39, "MXFP4"),
    (40, "NVFP4"),
];
