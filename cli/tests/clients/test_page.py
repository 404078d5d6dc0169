"""The chat page in Chromium, against the program and its demo model."""

import base64
import json
import os
import re
import shutil
from pathlib import Path

import pytest
from conftest import ROOT, picture, serving
from playwright.sync_api import expect, sync_playwright

AXE = ROOT / "target/clients/node/node_modules/axe-core/axe.min.js"
# What would run if text became a part of the page; each leaves a mark.
MARKUP = [
    "<img src=x onerror=window.broken=1>",
    "<script>window.broken=1</script>",
    "<svg onload=window.broken=1></svg>",
    "<iframe srcdoc='<script>parent.broken=1</script>'></iframe>",
    "[a](javascript:window.broken=1)",
    "<a href=javascript:window.broken=1>b</a>",
    "![p](http://example.com/p.png)",
    "```html\n<img src=x onerror=window.broken=1>\n```",
    "- **<b onmouseover=window.broken=1>bold</b>**\n- `<i onload=1>`",
    "| <img src=x onerror=window.broken=1> | b |\n|---|---|\n| <script>window.broken=1</script> | d |",
    "```<img/src=x/onerror=window.broken=1>\ncode",
]
HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
}


def chromium():
    path = os.environ.get("CIDER_CHROMIUM") or shutil.which("chromium")
    if path:
        return path
    if os.environ.get("CIDER_BROWSER") == "required":
        pytest.fail("chromium is missing, and this run must not do without it")
    pytest.skip("chromium is missing: apt-get install chromium, or name one in CIDER_CHROMIUM")


@pytest.fixture(scope="session")
def browser():
    path = chromium()
    with sync_playwright() as playwright:
        # Its sandbox needs rights that containers do not have. The one page it opens is ours.
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


class Chat:
    """The page, and what it asked for and complained of so far."""

    def __init__(self, page, url):
        self.page, self.url, self.requests, self.complaints = page, url, [], []
        page.on("request", lambda request: self.requests.append(request))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", lambda line: line.type == "error" and self.complaints.append(line.text))
        page.on("dialog", lambda dialog: self.complaints.append(f"dialog: {dialog.message}"))
        self.answer = page.get_by_role("article", name="Answer").last
        self.message = page.get_by_role("textbox", name="Message", exact=True)
        page.goto(url + "/")

    def ask(self, text):
        self.message.fill(text)
        self.message.press("Enter")

    def wait_for_answer(self):
        expect(self.answer).to_be_visible()
        expect(self.answer).not_to_have_attribute("aria-busy", "true", timeout=30_000)
        return self.answer.locator(".words").inner_text()

    def change_requests(self, **fields):
        """From now on the server gets these fields too."""

        def send(route):
            body = {**json.loads(route.request.post_data), **fields}
            route.continue_(post_data=json.dumps(body))

        self.page.unroute("**/v1/chat/completions")
        self.page.route("**/v1/chat/completions", send)

    def answer_with(self, *deltas, finish="stop"):
        """From now on the page gets this stream in the place of an answer."""
        choices = [{"index": 0, "delta": delta} for delta in deltas]
        chunks = [{"choices": [choice]} for choice in choices]
        chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}], "timings": {"decode_tps": 12.5}})
        body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
        self.page.unroute("**/v1/chat/completions")
        self.page.route(
            "**/v1/chat/completions", lambda route: route.fulfill(content_type="text/event-stream", body=body)
        )

    def drop(self, *names):
        files = [{"name": name, "data": base64.b64encode(picture(name).read_bytes()).decode()} for name in names]
        transfer = self.page.evaluate_handle(
            """files => {
                const transfer = new DataTransfer();
                for (const {name, data} of files) {
                    const bytes = Uint8Array.from(atob(data), character => character.charCodeAt(0));
                    transfer.items.add(new File([bytes], name, {type: "image/png"}));
                }
                return transfer;
            }""",
            files,
        )
        for kind in ("dragenter", "dragover", "drop"):
            self.page.dispatch_event("main", kind, {"dataTransfer": transfer})
        expect(self.page.get_by_role("list", name="Pictures to send").get_by_role("listitem")).to_have_count(len(names))

    def is_unbroken(self):
        """Nothing that came as text has run or stands in the page as an element of its own."""
        assert self.page.evaluate("window.broken") is None
        assert self.page.locator("#conversation").locator("img, script, svg, iframe, a, b, i").count() == 0
        assert self.complaints == []

    def prompts(self):
        sent = [request for request in self.requests if request.url.endswith("/v1/chat/completions")]
        return [json.loads(request.post_data)["messages"] for request in sent]


