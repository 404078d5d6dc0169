//! Images: every format and kind against Pillow and the reference processor, and every way a file can
//! be hostile or broken.
#![cfg(test)]
#![forbid(unsafe_code)]

mod broken;
mod data_urls;
mod formats;
mod patches;
mod resize;
mod settings;
mod sizes;
mod support;
