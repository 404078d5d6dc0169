// The official Node client against the program. The address of one that serves the demo model is in CIDER_URL, that of
// one with a template for tools in CIDER_TOOLS_URL, and that of one that needs the key "right" in CIDER_KEY_URL. The
// pictures of the demo model are in CIDER_EXAMPLES.

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { test } from "node:test";
import { pathToFileURL } from "node:url";

import OpenAI, { toFile } from "openai";

const model = "demo-vlm";
const messages = [{ role: "user", content: "What is Cider?" }];
const examples = pathToFileURL(`${process.env.CIDER_EXAMPLES}/`);

const client = connect("CIDER_URL");

function connect(name, apiKey = "none") {
  // No second try: a refusal is to be seen.
  return new OpenAI({ baseURL: `${process.env[name]}/v1`, apiKey, maxRetries: 0, timeout: 60_000 });
}

function ask(fields = {}, from = client) {
  return from.chat.completions.create({ model, messages, temperature: 0, ...fields });
}

async function text(fields) {
  return (await ask(fields)).choices[0].message.content;
}

test("models", async () => {
  const { data } = await client.models.list();
  assert.deepEqual(data.map(({ id }) => id), [model]);
  assert.deepEqual(await client.models.retrieve(model), data[0]);
});

test("a chat", async () => {
  const answer = await ask();
  assert.equal(answer.choices.length, 1);
  assert.equal(answer.choices[0].message.role, "assistant");
  assert.equal(answer.choices[0].finish_reason, "stop");
  assert.equal(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens);
});

test("a stream and its usage", async () => {
  const chunks = [];
  for await (const chunk of await ask({ stream: true, stream_options: { include_usage: true } })) chunks.push(chunk);
  const streamed = chunks.map((chunk) => chunk.choices[0]?.delta.content ?? "").join("");
  const whole = await ask();
  assert.equal(streamed, whole.choices[0].message.content);
  assert.ok(chunks.length > 5, "it comes piece by piece");
  assert.deepEqual(chunks.at(-1).choices, []);
  assert.equal(chunks.at(-1).usage.completion_tokens, whole.usage.completion_tokens);
});

test("the helper for streams", async () => {
  const stream = client.chat.completions.stream({ model, messages, temperature: 0 });
  let heard = "";
  stream.on("content", (delta) => (heard += delta));
  assert.equal((await stream.finalChatCompletion()).choices[0].message.content, heard);
  assert.equal(heard, await text());
});

test("a stream that is aborted", async () => {
  const stream = await ask({ stream: true, ignore_eos: true, max_tokens: 3000 });
  for await (const _ of stream) break;
  const start = Date.now();
  let size = 1;
  while (size && Date.now() - start < 5000) {
    size = (await (await fetch(`${process.env.CIDER_URL}/v1/queue`)).json()).queue_size;
  }
  assert.equal(size, 0);
});

test("pictures", async () => {
  const list = JSON.parse(await readFile(new URL("examples.json", examples), "utf8"));
  for (const example of list.filter(({ images }) => images.length === 1).slice(0, 3)) {
    const data = await readFile(new URL(example.images[0], examples), "base64");
    const content = [
      { type: "text", text: example.question },
      { type: "image_url", image_url: { url: `data:image/png;base64,${data}` } },
    ];
    // The model was trained with the picture before the question.
    assert.equal(await text({ messages: [{ role: "user", content: content.reverse() }] }), example.answer);
  }
});

test("several answers and their log probabilities", async () => {
  const { choices } = await ask({ n: 3, temperature: 2, seed: 4, logprobs: true, top_logprobs: 3, max_tokens: 8 });
  assert.deepEqual(choices.map(({ index }) => index), [0, 1, 2]);
  for (const { message, logprobs } of choices) {
    const bytes = logprobs.content.flatMap((token) => token.bytes);
    assert.equal(Buffer.from(bytes).toString(), message.content);
    assert.ok(logprobs.content.every((token) => token.top_logprobs.length === 3));
  }
});

test("a schema", async () => {
  const schema = {
    type: "object",
    properties: { color: { enum: ["red", "blue"] }, count: { type: "integer", minimum: 0, maximum: 9 } },
    required: ["color", "count"],
    additionalProperties: false,
  };
  const answer = await client.chat.completions.parse({
    model,
    messages,
    temperature: 0,
    max_tokens: 1000,
    response_format: { type: "json_schema", json_schema: { name: "scene", strict: true, schema } },
  });
  const scene = JSON.parse(answer.choices[0].message.content);
  assert.deepEqual(Object.keys(scene), ["color", "count"]);
  assert.ok(["red", "blue"].includes(scene.color) && Number.isInteger(scene.count));
});

const parameters = { type: "object", properties: { city: { enum: ["Paris", "Rome"] } }, required: ["city"], additionalProperties: false };
const tools = [{ type: "function", function: { name: "weather", description: "The weather of a city", parameters } }];

test("a call", async () => {
  const fields = { tools, tool_choice: "required", parallel_tool_calls: false };
  const answer = await ask(fields, connect("CIDER_TOOLS_URL"));
  const [choice] = answer.choices;
  assert.equal(choice.finish_reason, "tool_calls");
  assert.equal(choice.message.tool_calls.length, 1);
  assert.equal(choice.message.tool_calls[0].function.name, "weather");
  assert.ok(["Paris", "Rome"].includes(JSON.parse(choice.message.tool_calls[0].function.arguments).city));
});

test("a call in a stream, and its result", async () => {
  const from = connect("CIDER_TOOLS_URL");
  const stream = from.chat.completions.stream({ model, messages, tools, temperature: 0, tool_choice: "required", parallel_tool_calls: false });
  const { message } = (await stream.finalChatCompletion()).choices[0];
  const [call] = message.tool_calls;
  assert.ok(["Paris", "Rome"].includes(JSON.parse(call.function.arguments).city));
  const result = { role: "tool", tool_call_id: call.id, content: "Rain" };
  const answer = await ask({ messages: [...messages, message, result], tools, tool_choice: "none", max_tokens: 20 }, from);
  assert.equal(typeof answer.choices[0].message.content, "string");
});

test("a raw text", async () => {
  const answer = await client.completions.create({ model, prompt: "The image shows", temperature: 0, max_tokens: 5 });
  assert.equal(answer.choices[0].finish_reason, "length");
  assert.ok(answer.choices[0].text);
});

for (const [fields, code, param] of [
  [{ temperature: 3 }, "invalid_value", "temperature"],
  [{ messages: [] }, "invalid_value", "messages"],
  [{ tools }, "unsupported_parameter", "tools"],
  [{ messages: [{ role: "user", content: "word ".repeat(9000) }] }, "context_length_exceeded", "messages"],
]) {
  test(`a bad request: ${code} of ${param}`, async () => {
    await assert.rejects(ask(fields), (error) => {
      assert.ok(error instanceof OpenAI.BadRequestError);
      assert.deepEqual([error.status, error.code, error.param, error.type], [400, code, param, "invalid_request_error"]);
      return true;
    });
  });
}

test("other refusals", async () => {
  await assert.rejects(client.models.retrieve("other"), OpenAI.NotFoundError);
  await assert.rejects(client.files.create({ file: await toFile("text", "a.txt"), purpose: "assistants" }), OpenAI.NotFoundError);
  await assert.rejects(connect("CIDER_KEY_URL", "wrong").models.list(), OpenAI.AuthenticationError);
  assert.equal((await connect("CIDER_KEY_URL", "right").models.list()).data.length, 1);
});