@pytest.fixture
def open_chat(browser, server):
    contexts = []

    def open_chat(url=server.url, **options):
        contexts.append(browser.new_context(**{"reduced_motion": "reduce", **options}))
        return Chat(contexts[-1].new_page(), url)

    yield open_chat
    for context in contexts:
        context.close()


@pytest.fixture
def chat(open_chat, server):
    chat = open_chat()
    expect(chat.message).to_be_focused()
    yield chat
    # Whatever was done: nothing outside of the server was asked for.
    assert {request.url.startswith((server.url, "blob:")) for request in chat.requests} == {True}


# What it does


def test_a_question_streams_an_answer(chat):
    expect(chat.page.get_by_text("demo-vlm · w8a8")).to_be_visible()
    sizes = chat.page.evaluate_handle(
        """() => {
            const sizes = [];
            const see = () => sizes.push(document.querySelector("#conversation .words")?.textContent.length ?? 0);
            new MutationObserver(see).observe(document.body, {subtree: true, childList: true, characterData: true});
            return sizes;
        }"""
    )
    chat.change_requests(ignore_eos=True, max_tokens=400)
    chat.ask("What is Cider?")
    text = chat.wait_for_answer()
    assert text.startswith("Cider is a program")
    assert len(set(sizes.json_value())) > 3, "it grows while it comes"
    facts = chat.answer.locator(".facts").inner_text()
    assert re.search(r"prefill [\d,.]+ tok/s\s+decode [\d,.]+ tok/s\s+[\d,]+.* \+ 400 tokens\s+cut at the limit", facts)
    expect(chat.message).to_be_focused()
    assert chat.complaints == []


def test_a_conversation_goes_on(chat):
    chat.ask("What is Cider?")
    first = chat.wait_for_answer()
    chat.ask("Thank you")
    expect(chat.page.get_by_role("article", name="Answer")).to_have_count(2)
    chat.wait_for_answer()
    roles = [(message["role"], message["content"]) for message in chat.prompts()[1]]
    assert roles == [("user", "What is Cider?"), ("assistant", first), ("user", "Thank you")]
    chat.page.get_by_role("button", name="New chat").click()
    expect(chat.page.get_by_role("article")).to_have_count(0)
    chat.ask("Hello")
    chat.wait_for_answer()
    assert len(chat.prompts()[2]) == 1


def test_a_dropped_picture_is_described(chat, examples):
    example = examples[0]
    chat.drop(*example["images"])
    expect(chat.page.get_by_role("img", name=example["images"][0])).to_be_visible()
    chat.ask(example["question"])
    assert chat.wait_for_answer() == example["answer"]
    expect(chat.page.get_by_role("article", name="You").get_by_role("img")).to_be_visible()
    expect(chat.page.get_by_role("list", name="Pictures to send")).to_be_hidden()
    assert chat.complaints == []


def test_a_chosen_and_a_removed_picture(chat, examples):
    other, example = examples[1], examples[0]
    with chat.page.expect_file_chooser() as chooser:
        chat.page.get_by_role("button", name="Add picture").click()
    chooser.value.set_files([picture(other["images"][0]), picture(example["images"][0])])
    chat.page.get_by_role("button", name=f"Remove {other['images'][0]}").click()
    chat.ask(example["question"])
    assert chat.wait_for_answer() == example["answer"]


def test_a_pasted_picture(chat, examples):
    example = examples[0]
    data = base64.b64encode(picture(example["images"][0]).read_bytes()).decode()
    chat.page.evaluate(
        """data => {
            const transfer = new DataTransfer();
            const bytes = Uint8Array.from(atob(data), character => character.charCodeAt(0));
            transfer.items.add(new File([bytes], "pasted.png", {type: "image/png"}));
            const event = new ClipboardEvent("paste", {clipboardData: transfer, bubbles: true, cancelable: true});
            document.activeElement.dispatchEvent(event);
        }""",
        data,
    )
    expect(chat.page.get_by_role("img", name="pasted.png")).to_be_visible()
    chat.ask(example["question"])
    assert chat.wait_for_answer() == example["answer"]


def test_a_file_that_is_no_picture(chat):
    chat.page.set_input_files("#files", {"name": "a.png", "mimeType": "image/png", "buffer": b"not a picture"})
    expect(chat.page.get_by_role("alert")).to_have_text("A.png is no picture that can be read.")


