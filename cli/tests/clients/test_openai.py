"""The official Python client against the program: what it sends is understood, what it gets it understands."""

import asyncio
import base64
import json
import math
from typing import Literal

import openai
import pytest
from conftest import ROOT, picture, serving
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel, Field

MODEL = "demo-vlm"
QUESTION = [{"role": "user", "content": "What is Cider?"}]
LONG = {"extra_body": {"ignore_eos": True}, "max_tokens": 3000}


@pytest.fixture(scope="module")
def client(server):
    with connected(server) as client:
        yield client


def connected(server, key="none"):
    # No second try: a refusal is to be seen.
    return OpenAI(base_url=server.url + "/v1", api_key=key, max_retries=0, timeout=60)


def ask(client, messages=QUESTION, **fields):
    return client.chat.completions.create(model=MODEL, messages=messages, **{"temperature": 0, **fields})


def seen(name, question):
    data = base64.b64encode(picture(name).read_bytes()).decode()
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
    return {"role": "user", "content": [image, {"type": "text", "text": question}]}


# Models


def test_models(client):
    (model,) = client.models.list().data
    assert model.id == MODEL
    assert client.models.retrieve(MODEL) == model


# Chats


def test_chat(client):
    answer = ask(client, [{"role": "system", "content": "You are helpful."}, *QUESTION])
    (choice,) = answer.choices
    assert (answer.object, choice.index, choice.finish_reason) == ("chat.completion", 0, "stop")
    assert (choice.message.role, choice.message.tool_calls) == ("assistant", None)
    assert choice.message.content
    usage = answer.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.completion_tokens > 1


def test_several_turns(client):
    first = ask(client).choices[0].message
    answer = ask(client, [*QUESTION, first, {"role": "user", "content": "Thank you"}])
    assert answer.usage.prompt_tokens > ask(client).usage.prompt_tokens + 5


def test_the_limit_of_tokens(client):
    for name in ("max_tokens", "max_completion_tokens"):
        answer = ask(client, **{name: 3})
        assert (answer.choices[0].finish_reason, answer.usage.completion_tokens) == ("length", 3)


