"""Whatever a client sends: the right status and OpenAI's error object, never 500, never silence."""

import json
import socket

import pytest

from openai_schema import check_error

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
GOOD = {"model": "stories", "prompt": "Once", "max_tokens": 1}
GOOD_CHAT = {"model": "stories", "messages": [{"role": "user", "content": "a"}]}

BAD_BODIES = {
    "empty": b"",
    "no json": b"hello",
    "cut off": b'{"model": "stories", "prompt"',
    "trailing": b'{"model": "stories"} {}',
    "trailing comma": b'{"model": "stories",}',
    "comment": b'{"model": "stories" /* no */}',
    "a list": b"[]",
    "a string": b'"hello"',
    "null": b"null",
    "NaN": b'{"model": "stories", "temperature": NaN}',
    "infinite": b'{"model": "stories", "temperature": 1e999}',
    "twice": b'{"model": "stories", "model": "stories", "prompt": "a"}',
    "bad utf-8": b'{"model": "stories", "prompt": "\xff\xfe"}',
    "overlong utf-8": b'{"model": "stories", "prompt": "\xc0\xaf"}',
    "utf-8 surrogate": b'{"model": "stories", "prompt": "\xed\xa0\x80"}',
    "lone surrogate": b'{"model": "stories", "prompt": "\\ud800"}',
    "control character": b'{"model": "stories", "prompt": "\n"}',
    "utf-16": '{"model": "stories"}'.encode("utf-16"),
    "too deep": b'{"model": "stories", "x": ' + b"[" * 100 + b"]" * 100 + b"}",
    "much too deep": b"[" * 1_000_000,
    "too many values": b'{"x": [' + b"0," * 1_100_000 + b"0]}",
}


@pytest.mark.parametrize("name", BAD_BODIES)
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT, "/tokenize", "/detokenize"])
def test_a_body_that_is_no_json_object_is_400(daemon, path, name):
    check_error(daemon.post_bytes(path, BAD_BODIES[name]), 400, None)


# A value and whether it may stand where an integer from 0 (1 for n), a number from 0 to 1 and a
# boolean are wanted.
EDGE_VALUES = ["-1", "1.0", "1e0", "0.5", "true", "false", '"1"', '""', "[]", "[1]", "{}", "1e300",
               "-1e300", "9223372036854775808", "18446744073709551616", "-9223372036854775809"]
ALLOWED = {
    "max_tokens": set(),
    "n": set(),
    "logprobs": set(),
    "top_k": {"-1"},
    "min_tokens": set(),
    "seed": {"-1"},
    "temperature": {"1.0", "1e0", "0.5"},
    "top_p": {"1.0", "1e0", "0.5"},
    "min_p": {"1.0", "1e0", "0.5"},
    "presence_penalty": {"-1", "1.0", "1e0", "0.5"},
    "frequency_penalty": {"-1", "1.0", "1e0", "0.5"},
    "repetition_penalty": {"1.0", "1e0", "0.5"},
    "echo": {"true", "false"},
    "stream": {"true", "false"},
    "ignore_eos": {"true", "false"},
    "skip_special_tokens": {"true", "false"},
    "logit_bias": {"{}"},
    "stop": {'"1"', "[]"},
    "stop_token_ids": {"[]", "[1]"},
    "stream_options": set(),
    "model": set(),
    "suffix": {'""'},
}


@pytest.mark.parametrize("field", ALLOWED)
def test_a_value_of_another_type_or_out_of_range_names_its_parameter(daemon, field):
    for value in EDGE_VALUES:
        body = {**GOOD, field: "PLACE"}
        text = json.dumps(body).replace('"PLACE"', value)
        answer = daemon.post_bytes(COMPLETIONS, text.encode())
        if value in ALLOWED[field]:
            assert answer.status_code == 200, (field, value, answer.text)
        elif field == "model" and value == '"1"' or field == "model" and value == '""':
            check_error(answer, 404, "model", "model_not_found")
        else:
            check_error(answer, 400, field)


def test_null_means_unset_everywhere(daemon):
    body = {**GOOD, **{field: None for field in ALLOWED}, "max_tokens": 1}
    assert daemon.post(COMPLETIONS, body).status_code == 200