def test_stop(chat, server):
    chat.change_requests(ignore_eos=True, max_tokens=3500)
    for stop in (lambda: chat.page.get_by_role("button", name="Stop").click(), lambda: chat.page.keyboard.press("Escape")):
        chat.ask("What is Cider?")
        expect(chat.answer.locator(".words")).not_to_be_empty()
        stop()
        expect(chat.answer.locator(".facts")).to_contain_text("stopped")
        assert server.wait_until_idle() < 2
        expect(chat.page.get_by_role("button", name="Send")).to_be_visible()
        assert len(chat.answer.inner_text()) > 5
    # What was said so far is a part of the conversation.
    assert [message["role"] for message in chat.prompts()[1]] == ["user", "assistant", "user"]


def test_a_refusal_is_shown_and_tried_again(chat):
    chat.change_requests(temperature=99)
    chat.ask("What is Cider?")
    expect(chat.page.get_by_role("alert").filter(has_text="emperature")).to_be_visible()
    chat.page.unroute("**/v1/chat/completions")
    chat.page.get_by_role("button", name="Try again").click()
    assert chat.wait_for_answer().startswith("Cider")
    assert [len(messages) for messages in chat.prompts()] == [1, 1]


def test_an_answer_that_breaks_off(chat):
    chat.page.route(
        "**/v1/chat/completions",
        lambda route: route.fulfill(
            content_type="text/event-stream", body='data: {"choices":[{"index":0,"delta":{"content":"half"}}]}\n\n'
        ),
    )
    chat.ask("Hello")
    expect(chat.answer.get_by_role("alert")).to_contain_text("ended before the answer was complete")
    expect(chat.answer.locator(".words")).to_have_text("half")


def test_settings_reach_the_server(chat):
    chat.page.get_by_role("button", name="Settings").click()
    chat.page.get_by_label("System message").fill("Be brief.")
    chat.page.get_by_label("Temperature").fill("0.5")
    chat.page.get_by_label("Most tokens").fill("3")
    chat.page.get_by_role("button", name="Done").click()
    chat.ask("What is Cider?")
    chat.wait_for_answer()
    sent = json.loads(next(request for request in chat.requests if request.method == "POST").post_data)
    assert sent["messages"][0] == {"role": "system", "content": "Be brief."}
    assert (sent["temperature"], sent["max_completion_tokens"]) == (0.5, 3)
    expect(chat.answer.locator(".facts")).to_contain_text("cut at the limit")


# What it must not do


def test_markup_of_the_model_is_text(chat):
    # The model itself says it: the expression leaves it no choice.
    for markup in MARKUP[:3]:
        chat.change_requests(guided_regex=re.sub(r"([^\w<> =/])", r"\\\1", markup))
        chat.ask("Say it")
        assert chat.wait_for_answer() == markup
        chat.is_unbroken()


def test_markup_in_a_stream_is_text(chat):
    for at, markup in enumerate(MARKUP):
        # Piece by piece, so that it passes through every half of itself.
        chat.answer_with(*[{"content": character} for character in markup], {"content": f"\n\n{markup}"})
        chat.ask("Say it")
        expect(chat.page.get_by_role("article", name="Answer")).to_have_count(at + 1)
        text = chat.wait_for_answer()
        for word in re.findall(r"\w+", re.sub(r"```\S*|javascript:", "", markup)):
            assert word in text
        chat.is_unbroken()


def test_markup_of_the_user_is_text(chat):
    chat.answer_with({"reasoning_content": "\n".join(MARKUP)}, {"content": "so"})
    chat.ask("\n".join(MARKUP))
    chat.wait_for_answer()
    assert chat.page.get_by_role("article", name="You").inner_text() == "\n".join(MARKUP)
    chat.page.get_by_text("Thought").click()
    assert MARKUP[0] in chat.answer.inner_text()
    chat.is_unbroken()


def test_markup_in_an_error_and_in_a_name(chat):
    error = {"error": {"message": MARKUP[0], "type": "a", "param": None, "code": "b"}}
    chat.page.route("**/v1/chat/completions", lambda route: route.fulfill(status=400, json=error))
    chat.page.set_input_files(
        "#files", {"name": MARKUP[0], "mimeType": "image/png", "buffer": picture("00-describe.png").read_bytes()}
    )
    chat.ask("Hello")
    expect(chat.answer.get_by_role("alert")).to_have_text(MARKUP[0] + ".")
    assert chat.page.evaluate("window.broken") is None


