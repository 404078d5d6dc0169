//! Pictures in requests.

use std::fs;
use std::sync::OnceLock;
use std::thread;

use serde_json::{Value, json};

use super::client::{Server, data_url, picture, solid, tiny};
use crate::support::{encode_base64, testdata};

/// The model that sees, with pictures from 64 tokens on.
fn seeing() -> &'static Server {
    static SERVER: OnceLock<Server> = OnceLock::new();
    SERVER.get_or_init(|| Server::start(&testdata("vl/late"), ["--ctx", "1024"]))
}

fn show(parts: &Value, more: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": parts}], "max_tokens": 6, "temperature": 0});
    let Value::Object(more) = more else {
        panic!("{more}")
    };
    body.as_object_mut().unwrap().extend(more);
    body
}

fn text(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

fn prompt_tokens(server: &Server, parts: &Value) -> u64 {
    let answer = server
        .chat(&show(parts, json!({"max_tokens": 1})))
        .ok()
        .json();
    answer["usage"]["prompt_tokens"].as_u64().unwrap()
}

/// The logarithms of the first token's probabilities: they tell pictures apart where answers do not.
fn first(server: &Server, body: &Value) -> Value {
    let mut body = body.clone();
    body["logprobs"] = json!(true);
    body["top_logprobs"] = json!(5);
    body["max_tokens"] = json!(1);
    server.chat(&body).ok().json()["choices"][0]["logprobs"]["content"].clone()
}

const RED: [u8; 3] = [255, 0, 0];
const BLUE: [u8; 3] = [0, 0, 255];

#[test]
fn c007_c009_a_picture_is_never_answered_with_another() {
    let ask = |bytes: &[u8]| show(&json!([picture(bytes), text("x")]), json!({}));
    let (red, blue) = (ask(&solid(256, 256, RED)), ask(&solid(256, 256, BLUE)));
    let large = ask(&solid(480, 640, BLUE));
    let words = show(&json!([text("x")]), json!({}));
    let server = Server::start(&testdata("vl/late"), ["--ctx", "1024"]);
    let fresh = |body: &Value| {
        let server = Server::start(&testdata("vl/late"), ["--ctx", "1024"]);
        (server.chat(body).content(), first(&server, body))
    };
    let (first_red, first_blue) = (first(&server, &red), first(&server, &blue));
    assert_ne!(first_red, first_blue);
    let contents: Vec<String> = [&red, &words, &large, &red]
        .map(|body| server.chat(body).content())
        .into();
    assert_eq!(contents[0], contents[3]);
    assert_eq!(
        first(&server, &red),
        first_red,
        "what is remembered changes nothing"
    );
    assert_eq!(fresh(&red), (contents[0].clone(), first_red));
    assert_eq!(fresh(&large).0, contents[2]);
    assert_eq!(fresh(&words).0, contents[1]);
    assert!(server.metric("cider_image_hits_total") >= 1.0);
}

#[test]
fn c010_c025_small_pictures_are_read_and_counted() {
    let none = prompt_tokens(seeing(), &json!([text("x")]));
    for (height, width, tokens) in [
        (1, 1, 64),
        (2, 2, 64),
        (31, 31, 64),
        (16, 200, 87),
        (512, 512, 256),
    ] {
        let parts = json!([picture(&solid(width, height, RED)), text("x")]);
        assert_eq!(
            prompt_tokens(seeing(), &parts),
            none + tokens + 2,
            "{height}x{width}"
        );
    }
    let parts = json!([picture(&solid(512, 512, RED)), text("x")]);
    let mut body = show(
        &parts,
        json!({"max_tokens": 1, "stream": true, "stream_options": {"include_usage": true}}),
    );
    let (chunks, _) = super::client::events(&seeing().chat(&body).ok().body);
    assert_eq!(chunks.last().unwrap()["usage"]["prompt_tokens"], none + 258);
    body["stream"] = json!(false);
    assert_eq!(
        seeing().chat(&body).ok().json()["usage"]["prompt_tokens"],
        none + 258
    );
    prompt_tokens(seeing(), &json!([text("still there")]));
}

/// A picture that is large by its header alone.
fn claimed(width: u32, height: u32) -> Vec<u8> {
    let mut bytes = solid(1, 1, RED);
    bytes[18..22].copy_from_slice(&width.to_le_bytes());
    bytes[22..26].copy_from_slice(&height.to_le_bytes());
    bytes
}

#[test]
fn c016_c018_pictures_that_exceed_the_context_are_refused() {
    let photo = picture(&claimed(8000, 6000));
    for parts in [json!([photo, text("x")]), json!([photo, photo, text("x")])] {
        let (code, _, message) = seeing().chat(&show(&parts, json!({}))).refusal(400);
        assert!(
            code == "context_length_exceeded" && message.contains("16170")
                || message.contains("32340"),
            "{message}"
        );
        assert!(message.contains("1024"), "{message}");
    }
    let medium = picture(&solid(768, 768, RED));
    let two = json!([medium, medium, text("compare")]);
    let (code, _, message) = seeing().chat(&show(&two, json!({}))).refusal(400);
    assert!(
        code == "context_length_exceeded" && message.contains("1152") && message.contains("1024"),
        "{message}"
    );
    let roomy = Server::start(&testdata("vl/late"), ["--ctx", "2048"]);
    roomy.chat(&show(&two, json!({"max_tokens": 1}))).ok();
    prompt_tokens(seeing(), &json!([text("still there")]));
}

#[test]
fn c019_pictures_of_all_turns_are_seen_in_their_order() {
    let turns = |one: &[u8], two: &[u8]| {
        json!({"messages": [
            {"role": "user", "content": [picture(one), text("a")]},
            {"role": "assistant", "content": "b"},
            {"role": "user", "content": [picture(two), text("c")]},
        ], "max_tokens": 1, "temperature": 0})
    };
    let (red, blue) = (solid(256, 256, RED), solid(640, 480, BLUE));
    let words = json!({"messages": [user("a"), {"role": "assistant", "content": "b"}, user("c")], "max_tokens": 1});
    let none = seeing().chat(&words).ok().json()["usage"]["prompt_tokens"]
        .as_u64()
        .unwrap();
    let answer = seeing().chat(&turns(&red, &blue)).ok().json();
    assert_eq!(answer["usage"]["prompt_tokens"], none + 64 + 300 + 4);
    assert_ne!(
        first(seeing(), &turns(&red, &blue)),
        first(seeing(), &turns(&blue, &red))
    );
    let three = json!({"messages": [
        user("a"), {"role": "assistant", "content": "b"},
        {"role": "user", "content": [picture(&red)]}, {"role": "assistant", "content": "b"},
        {"role": "user", "content": [picture(&red), text("and"), picture(&red)]},
    ], "max_tokens": 1});
    seeing().chat(&three).ok();
}

fn user(text: &str) -> Value {
    json!({"role": "user", "content": text})
}

#[test]
fn c022_c026_what_the_model_does_not_take_is_named() {
    for kind in ["video_url", "input_video"] {
        let part = json!({"type": kind, kind: {"url": "data:,x"}});
        let (code, _, message) = seeing().chat(&show(&json!([part]), json!({}))).refusal(400);
        assert!(
            code == "unsupported_parameter" && message.contains(kind),
            "{message}"
        );
    }
    let body = show(&json!([text("a"), picture(&solid(8, 8, RED))]), json!({}));
    let (_, param, message) = tiny().chat(&body).refusal(400);
    assert!(
        param.as_deref() == Some("messages") && message.contains("no vision input"),
        "{message}"
    );
}

#[test]
fn c027_pictures_side_by_side_do_not_meet() {
    let bodies: Vec<Value> = (0..8u32)
        .map(|i| {
            let bytes = solid(
                256 + 32 * i,
                256 + 16 * i,
                [(i * 30) as u8, 200 - (i * 20) as u8, 90],
            );
            show(
                &json!([picture(&bytes), text("x")]),
                json!({"max_tokens": 24, "logprobs": true}),
            )
        })
        .collect();
    let choice = |body: &Value| seeing().chat(body).ok().json()["choices"][0].clone();
    let alone: Vec<Value> = bodies.iter().map(choice).collect();
    thread::scope(|scope| {
        for (body, alone) in bodies.iter().zip(&alone) {
            scope.spawn(move || (0..3).for_each(|_| assert_eq!(&choice(body), alone)));
        }
    });
}

#[test]
fn c057_the_same_options_count_beside_pictures() {
    let parts = json!([picture(&solid(64, 64, RED)), text("x")]);
    let ask = |more: Value| seeing().chat(&show(&parts, more)).ok().json()["choices"][0].clone();
    let greedy = ask(json!({"max_tokens": 8}));
    let content = greedy["message"]["content"].as_str().unwrap();
    assert_eq!(
        ask(json!({"max_tokens": 8, "temperature": 2, "top_k": 1}))["message"]["content"],
        content
    );
    let sampled = || {
        ask(json!({"max_tokens": 8, "temperature": 2, "top_k": 0, "seed": 5}))["message"]["content"]
            .clone()
    };
    assert_eq!(sampled(), sampled());
    assert_eq!(ask(json!({"max_tokens": 3}))["finish_reason"], "length");
    if let Some(stop) = content.chars().nth(1) {
        let stopped = ask(json!({"max_tokens": 8, "stop": stop.to_string()}));
        assert_eq!(
            stopped["message"]["content"].as_str().unwrap(),
            content.split(stop).next().unwrap()
        );
    }
}

#[test]
fn the_seeds_pictures_bind_to_their_marks() {
    let (red, blue) = (solid(256, 256, RED), solid(256, 256, BLUE));
    let with = |images: Value, content: &str| json!({"messages": [{"role": "user", "content": content}], "images": images, "temperature": 0, "max_tokens": 1});
    let parts = show(
        &json!([text("a"), picture(&red), text("b"), picture(&blue)]),
        json!({}),
    );
    let marks = with(
        json!([encode_base64(&red), data_url(&blue)]),
        "a<image>b<image>",
    );
    assert_eq!(first(seeing(), &marks), first(seeing(), &parts));
    for images in [
        json!([data_url(&red)]),
        json!([data_url(&red), data_url(&red), data_url(&red)]),
    ] {
        let (_, param, message) = seeing()
            .chat(&with(images, "a<image>b<image>"))
            .refusal(400);
        assert!(
            param.as_deref() == Some("images") && message.contains("2 marks"),
            "{message}"
        );
    }
    seeing().chat(&with(json!(null), "a<image>")).ok();
}

#[test]
fn c073_known_formats_are_read_and_others_named() {
    for name in [
        "red-png.png",
        "red-baseline.jpg",
        "red-progressive.jpg",
        "red-lossy.webp",
        "red-lossless.webp",
        "red-gif.gif",
        "red-bmp.bmp",
    ] {
        let bytes = fs::read(testdata("images").join(name)).unwrap();
        prompt_tokens(seeing(), &json!([picture(&bytes), text(name)]));
    }
    for (bytes, name) in [
        (&b"\0\0\0\x1cftypavif\0\0\0\0avifmif1"[..], "AVIF"),
        (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", "HEIC"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "SVG"),
        (b"%PDF-1.7\n", "PDF"),
        (b"II\x2a\0\x08\0\0\0", "TIFF"),
    ] {
        let (code, _, message) = seeing()
            .chat(&show(&json!([picture(bytes)]), json!({})))
            .refusal(400);
        assert!(
            code == "invalid_image" && message.contains(name),
            "{message}"
        );
    }
}

#[test]
fn c075_broken_pictures_are_refused_by_their_number() {
    let whole = |name: &str| fs::read(testdata("images").join(name)).unwrap();
    let cut = |name: &str| {
        let bytes = whole(name);
        bytes[..bytes.len() / 2].to_vec()
    };
    let mut crc = whole("red-png.png");
    let last = crc.len() - 20;
    crc[last] ^= 1;
    let good = picture(&solid(8, 8, RED));
    let bad = [
        json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,@@@@"}}),
        picture(b"hello"),
        picture(&cut("rgb.jpg")),
        picture(&cut("rgb.png")),
        picture(&crc),
        picture(b""),
    ];
    for part in bad {
        let (code, param, message) = seeing()
            .chat(&show(&json!([good, part]), json!({})))
            .refusal(400);
        assert!(
            code == "invalid_image" && message.starts_with("image 2"),
            "{message}"
        );
        assert_eq!(param.as_deref(), Some("messages[0].content[1]"));
    }
    prompt_tokens(seeing(), &json!([text("still there")]));
}
