// The chat: what is on the page, what was said, and what goes to the server.

import { events } from "./events.js";
import { show } from "./markdown.js";

const $ = (id) => document.getElementById(id);

/** Questions and their answers, in order. Those that failed are shown and not sent again. */
let turns = [];
/** Pictures that go with the next question. */
let pictures = [];
/** What ends the answer that is being written, if one is. */
let running = null;
/** The server's model; unknown until the server has told. */
let model = null;

async function learnModel() {
  try {
    const response = await fetch("v1/models", { headers: authorization() });
    if (!response.ok) throw await refusal(response);
    const { data } = await response.json();
    model = data[0];
  } catch (error) {
    $("model").textContent = "";
    complain(error);
    return;
  }
  $("notice").textContent = "";
  $("model").textContent = `${model.id} · ${model.scheme}`;
  $("model").title = `${number(model.max_model_len)} tokens of context`;
  document.title = `${model.id} · Cider`;
  $("attach").hidden = !model.vision;
  $("hint").textContent = model.vision ? "Pictures can be dropped or pasted anywhere." : "";
}

async function send() {
  if (running) return;
  const text = $("text").value.trim();
  if (!text && !pictures.length) return;
  const turn = { text, pictures, answer: "", thought: "", failed: false };
  pictures = [];
  $("text").value = "";
  drawPictures();
  await ask(turn);
}

/** Puts a question to the server and shows what comes. */
async function ask(turn) {
  const messages = [...conversation(), question(turn)];
  turns.push(turn);
  $("notice").textContent = "";
  $("empty").hidden = true;
  turn.question = drawQuestion(turn);
  turn.view = new Answer();
  $("conversation").append(turn.question, turn.view.node);
  $("scroller").scrollTop = $("scroller").scrollHeight;
  running = new AbortController();
  drawSend();
  say("Answering");
  try {
    await receive(turn, messages, running.signal);
    turn.view.end(turn);
    say(turn.answer ? `Answer: ${turn.answer}` : "The answer is empty");
  } catch (error) {
    fail(turn, error);
  } finally {
    running = null;
    drawSend();
  }
}

async function receive(turn, messages, signal) {
  const response = await fetch("v1/chat/completions", {
    method: "POST",
    headers: { "content-type": "application/json", ...authorization() },
    body: JSON.stringify({ messages, stream: true, stream_options: { include_usage: true }, ...wishes() }),
    signal,
  });
  if (!response.ok) throw await refusal(response);
  for await (const data of events(response.body)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Error(chunk.error.message);
    turn.usage = chunk.usage ?? turn.usage;
    turn.timings = chunk.timings ?? turn.timings;
    const choice = chunk.choices[0];
    if (!choice) continue;
    turn.answer += choice.delta.content ?? "";
    turn.thought += choice.delta.reasoning_content ?? "";
    turn.finish = choice.finish_reason ?? turn.finish;
    turn.view.later(turn);
  }
  throw new Error("the connection ended before the answer was complete");
}

function fail(turn, error) {
  const stopped = error.name === "AbortError";
  turn.failed = !stopped || !turn.answer;
  turn.finish = stopped ? "stopped" : "failed";
  turn.view.end(turn);
  turn.question.classList.toggle("failed", turn.failed);
  if (stopped) {
    say("Stopped");
    return;
  }
  turn.view.wrong(message(error), () => retry(turn));
  if (error.status === 401) openSettings();
}

function retry(turn) {
  if (running) return;
  turns = turns.filter((other) => other !== turn);
  turn.question.remove();
  turn.view.node.remove();
  $("text").focus();
  ask({ text: turn.text, pictures: turn.pictures, answer: "", thought: "", failed: false });
}

/** What was said so far, as the API has it. */
function conversation() {
  const system = $("system").value.trim();
  const said = turns.filter((turn) => !turn.failed);
  return [
    ...(system ? [{ role: "system", content: system }] : []),
    ...said.flatMap((turn) => [question(turn), { role: "assistant", content: turn.answer }]),
  ];
}

function question({ text, pictures }) {
  if (!pictures.length) return { role: "user", content: text };
  const images = pictures.map(({ url }) => ({ type: "image_url", image_url: { url } }));
  return { role: "user", content: [...images, ...(text ? [{ type: "text", text }] : [])] };
}

