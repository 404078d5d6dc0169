//! `data:` URLs (RFC 2397).

use std::borrow::Cow;

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

use super::fault::ImageFault;
use super::limits::ImageLimits;

/// Whether `url` has the scheme `data`, in whatever case.
pub(super) fn is_data_url(url: &str) -> bool {
    url.get(..SCHEME.len())
        .is_some_and(|scheme| scheme.eq_ignore_ascii_case(SCHEME))
}

/// The bytes of a `data:` URL. The media type is not looked at: bytes say what they are. Base64 may
/// have white space, percent-encoding and no padding, as browsers take it.
pub(super) fn decode(url: &str, limits: &ImageLimits) -> Result<Vec<u8>, ImageFault> {
    let fault = |what: &str| ImageFault::DataUrl(what.to_owned());
    let rest = url.get(SCHEME.len()..).filter(|_| is_data_url(url));
    let rest = rest.ok_or_else(|| fault("no data: at its begin"))?;
    let (media_type, data) = rest
        .split_once(',')
        .ok_or_else(|| fault("no comma before its data"))?;
    // Three characters for a byte at most; white space is not counted on to be more than the data.
    if data.len() as u64 > limits.bytes.saturating_mul(6) {
        limits.check_bytes(data.len() as u64 / 6)?;
    }
    let data = percent_decoded(data)?;
    if !is_base64(media_type) {
        limits.check_bytes(data.len() as u64)?;
        return Ok(data.into_owned());
    }
    let digits: Vec<u8> = data
        .iter()
        .copied()
        .filter(|byte| !byte.is_ascii_whitespace())
        .collect();
    limits.check_bytes((digits.len() as u64).saturating_sub(3) / 4 * 3)?;
    BASE64.decode(digits).map_err(|error| {
        let what = error.to_string();
        ImageFault::DataUrl(format!("not base64: {}", what.trim_end_matches('.')))
    })
}

/// Whether the last parameter of the media type is `base64`.
fn is_base64(media_type: &str) -> bool {
    let last = media_type.rsplit(';').next().unwrap_or_default();
    media_type.contains(';') && last.trim().eq_ignore_ascii_case("base64")
}

fn percent_decoded(text: &str) -> Result<Cow<'_, [u8]>, ImageFault> {
    if !text.contains('%') {
        return Ok(Cow::Borrowed(text.as_bytes()));
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let Some((digits, after)) = after.split_first_chunk::<2>().filter(|_| *first == b'%')
        else {
            if *first == b'%' {
                return Err(bad_percent());
            }
            bytes.push(*first);
            rest = after;
            continue;
        };
        let [high, low] = digits.map(|digit| char::from(digit).to_digit(16));
        let (high, low) = high.zip(low).ok_or_else(bad_percent)?;
        bytes.push((high * 16 + low) as u8);
        rest = after;
    }
    Ok(Cow::Owned(bytes))
}

fn bad_percent() -> ImageFault {
    ImageFault::DataUrl("a % without two hexadecimal digits".to_owned())
}

const SCHEME: &str = "data:";

/// What browsers accept: padding or none, and bits left over.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);
