//! Arrays in files, read and written as they are.
#![allow(
    dead_code,
    reason = "each test binary that includes this file uses a part of it"
)]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use half::bf16;
use serde_json::{Map, Value, json};

/// The arrays of a file.
pub(crate) struct Arrays(pub(crate) BTreeMap<String, Array>);

/// One of them.
pub(crate) struct Array {
    dtype: String,
    shape: Value,
    bytes: Vec<u8>,
}

impl Arrays {
    pub(crate) fn read(path: &Path) -> Self {
        let file = fs::read(path).unwrap();
        let (length, rest) = file.split_first_chunk::<8>().unwrap();
        let (header, data) = rest.split_at(usize::try_from(u64::from_le_bytes(*length)).unwrap());
        let header: BTreeMap<String, Value> = serde_json::from_slice(header).unwrap();
        let array = |(name, entry): (String, Value)| {
            let place = |i: usize| entry["data_offsets"][i].as_u64().unwrap() as usize;
            let array = Array {
                dtype: entry["dtype"].as_str()?.to_owned(),
                shape: entry["shape"].clone(),
                bytes: data[place(0)..place(1)].to_vec(),
            };
            Some((name, array))
        };
        Self(header.into_iter().filter_map(array).collect())
    }

    pub(crate) fn write(&self, path: &Path) {
        let mut header = Map::new();
        let mut data = Vec::new();
        for (name, array) in &self.0 {
            let begin = data.len();
            data.extend_from_slice(&array.bytes);
            let place = [begin, data.len()];
            let entry = json!({"dtype": array.dtype, "shape": array.shape, "data_offsets": place});
            header.insert(name.clone(), entry);
        }
        let header = serde_json::to_vec(&header).unwrap();
        let length = (header.len() as u64).to_le_bytes();
        fs::write(path, [&length[..], &header, &data].concat()).unwrap();
    }

    /// The names of the logits that are there.
    pub(crate) fn logits(&self) -> impl Iterator<Item = &str> {
        self.0
            .keys()
            .map(String::as_str)
            .filter(|name| name.starts_with("logits"))
    }

    pub(crate) fn floats(&self, name: &str) -> Vec<f32> {
        let (values, _) = self.bytes(name, "F32").as_chunks::<4>();
        let value = |&bytes: &[u8; 4]| f32::from_le_bytes(bytes);
        values.iter().map(value).collect()
    }

    pub(crate) fn integers(&self, name: &str) -> Vec<i64> {
        let (values, _) = self.bytes(name, "I64").as_chunks::<8>();
        let value = |&bytes: &[u8; 8]| i64::from_le_bytes(bytes);
        values.iter().map(value).collect()
    }

    pub(crate) fn ids(&self, name: &str) -> Vec<u32> {
        let integers = self.integers(name).into_iter();
        integers.map(|id| u32::try_from(id).unwrap()).collect()
    }

    /// Sets one value of an array of bf16.
    pub(crate) fn set(&mut self, name: &str, index: usize, value: f32) {
        let array = self.0.get_mut(name).unwrap();
        assert_eq!(array.dtype, "BF16", "{name}");
        let value = bf16::from_f32(value).to_le_bytes();
        array.bytes[2 * index..][..2].copy_from_slice(&value);
    }

    fn bytes(&self, name: &str, dtype: &str) -> &[u8] {
        let array = self.0.get(name).unwrap_or_else(|| panic!("no {name}"));
        assert_eq!(array.dtype, dtype, "{name}");
        &array.bytes
    }
}