function wishes() {
  const wish = {};
  if ($("temperature").value !== "") wish.temperature = $("temperature").valueAsNumber;
  if ($("max-tokens").value !== "") wish.max_completion_tokens = $("max-tokens").valueAsNumber;
  return wish;
}

function authorization() {
  const key = $("key").value.trim();
  return key ? { authorization: `Bearer ${key}` } : {};
}

async function refusal(response) {
  let what = `the server answered ${response.status}`;
  try {
    what = (await response.json()).error.message;
  } catch {
    // Something between the server and this page answered.
  }
  return Object.assign(new Error(what), { status: response.status });
}

function message(error) {
  const what = error instanceof TypeError ? "the server cannot be reached" : error.message;
  return `${what.charAt(0).toUpperCase()}${what.slice(1)}.`;
}

function complain(error) {
  $("notice").textContent = message(error);
  if (error.status === 401) openSettings();
}

/** The view of an answer. */
class Answer {
  constructor() {
    this.words = make("div", "words");
    this.facts = make("div", "facts");
    this.node = make("article", "answer runs", this.words, this.facts);
    this.node.setAttribute("aria-label", "Answer");
    this.node.setAttribute("aria-busy", "true");
    this.frame = 0;
  }

  /** Shows it with the next frame: tokens come faster than screens are drawn. */
  later(turn) {
    this.frame ||= requestAnimationFrame(() => this.draw(turn));
  }

  draw(turn) {
    this.frame = 0;
    const scroller = $("scroller");
    const follows = scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < 80;
    if (turn.thought) this.drawThought(turn.thought);
    show(this.words, turn.answer);
    if (follows) scroller.scrollTop = scroller.scrollHeight;
  }

  drawThought(thought) {
    if (!this.thought) {
      this.thought = make("p", "");
      this.words.before(make("details", "", make("summary", "", "Thought"), this.thought));
    }
    this.thought.textContent = thought;
  }

  end(turn) {
    cancelAnimationFrame(this.frame);
    this.node.classList.remove("runs");
    this.node.removeAttribute("aria-busy");
    for (const fact of facts(turn)) this.facts.append(make("span", "", fact));
    if (turn.answer && navigator.clipboard) this.facts.prepend(copyButton(turn.answer));
    this.draw(turn);
  }

  wrong(what, again) {
    const line = make("p", "wrong", what);
    line.setAttribute("role", "alert");
    const button = make("button", "plain", "Try again");
    button.type = "button";
    button.addEventListener("click", again);
    this.facts.before(line);
    this.facts.prepend(button);
    $("scroller").scrollTop = $("scroller").scrollHeight;
  }
}

/** How fast it was and why it ended. */
function facts({ timings, usage, finish }) {
  const list = [];
  if (timings?.prefill_tps) list.push(`prefill ${number(timings.prefill_tps)} tok/s`);
  if (timings?.decode_tps) list.push(`decode ${number(timings.decode_tps)} tok/s`);
  if (usage) {
    const cached = usage.prompt_tokens_details.cached_tokens;
    const known = cached ? ` (${number(cached)} cached)` : "";
    list.push(`${number(usage.prompt_tokens)}${known} + ${number(usage.completion_tokens)} tokens`);
  }
  if (finish === "length") list.push("cut at the limit of tokens");
  if (finish === "stopped") list.push("stopped");
  return list;
}

function copyButton(text) {
  const button = make("button", "plain", "Copy");
  button.type = "button";
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      say("Copied");
    } catch {
      say("The browser does not let this page copy");
    }
  });
  return button;
}

function drawQuestion(turn) {
  const node = make("article", "question");
  node.setAttribute("aria-label", "You");
  if (turn.pictures.length) node.append(make("div", "thumbs", ...turn.pictures.map((picture) => canvas(picture, 240))));
  if (turn.text) node.append(make("p", "said", turn.text));
  return node;
}

function drawSend() {
  // The same button for both, so that whoever is on it stays on it.
  $("send").textContent = running ? "Stop" : "Send";
  const idle = !running && !$("text").value.trim() && !pictures.length;
  $("send").setAttribute("aria-disabled", String(idle));
}

