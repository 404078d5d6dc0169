//! The chat page: written by hand, served from the program, and bound to it alone by its headers.

use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_FRAME_OPTIONS,
};
use axum::http::{HeaderName, HeaderValue};
use axum::response::IntoResponse;

/// A file of the page, and where it is.
pub(super) struct File {
    pub(super) path: &'static str,
    kind: &'static str,
    text: &'static str,
}

impl File {
    /// The answer that carries it.
    pub(super) fn respond(&self) -> impl IntoResponse {
        let headers = HEADERS.map(|(name, value)| (name, HeaderValue::from_static(value)));
        let kind = HeaderValue::from_static(self.kind);
        (headers, [(CONTENT_TYPE, kind)], self.text)
    }

    /// Whether a path is one of the page.
    pub(super) fn is_at(path: &str) -> bool {
        FILES.iter().any(|file| file.path == path)
    }
}

/// The files of the page.
pub(super) static FILES: [File; 6] = [
    File {
        path: "/",
        kind: "text/html; charset=utf-8",
        text: include_str!("index.html"),
    },
    File {
        path: "/page/chat.css",
        kind: "text/css; charset=utf-8",
        text: include_str!("chat.css"),
    },
    File {
        path: "/page/chat.js",
        kind: SCRIPT,
        text: include_str!("chat.js"),
    },
    File {
        path: "/page/events.js",
        kind: SCRIPT,
        text: include_str!("events.js"),
    },
    File {
        path: "/page/markdown.js",
        kind: SCRIPT,
        text: include_str!("markdown.js"),
    },
    File {
        path: "/page/icon.svg",
        kind: "image/svg+xml",
        text: include_str!("icon.svg"),
    },
];

const SCRIPT: &str = "text/javascript; charset=utf-8";

/// Nothing from elsewhere, no frame around it, no script that text could become, and no trace of it elsewhere.
const HEADERS: [(HeaderName, &str); 6] = [
    (
        CONTENT_SECURITY_POLICY,
        "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'; \
         require-trusted-types-for 'script'; trusted-types 'none'",
    ),
    (X_FRAME_OPTIONS, "DENY"),
    (REFERRER_POLICY, "no-referrer"),
    (CACHE_CONTROL, "no-cache"),
    (
        HeaderName::from_static("cross-origin-opener-policy"),
        "same-origin",
    ),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    ),
];
