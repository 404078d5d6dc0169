//! The one table of settings: key of the file, flag, environment variable and help text of each.

use std::path::PathBuf;

use super::W8A8;
use super::parse::{Parsed, bytes, length, number, seconds, truth, whole};
use super::setting::{Kind, Setting};
use crate::args::{activations, check_device, vision_scheme};
use crate::numbers::threads;

fn mode(text: &str) -> Parsed<W8A8> {
    match text {
        "auto" => Ok(W8A8::Auto),
        "on" | "true" => Ok(W8A8::On),
        "off" | "false" => Ok(W8A8::Off),
        _ => Err("expected auto, on or off".to_owned()),
    }
}

fn group(text: &str) -> Parsed<usize> {
    match whole(text, 0)? {
        size @ (0 | 32 | 64 | 128 | 256) => Ok(size),
        _ => Err("expected 0, 32, 64, 128 or 256".to_owned()),
    }
}

/// The setting of the model, which is an argument rather than a flag.
pub(super) const MODEL: &str = "model_name_or_path";

/// Every setting.
pub(super) static SETTINGS: &[Setting] = &[
    Setting::text(MODEL, "", "MODEL", "", |c, v| {
        c.model = Some(v.to_owned());
        Ok(())
    }),
    Setting {
        key: "w8a8.mode",
        flag: "w8a8",
        kind: Kind::Mode,
        value: "MODE",
        help: "Whether prompts run on INT8: auto as --scheme says, on fails where they would not, off keeps floats",
        set: |c, v| mode(v).map(|mode| c.loading.w8a8 = mode),
    },
    Setting::text(
        "scheme",
        "scheme",
        "S",
        "Weights and activations of the decoder: auto, none, w8a16, w4a16, w8a8, w4a8",
        |c, v| {
            c.loading.scheme = match v {
                "auto" => None,
                v => Some(v.parse().map_err(|e: cider::Error| e.to_string())?),
            };
            Ok(())
        },
    ),
    Setting::number(
        "group_size",
        "group-size",
        "N",
        "Weights that share a scale: 0, 32, 64, 128 or 256; 0 is one scale per output channel",
        |c, v| group(v).map(|size| c.loading.group_size = Some(size)),
    ),
    Setting::text(
        "head",
        "head",
        "H",
        "The output head: auto, int8, none",
        |c, v| {
            v.parse()
                .map(|head| c.loading.head = head)
                .map_err(|e: cider::Error| e.to_string())
        },
    ),
    Setting::text(
        "dtype",
        "dtype",
        "T",
        "The type of activations: bf16, f32",
        |c, v| activations(v).map(|dtype| c.loading.dtype = Some(dtype)),
    ),
    Setting::text(
        "kv_cache",
        "kv-cache",
        "T",
        "The type of the key/value cache: auto, f32, bf16, f16, int8",
        |c, v| {
            v.parse()
                .map(|cache| c.loading.kv_cache = cache)
                .map_err(|e: cider::Error| e.to_string())
        },
    ),
    Setting::text(
        "vision_scheme",
        "vision-scheme",
        "S",
        "The vision tower: none, w8a16, w4a16, w8a8, w4a8",
        |c, v| vision_scheme(v).map(|scheme| c.loading.vision_scheme = Some(scheme)),
    ),
    Setting::text("device", "device", "D", "auto or cpu", |_, v| {
        check_device(v).map(|_| ())
    }),
    Setting::number(
        "threads",
        "threads",
        "N",
        "Threads [default: physical cores, or fewer where a quota says so]",
        |c, v| threads(v).map(|n| c.loading.threads = Some(n)),
    ),
    Setting::number(
        "ctx",
        "ctx",
        "N",
        "Tokens a conversation may have [default: what the model was made for, at most 8192]",
        |c, v| whole(v, 1).map(|n| c.loading.ctx = Some(n)),
    ),
    Setting::text(
        "chat_template",
        "chat-template",
        "FILE",
        "A Jinja file that replaces the model's chat template",
        |c, v| {
            c.loading.chat_template = Some(PathBuf::from(v));
            Ok(())
        },
    ),
    Setting::number(
        "min_image_tokens",
        "min-image-tokens",
        "N",
        "Enlarge pictures to about the pixels of N tokens",
        |c, v| whole(v, 1).map(|n| c.loading.min_image_tokens = Some(n)),
    ),
    Setting::number(
        "max_image_tokens",
        "max-image-tokens",
        "N",
        "Shrink pictures to about the pixels of N tokens",
        |c, v| whole(v, 1).map(|n| c.loading.max_image_tokens = Some(n)),
    ),
    Setting::number(
        "sampling.temperature",
        "temperature",
        "T",
        "What requests that give none get [default: what the checkpoint says, else 1]",
        |c, v| number(v).map(|x| c.sampling.temperature = Some(x)),
    ),
    Setting::number(
        "sampling.top_p",
        "top-p",
        "P",
        "The same for top_p [default: what the checkpoint says, else 1]",
        |c, v| number(v).map(|x| c.sampling.top_p = Some(x)),
    ),
    Setting::number(
        "sampling.top_k",
        "top-k",
        "K",
        "The same for top_k; 0 keeps all [default: what the checkpoint says, else 0]",
        |c, v| whole(v, 0).map(|n| c.sampling.top_k = Some(n)),
    ),
    Setting::number(
        "sampling.min_p",
        "min-p",
        "P",
        "The same for min_p [default: what the checkpoint says, else 0]",
        |c, v| number(v).map(|x| c.sampling.min_p = Some(x)),
    ),
    Setting::number(
        "sampling.repetition_penalty",
        "repetition-penalty",
        "R",
        "The same for repetition_penalty [default: what the checkpoint says, else 1]",
        |c, v| number(v).map(|x| c.sampling.repetition_penalty = Some(x)),
    ),
    Setting::number(
        "sampling.max_new_tokens",
        "max-new-tokens",
        "N",
        "Tokens that requests that give no limit get [default: what is left of the context]",
        |c, v| whole(v, 1).map(|n| c.sampling.max_new_tokens = Some(n)),
    ),
    Setting::text(
        "server.host",
        "host",
        "ADDRESS",
        "The address to listen on; others than loopback need keys or --no-auth [default: 127.0.0.1]",
        |c, v| match v {
            "localhost" => Ok(()),
            v => v
                .parse()
                .map(|ip| c.server.host = ip)
                .map_err(|_| "expected an IP address, as in 127.0.0.1".to_owned()),
        },
    ),
    Setting::number(
        "server.port",
        "port",
        "N",
        "The port; 0 takes a free one [default: 8000]",
        |c, v| whole(v, 0).map(|n| c.server.port = n),
    ),
    Setting::number(
        "server.ttl",
        "ttl",
        "SECONDS",
        "Idle time after which cached pictures and prefixes are dropped [default: 1800]",
        |c, v| seconds(v).map(|t| c.server.ttl = t),
    ),
    Setting::number(
        "server.max_image_buffer_size",
        "max-image-buffer-size",
        "N",
        "Has no effect: see --image-cache-bytes",
        |_, v| {
            whole(v, 0_usize)?;
            tracing::warn!(
                "server.max_image_buffer_size has no effect: limits.image_cache_bytes counts"
            );
            Ok(())
        },
    ),
    Setting::text(
        "server.model_name",
        "model-name",
        "NAME",
        "What the model is called [default: the name of its folder or file]",
        |c, v| {
            c.server.model_name = Some(v.to_owned());
            Ok(())
        },
    ),
    Setting::switch(
        "server.strict_model",
        "strict-model",
        "Refuse requests that name another model",
        |c, v| truth(v).map(|on| c.server.strict_model = on),
    ),
    Setting::many(
        "server.api_keys",
        "api-key",
        "KEY",
        "A key that requests must have; others on this machine can see it here, better is --api-key-file or the environment",
        |c, v| {
            c.server.api_keys.push(v.to_owned());
            Ok(())
        },
    ),
    Setting::text(
        "server.api_key_file",
        "api-key-file",
        "FILE",
        "Keys that requests must have, one a line",
        |c, v| {
            c.server.api_key_file = Some(PathBuf::from(v));
            Ok(())
        },
    ),
    Setting::switch(
        "server.no_auth",
        "no-auth",
        "Listen on other addresses than loopback without keys",
        |c, v| truth(v).map(|on| c.server.no_auth = on),
    ),
    Setting::many(
        "server.allowed_hosts",
        "allowed-host",
        "NAME",
        "A name that requests may give as their host, beside those of loopback",
        |c, v| {
            c.server.allowed_hosts.push(v.to_ascii_lowercase());
            Ok(())
        },
    ),
    Setting::many(
        "server.cors_origins",
        "cors-origin",
        "ORIGIN",
        "A web page that may ask, as in https://chat.example.org; * is every page",
        |c, v| {
            c.server
                .cors_origins
                .push(v.trim_end_matches('/').to_owned());
            Ok(())
        },
    ),
    Setting::switch(
        "server.share_cache",
        "share-cache",
        "Keys share prefixes and pictures: times may tell what others asked",
        |c, v| truth(v).map(|on| c.server.share_cache = on),
    ),
    Setting::switch(
        "server.image_urls",
        "image-urls",
        "Fetch pictures from public http addresses",
        |c, v| truth(v).map(|on| c.server.image_urls = on),
    ),
    Setting::text(
        "server.media_root",
        "media-root",
        "FOLDER",
        "Read pictures that file: URLs name beneath this folder",
        |c, v| {
            c.server.media_root = Some(PathBuf::from(v));
            Ok(())
        },
    ),
    Setting::number(
        "limits.running",
        "max-running",
        "N",
        "Answers that are computed at once [default: 16]",
        |c, v| whole(v, 1).map(|n| c.limits.running = n),
    ),
    Setting::number(
        "limits.queue",
        "queue",
        "N",
        "Answers that wait; more get 429 [default: 64]",
        |c, v| whole(v, 0).map(|n| c.limits.queue = n),
    ),
    Setting::number(
        "limits.connections",
        "connections",
        "N",
        "Connections; more wait to be accepted [default: 1024]",
        |c, v| whole(v, 1).map(|n| c.limits.connections = n),
    ),
    Setting::number(
        "limits.header_timeout",
        "header-timeout",
        "SECONDS",
        "Time for the head of a request [default: 30]",
        |c, v| seconds(v).map(|t| c.limits.header_timeout = t),
    ),
    Setting::number(
        "limits.body_timeout",
        "body-timeout",
        "SECONDS",
        "Time for the body of a request [default: 60]",
        |c, v| seconds(v).map(|t| c.limits.body_timeout = t),
    ),
    Setting::number(
        "limits.write_timeout",
        "write-timeout",
        "SECONDS",
        "Time in which a client must take some of what is written [default: 30]",
        |c, v| seconds(v).map(|t| c.limits.write_timeout = t),
    ),
    Setting::number(
        "limits.request_timeout",
        "request-timeout",
        "SECONDS",
        "Time for an answer, waiting included [default: 3600]",
        |c, v| seconds(v).map(|t| c.limits.request_timeout = t),
    ),
    Setting::number(
        "limits.drain_timeout",
        "drain-timeout",
        "SECONDS",
        "Time that running answers have after SIGTERM [default: 30]",
        |c, v| seconds(v).map(|t| c.limits.drain_timeout = t),
    ),
    Setting::number(
        "limits.keep_alive",
        "keep-alive",
        "SECONDS",
        "Time between comments in a stream without text [default: 5]",
        |c, v| seconds(v).map(|t| c.limits.keep_alive = t),
    ),
    Setting::number(
        "limits.body_bytes",
        "body-bytes",
        "BYTES",
        "Size of a body [default: 64M]",
        |c, v| length(v).map(|n| c.limits.body_bytes = n),
    ),
    Setting::number(
        "limits.in_flight_bytes",
        "in-flight-bytes",
        "BYTES",
        "Bodies and pictures of all requests together [default: 1G]",
        |c, v| length(v).map(|n| c.limits.in_flight_bytes = n),
    ),
    Setting::number(
        "limits.stream_bytes",
        "stream-bytes",
        "BYTES",
        "What waits for a slow client before it is given up [default: 1M]",
        |c, v| length(v).map(|n| c.limits.stream_bytes = n),
    ),
    Setting::number(
        "limits.messages",
        "messages",
        "N",
        "Messages of a request [default: 1024]",
        |c, v| whole(v, 1).map(|n| c.limits.messages = n),
    ),
    Setting::number(
        "limits.images",
        "images",
        "N",
        "Pictures of a request [default: 64]",
        |c, v| whole(v, 0).map(|n| c.limits.images = n),
    ),
    Setting::number(
        "limits.image_bytes",
        "image-bytes",
        "BYTES",
        "Size of a picture's file [default: 48M]",
        |c, v| bytes(v).map(|n| c.limits.image_bytes = n),
    ),
    Setting::number(
        "limits.image_pixels",
        "image-pixels",
        "N",
        "Width times height of a picture [default: 67108864]",
        |c, v| whole(v, 1).map(|n| c.limits.image_pixels = n),
    ),
    Setting::number(
        "limits.max_tokens",
        "max-tokens",
        "N",
        "Most tokens of an answer, whatever it asks for [default: the context]",
        |c, v| whole(v, 1).map(|n| c.limits.max_tokens = Some(n)),
    ),
    Setting::number(
        "limits.prepare_jobs",
        "prepare-jobs",
        "N",
        "Prompts that are tokenised and pictures that are decoded at once [default: 2]",
        |c, v| whole(v, 1).map(|n| c.limits.prepare_jobs = n),
    ),
    Setting::number(
        "limits.fetch_timeout",
        "fetch-timeout",
        "SECONDS",
        "Time for fetching a picture [default: 10]",
        |c, v| seconds(v).map(|t| c.limits.fetch_timeout = t),
    ),
    Setting::number(
        "limits.grammar_bytes",
        "grammar-bytes",
        "BYTES",
        "Size of a schema, an expression or a grammar [default: 64K]",
        |c, v| length(v).map(|n| c.limits.grammar_bytes = n),
    ),
    Setting::number(
        "limits.cache_tokens",
        "cache-tokens",
        "N",
        "Tokens of the key/value cache [default: what fits the free memory]",
        |c, v| whole(v, 1).map(|n| c.limits.cache_tokens = Some(n)),
    ),
    Setting::number(
        "limits.image_cache_bytes",
        "image-cache-bytes",
        "BYTES",
        "Features of pictures that are kept [default: 256M]",
        |c, v| length(v).map(|n| c.limits.image_cache_bytes = n),
    ),
];
