//! Who may ask, and what a request may make the server read.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::symlink;

use serde_json::{Value, json};

use super::client::{CHAT, Server, solid, tiny};
use crate::support::{f_tiny, folder, testdata};

#[test]
fn c079_keys_hosts_and_origins_are_checked() {
    let answer = tiny()
        .ask("GET", "/v1/models", &[("origin", "http://evil.test")], b"")
        .ok();
    assert!(
        !answer
            .headers
            .keys()
            .any(|name| name.starts_with("access-control")),
        "{answer:?}"
    );
    let answer = tiny().ask(
        "OPTIONS",
        CHAT,
        &[
            ("origin", "http://evil.test"),
            ("access-control-request-method", "POST"),
        ],
        b"",
    );
    assert_eq!(answer.status, 204);
    assert!(
        !answer
            .headers
            .keys()
            .any(|name| name.starts_with("access-control")),
        "{answer:?}"
    );
    for host in ["evil.test", "evil.test:80", "localhost.evil.test"] {
        let (code, ..) = tiny()
            .ask("GET", "/v1/models", &[("host", host)], b"")
            .refusal(403);
        assert_eq!(code, "host_not_allowed");
    }
    tiny()
        .ask("GET", "/health", &[("host", "localhost")], b"")
        .ok();
}

#[test]
fn c079_keys_are_needed_where_there_are_some() {
    let keys = folder("serve-keys").join("keys");
    fs::write(&keys, "# of the team\nsecret-one\n\nsecret-two\n").unwrap();
    let arguments = [
        "--ctx",
        "256",
        "--api-key-file",
        keys.to_str().unwrap(),
        "--cors-origin",
        "http://page.test",
        "--api-key",
        "secret-flag",
    ];
    let server = Server::start(f_tiny(), arguments);
    let open = ["/health", "/ready"];
    let closed = [
        "/v1/models",
        "/v1/queue",
        "/metrics",
        "/openapi.json",
        "/v1/foo",
    ];
    for path in open {
        server.get(path).ok();
    }
    for path in closed {
        for value in [
            None,
            Some("wrong"),
            Some("Bearer"),
            Some("Bearer wrong"),
            Some("Basic secret-one"),
            Some("Bearer secret-on"),
        ] {
            let headers: Vec<(&str, &str)> = value
                .map(|value| ("authorization", value))
                .into_iter()
                .collect();
            let answer = server.ask("GET", path, &headers, b"");
            assert_eq!(answer.refusal(401).0, "invalid_api_key");
            assert_eq!(answer.headers["www-authenticate"], "Bearer");
        }
    }
    for value in [
        "Bearer secret-one",
        "bearer secret-two",
        "Bearer secret-flag",
    ] {
        server
            .ask("GET", "/metrics", &[("authorization", value)], b"")
            .ok();
    }
    pages_and_logs(&server);
}

/// What a page of a listed origin gets, and what the log says of it.
fn pages_and_logs(server: &Server) {
    let body =
        json!({"messages": [{"role": "user", "content": "a most private word"}], "max_tokens": 1})
            .to_string();
    assert_eq!(
        server
            .ask("POST", CHAT, &[], body.as_bytes())
            .refusal(401)
            .0,
        "invalid_api_key"
    );
    let headers = [
        ("authorization", "Bearer secret-two"),
        ("origin", "http://page.test"),
    ];
    let answer = server.ask("POST", CHAT, &headers, body.as_bytes()).ok();
    assert_eq!(
        answer.headers["access-control-allow-origin"],
        "http://page.test"
    );
    let preflight = [
        ("origin", "http://page.test"),
        ("access-control-request-method", "POST"),
    ];
    let answer = server.ask("OPTIONS", CHAT, &preflight, b"");
    assert_eq!(
        (
            answer.status,
            answer.headers["access-control-allow-headers"].as_str()
        ),
        (204, "authorization, content-type")
    );
    let log = server.log();
    assert!(!log.contains("secret") && !log.contains("private"), "{log}");
    assert!(log.contains("--api-key can be seen"), "{log}");
}

