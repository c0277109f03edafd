"""/openapi.json is true: its routes, its limits, its answers; and numbers are never bent to fit."""

import functools
import json
import math
import re

import jsonschema
import pytest
import requests

from conftest import DEMO, ROOT, Daemon

MODEL = "demo"
# A body of each endpoint that is as short as can be, and asks for next to nothing.
BODIES = {
    "/v1/completions": {"model": MODEL, "prompt": "a", "max_tokens": 1},
    "/v1/chat/completions": {
        "model": MODEL, "messages": [{"role": "user", "content": "a"}], "max_tokens": 1},
    "/v1/completions/render": {"model": MODEL, "prompt": "a", "max_tokens": 1},
    "/v1/chat/completions/render": {
        "model": MODEL, "messages": [{"role": "user", "content": "a"}], "max_tokens": 1},
    "/v1/embeddings": {"model": MODEL, "input": "a"},
    "/v1/responses": {"model": MODEL, "input": "a", "max_output_tokens": 1},
    "/v1/messages": {
        "model": MODEL, "messages": [{"role": "user", "content": "a"}], "max_tokens": 1},
    "/v1/messages/count_tokens": {
        "model": MODEL, "messages": [{"role": "user", "content": "a"}]},
    "/tokenize": {"prompt": "a"},
    "/detokenize": {"tokens": [1]},
    "/apply-template": {"model": MODEL, "messages": [{"role": "user", "content": "a"}]},
}
# What a field needs beside it.
BESIDE = {"top_logprobs": {"logprobs": True}, "best_of": {"n": 1}}
# JSON texts of numbers, and of what may be taken for one.
VALUES = ["null", "true", '"5"', "2.9", "-1", "0", str(2**31), str(2**32 + 1), str(2**53 + 1), "1e20",
          "-1e20", "1e400", "NaN", "Infinity", "1e-400", "[]", "{}"]
NO_NUMBERS = {"1e400", "NaN", "Infinity"}  # no JSON text of a finite number: the body is refused


@pytest.fixture(scope="module")
def served():
    running = Daemon(DEMO, "--served-model-name", MODEL, "--context", "128", "--workers", "1")
    running.wait_until_ready()
    yield running
    assert running.stop() == 0


@pytest.fixture(scope="module")
def document(served):
    return served.get("/openapi.json").json()


@pytest.fixture(scope="module")
def session(served):
    with requests.Session() as one:
        yield one


def post(served, session, path, text):
    return session.post(served.url + path, data=text,
                        headers={"Content-Type": "application/json"}, timeout=60)


def resolve(document, schema):
    while "$ref" in schema:
        schema = functools.reduce(
            lambda node, key: node[key], schema["$ref"].removeprefix("#/").split("/"), document)
    return schema


def properties(document, schema):
    """The properties of an object, those of allOf together."""
    schema = resolve(document, schema)
    found = dict(schema.get("properties", {}))
    for part in schema.get("allOf", []):
        found.update(properties(document, part))
    return {name: resolve(document, value) for name, value in found.items()}


def request_fields(document, path):
    body = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    return properties(document, body)


def types_of(schema):
    types = schema.get("type", [])
    return {types} if isinstance(types, str) else set(types)


def numeric_fields(document):
    """Every place of a number: path, the field's name, its schema, and how a value is put there."""
    for path in BODIES:
        for name, schema in request_fields(document, path).items():
            if types_of(schema) & {"integer", "number"}:
                yield path, name, schema, "{}"
            elif types_of(schema.get("additionalProperties", {})) & {"integer", "number"}:
                yield path, name, schema["additionalProperties"], '{{"5":{}}}'
            elif types_of(schema) & {"array"}:
                items = resolve(document, schema["items"])
                if types_of(items) & {"integer"}:
                    yield path, name, items, "[{}]"


def with_field(path, name, text):
    """The body's text with a member that may be no valid JSON."""
    body = {**BODIES[path], **BESIDE.get(name, {})}
    body.pop(name, None)
    members = [json.dumps(body)[1:-1]] if body else []
    return "{" + ", ".join([*members, f'"{name}": {text}']) + "}"


