"""Random answers that grammars of JSON schemas allow, held against the jsonschema package; and of
regular expressions, against Python's.

The answers come from build/release/grammar_walk, a walk over random tokens of the masks.
"""

import json
import os
import pathlib
import re
import subprocess

import jsonschema
import pytest
from conftest import PROGRAM, ROOT

WALK = PROGRAM.parent / "grammar_walk"
MODEL = ROOT / "config/demo.gguf"
SEED = int(os.environ.get("LOCKSTEP_TEST_SEED", "20240521"))
WALKS = 12

STRING = {"type": "string"}
INTEGER = {"type": "integer"}

SCHEMAS = [
    True,
    {},
    {"type": "object"},
    {"type": "array"},
    {"type": "string"},
    {"type": "number"},
    {"type": "integer"},
    {"type": "boolean"},
    {"type": "null"},
    {"type": ["string", "null", "integer"]},
    {"const": {"a": [1, 2.5, None, "é\"\\\n"]}},
    {"enum": ["red", "green", 3, None, [1], {"k": True}]},
    {"type": "string", "enum": ["a", "b", 3]},
    {"type": "object", "properties": {"a": STRING, "b": INTEGER}, "required": ["a", "b"],
     "additionalProperties": False},
    {"type": "object", "properties": {"a": STRING, "b": INTEGER, "c": {}}, "required": ["b"]},
    {"type": "object", "properties": {"a": STRING, "b": INTEGER}},
    {"type": "object", "properties": {"a": STRING}, "additionalProperties": True},
    {"type": "object", "properties": {"a": STRING, "ab": STRING, "é": STRING, "q\"": STRING},
     "required": ["ab"], "additionalProperties": INTEGER},
    {"type": "object", "additionalProperties": {"type": "boolean"}, "minProperties": 1},
    {"type": "object", "additionalProperties": INTEGER, "maxProperties": 2},
    {"type": "object", "required": ["x", "y"], "additionalProperties": INTEGER},
    {"type": "object", "properties": {}, "additionalProperties": False},
    {"type": "object", "properties": {"never": False, "a": True}, "required": ["a"]},
    {"type": "array", "items": INTEGER, "minItems": 2, "maxItems": 4},
    {"type": "array", "items": STRING, "maxItems": 1},
    {"type": "array", "prefixItems": [STRING, INTEGER], "items": False},
    {"type": "array", "prefixItems": [STRING, INTEGER], "items": {"type": "null"}, "minItems": 3},
    {"type": "array", "prefixItems": [STRING], "minItems": 3},
    {"type": "array", "prefixItems": [STRING, INTEGER, INTEGER], "maxItems": 2},
    {"type": "array", "items": {"type": "array", "items": {"type": "boolean"}, "minItems": 1}},
    {"type": "string", "minLength": 3, "maxLength": 5},
    {"type": "string", "minLength": 20},
    {"type": "string", "maxLength": 0},
    {"type": "string", "pattern": "^[a-z]{2,5}-[0-9]+$"},
    {"type": "string", "pattern": "b[^a]"},
    {"type": "string", "pattern": "^(\\w{1,3}\\s){1,2}[\\W\\S]$|^x\"\\\\$"},
    {"type": "string", "pattern": "^.{3}$"},
    *({"type": "string", "format": name} for name in
      ("date", "time", "date-time", "uuid", "ipv4", "ipv6", "email", "hostname", "duration", "uri")),
    {"type": "integer", "minimum": 7},
    {"type": "integer", "maximum": -7},
    {"type": "integer", "minimum": -105, "exclusiveMaximum": 1234},
    {"type": "integer", "exclusiveMinimum": 99, "maximum": 101},
    {"type": "integer", "minimum": 0.5, "maximum": 1.5},
    {"type": "number", "minimum": 0, "maximum": 1},
    {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 0.125},
    {"type": "number", "minimum": -273.15},
    {"type": "number", "exclusiveMaximum": 100000},
    {"type": "number", "minimum": -2.5, "maximum": -2.25},
    {"type": "number", "minimum": 1e-3, "exclusiveMaximum": 1e10},
    {"anyOf": [STRING, INTEGER, {"type": "array", "items": INTEGER}]},
    {"type": "object", "properties": {"a": INTEGER},
     "anyOf": [{"required": ["a"]}, {"properties": {"b": STRING}, "required": ["b"]}]},
    {"oneOf": [STRING, INTEGER, {"type": "null"}]},
    {"oneOf": [
        {"type": "object", "properties": {"kind": {"const": "cat"}, "lives": INTEGER},
         "required": ["kind", "lives"]},
        {"type": "object", "properties": {"kind": {"enum": ["dog", "wolf"]}, "name": STRING},
         "required": ["kind"]}]},
    {"oneOf": [
        {"type": "object", "properties": {"a": INTEGER}, "required": ["a"],
         "additionalProperties": False},
        {"type": "object", "properties": {"b": INTEGER}, "required": ["b"],
         "additionalProperties": False}]},
    {"allOf": [{"type": "object", "properties": {"a": INTEGER}, "required": ["a"]},
               {"properties": {"a": {"minimum": 5, "maximum": 50}, "b": STRING},
                "required": ["b"]}]},
    {"allOf": [{"$ref": "#/$defs/base"}], "required": ["id"],
     "$defs": {"base": {"type": "object", "properties": {"id": INTEGER, "name": STRING}}}},
    {"$ref": "#/$defs/node", "$defs": {"node": {
        "type": "object", "required": ["value", "children"], "additionalProperties": False,
        "properties": {"value": {"type": "string", "maxLength": 4}, "children": {
            "type": "array", "maxItems": 2, "items": {"$ref": "#/$defs/node"}}}}}},
    {"type": "object", "properties": {"head": INTEGER, "tail": {
        "anyOf": [{"$ref": "#"}, {"type": "null"}]}}, "required": ["head", "tail"],
     "additionalProperties": False},
    {"definitions": {"a/b": {"type": "boolean"}}, "type": "array", "minItems": 1,
     "items": {"$ref": "#/definitions/a~1b"}},
    # As pydantic writes models.
    {"$defs": {"Colour": {"enum": ["red", "blue"], "title": "Colour", "type": "string"},
               "Part": {"properties": {
                   "name": {"title": "Name", "type": "string"},
                   "colour": {"anyOf": [{"$ref": "#/$defs/Colour"}, {"type": "null"}],
                              "default": None},
                   "size": {"title": "Size", "exclusiveMinimum": 0, "type": "integer"}},
                   "required": ["name", "size"], "title": "Part", "type": "object"}},
     "properties": {
         "parts": {"items": {"$ref": "#/$defs/Part"}, "maxItems": 3, "title": "Parts",
                   "type": "array"},
         "when": {"format": "date-time", "title": "When", "type": "string"},
         "range": {"maxItems": 2, "minItems": 2, "prefixItems": [{"type": "number"}, INTEGER],
                   "title": "Range", "type": "array"},
         "extra": {"additionalProperties": {"type": "number"}, "title": "Extra", "type": "object"}},
     "required": ["parts", "when", "range", "extra"], "title": "Machine", "type": "object"},
]