def test_markdown(chat):
    text = (
        "# Title\n\nSome **bold**, *slanted* and `code`\nin 2 * 3 * 4 lines_of_words.\n\n3. three\n4. four\n   - inner\n\n"
        "```rust\nlet a = 1;\n\n* b *\n```\n> quoted\n\n| a | b |\n|---|--:|\n| 1 | 2 |\n\nIntro:\n- last"
    )
    chat.answer_with(*[{"content": text[at : at + 7]} for at in range(0, len(text), 7)])
    chat.ask("Show")
    chat.wait_for_answer()
    expect(chat.answer).to_match_aria_snapshot(
        """
        - article "Answer":
          - heading "Title" [level=3]
          - paragraph:
            - text: Some
            - strong: bold
            - text: ","
            - emphasis: slanted
            - text: and
            - code: code
            - text: in 2 * 3 * 4 lines_of_words.
          - list:
            - listitem: three
            - listitem:
              - text: four
              - list:
                - listitem: inner
          - region "Code, rust":
            - code: "let a = 1; * b *"
          - blockquote:
            - paragraph: quoted
          - region "Table":
            - table:
              - rowgroup:
                - row "a b":
                  - columnheader "a"
                  - columnheader "b"
              - rowgroup:
                - row "1 2":
                  - cell "1"
                  - cell "2"
          - paragraph: "Intro:"
          - list:
            - listitem: last
        """
    )
    assert chat.answer.locator("ol").get_attribute("start") == "3"
    assert chat.answer.locator("pre").text_content() == "let a = 1;\n\n* b *"


def test_hostile_markdown_takes_no_longer(chat):
    # Many openings that nothing closes; a second is what a second of the model's work may cost.
    taken = chat.page.evaluate(
        """async () => {
            const { show } = await import("/page/markdown.js");
            const texts = ["*", "_", "**", "`", "~~", "- ", "> ", "#", "|", "* _ ** ` "].map(mark => mark.repeat(4000));
            texts.push("> ".repeat(300) + "deep", Array.from({length: 300}, (_, at) => " ".repeat(2 * at) + "- a").join("\\n"));
            const start = performance.now();
            for (const text of texts) show(document.createElement("div"), text);
            return performance.now() - start;
        }"""
    )
    assert taken < 3000


def test_the_key_stays_out_of_urls(open_chat, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("very-secret\n")
    with serving("--api-key-file", keys) as server:
        chat = open_chat(server.url)
        # The page is there without a key, and asks for one.
        dialog = chat.page.get_by_role("dialog", name="Settings")
        expect(dialog).to_be_visible()
        expect(chat.page.get_by_label("API key")).to_be_focused()
        chat.page.keyboard.type("very-secret")
        chat.page.keyboard.press("Enter")
        expect(dialog).to_be_hidden()
        expect(chat.page.get_by_text("demo-vlm · w8a8")).to_be_visible()
        chat.ask("What is Cider?")
        assert chat.wait_for_answer().startswith("Cider")
        chat.page.reload()
        expect(chat.page.get_by_text("demo-vlm · w8a8")).to_be_visible()
        assert not [request.url for request in chat.requests if "secret" in request.url]
        assert "secret" not in chat.page.url + json.dumps(chat.page.context.cookies())
        assert chat.page.evaluate("Object.values(localStorage).length") == 0
        assert "very-secret" not in "".join(server.log)
        with_key = [request for request in chat.requests if "authorization" in request.headers]
        assert with_key and all(request.url.startswith(server.url + "/v1/") for request in with_key)


def test_headers(chat, server):
    for path in ("/", "/page/chat.js", "/page/events.js", "/page/markdown.js", "/page/chat.css", "/page/icon.svg"):
        headers = chat.page.request.get(server.url + path).headers
        assert {name: headers.get(name) for name in HEADERS} == HEADERS, path
        policy = [part.strip() for part in headers["content-security-policy"].split(";")]
        assert "default-src 'self'" in policy and "frame-ancestors 'none'" in policy, path
        assert "unsafe" not in headers["content-security-policy"], path


def test_no_frame_and_no_foreign_script(open_chat, server):
    chat = open_chat()
    assert chat.page.evaluate(
        """() => new Promise(resolve => {
            document.addEventListener("securitypolicyviolation", event => resolve(event.effectiveDirective));
            try { document.body.innerHTML = "<p>"; } catch { resolve("trusted types"); }
        })"""
    ) == "trusted types"
    framed = open_chat().page
    framed.route("http://framing.test/", lambda route: route.fulfill(content_type="text/html", body=f"<iframe src={server.url}></iframe>"))
    framed.goto("http://framing.test/")
    framed.wait_for_timeout(500)
    assert [frame.locator("#text").count() for frame in framed.frames] == [0] * len(framed.frames)


# How it is used


def test_the_keyboard_is_enough(chat, examples):
    keys = chat.page.keyboard
    focused = lambda: chat.page.evaluate("document.activeElement.id || document.activeElement.ariaLabel")
    chat.drop(*examples[0]["images"])
    keys.type("two")
    keys.press("Shift+Enter")
    keys.type("lines")
    assert chat.message.input_value() == "two\nlines"
    order = []
    for _ in range(4):
        keys.press("Tab")
        order.append(focused())
    # Behind the last comes the browser itself, then the page from its beginning.
    assert order[:2] == ["attach", "send"]
    chat.message.focus()
    order = []
    for _ in range(4):
        keys.press("Shift+Tab")
        order.append(focused())
    assert order == ["Remove 00-describe.png", "scroller", "open-settings", "fresh"]
    keys.press("Tab")
    keys.press("Enter")
    expect(chat.page.get_by_role("dialog")).to_be_visible()
    keys.press("Escape")
    assert focused() == "open-settings"
    chat.page.get_by_role("button", name="Remove").focus()
    keys.press("Enter")
    expect(chat.message).to_be_focused()
    chat.message.fill("What is Cider?")
    keys.press("Tab")
    keys.press("Tab")
    assert focused() == "send"
    keys.press("Space")
    chat.wait_for_answer()
    assert focused() == "send", "whoever sent is where he was"


def test_what_a_screen_reader_is_told(chat):
    page = chat.page
    expect(page.locator("body")).to_match_aria_snapshot(
        """
        - banner:
          - heading "Cider" [level=1]
          - paragraph: demo-vlm · w8a8
          - button "New chat"
          - button "Settings"
        - main "Conversation":
          - paragraph: What would you like to know?
          - paragraph: Pictures can be dropped or pasted anywhere.
          - log "Messages"
        - contentinfo:
          - form "Your message":
            - textbox "Message"
            - button "Add picture"
            - paragraph: Enter sends, Shift+Enter starts a line
            - button "Send" [disabled]
          - alert
          - status
        """
    )
    chat.ask("What is Cider?")
    text = chat.wait_for_answer()
    expect(page.get_by_role("status")).to_have_text(f"Answer: {text}")
    page.get_by_role("button", name="Settings").click()
    for name in ("API key", "System message", "Temperature", "Most tokens"):
        expect(page.get_by_role("dialog").get_by_label(name)).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 1280])