def test_a_stop_string(client):
    whole = ask(client).choices[0].message.content
    stop = whole[len(whole) // 2 :][:4]
    answer = ask(client, stop=[stop, "never said"]).choices[0]
    assert (answer.message.content, answer.finish_reason) == (whole[: whole.index(stop)], "stop")


def test_a_seed_gives_the_same_answer_again(client):
    def sampled(seed):
        return [choice.message.content for choice in ask(client, temperature=2, seed=seed, n=3).choices]

    assert sampled(7) == sampled(7)
    assert sampled(7) != sampled(8)


def test_several_answers(client):
    answer = ask(client, temperature=2, n=4, seed=1)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert len({choice.message.content for choice in answer.choices}) > 1


def test_log_probabilities(client):
    answer = ask(client, logprobs=True, top_logprobs=5, max_tokens=8).choices[0]
    tokens = answer.logprobs.content
    assert b"".join(bytes(token.bytes) for token in tokens).decode() == answer.message.content
    for token in tokens:
        assert len(token.top_logprobs) == 5
        assert token.top_logprobs[0].logprob == token.logprob, "a greedy answer takes the likeliest"
        assert sum(math.exp(top.logprob) for top in token.top_logprobs) <= 1.0001


# Streams


def streamed(client, **fields):
    chunks = list(ask(client, stream=True, **fields))
    return chunks, "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def test_a_stream_is_the_answer(client):
    chunks, text = streamed(client)
    whole = ask(client).choices[0]
    assert text == whole.message.content
    assert len(chunks) > 5, "it comes piece by piece"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices[0].finish_reason == whole.finish_reason
    assert all(chunk.usage is None for chunk in chunks)
    assert len({chunk.id for chunk in chunks}) == 1


def test_the_usage_of_a_stream(client):
    chunks, _ = streamed(client, stream_options={"include_usage": True})
    assert chunks[-1].choices == []
    whole = ask(client).usage
    assert chunks[-1].usage.completion_tokens == whole.completion_tokens
    assert chunks[-1].usage.prompt_tokens == whole.prompt_tokens


def test_a_stream_of_several_answers(client):
    fields = {"n": 3, "seed": 5, "temperature": 1.2, "max_tokens": 16}
    texts = ["", "", ""]
    for chunk in ask(client, stream=True, **fields):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == [choice.message.content for choice in ask(client, **fields).choices]


def test_log_probabilities_of_a_stream(client):
    chunks, text = streamed(client, logprobs=True, top_logprobs=2, max_tokens=8)
    tokens = [token for chunk in chunks if chunk.choices and chunk.choices[0].logprobs for token in chunk.choices[0].logprobs.content]
    assert b"".join(bytes(token.bytes) for token in tokens).decode() == text


def test_the_helper_for_streams(client):
    with client.chat.completions.stream(model=MODEL, messages=QUESTION, temperature=0) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    assert "".join(deltas) == final.choices[0].message.content == ask(client).choices[0].message.content


def test_a_client_that_leaves_is_noticed(client, server):
    stream = ask(client, stream=True, **LONG)
    next(iter(stream))
    stream.close()
    assert server.wait_until_idle() < 1


# Pictures


def test_pictures(client, examples):
    lone = [example for example in examples if len(example["images"]) == 1][:4]
    for example in lone:
        answer = ask(client, [seen(example["images"][0], example["question"])])
        assert answer.choices[0].message.content == example["answer"]
        assert answer.usage.prompt_tokens > 64, "a picture counts with its tokens"


def test_a_picture_in_a_stream(client, examples):
    example = examples[0]
    _, text = streamed(client, messages=[seen(example["images"][0], example["question"])])
    assert text == example["answer"]


# Answers that keep to a rule


class Scene(BaseModel):
    color: Literal["red", "green", "blue"]
    count: int = Field(ge=0, le=20)
    round: bool
    words: list[Literal["big", "small"]] = Field(max_length=2)


def test_a_schema(client):
    answer = client.chat.completions.parse(model=MODEL, messages=QUESTION, response_format=Scene, temperature=0, max_tokens=1000)
    scene = answer.choices[0].message.parsed
    assert isinstance(scene, Scene)
    assert scene.color in ("red", "green", "blue")


def test_a_schema_in_a_stream(client):
    with client.chat.completions.stream(
        model=MODEL, messages=QUESTION, response_format=Scene, temperature=1.5, seed=3, max_tokens=1000
    ) as stream:
        final = stream.get_final_completion()
    assert isinstance(final.choices[0].message.parsed, Scene)


def test_an_object(client):
    answer = ask(client, response_format={"type": "json_object"}, max_tokens=300).choices[0]
    if answer.finish_reason == "stop":
        assert isinstance(json.loads(answer.message.content), dict)
    else:
        assert answer.message.content.lstrip().startswith("{")


def test_an_expression(client):
    answer = ask(client, extra_body={"guided_regex": "(yes|no), [0-9]{3}"}).choices[0]
    assert answer.message.content.split(", ")[0] in ("yes", "no")
    assert len(answer.message.content.split(", ")[1]) == 3


# Tools


class Weather(BaseModel):
    """The weather of a city."""

    city: Literal["Paris", "Rome"]
    days: int = Field(ge=1, le=9)


TOOLS = [openai.pydantic_function_tool(Weather), openai.pydantic_function_tool(Scene)]
NAMED = {"type": "function", "function": {"name": "Weather"}}


@pytest.fixture(scope="module")
def tool_client():
    with serving("--chat-template", ROOT / "cli/tests/clients/tools.jinja") as server, connected(server) as client:
        yield client


def test_a_call(tool_client):
    answer = tool_client.chat.completions.parse(
        model=MODEL, messages=QUESTION, tools=TOOLS, tool_choice=NAMED, temperature=0, parallel_tool_calls=False
    )
    (choice,) = answer.choices
    (call,) = choice.message.tool_calls
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    assert (call.type, call.function.name) == ("function", "Weather")
    assert isinstance(call.function.parsed_arguments, Weather)


def test_a_call_in_a_stream(tool_client):
    fields = {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False}
    chunks = list(ask(tool_client, stream=True, **fields))
    deltas = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []]
    assert len(deltas) > 2, "its arguments come piece by piece"
    assert deltas[0].id and deltas[0].function.name in ("Weather", "Scene")
    assert all(call.id is None and call.function.name is None for call in deltas[1:])
    assert chunks[-1].choices[0].finish_reason == "tool_calls"
    arguments = "".join(call.function.arguments for call in deltas)
    (call,) = ask(tool_client, **fields).choices[0].message.tool_calls
    assert json.loads(arguments) == json.loads(call.function.arguments)


