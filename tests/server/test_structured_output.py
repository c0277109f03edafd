"""Structured output as clients ask for it: response_format, and the fields of other servers."""

import json
import re

import jsonschema
import pytest
from conftest import DEMO, Daemon

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "kind": {"enum": ["cat", "dog"]},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 4}, "maxItems": 2},
    },
    "required": ["name", "age", "kind", "tags"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "animal", "strict": True, "schema": SCHEMA}}
MESSAGES = [{"role": "user", "content": "Tell me of an animal."}]
GBNF = 'root ::= ("up" | "down") " " [0-9]{2}'


@pytest.fixture(scope="module")
def server():
    daemon = Daemon(DEMO).wait_until_ready()
    yield daemon
    assert daemon.stop() == 0


def chat(server, **more):
    body = {"model": server.model_name(), "messages": MESSAGES, "max_tokens": 200, **more}
    return server.post("/v1/chat/completions", body)


def content(answer):
    assert answer.status_code == 200, answer.text
    choice = answer.json()["choices"][0]
    assert choice["finish_reason"] == "stop", choice
    return choice["message"]["content"]


def test_every_answer_to_a_schema_validates(server):
    for seed in range(8):
        for temperature in (0, 1, 2):
            text = content(chat(server, response_format=FORMAT, seed=seed, temperature=temperature))
            jsonschema.validate(json.loads(text), SCHEMA)


def test_openai_client_streams_an_answer_that_validates(server):
    stream = server.client().chat.completions.create(
        model=server.model_name(), messages=MESSAGES, response_format=FORMAT, max_tokens=200,
        seed=5, temperature=2, stream=True, logprobs=True)
    text, finish = "", None
    for chunk in stream:
        text += chunk.choices[0].delta.content or ""
        finish = chunk.choices[0].finish_reason or finish
    assert finish == "stop"
    jsonschema.validate(json.loads(text), SCHEMA)


def test_any_object(server):
    for seed in range(4):
        answer = chat(server, response_format={"type": "json_object"}, seed=seed, max_tokens=400)
        assert answer.status_code == 200, answer.text
        choice = answer.json()["choices"][0]
        assert choice["message"]["content"].startswith("{")
        if choice["finish_reason"] == "stop":
            assert isinstance(json.loads(choice["message"]["content"]), dict)


@pytest.mark.parametrize("fields, pattern", [
    ({"regex": "[A-F]{4}-\\d{2}"}, "[A-F]{4}-\\d{2}"),
    ({"choice": ["yes", "no", "né"]}, "yes|no|né"),
    ({"grammar": GBNF}, "(up|down) [0-9]{2}"),
    ({"structured_outputs": {"regex": "a{1,3}b"}}, "a{1,3}b"),
    ({"structured_outputs": {"choice": ["x", "yy"]}}, "x|yy"),
    ({"structured_outputs": {"grammar": GBNF}}, "(up|down) [0-9]{2}"),
    ({"structured_outputs": {"json": {"type": "boolean"}}}, "true|false"),
    ({"structured_outputs": {"json": '{"type": "boolean"}'}}, "true|false"),
    ({"guided_json": {"const": 12}}, "12"),
    ({"guided_regex": "[xyz]{3}"}, "[xyz]{3}"),
    ({"guided_choice": ["one", "two"]}, "one|two"),
    ({"guided_grammar": GBNF}, "(up|down) [0-9]{2}"),
    ({"json_schema": {"enum": ["a", "b"]}}, '"a"|"b"'),
    ({"response_format": {"type": "json_object", "schema": {"const": {}}}}, "{}"),
])
def test_other_notations(server, fields, pattern):
    for seed in range(3):
        text = content(chat(server, seed=seed, temperature=1, **fields))
        assert re.fullmatch(pattern, text), text
    body = {"model": server.model_name(), "prompt": "So it", "max_tokens": 200, **fields}
    answer = server.post("/v1/completions", body)
    assert answer.status_code == 200, answer.text
    assert re.fullmatch(pattern, answer.json()["choices"][0]["text"])