def test_it_can_be_read(open_chat, scheme, width, examples):
    """No rule of accessibility that a program can check is broken, and nothing is wider than the window."""
    chat = open_chat(color_scheme=scheme, viewport={"width": width, "height": 700})
    rules = AXE.read_text()
    chat.answer_with(
        {"reasoning_content": "hm"},
        {"content": "**Bold** `code`\n\n> quoted\n\n```\n" + "wide " * 60 + "\n```\n\n| a | b |\n|---|---|\n" + "| 1 | 2 |\n" + "x" * 300},
    )
    chat.drop(*examples[0]["images"])
    chat.ask("A question " + "y" * 200)
    chat.wait_for_answer()
    chat.page.set_input_files("#files", picture("01-count.png"))
    expect(chat.page.get_by_role("list", name="Pictures to send")).to_be_visible()

    def check():
        chat.page.evaluate(rules)
        found = chat.page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
        assert [(rule["id"], rule["nodes"][0]["html"], rule["nodes"][0]["failureSummary"]) for rule in found] == []

    check()
    assert chat.page.evaluate("document.documentElement.scrollWidth") == width
    assert chat.page.evaluate("document.querySelector('main').scrollWidth <= document.querySelector('main').clientWidth")
    chat.page.get_by_role("button", name="Settings").click()
    check()
    background = chat.page.evaluate("getComputedStyle(document.body).backgroundColor")
    brightness = sum(map(int, re.findall(r"\d+", background)[:3]))
    assert (brightness > 600) == (scheme == "light")
    if folder := os.environ.get("CIDER_SCREENSHOTS"):
        chat.page.screenshot(path=Path(folder, f"{scheme}-{width}-settings.png"))
        chat.page.keyboard.press("Escape")
        chat.page.screenshot(path=Path(folder, f"{scheme}-{width}.png"))


def test_it_follows_an_answer_unless_one_reads_above(chat):
    lines = "\n\n".join(f"line {at}" for at in range(80))
    chat.answer_with({"content": lines})
    chat.ask("Count")
    chat.wait_for_answer()
    distance = "main => main.scrollHeight - main.scrollTop - main.clientHeight"
    assert chat.page.locator("main").evaluate(distance) < 80