def fits(schema, text):
    """Whether the schema takes the value; numbers with a fraction or an exponent are no integers."""
    value = json.loads(text)
    types = types_of(schema)
    if value is None:
        return "null" in types
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    if "number" not in types and not isinstance(value, int):
        return False
    return schema.get("minimum", -math.inf) <= value <= schema.get("maximum", math.inf)


def parameter(answer):
    error = answer.json()["error"]
    if "param" in error:
        return error["param"]
    return re.match(r"'([^']*)'", error["message"])[1]  # Anthropic's errors have no such member


def test_every_route_is_described_and_every_description_is_a_route(document):
    rows = re.findall(r'\{"(GET|POST)", "(/[^"]*)"', (ROOT / "server/api/routes.cpp").read_text())
    routes = {(method.lower(), re.sub(r":(\w+)\*?", r"{\1}", path)) for method, path in rows}
    assert len(routes) > 10
    described = {(method, path) for path, methods in document["paths"].items()
                 for method in methods}
    assert described == routes


def test_the_document_is_openapi_3_1(document):
    assert document["openapi"].startswith("3.1")
    for name, schema in document["components"]["schemas"].items():
        jsonschema.Draft202012Validator.check_schema(schema)
        assert schema, name
    assert document["components"]["schemas"]["ModelName"]["enum"] == [MODEL]


def test_numbers_that_are_wrong_are_refused_by_name_and_none_is_bent(served, session, document):
    cases = 0
    for path, name, schema, place in numeric_fields(document):
        for value in VALUES:
            answer = post(served, session, path, with_field(path, name, place.format(value)))
            what = f"{path} {name}: {place.format(value)} -> {answer.status_code} {answer.text:.200}"
            cases += 1
            if value in NO_NUMBERS:
                assert answer.status_code == 400, what
            elif not fits(schema, value):
                # A list of prompts may hold other things than token ids.
                assert answer.status_code == 400, what
                assert parameter(answer) == name, what
            elif answer.status_code != 200:
                # It fits its own bounds; what is beside it or the context cannot go with it.
                assert answer.status_code == 400, what
                assert parameter(answer) in (name, "prompt", "messages", "input"), what
                assert re.search("context|more than|beyond|allowed|needs|required", answer.text), what
            elif (name.startswith("max_") and value not in ("null",)
                  and not path.endswith("/render")):
                usage = answer.json()["usage"]
                generated = usage.get("completion_tokens", usage.get("output_tokens"))
                assert generated <= json.loads(value), what
    assert cases >= 680


def test_limits_are_where_the_document_says(served, session, document):
    checked = 0
    for path, name, schema, place in numeric_fields(document):
        whole = "integer" in types_of(schema)
        for bound, step in (("minimum", -1), ("maximum", 1)):
            limit = schema[bound]
            beyond = limit + step if whole else limit + step * 0.001
            inside = post(served, session, path, with_field(path, name, place.format(limit)))
            outside = post(served, session, path, with_field(path, name, place.format(beyond)))
            what = f"{path} {name} {bound} {limit}: {inside.text:.200} / {outside.text:.200}"
            if (name, inside.status_code) == ("timeout", 504):
                assert bound == "minimum", what  # a millisecond, which may be over at once
            elif inside.status_code != 200:
                assert inside.status_code == 400, what
                assert re.search("context|more than|beyond", inside.text), what
            assert outside.status_code == 400 and parameter(outside) == name, what
            checked += 1
    assert checked > 60


def test_lists_and_strings_are_as_long_as_the_document_says(served, session, document):
    samples = {"tools": lambda path, index: tool_of(path, index), "stop_token_ids": lambda *_: 1,
               "stop_sequences": lambda _, index: f"stop{index}"}
    for path in BODIES:
        for name, schema in request_fields(document, path).items():
            for branch in [schema, *schema.get("anyOf", [])]:
                if "maxItems" not in branch:
                    continue
                make = samples.get(name, lambda _, index: f"stop{index}")
                most = branch["maxItems"]
                for count, status in ((most, 200), (most + 1, 400)):
                    body = {**BODIES[path], name: [make(path, i) for i in range(count)]}
                    if name == "tools":
                        body["tool_choice"] = {"type": "none"} if "messages" in path[3:] else "none"
                    answer = post(served, session, path, json.dumps(body))
                    assert answer.status_code == status, (path, name, count, answer.text)
                    if status == 400:
                        assert parameter(answer) == name


