//! The size of a JPEG by its frame header, and whether it reaches its end.

use super::fault::ImageFault;
use super::header::{array, cut, damaged};
use super::rgb::ImageSize;
use super::sniff::ImageFormat::Jpeg;

/// Walks the segments up to the end of the image. Decoders fill what a cut file lacks with grey and
/// say nothing, so the end is looked for here.
pub(super) fn size(bytes: &[u8]) -> Result<ImageSize, ImageFault> {
    let cut = || cut(Jpeg, "no end-of-image marker");
    let mut position = 2;
    let mut size = None;
    let mut scans = 0;
    loop {
        let (marker, start) = next_marker(bytes, position).ok_or_else(cut)?;
        match marker {
            END_OF_IMAGE => {
                let size = size.filter(|_| scans > 0);
                return size.ok_or_else(|| damaged(Jpeg, "no picture before its end"));
            }
            START_OF_IMAGE => {
                position = start;
                continue;
            }
            START_OF_SCAN => scans += 1,
            _ => {}
        }
        let length = usize::from(u16::from_be_bytes(array(bytes, start).ok_or_else(cut)?));
        if length < 2 {
            let what = format!("a segment {marker:#04x} of {length} bytes");
            return Err(damaged(Jpeg, what));
        }
        if is_frame(marker) {
            if size.is_some() {
                return Err(damaged(Jpeg, "two frame headers"));
            }
            let height = u16::from_be_bytes(array(bytes, start + 3).ok_or_else(cut)?);
            let width = u16::from_be_bytes(array(bytes, start + 5).ok_or_else(cut)?);
            size = Some(ImageSize::new(height.into(), width.into()));
        }
        position = start + length;
    }
}

/// The next marker from `position` on, and where its segment starts. Stuffed zeros and restarts are
/// parts of a scan; what else stands between segments is skipped, as decoders do.
fn next_marker(bytes: &[u8], mut position: usize) -> Option<(u8, usize)> {
    loop {
        let rest = bytes.get(position..)?;
        position += rest.iter().position(|byte| *byte == 0xff)? + 1;
        let marker = *bytes.get(position)?;
        if !matches!(marker, 0 | 1 | RESTART_FIRST..=RESTART_LAST | 0xff) {
            return Some((marker, position + 1));
        }
    }
}

/// Whether `marker` is one of the start-of-frame markers, which share their range with three others.
fn is_frame(marker: u8) -> bool {
    matches!(marker, 0xc0..=0xcf) && !matches!(marker, 0xc4 | 0xc8 | 0xcc)
}

const START_OF_IMAGE: u8 = 0xd8;
const END_OF_IMAGE: u8 = 0xd9;
const START_OF_SCAN: u8 = 0xda;
const RESTART_FIRST: u8 = 0xd0;
const RESTART_LAST: u8 = 0xd7;
