"""OpenAI's specification as JSON schemas: one validator per answer, made of the part it needs.

tests/fixtures/make_openai_schemas.py took what is needed here from the specification."""

import functools
import json
import pathlib

import jsonschema

SPECIFICATION = pathlib.Path(__file__).parents[1] / "fixtures/openai/schemas.json"


@functools.cache
def _schemas():
    return json.loads(SPECIFICATION.read_text())["components"]["schemas"]


def _converted(node):
    """OpenAPI 3.0's `nullable` in JSON Schema's words; what is no schema left out."""
    if isinstance(node, list):
        return [_converted(element) for element in node]
    if not isinstance(node, dict):
        return node
    result = {key: _converted(value) for key, value in node.items() if not key.startswith("x-")}
    if result.pop("nullable", False):
        return {"anyOf": [result, {"type": "null"}]}
    return result


def _references(node, found):
    if isinstance(node, dict):
        reference = node.get("$ref")
        if isinstance(reference, str):
            found.add(reference.removeprefix("#/components/schemas/"))
        for value in node.values():
            _references(value, found)
    elif isinstance(node, list):
        for element in node:
            _references(element, found)
    return found


def _relaxed_completion(schema):
    """The specification describes the streamed chunks of /v1/completions by the whole answer's
    schema and is silent on three nulls that OpenAI's own server sends: the reason of a choice that
    goes on, the usage of all chunks but the last, and the first prompt token's logprob."""
    properties = schema["properties"]
    choice = properties["choices"]["items"]["properties"]
    choice["finish_reason"] = {"anyOf": [choice["finish_reason"], {"type": "null"}]}
    properties["usage"] = {"anyOf": [properties["usage"], {"type": "null"}]}
    arrays = choice["logprobs"]["anyOf"][0]["properties"]
    for name in ("token_logprobs", "top_logprobs"):
        arrays[name]["items"] = {"anyOf": [arrays[name]["items"], {"type": "null"}]}
    return schema


@functools.cache
def validator(name, relaxed=False):
    wanted, definitions = [name], {}
    while wanted:
        current = wanted.pop()
        if current in definitions:
            continue
        definitions[current] = _converted(_schemas()[current])
        wanted.extend(_references(definitions[current], set()))
    if relaxed:
        _relaxed_completion(definitions[name])
    document = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$ref": f"#/components/schemas/{name}",
        "components": {"schemas": definitions},
    }
    return jsonschema.Draft202012Validator(document)


def check(instance, name, relaxed=False):
    """Asserts that the instance is what the specification calls `name`."""
    validator(name, relaxed).validate(instance)


def check_error(answer, status, parameter=..., code=...):
    """Asserts that an HTTP answer is OpenAI's error object with all four keys; returns it."""
    assert answer.status_code == status, answer.text
    assert answer.headers["Content-Type"].startswith("application/json")
    body = answer.json()
    check(body, "ErrorResponse")
    error = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    if parameter is not ...:
        assert error["param"] == parameter, error
    if code is not ...:
        assert error["code"] == code, error
    return error