function drawPictures() {
  const items = pictures.map((picture, at) => {
    const remove = make("button", "", "×");
    remove.type = "button";
    remove.setAttribute("aria-label", `Remove ${picture.name}`);
    remove.addEventListener("click", () => {
      pictures = pictures.filter((other) => other !== picture);
      drawPictures();
      const buttons = $("pictures").querySelectorAll("button");
      (buttons[Math.min(at, buttons.length - 1)] ?? $("text")).focus();
      say(`${picture.name} removed`);
    });
    return make("li", "", canvas(picture, 88), remove);
  });
  $("pictures").replaceChildren(...items);
  $("pictures").hidden = !pictures.length;
  drawSend();
}

/** A small copy of a picture. Drawn, so that the page needs no URL of what was dropped on it. */
function canvas({ bitmap, name }, most) {
  const scale = Math.min(1, most / Math.max(bitmap.width, bitmap.height));
  const node = make("canvas", "");
  node.width = Math.max(1, Math.round(bitmap.width * scale));
  node.height = Math.max(1, Math.round(bitmap.height * scale));
  node.getContext("2d").drawImage(bitmap, 0, 0, node.width, node.height);
  node.setAttribute("role", "img");
  node.setAttribute("aria-label", name);
  return node;
}

async function addPictures(files) {
  $("notice").textContent = "";
  if (model && !model.vision) {
    complain(new Error("the model takes no pictures"));
    return;
  }
  for (const file of files) {
    try {
      const [bitmap, url] = await Promise.all([createImageBitmap(file), dataUrl(file)]);
      pictures = [...pictures, { bitmap, url, name: file.name || "picture" }];
      say(`${file.name || "Picture"} added`);
    } catch {
      complain(new Error(`${file.name || "this"} is no picture that can be read`));
    }
  }
  drawPictures();
}

function dataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.addEventListener("load", () => resolve(reader.result));
    reader.addEventListener("error", () => reject(reader.error));
    reader.readAsDataURL(file);
  });
}

/** Tells those who hear the page. */
function say(what) {
  $("status").textContent = what;
}

function make(name, kind, ...children) {
  const node = document.createElement(name);
  if (kind) node.className = kind;
  node.append(...children);
  return node;
}

function number(value) {
  return value.toLocaleString("en", { maximumFractionDigits: value < 10 ? 1 : 0 });
}

function startAnew() {
  running?.abort();
  turns = [];
  pictures = [];
  $("conversation").replaceChildren();
  $("empty").hidden = false;
  $("notice").textContent = "";
  drawPictures();
  $("text").focus();
  say("New chat");
}

function openSettings() {
  if (!$("settings").open) $("settings").showModal();
}

function listen() {
  $("send").addEventListener("click", () => (running ? running.abort() : send()));
  $("text").addEventListener("input", drawSend);
  $("text").addEventListener("keydown", (event) => {
    // A key that chooses among the words of an input method does not send.
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && running && !$("settings").open) running.abort();
  });
  $("fresh").addEventListener("click", startAnew);
  $("open-settings").addEventListener("click", openSettings);
  $("settings").addEventListener("close", () => {
    if ($("key").value !== keyBefore) {
      keyBefore = $("key").value;
      sessionStorage.setItem("key", keyBefore);
      learnModel();
    }
  });
  listenForPictures();
}

function listenForPictures() {
  $("attach").addEventListener("click", () => $("files").click());
  $("files").addEventListener("change", async () => {
    await addPictures([...$("files").files]);
    $("files").value = "";
    $("text").focus();
  });
  document.addEventListener("paste", (event) => {
    const files = [...event.clipboardData.files];
    if (!files.length) return;
    event.preventDefault();
    addPictures(files);
  });
  // Whatever is dropped, the page stays: a browser would show the file in its place.
  for (const kind of ["dragenter", "dragover", "dragleave", "drop"]) {
    document.addEventListener(kind, (event) => {
      const hasFiles = event.dataTransfer.types.includes("Files");
      if (!hasFiles) return;
      event.preventDefault();
      const leaves = kind === "drop" || (kind === "dragleave" && !event.relatedTarget);
      $("drop").hidden = leaves;
      if (kind === "drop") addPictures([...event.dataTransfer.files]);
    });
  }
}

let keyBefore = sessionStorage.getItem("key") ?? "";
$("key").value = keyBefore;
listen();
drawSend();
learnModel();