def test_nothing_is_asked_for_by_null_text_and_empty_fields(server):
    for fields in ({"response_format": None}, {"response_format": {"type": "text"}},
                   {"grammar": ""}, {"choice": []}, {"structured_outputs": {}},
                   {"structured_outputs": {"json_object": False}}, {"guided_json": None}):
        free = chat(server, temperature=0, max_tokens=8)
        assert chat(server, temperature=0, max_tokens=8, **fields).json()["choices"] == \
            free.json()["choices"]


def test_an_answer_that_is_cut_says_length(server):
    answer = chat(server, regex="a{50}", max_tokens=3).json()["choices"][0]
    assert answer["finish_reason"] == "length"
    assert re.fullmatch("a{3,}", answer["message"]["content"])


@pytest.mark.parametrize("fields", [{}, {"ignore_eos": True}, {"min_tokens": 3}])
def test_a_grammar_of_nothing_is_answered_with_nothing(server, fields):
    answer = chat(server, grammar='root ::= ""', max_tokens=5, **fields)
    assert answer.status_code == 200, answer.text
    choice = answer.json()["choices"][0]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("stop", "")


def test_a_grammar_that_allows_what_is_free_anyway_changes_nothing(server):
    free = chat(server, temperature=0, max_tokens=40).json()["choices"][0]
    held = chat(server, temperature=0, max_tokens=40, grammar="root ::= .*")
    assert held.json()["choices"][0]["message"] == free["message"]


def test_a_biased_or_most_likely_token_cannot_leave_the_grammar(server):
    bias = {str(token): 100 for token in range(60)}
    for temperature in (0, 1):
        text = content(chat(server, regex="[0-9]{5}", logit_bias=bias, temperature=temperature))
        assert re.fullmatch("[0-9]{5}", text)


def test_min_tokens_and_several_choices_keep_to_it(server):
    answer = chat(server, choice=["a", "b"], min_tokens=5, n=4, temperature=2)
    assert answer.status_code == 200, answer.text
    for choice in answer.json()["choices"]:
        assert choice["finish_reason"] == "stop"
        assert choice["message"]["content"] in ("a", "b")
    answer = chat(server, regex="a*", min_tokens=3, max_tokens=20, ignore_eos=True)
    assert answer.json()["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("fields, parameter, reason", [
    ({"response_format": {"type": "xml"}}, "response_format.type", "json_schema"),
    ({"response_format": {}}, "response_format.type", "json_object"),
    ({"response_format": "json"}, "response_format", "object"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "required"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
     "response_format.json_schema.schema", "required"),
    ({"response_format": {"type": "json_schema", "json_schema": {
        "name": "x", "schema": {"properties": {"a": {"not": {}, "type": "thing"}}}}}},
     "response_format.json_schema.schema", "/properties/a/type"),
    ({"regex": "a", "choice": ["b"]}, "choice", "regex, choice"),
    ({"structured_outputs": {"regex": "a", "json_object": True}}, "structured_outputs.regex",
     "structured_outputs.json_object"),
    ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag",
     "not supported"),
    ({"regex": 3}, "regex", "string"),
    ({"regex": "a(?=b)"}, "regex", "look-ahead"),
    ({"regex": "("}, "regex", "no end"),
    ({"choice": "a"}, "choice", "array"),
    ({"choice": [1]}, "choice", "string"),
    ({"grammar": "root ::= other"}, "grammar", "other"),
    ({"grammar": "root ::= " + "(" * 60000}, "grammar", "nested"),
    ({"grammar": "root ::= [a-z]{0,1000000000}"}, "grammar", "at most"),
    ({"guided_json": 3}, "guided_json", "schema"),
    ({"guided_json": "{"}, "guided_json", "valid JSON"),
    ({"json_schema": {"type": "string", "maxLength": 10**9}}, "json_schema", "/maxLength"),
])
def test_what_is_wrong_is_refused_by_name(server, fields, parameter, reason):
    for path, more in (("/v1/chat/completions", {"messages": MESSAGES}),
                       ("/v1/completions", {"prompt": "x"})):
        answer = server.post(path, {"model": server.model_name(), **more, **fields})
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        assert error["param"] == parameter, error
        assert reason in error["message"], error
        assert error["type"] == "invalid_request_error"
