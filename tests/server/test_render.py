"""/v1/completions/render and /v1/chat/completions/render: the token ids of what the endpoints would
compute, with their validation and errors, and nothing computed."""

import re

import pytest

from conftest import DEMO, FIXTURES, wait_until
from openai_schema import check_error

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who was Lily?"}]
WEATHER = {"type": "function", "function": {
    "name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}
GREEDY = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}
TEXTS = ["Once upon a time", "", "Zoë ate a <s> cake\n\n", "a " * 50]


def render(daemon, kind, body):
    answer = daemon.post(f"/v1/{kind}/render", body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def check_shape(rendered, prefix):
    assert list(rendered) == ["request_id", "token_ids", "features"]
    assert re.fullmatch(prefix + "-[0-9a-f]{32}", rendered["request_id"])
    assert rendered["features"] is None
    return rendered["token_ids"]


@pytest.mark.parametrize("text", TEXTS)
def test_a_completions_ids_are_those_that_it_computes(daemon, text):
    body = {"prompt": text, **GREEDY}
    [rendered] = render(daemon, "completions", body)
    ids = check_shape(rendered, "cmpl")
    real = daemon.post("/v1/completions", body).json()
    assert len(ids) == real["usage"]["prompt_tokens"] > 0
    again = daemon.post("/v1/completions", {**body, "prompt": ids}).json()
    assert again["choices"] == real["choices"]
    assert again["usage"]["prompt_tokens"] == len(ids)
    # Ids stay what they are.
    assert render(daemon, "completions", {"prompt": ids})[0]["token_ids"] == ids


def test_each_prompt_is_rendered_once_whatever_n_is(daemon):
    rendered = render(daemon, "completions", {"prompt": TEXTS, "n": 3, "max_tokens": 1})
    alone = [render(daemon, "completions", {"prompt": text})[0]["token_ids"] for text in TEXTS]
    assert [check_shape(one, "cmpl") for one in rendered] == alone
    assert len({one["request_id"] for one in rendered}) == len(TEXTS)
    plain = {"prompt": TEXTS[0], "add_special_tokens": False}
    assert len(render(daemon, "completions", plain)[0]["token_ids"]) == len(alone[0]) - 1


@pytest.mark.parametrize("fields", [
    {},
    {"tools": [WEATHER]},
    {"tools": [WEATHER], "tool_choice": "required"},
    {"response_format": {"type": "json_object"}},
    {"messages": [*MESSAGES, {"role": "assistant", "content": "Lily was a"}],
     "continue_final_message": True},
    {"stream": True, "n": 2, "logprobs": True},
], ids=lambda fields: "-".join(fields) or "plain")
def test_a_chats_ids_are_those_that_it_computes(chat_daemon, fields):
    body = {"messages": MESSAGES, **GREEDY, **fields}
    ids = check_shape(render(chat_daemon, "chat/completions", body), "chatcmpl")
    whole = {**body, "stream": False, "n": 1}
    real = chat_daemon.post("/v1/chat/completions", whole).json()
    assert len(ids) == real["usage"]["prompt_tokens"]
    if not {"tools", "response_format"} & set(fields):  # nothing but the prompt decides the answer
        again = chat_daemon.post("/v1/completions", {"prompt": ids, **GREEDY}).json()
        assert again["choices"][0]["text"] == real["choices"][0]["message"]["content"]


REFUSED = [
    {"prompt": "a", "messages": MESSAGES, "temperature": 3},
    {"prompt": "a", "messages": MESSAGES, "max_tokens": 10**6},
    {"prompt": "a " * 40_000, "messages": [{"role": "user", "content": "a " * 40_000}]},
    {"prompt": "a", "messages": MESSAGES, "n": 129},
    {"prompt": "a", "messages": MESSAGES, "model": "other"},
    {"prompt": "a", "messages": MESSAGES, "regex": "("},
    {"prompt": "a", "messages": MESSAGES, "response_format": {"type": "json_schema"}},
    {"prompt": "a", "messages": MESSAGES, "min_tokens": 9, "max_tokens": 8},
    {"prompt": "a", "messages": MESSAGES, "cache_salt": "x" * 257},
    {"prompt": [[]], "messages": []},
    {"prompt": {}, "messages": [{"role": "nobody", "content": "a"}]},
]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_what_an_endpoint_refuses_its_renderer_refuses_in_the_same_words(chat_daemon, path):
    for body in REFUSED:
        real, rendered = chat_daemon.post(path, body), chat_daemon.post(f"{path}/render", body)
        assert 400 <= real.status_code < 500, (body, real.text)
        assert (rendered.status_code, rendered.json()) == (real.status_code, real.json())


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_model_that_generates_nothing_renders_nothing(start, path):
    encoder = start(model=FIXTURES / "encoders/bert.gguf").wait_until_ready()
    body = {"prompt": [1, 2], "messages": MESSAGES}
    real, rendered = encoder.post(path, body), encoder.post(f"{path}/render", body)
    assert real.status_code == 400
    assert (rendered.status_code, rendered.json()) == (400, real.json())


def test_nothing_is_computed_and_nothing_is_waited_for(start):
    """One request has the only place of the batch, and the queue takes none."""
    daemon = start("--sequences", "1", "--waiting-requests", "0", "--context", "65536",
                   "--write-seconds", "3600", "--max-unsent-bytes", str(2**30),
                   model=DEMO).wait_until_ready()
    body = {"prompt": "Once", "max_tokens": 60_000, "ignore_eos": True, "stream": True}
    stream = daemon.post("/v1/completions", body, stream=True)
    wait_until(lambda: daemon.metric("lockstep_requests_running") == 1)
    wait_until(lambda: daemon.metric("lockstep_prompt_tokens_total") > 0)
    before = daemon.metric("lockstep_prompt_tokens_total")
    assert daemon.post("/v1/completions", {"prompt": "a"}).status_code == 503
    render(daemon, "completions", {"prompt": "a " * 1000})
    render(daemon, "chat/completions", {"messages": MESSAGES})
    assert daemon.metric("lockstep_prompt_tokens_total") == before
    assert daemon.metric("lockstep_requests_total") == 0
    stream.close()


def test_a_renderer_takes_bodies_alone_as_its_endpoint_does(daemon):
    assert daemon.get("/v1/completions/render").status_code == 405
    check_error(daemon.post_bytes("/v1/completions/render", b"{"), 400, None)
    assert daemon.post_bytes("/v1/completions/render", b"{}", "text/plain").status_code == 415