def test_unknown_fields_are_ignored(daemon):
    answer = daemon.post(COMPLETIONS, {**GOOD, "simulated": {"a": [1]}, "user": "me", "store": True})
    assert answer.status_code == 200


@pytest.mark.parametrize(
    "fields",
    [
        {"suffix": "the end"},
        {"best_of": 3},
        {"use_beam_search": True},
        {"stream_options": {"include_usage": True}},
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
    ],
)
def test_what_cannot_be_done_is_refused_not_ignored(daemon, fields):
    check_error(daemon.post(COMPLETIONS, {**GOOD, **fields}), 400, next(iter(fields)))


def test_token_ids_must_be_in_the_vocabulary(daemon):
    for prompt in ([-1], [10_000_000], [[1], [2**40]], [1.0], [True], [1, "a"], []):
        check_error(daemon.post(COMPLETIONS, {**GOOD, "prompt": prompt}), 400, "prompt")
    for fields in ({"logit_bias": {"10000000": 1}}, {"logit_bias": {"x": 1}},
                   {"logit_bias": {"1": 101}}, {"stop_token_ids": [10_000_000]}):
        check_error(daemon.post(COMPLETIONS, {**GOOD, **fields}), 400, next(iter(fields)))
    check_error(daemon.post("/detokenize", {"tokens": [10_000_000]}), 400, "tokens")


def test_an_unknown_model_is_404(daemon):
    for path, body in ((COMPLETIONS, GOOD), (CHAT, GOOD_CHAT), ("/tokenize", GOOD)):
        check_error(daemon.post(path, {**body, "model": "other"}), 404, "model", "model_not_found")


def test_what_exceeds_the_context_is_refused_with_the_numbers(daemon):
    context = daemon.get("/v1/models/stories").json()["max_model_len"]
    answer = daemon.post(COMPLETIONS, {**GOOD, "prompt": [1] * 10, "max_tokens": context})
    message = check_error(answer, 400, "prompt", "context_length_exceeded")["message"]
    assert str(context) in message and str(context + 10) in message
    answer = daemon.post(COMPLETIONS, {**GOOD, "prompt": [1] * (context + 1)})
    check_error(answer, 400, "prompt", "context_length_exceeded")
    exact = daemon.post(COMPLETIONS, {**GOOD, "prompt": [1] * (context - 1), "max_tokens": 1})
    assert exact.status_code == 200, exact.text


def test_bad_messages_name_their_place(daemon):
    for messages, parameter in (
        (None, "messages"),
        ([], "messages"),
        ("hello", "messages"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "robot", "content": "a"}], "messages[0].role"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
         "messages[0].content"),
    ):
        answer = daemon.post(CHAT, {**GOOD_CHAT, "messages": messages})
        check_error(answer, 400, parameter)


def test_unknown_paths_are_404_and_wrong_methods_405_with_allow(daemon):
    check_error(daemon.get("/v1/nothing"), 404)
    check_error(daemon.get("/nothing"), 404)
    for path in (COMPLETIONS, CHAT, "/tokenize", "/detokenize"):
        answer = daemon.get(path)
        check_error(answer, 405)
        assert "POST" in answer.headers["Allow"]
    for path in ("/v1/models", "/version", "/health", "/metrics"):
        answer = daemon.post(path, {})
        check_error(answer, 405)
        assert "GET" in answer.headers["Allow"]


def test_other_media_types_are_415(daemon):
    body = json.dumps(GOOD).encode()
    for content_type in ("text/plain", "application/x-www-form-urlencoded", "", "application/jsonx"):
        check_error(daemon.post_bytes(COMPLETIONS, body, content_type), 415)
    for content_type in ("application/json", "application/json; charset=utf-8"):
        assert daemon.post_bytes(COMPLETIONS, body, content_type).status_code == 200


def test_a_body_beyond_the_limit_is_413(daemon):
    host, port = daemon.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: 99999999\r\n\r\n")
        answer = connection.makefile("rb").readline()
    assert b" 413 " in answer


def test_the_daemon_serves_on_after_all_that(daemon):
    assert daemon.get("/health").status_code == 200
    assert daemon.post(COMPLETIONS, GOOD).status_code == 200
    assert daemon.metric("lockstep_http_requests_total", code="500") == 0
