//! Text in and out: tokens, chat templates, and the decoding of a stream.

mod added_tokens;
mod answer;
mod byte_level;
mod chat_template;
mod fewest_tokens;
mod grammar;
mod guard;
mod message;
mod pre_tokenizers;
mod stop_matcher;
mod stream_decoder;
mod template_env;
mod thought;
mod tokenizer;
mod tokenizer_files;
mod tokenizer_gguf;
mod tokenizer_rules;

pub use answer::{AnswerFormat, AnswerParser, AnswerPart, Opening, ToolFormat};
pub use chat_template::{ChatTemplate, Prompt, RenderOptions};
pub use grammar::{Grammar, Grammars, ToolChoice, ToolRule};
pub use message::{Content, Message, Part, Role};
pub use stop_matcher::{StopMatcher, Stopped};
pub use stream_decoder::StreamDecoder;
pub use tokenizer::{Controls, GgufVocabulary, Tokenizer};

#[cfg(test)]
mod tests;
