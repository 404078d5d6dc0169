//! A server that runs, and a client that speaks plain HTTP.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::recipe;
use crate::support::{cider, encode_base64, folder};

/// A program that serves; it ends with this.
pub(crate) struct Server {
    child: Child,
    /// Ends the server when this process ends: those that tests share are never dropped.
    watch: Child,
    pub(crate) address: String,
    /// Standard error so far.
    log: Arc<Mutex<String>>,
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: String,
}

impl Server {
    /// Serves a model with one thread and a small cache.
    pub(crate) fn start<S: AsRef<OsStr>>(
        model: &Path,
        arguments: impl IntoIterator<Item = S>,
    ) -> Self {
        let mut command = cider();
        command.arg("serve").arg(model);
        command.env("CIDER_SERVE_LIMITS_CACHE_TOKENS", "8192");
        command
            .args(["--port", "0", "--threads", "1"])
            .args(arguments);
        Self::spawn(command)
    }

    /// Runs a command until it listens.
    pub(crate) fn spawn(mut command: Command) -> Self {
        let mut child = command
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // It waits for the end of its input, which is that of this process.
        let watch = Command::new("sh")
            .args([
                "-c",
                "read -r line; kill -9 \"$0\"",
                &child.id().to_string(),
            ])
            .stdin(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let log: Arc<Mutex<String>> = Arc::default();
        let (told, address) = channel();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let shared = Arc::clone(&log);
        thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if let Some((_, rest)) = line.split_once("listening on http://") {
                    let _ = told.send(rest.split(',').next().unwrap().to_owned());
                }
                *shared.lock().unwrap() += &(line
                    + "
");
            }
        });
        let address = wait_for(&address, &mut child, &log);
        Self {
            child,
            watch,
            address,
            log,
        }
    }

    /// Everything on standard error so far.
    pub(crate) fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// The number of its process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Its end, once a signal has come.
    pub(crate) fn wait(&mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }

    /// Sends a request as it stands, and reads all of the answer.
    pub(crate) fn raw(&self, request: &[u8]) -> Answer {
        let mut stream = self.connect();
        // One that refuses early need not read all of it.
        let _ = stream.write_all(request);
        read_answer(stream)
    }

    /// A connection.
    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// A request with headers of one's own.
    pub(crate) fn ask(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Answer {
        self.raw(&self.request(method, path, headers, body))
    }

    /// The bytes of a request; headers replace those that it would have.
    pub(crate) fn request(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Vec<u8> {
        let length = body.len().to_string();
        let mut all: BTreeMap<&str, &str> =
            BTreeMap::from([("host", self.address.as_str()), ("connection", "close")]);
        if !body.is_empty() || method == "POST" {
            all.extend([
                ("content-length", length.as_str()),
                ("content-type", "application/json"),
            ]);
        }
        all.extend(headers.iter().copied());
        let head: Vec<String> = all
            .iter()
            .map(|(name, value)| {
                format!(
                    "{name}: {value}
"
                )
            })
            .collect();
        let head = head.concat();
        [
            format!("{method} {path} HTTP/1.1\r\n{head}\r\n").as_bytes(),
            body,
        ]
        .concat()
    }

    /// A plain GET.
    pub(crate) fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, &[], b"")
    }

    /// A POST of JSON.
    pub(crate) fn post(&self, path: &str, body: &Value) -> Answer {
        self.ask("POST", path, &[], body.to_string().as_bytes())
    }

    /// A chat.
    pub(crate) fn chat(&self, body: &Value) -> Answer {
        self.post(CHAT, body)
    }

    /// A chat of one message of the user, with more fields.
    pub(crate) fn say(&self, text: &str, more: Value) -> Answer {
        self.chat(&message(text, more))
    }

    /// The same as a stream: its chunks, which must end in the end mark.
    pub(crate) fn stream(&self, text: &str, more: Value) -> Vec<Value> {
        let mut body = message(text, more);
        body["stream"] = json!(true);
        let answer = self.chat(&body);
        assert_eq!(answer.status, 200, "{answer:?}");
        let (chunks, ended) = events(&answer.body);
        assert!(ended, "{answer:?}");
        chunks
    }

    /// A value of the metrics.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let page = self.get("/metrics").ok().body;
        let line = page
            .lines()
            .find_map(|line| line.strip_prefix(&format!("{name} ")));
        line.unwrap_or_else(|| panic!("{name} is not in {page}"))
            .parse()
            .unwrap()
    }

    /// The peak of its resident memory in bytes.
    pub(crate) fn peak_memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.id())).unwrap();
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("VmHWM:"))
            .unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // First the one that would kill whoever has the number then.
        let _ = self.watch.kill();
        let _ = self.watch.wait();
        let _ = self.child.kill();
        let _ = self.child.wait();
        let log = self.log();
        if !thread::panicking() {
            assert!(!log.contains("panicked"), "{log}");
        }
    }
}