#[test]
fn what_is_cached_for_a_key_is_not_told_to_another() {
    let ask = |server: &Server, key: &str| {
        let text = "the same long words for everybody ".repeat(40);
        let body =
            json!({"messages": [{"role": "user", "content": text}], "max_tokens": 1}).to_string();
        let authorization = format!("Bearer {key}");
        let answer = server
            .ask(
                "POST",
                CHAT,
                &[("authorization", &authorization)],
                body.as_bytes(),
            )
            .ok()
            .json();
        answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            .as_u64()
            .unwrap()
    };
    let server = Server::start(
        f_tiny(),
        ["--ctx", "4096", "--api-key", "one", "--api-key", "two"],
    );
    assert_eq!(ask(&server, "one"), 0);
    assert!(ask(&server, "one") > 0);
    assert_eq!(ask(&server, "two"), 0);
    let shared = Server::start(
        f_tiny(),
        [
            "--ctx",
            "4096",
            "--api-key",
            "one",
            "--api-key",
            "two",
            "--share-cache",
        ],
    );
    assert_eq!(ask(&shared, "one"), 0);
    assert!(ask(&shared, "two") > 0);
}

#[test]
fn only_json_is_taken() {
    for kind in [
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=a",
        "",
    ] {
        let answer = tiny().ask("POST", CHAT, &[("content-type", kind)], b"{}");
        assert_eq!(answer.refusal(415).0, "unsupported_media_type");
    }
    let body = json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}).to_string();
    tiny()
        .ask(
            "POST",
            CHAT,
            &[("content-type", "Application/JSON; charset=utf-8")],
            body.as_bytes(),
        )
        .ok();
}

fn show(server: &Server, url: &str) -> (String, Option<String>, String) {
    let part = json!({"type": "image_url", "image_url": {"url": url}});
    server
        .chat(&json!({"messages": [{"role": "user", "content": [part]}], "max_tokens": 1}))
        .refusal(400)
}

#[test]
fn c069_no_inner_address_is_ever_asked() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    let off = Server::start(&testdata("vl/late"), ["--ctx", "512"]);
    let on = Server::start(
        &testdata("vl/late"),
        ["--ctx", "512", "--image-urls", "--fetch-timeout", "5"],
    );
    let hosts = [
        "127.0.0.1",
        "localhost",
        "2130706433",
        "0x7f.1",
        "[::ffff:127.0.0.1]",
        "0.0.0.0",
        "[::1]",
    ];
    let urls = hosts
        .iter()
        .map(|host| format!("http://{host}:{port}/a.png"));
    let plain = [
        "http://169.254.169.254/",
        "http://localhost/a.png",
        "http://10.0.0.1/",
        "http://[64:ff9b::7f00:1]/",
    ];
    for url in urls.chain(plain.map(str::to_owned)) {
        for server in [&off, &on] {
            assert_eq!(show(server, &url).0, "invalid_image", "{url}");
        }
    }
    assert!(listener.accept().is_err(), "nobody came");
}

#[test]
fn c070_files_are_read_beneath_the_media_root_alone() {
    let top = folder("serve-media");
    let root = top.join("root");
    fs::create_dir(&root).unwrap();
    fs::write(root.join("red.bmp"), solid(8, 8, [255, 0, 0])).unwrap();
    fs::write(top.join("outside.bmp"), solid(8, 8, [255, 0, 0])).unwrap();
    fs::write(root.join("words.txt"), "no picture").unwrap();
    symlink(top.join("outside.bmp"), root.join("link.bmp")).unwrap();
    let outside = top.join("outside.bmp").display().to_string();
    let without = Server::start(&testdata("vl/late"), ["--ctx", "512"]);
    for url in [
        "file:///etc/hostname",
        "/etc/hostname",
        "../../x.png",
        "file:/etc/a.png",
        "\\\\host\\a.png",
        &outside,
        &format!("{outside}.missing"),
        &format!("file://{outside}"),
    ] {
        let told = show(&without, url);
        assert_eq!(told, show(&without, "/nowhere/missing.png"), "{url}");
    }
    let with = Server::start(
        &testdata("vl/late"),
        ["--ctx", "512", "--media-root", root.to_str().unwrap()],
    );
    let picture = |url: &str| json!({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}], "max_tokens": 1});
    with.chat(&picture("file:///red.bmp")).ok();
    with.chat(&picture(&format!(
        "file://{}/red.bmp",
        root.canonicalize().unwrap().display()
    )))
    .ok();
    let missing = show(&with, "file:///missing.bmp");
    for url in [
        "file:///link.bmp",
        "file:///words.txt",
        "file:///../outside.bmp",
        "file:///%2e%2e/outside.bmp",
        "file:///etc/hostname",
        "file:///",
    ] {
        assert_eq!(show(&with, url), missing, "{url}");
    }
}

#[test]
fn unknown_words_of_a_body_do_not_reach_the_log() {
    let secret = "x".repeat(100);
    let mut body = json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 1});
    body[&secret] = Value::Null;
    tiny().chat(&body).ok();
    assert!(!tiny().log().contains(&secret));
}
