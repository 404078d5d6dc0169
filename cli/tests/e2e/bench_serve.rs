//! `cider bench serve` in its short form, and what it refuses.

use std::fs;

use serde_json::Value;

use crate::errors::{failed, refused};
use crate::server::client::{Server, message};
use crate::support::{cider, f_tiny, finish, folder, run, testdata};

#[test]
fn servers_get_the_same_load_and_stand_beside_each_other() {
    let folder = folder("bench-serve");
    let (file, plot) = (folder.join("record.json"), folder.join("plot.svg"));
    let other = Server::start(&testdata("vl/late"), ["--ctx", "1024"]);
    let mut command = cider();
    command.args(["bench", "serve", "models/demo-vlm", "--quick"]);
    command.args(["--threads", "1", "--image", "64x48", "--clients", "1,3"]);
    command.args(["--rate", "20", "--shared", "8", "--seed", "5", "--url"]);
    command.arg(format!("other=http://{}/v1", other.address));
    command.env("CIDER_SERVE_LIMITS_CACHE_TOKENS", "4096");
    command.arg("--json").arg(&file).arg("--svg").arg(&plot);
    let outcome = finish(&mut command).succeeded();
    let record: Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    assert_eq!(record["command"], "serve");
    let loads = record["loads"].as_array().unwrap();
    let server = |load: &Value| load["server"].as_str().unwrap().to_owned();
    let servers: Vec<String> = loads.iter().map(server).collect();
    assert_eq!(servers, ["cider", "other"].repeat(3));
    for (at, load) in loads.iter().enumerate() {
        check_load(at, load);
    }
    let shown = [
        "1 client",
        "3 clients",
        "20 a second",
        "other",
        "to one client",
    ];
    for part in shown {
        assert!(outcome.stdout.contains(part), "{part}: {}", outcome.stdout);
    }
    let plot = fs::read_to_string(plot).unwrap();
    let drawn = [
        "<svg",
        "closed loop",
        "open loop",
        "cider p99",
        "other",
        "</svg>\n",
    ];
    for part in drawn {
        assert!(plot.contains(part), "{part} is not in the plot");
    }
}

/// Load number `at` of two servers under one client, three clients and twenty requests a second.
fn check_load(at: usize, load: &Value) {
    let clients = [Some(1), Some(3), None][at / 2];
    assert_eq!(load["clients"].as_u64(), clients);
    assert_eq!(load["rate"].as_f64(), clients.is_none().then_some(20.0));
    assert_eq!(load["requests"], 4, "{load}");
    assert_eq!(load["failed"], Value::Object(serde_json::Map::new()));
    // The answers are as long as they were asked to be.
    assert_eq!(load["generated_tokens"], 32, "{load}");
    assert!(load["prompt_tokens"].as_u64().unwrap() >= 4 * 16, "{load}");
    for key in ["first_token_ms", "request_ms"] {
        let parts = ["min", "p50", "p90", "p99", "max"];
        let times = parts.map(|part| load[key][part].as_f64().unwrap());
        assert!(times[0] > 0.0 && times.is_sorted(), "{load}");
    }
    assert!(load["tokens_per_second"].as_f64().unwrap() > 0.0);
    let times = load["times_one_client"].as_f64();
    assert_eq!(times.is_some_and(|times| times > 0.0), at > 1, "{load}");
}

#[test]
fn a_server_that_refuses_is_no_contender_and_one_that_is_full_is_counted() {
    let url = |server: &Server| format!("http://{}", server.address);
    let keyed = Server::start(f_tiny(), ["--ctx", "256", "--api-key", "secret"]);
    let ask = |key: Option<&str>| {
        let mut command = cider();
        command.args([
            "bench",
            "serve",
            "--quick",
            "--clients",
            "1",
            "--url",
            &url(&keyed),
        ]);
        command.envs(key.map(|key| ("CIDER_BENCH_API_KEY", key)));
        finish(&mut command)
    };
    let outcome = ask(None);
    assert_eq!(outcome.status.code(), Some(1), "{outcome:?}");
    assert!(
        outcome.stderr.contains("/v1/models: status 401"),
        "{outcome:?}"
    );
    let outcome = ask(Some("secret")).succeeded();
    assert!(!outcome.stdout.contains("secret"));
    let full = Server::start(
        f_tiny(),
        ["--ctx", "2048", "--max-running", "1", "--queue", "0"],
    );
    full.chat(&message("a", serde_json::json!({"max_tokens": 1})))
        .ok();
    let outcome = run([
        "bench",
        "serve",
        "--quick",
        "--clients",
        "8",
        "--requests",
        "32",
        "--tokens",
        "200",
        "--url",
        &url(&full),
    ]);
    assert!(outcome.succeeded().stdout.contains(": queue_full"));
}

#[test]
fn wrong_uses_are_told_before_anything_runs() {
    for (arguments, expected) in [
        (
            &["--url", "localhost:8000"][..],
            "expected [NAME=]http://HOST:PORT",
        ),
        (
            &["--url", "a=http://x:1", "--url", "a=http://y:1"],
            "two servers are named a",
        ),
        (&["--clients", "0"], "from 1 to 1024"),
        (&["--rate", "0"], "from 0.001 to 10000"),
        (&["--image", "100000x100000"], "pixels, expected at most"),
    ] {
        let arguments = ["bench", "serve"].iter().chain(arguments);
        refused(&run(arguments), &[expected]);
    }
    let lost = run(["bench", "serve", "--json", "no/such/folder/x.json"]);
    failed(&lost, &["no/such/folder", "No such file"]);
}