impl Answer {
    /// The answer, which must be a success.
    pub(crate) fn ok(self) -> Self {
        assert_eq!(self.status, 200, "{self:?}");
        self
    }

    /// Its body as JSON.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The text of its first choice.
    pub(crate) fn content(&self) -> String {
        assert_eq!(self.status, 200, "{self:?}");
        self.json()["choices"][0]["message"]["content"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    }

    /// The refusal that it is: its code, the field, the message. The envelope must be whole.
    pub(crate) fn refusal(&self, status: u16) -> (String, Option<String>, String) {
        assert_eq!(self.status, status, "{self:?}");
        assert_eq!(self.headers["content-type"], "application/json");
        let body = self.json();
        let error = body["error"].as_object().unwrap();
        let keys: Vec<&str> = error.keys().map(String::as_str).collect();
        assert_eq!(keys, ["message", "type", "param", "code"], "{body}");
        let text = |name: &str| error[name].as_str().map(str::to_owned);
        (
            text("code").unwrap(),
            text("param"),
            text("message").unwrap(),
        )
    }
}

/// The chunks of a stream, and whether the end mark came behind them.
pub(crate) fn events(body: &str) -> (Vec<Value>, bool) {
    let mut chunks = Vec::new();
    let mut ended = false;
    for line in body
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with(':'))
    {
        let data = line
            .strip_prefix("data: ")
            .unwrap_or_else(|| panic!("{line:?}"));
        assert!(!ended, "{data} behind the end");
        if data == "[DONE]" {
            ended = true;
        } else {
            chunks.push(serde_json::from_str(data).unwrap());
        }
    }
    (chunks, ended)
}

/// The texts of all deltas under a name, put together.
pub(crate) fn joined(chunks: &[Value], name: &str) -> String {
    let texts = chunks
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["delta"][name].as_str());
    texts.collect()
}

/// The reason with which a stream ended: exactly one chunk has one.
pub(crate) fn finish(chunks: &[Value]) -> String {
    let reasons = chunks
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["finish_reason"].as_str());
    let reasons: Vec<&str> = reasons.collect();
    assert_eq!(reasons.len(), 1, "{chunks:?}");
    reasons[0].to_owned()
}

/// A request of one message.
pub(crate) fn message(text: &str, more: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": text}]});
    let Value::Object(more) = more else {
        panic!("{more}")
    };
    body.as_object_mut().unwrap().extend(more);
    body
}

/// A chain model, built once for a name.
pub(crate) fn chain(name: &str, scripts: &Value, template: Option<&str>) -> PathBuf {
    let target = folder(&format!("chain-{name}"));
    let all = json!({
        "control": ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        "marks": ["<tool_call>", "</tool_call>", "<think>", "</think>"],
        "end": "<|im_end|>",
        "scripts": scripts,
    });
    recipe::build_chain(&all, &target).unwrap();
    if let Some(template) = template {
        std::fs::write(target.join("chat_template.jinja"), template).unwrap();
    }
    target
}