REGEXES = [
    "abc", "[a-f0-9]{8}", "(yes|no|maybe)( sir)?", "\\d{1,3}(\\.\\d{1,3}){3}", "[^\"\\\\]{1,10}",
    "(a|b)*c", "x{2,4}y{0,3}z+", "\\w+@\\w+\\.(com|org)", "[А-Яа-я]{3,9}", "", "(ab?c{1,2})*",
    "(?<year>[12]\\d{3})-(?:0[1-9]|1[0-2])", "\\S{3}\\s\\D?", "[\\]\\-^a]{2}",
]


def walk(questions):
    if not WALK.exists():
        pytest.skip(f"{WALK} is not built")
    lines = "".join(json.dumps({"kind": kind, "text": text}) + "\n" for kind, text in questions)
    done = subprocess.run([WALK, MODEL, str(SEED), str(WALKS)], input=lines, text=True,
                          encoding="utf-8", capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(questions)
    for question, answer in zip(questions, answers):
        assert "texts" in answer, (question, answer, SEED)
        assert answer["texts"], f"no walk of {question} ended; seed {SEED}"
    return [answer["texts"] for answer in answers]


def test_every_answer_validates():
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    for schema, texts in zip(SCHEMAS, walk([("schema", json.dumps(s)) for s in SCHEMAS])):
        validator = jsonschema.Draft202012Validator(schema, format_checker=checker)
        for text in texts:
            value = json.loads(text)
            errors = [error.message for error in validator.iter_errors(value)]
            assert not errors, (schema, text, errors, SEED)


def test_every_object_is_one():
    for text in walk([("object", "")])[0]:
        assert isinstance(json.loads(text), dict), (text, SEED)


def test_every_text_matches_its_pattern():
    for pattern, texts in zip(REGEXES, walk([("regex", pattern) for pattern in REGEXES])):
        python = pattern.replace("(?<", "(?P<")
        for text in texts:
            assert re.fullmatch(python, text), (pattern, text, SEED)


def test_white_space_is_bounded():
    for text in walk([("schema", json.dumps({"type": "array", "items": INTEGER, "minItems": 3}))])[0]:
        assert re.fullmatch(r"\[-?\d+(, ?-?\d+)+\]", text), (text, SEED)
