//! Text in and out: tokens, chat templates, and the decoding of a stream.

mod added_tokens;
mod byte_level;
mod pre_tokenizers;
mod tokenizer;
mod tokenizer_files;
mod tokenizer_gguf;

pub use tokenizer::{Controls, GgufVocabulary, Tokenizer};