/// A picture of one colour.
pub(crate) fn solid(width: u32, height: u32, colour: [u8; 3]) -> Vec<u8> {
    let row = (width * 3).next_multiple_of(4);
    let size = row * height;
    let mut bytes = b"BM".to_vec();
    for field in [
        54 + size,
        0,
        54,
        40,
        width,
        height,
        1 | 24 << 16,
        0,
        size,
        2835,
        2835,
        0,
        0,
    ] {
        bytes.extend(field.to_le_bytes());
    }
    let [red, green, blue] = colour;
    let mut line = [blue, green, red].repeat(width as usize);
    line.resize(row as usize, 0);
    bytes.extend(line.repeat(height as usize));
    bytes
}

/// Bytes as a `data:` URL.
pub(crate) fn data_url(bytes: &[u8]) -> String {
    format!("data:;base64,{}", encode_base64(bytes))
}

/// A part of a message that shows a picture.
pub(crate) fn picture(bytes: &[u8]) -> Value {
    json!({"type": "image_url", "image_url": {"url": data_url(bytes)}})
}

/// F-TINY behind a server that several tests share.
pub(crate) fn tiny() -> &'static Server {
    static SERVER: OnceLock<Server> = OnceLock::new();
    SERVER.get_or_init(|| Server::start(crate::support::f_tiny(), ["--ctx", "4096"]))
}

fn wait_for(address: &Receiver<String>, child: &mut Child, log: &Mutex<String>) -> String {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Ok(address) = address.recv_timeout(Duration::from_millis(50)) {
            return address;
        }
        let ended = child.try_wait().unwrap();
        assert!(
            ended.is_none() && Instant::now() < end,
            "{ended:?}: {}",
            log.lock().unwrap()
        );
    }
}

/// Reads an answer to its end.
pub(crate) fn read_answer(mut stream: TcpStream) -> Answer {
    let mut bytes = Vec::new();
    let read = stream.read_to_end(&mut bytes);
    assert!(!bytes.is_empty(), "{read:?}");
    answer_of(&bytes)
}

/// The answer that these bytes are.
pub(crate) fn answer_of(bytes: &[u8]) -> Answer {
    let at = bytes.windows(4).position(|window| window == b"\r\n\r\n");
    let at = at.unwrap_or_else(|| panic!("{}", String::from_utf8_lossy(bytes)));
    let head = String::from_utf8(bytes[..at].to_vec()).unwrap();
    let mut lines = head.lines();
    let status = lines
        .next()
        .unwrap()
        .split(' ')
        .nth(1)
        .unwrap()
        .parse()
        .unwrap();
    let headers = lines.map(|line| {
        let (name, value) = line.split_once(": ").unwrap();
        (name.to_ascii_lowercase(), value.to_owned())
    });
    let headers: BTreeMap<String, String> = headers.collect();
    let body = &bytes[at + 4..];
    let body = if headers
        .get("transfer-encoding")
        .is_some_and(|value| value == "chunked")
    {
        unchunked(body)
    } else {
        body.to_vec()
    };
    Answer {
        status,
        headers,
        body: String::from_utf8(body).unwrap(),
    }
}

fn unchunked(mut bytes: &[u8]) -> Vec<u8> {
    let mut all = Vec::new();
    while let Some(at) = bytes.windows(2).position(|window| window == b"\r\n") {
        let length = usize::from_str_radix(std::str::from_utf8(&bytes[..at]).unwrap(), 16).unwrap();
        if length == 0 {
            break;
        }
        // A stream that was cut ends within a chunk.
        let end = (at + 2 + length).min(bytes.len());
        all.extend_from_slice(&bytes[at + 2..end]);
        bytes = bytes.get(end + 2..).unwrap_or_default();
    }
    all
}

/// The path of chats.
pub(crate) const CHAT: &str = "/v1/chat/completions";

/// The longest that a test waits for anything.
const PATIENCE: Duration = Duration::from_mins(2);