def test_the_result_of_a_call(tool_client):
    made = ask(tool_client, tools=TOOLS, tool_choice=NAMED, parallel_tool_calls=False).choices[0].message
    result = {"role": "tool", "tool_call_id": made.tool_calls[0].id, "content": "Rain"}
    answer = ask(tool_client, [*QUESTION, made, result], tools=TOOLS, tool_choice="none", max_tokens=20).choices[0]
    assert answer.message.tool_calls is None
    assert answer.message.content is not None


# Raw texts


def test_a_raw_text(client):
    answer = client.completions.create(model=MODEL, prompt="The image shows", temperature=0, max_tokens=5, logprobs=2)
    (choice,) = answer.choices
    assert "".join(choice.logprobs.tokens) == choice.text
    assert choice.finish_reason == "length"
    stream = client.completions.create(model=MODEL, prompt="The image shows", temperature=0, max_tokens=5, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == choice.text


# Refusals


@pytest.mark.parametrize(
    "fields, code, param",
    [
        ({"temperature": 3}, "invalid_value", "temperature"),
        ({"n": 0}, "invalid_value", "n"),
        ({"top_logprobs": 3}, "invalid_value", "top_logprobs"),
        ({"messages": []}, "invalid_value", "messages"),
        ({"tools": TOOLS}, "unsupported_parameter", "tools"),
        ({"logit_bias": {"5": 1}}, "unsupported_parameter", "logit_bias"),
        ({"extra_body": {"guided_regex": "("}}, "invalid_grammar", "guided_regex"),
        ({"messages": [{"role": "user", "content": "word " * 9000}]}, "context_length_exceeded", "messages"),
    ],
)
def test_what_cannot_be_is_a_bad_request(client, fields, code, param):
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client, **fields)
    error = refused.value
    assert (error.status_code, error.code, error.param, error.type) == (400, code, param, "invalid_request_error")
    assert error.body["message"]


def test_a_picture_that_is_none(client):
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,bm90IGEgcGljdHVyZQ=="}}
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client, [{"role": "user", "content": [image]}])
    assert refused.value.code == "invalid_image"


def test_a_model_that_is_not_there(client):
    with pytest.raises(openai.NotFoundError) as refused:
        client.models.retrieve("other")
    assert refused.value.code == "model_not_found"


def test_a_path_that_is_not_there(client):
    with pytest.raises(openai.NotFoundError) as refused:
        client.embeddings.create(model=MODEL, input="text")
    assert refused.value.code == "not_found"


def test_keys(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("first-key\nsecond-key\n")
    with serving("--api-key-file", keys) as server:
        for key in ("first-key", "second-key"):
            assert connected(server, key).models.list().data
        with pytest.raises(openai.AuthenticationError) as refused:
            connected(server, "third-key").models.list()
    assert (refused.value.status_code, refused.value.code) == (401, "invalid_api_key")


def test_a_full_queue_and_a_deadline():
    with serving("--max-running", 1, "--queue", 1, "--request-timeout", 2) as server, connected(server) as client:
        streams = [ask(client, stream=True, **LONG) for _ in range(2)]
        with pytest.raises(openai.RateLimitError) as refused:
            ask(client)
        assert refused.value.code == "queue_full"
        assert int(refused.value.response.headers["retry-after"]) >= 1
        for stream in streams:
            stream.close()


def test_a_deadline_in_a_stream():
    with serving("--request-timeout", 0.2) as server, connected(server) as client:
        with pytest.raises(openai.APIError) as failed:
            for _ in ask(client, stream=True, **LONG):
                pass
        assert failed.value.code == "deadline_exceeded"
        with pytest.raises(openai.InternalServerError) as failed:
            ask(client, **LONG)
        assert (failed.value.status_code, failed.value.code) == (504, "deadline_exceeded")


# Many at once


def test_many_at_once_answer_as_alone(client, server, examples):
    requests = [[seen(example["images"][0], example["question"])] for example in examples if len(example["images"]) == 1]
    requests += [[{"role": "user", "content": text}] for text in ("What is Cider?", "Hello", "How fast are you?", "Who made you?")]
    alone = [ask(client, messages, max_tokens=40).choices[0].message.content for messages in requests]

    async def together():
        async with AsyncOpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
            asked = [
                client.chat.completions.create(model=MODEL, messages=messages, temperature=0, max_tokens=40) for messages in requests
            ]
            return [answer.choices[0].message.content for answer in await asyncio.gather(*asked)]

    assert asyncio.run(together()) == alone