def tool_of(path, index):
    if path.startswith("/v1/messages"):
        return {"name": f"f{index}", "input_schema": {"type": "object"}}
    if path == "/v1/responses":
        return {"type": "function", "name": f"f{index}"}
    return {"type": "function", "function": {"name": f"f{index}"}}


def test_answers_are_what_the_document_says(served, session, document):
    for path, body in BODIES.items():
        answer = post(served, session, path, json.dumps(body))
        assert answer.status_code == 200, answer.text
        described = document["paths"][path]["post"]["responses"]["200"]["content"]
        schema = {**described["application/json"]["schema"], "components": document["components"]}
        jsonschema.Draft202012Validator(schema).validate(answer.json())
        refused = post(served, session, path, '{"model": 5}')
        assert refused.status_code == 400
        schema = {"components": document["components"], **document["paths"][path]["post"][
            "responses"]["400"].get("content", document["components"]["responses"]["BadRequest"][
                "content"])["application/json"]["schema"]}
        jsonschema.Draft202012Validator(schema).validate(refused.json())


def nested(depth):
    return "[" * depth + "]" * depth


# What no endpoint may take; depth counts the body's own object.
HOSTILE = {
    "too deep": '{"x": ' + nested(64) + "}",
    "very deep": '{"x": ' + nested(100_000) + "}",
    "too many values": '{"x": [' + ",".join(["0"] * (2**20 + 1)) + "]}",
    "a name twice": '{"model": "demo", "model": "demo"}',
    "a name twice within": '{"x": {"a": 1, "a": 2}}',
    "trailing": '{"model": "demo"} x',
    "two values": '{"model": "demo"}{"model": "demo"}',
    "a comment": '{"model": "demo" /* x */}',
    "a lone surrogate": '{"model": "\\ud800"}',
    "half a pair": '{"model": "\\udc00\\ud800"}',
    "control characters": '{"model": "a\nb"}',
    "a raw NUL": '{"model": "a\0b"}',
    "no value": "",
    "no object": "[]",
    "a comma": '{"model": "demo",}',
    "single quotes": "{'model': 'demo'}",
}
BAD_BYTES = [b"\x80", b"\xc0\xaf", b"\xc3", b"\xe0\x80\x80", b"\xed\xa0\x80", b"\xf0\x80\x80\x80",
             b"\xf4\x90\x80\x80", b"\xf8\x88\x80\x80\x80", b"\xff"]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_json_is_refused_by_every_endpoint(served, session, name):
    for path in BODIES:
        answer = post(served, session, path, HOSTILE[name])
        assert answer.status_code == 400, (path, answer.text[:200])
        assert answer.json()["error"]["message"]


def test_bytes_that_are_no_utf8_are_refused(served, session):
    for path in BODIES:
        for bad in BAD_BYTES:
            answer = post(served, session, path, b'{"model": "' + bad + b'"}')
            assert answer.status_code == 400, (path, bad)


def test_what_is_within_the_limits_of_json_is_taken(served, session):
    body = json.dumps(BODIES["/v1/completions"])[:-1]
    for more in (f', "x": {nested(63)}', ', "user": "a\\u0000b"', ', "x": [' + ",".join(
            ["0"] * 100_000) + "]"):
        answer = post(served, session, "/v1/completions", body + more + "}")
        assert answer.status_code == 200, answer.text
    # A byte order mark is allowed to be ignored (RFC 8259, section 8.1).
    answer = post(served, session, "/v1/completions", b"\xef\xbb\xbf" + body.encode() + b"}")
    assert answer.status_code in (200, 400)
