//! `data:` URLs, and the URLs that are never followed.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use cider::image::{ImageFault, ImageLimits, ImageSource};

use crate::support::{decode, picture};

#[test]
fn every_spelling_gives_the_same_picture() {
    let bytes = picture("one.png");
    let image = decode(&bytes);
    let digits = STANDARD.encode(&bytes);
    let lines = digits.as_bytes().chunks(60).map(String::from_utf8_lossy);
    let percent: Vec<String> = bytes.iter().map(|byte| format!("%{byte:02X}")).collect();
    let spellings = [
        format!("data:image/png;base64,{digits}"),
        format!("DATA:image/png;charset=utf-8;BASE64,{digits}"),
        format!("data:;base64,{}", digits.trim_end_matches('=')),
        format!(
            "data:text/plain;base64, {}\r\n",
            lines.collect::<Vec<_>>().join("\r\n ")
        ),
        format!(
            "data:image/jpeg;base64,{}",
            digits
                .replace('+', "%2B")
                .replace('/', "%2f")
                .replace('=', "%3D")
        ),
        format!("data:image/png,{}", percent.concat()),
    ];
    for url in spellings {
        let source = ImageSource::from_url(&url).unwrap();
        assert_eq!(source, ImageSource::from_argument(&url).unwrap());
        assert_eq!(source.name(), "data: URL");
        let found = source.decode(0, &ImageLimits::default()).unwrap();
        assert_eq!(found, image, "{url}");
    }
}

/// What is no base64, no image or no data.
#[test]
fn broken_urls_are_refused() {
    let cases = [
        (
            "data:image/png;base64,@@@@",
            "data URL: not base64: Invalid symbol 64, offset 0",
        ),
        (
            "data:image/png;base64,aGVsbG8=",
            "no known image format: PNG, JPEG, WebP, GIF and BMP are read",
        ),
        ("data:image/png;base64,", "no bytes"),
        ("data:,", "no bytes"),
        (
            "data:image/png;base64",
            "data URL: no comma before its data",
        ),
        (
            "data:image/png;base64,aGVsb",
            "data URL: not base64: Invalid input length: 5",
        ),
        (
            "data:image/png,%8",
            "data URL: a % without two hexadecimal digits",
        ),
        (
            "data:image/png,%4x1",
            "data URL: a % without two hexadecimal digits",
        ),
    ];
    for (url, what) in cases {
        let source = ImageSource::from_url(url).unwrap();
        let error = source.decode(1, &ImageLimits::default()).unwrap_err();
        let message = error.to_string();
        assert_eq!(message, format!("image 2 (data: URL): {what}"), "{url}");
    }
}

/// Limits hold for what the URL says, before it is decoded.
#[test]
fn long_urls_are_refused() {
    let limits = ImageLimits {
        bytes: 30,
        ..ImageLimits::default()
    };
    let long = [
        format!("data:;base64,{}", "A".repeat(48)),
        format!("data:;base64,{}", "A".repeat(4800)),
        format!("data:,{}", "A".repeat(31)),
        format!("data:,{}", "%41".repeat(31)),
    ];
    for url in long {
        let error = ImageSource::DataUrl(url).decode(0, &limits).unwrap_err();
        let message = error.to_string();
        assert!(
            message.ends_with("bytes exceed the limit of 30"),
            "{message}"
        );
    }
    let within = ImageSource::DataUrl(format!("data:;base64,{}", "A".repeat(40)));
    let message = within.decode(0, &limits).unwrap_err().to_string();
    assert!(message.contains("no known image format"), "{message}");
}

/// Nothing is fetched, and a client never names a file.
#[test]
fn other_urls_are_refused() {
    for (url, scheme) in [
        ("http://127.0.0.1/a.png", "http"),
        ("HTTPS://example.org/a.png", "https"),
        ("file:///etc/hostname", "file"),
    ] {
        let fault = ImageFault::UnsupportedUrl(scheme);
        assert_eq!(ImageSource::from_url(url).unwrap_err(), fault);
        assert_eq!(ImageSource::from_argument(url).unwrap_err(), fault);
    }
    let other = ImageFault::UnsupportedUrl("other");
    for url in [
        "/etc/hostname",
        "/etc/absent",
        "../../x.png",
        r"\\host\a.png",
        "",
    ] {
        assert_eq!(ImageSource::from_url(url).unwrap_err(), other);
    }
    assert_eq!(
        other.to_string(),
        "other URLs are not read, only data: URLs"
    );
    let path = ImageSource::from_argument("a:b.png").unwrap();
    assert_eq!(path.name(), "a:b.png");
}
