//! Arrays that numpy made, of any type, out of a safetensors file.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use cider::ops::Matrix;
use serde_json::Value;

/// The arrays of one file by name.
pub(crate) struct Arrays(BTreeMap<String, Array>);

struct Array {
    dtype: String,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl Arrays {
    /// Reads `testdata/seed/NAME`.
    pub(crate) fn read(name: &str) -> Self {
        let file = fs::read(testdata().join("seed").join(name)).unwrap();
        let length = u64::from_le_bytes(*file.first_chunk().unwrap()) as usize;
        let (header, data) = file[8..].split_at(length);
        let Value::Object(header) = serde_json::from_slice(header).unwrap() else {
            panic!("the header is no object");
        };
        let array = |entry: &Value| {
            let numbers = |key: &str| -> Vec<usize> {
                let numbers = entry[key].as_array().unwrap().iter();
                numbers.map(|n| n.as_u64().unwrap() as usize).collect()
            };
            let range = numbers("data_offsets");
            Array {
                dtype: entry["dtype"].as_str().unwrap().to_owned(),
                shape: numbers("shape"),
                bytes: data[range[0]..range[1]].to_vec(),
            }
        };
        let entries = header.iter().filter(|(name, _)| *name != "__metadata__");
        Self(
            entries
                .map(|(name, entry)| (name.clone(), array(entry)))
                .collect(),
        )
    }

    pub(crate) fn shape(&self, name: &str) -> &[usize] {
        &self.0[name].shape
    }

    pub(crate) fn f32(&self, name: &str) -> Vec<f32> {
        self.decode(name, "F32", f32::from_le_bytes)
    }

    pub(crate) fn f64(&self, name: &str) -> Vec<f64> {
        self.decode(name, "F64", f64::from_le_bytes)
    }

    pub(crate) fn i8(&self, name: &str) -> Vec<i8> {
        self.decode(name, "I8", i8::from_le_bytes)
    }

    pub(crate) fn i32(&self, name: &str) -> Vec<i32> {
        self.decode(name, "I32", i32::from_le_bytes)
    }

    pub(crate) fn u8(&self, name: &str) -> Vec<u8> {
        self.decode(name, "U8", u8::from_le_bytes)
    }

    /// `data`, which came from the array of this name, as a matrix.
    pub(crate) fn matrix<'a, T>(&self, name: &str, data: &'a [T]) -> Matrix<'a, T> {
        let [rows, cols] = self.shape(name) else {
            panic!("{name} is no matrix");
        };
        Matrix::new(data, *rows, *cols).unwrap()
    }

    fn decode<T, const N: usize>(
        &self,
        name: &str,
        dtype: &str,
        decode: fn([u8; N]) -> T,
    ) -> Vec<T> {
        let array = &self.0[name];
        assert_eq!(array.dtype, dtype, "{name}");
        let (elements, rest) = array.bytes.as_chunks();
        assert!(rest.is_empty(), "{name}");
        elements.iter().map(|bytes| decode(*bytes)).collect()
    }
}

/// The folder of test data.
pub(crate) fn testdata() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata")
}
