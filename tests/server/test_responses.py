"""POST /v1/responses, with OpenAI's client and against OpenAI's specification."""

import json

import openai
import pytest

from openai_schema import check, check_error

ASKED = {"model": "demo", "input": "Hello! Who are you?", "temperature": 0, "max_output_tokens": 24}


@pytest.fixture(scope="module")
def client(chat_daemon):
    return chat_daemon.client(max_retries=0)


def stream_events(daemon, **fields):
    """The events of a stream as pairs of name and data."""
    answer = daemon.post("/v1/responses", {**ASKED, "stream": True, **fields})
    assert answer.status_code == 200, answer.text
    assert answer.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    events = []
    for block in answer.content.decode().split("\n\n"):
        if block and not block.startswith(":"):
            name, data = block.split("\n")
            events.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return events


def test_the_client_gets_the_same_whole_and_streamed(client):
    whole = client.responses.create(**ASKED)
    assert whole.output_text and whole.object == "response" and whole.error is None
    assert whole.usage.output_tokens > 0
    assert whole.usage.total_tokens == whole.usage.input_tokens + whole.usage.output_tokens
    events = list(client.responses.create(**ASKED, stream=True))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == whole.output_text
    last = events[-1].response
    assert last.output_text == text and last.usage == whole.usage
    assert last.status == whole.status


def test_the_clients_own_accumulation_agrees(client):
    with client.responses.stream(**ASKED) as stream:
        final = stream.get_final_response() if False else None
        for event in stream:
            if event.type in ("response.completed", "response.incomplete"):
                final = event.response
    assert final.output_text == client.responses.create(**ASKED).output_text


def test_events_come_in_openais_order_and_are_numbered(chat_daemon):
    events = stream_events(chat_daemon)
    names = [name for name, _ in events]
    assert names[:4] == ["response.created", "response.in_progress", "response.output_item.added",
                         "response.content_part.added"]
    assert set(names[4:-4]) == {"response.output_text.delta"}
    assert names[-4:-1] == ["response.output_text.done", "response.content_part.done",
                            "response.output_item.done"]
    assert names[-1] in ("response.completed", "response.incomplete")
    assert [data["sequence_number"] for _, data in events] == list(range(len(events)))
    assert all(data["type"] == name for name, data in events)


def test_answers_and_events_are_as_specified(chat_daemon):
    schemas = {
        "response.created": "ResponseCreatedEvent",
        "response.in_progress": "ResponseInProgressEvent",
        "response.output_item.added": "ResponseOutputItemAddedEvent",
        "response.content_part.added": "ResponseContentPartAddedEvent",
        "response.output_text.delta": "ResponseTextDeltaEvent",
        "response.output_text.done": "ResponseTextDoneEvent",
        "response.content_part.done": "ResponseContentPartDoneEvent",
        "response.output_item.done": "ResponseOutputItemDoneEvent",
        "response.completed": "ResponseCompletedEvent",
        "response.incomplete": "ResponseIncompleteEvent",
    }
    check(chat_daemon.post("/v1/responses", ASKED).json(), "Response")
    for name, data in stream_events(chat_daemon):
        check(data, schemas[name])


def test_a_cut_answer_is_incomplete(client):
    cut = client.responses.create(**{**ASKED, "max_output_tokens": 1})
    assert cut.status == "incomplete"
    assert cut.incomplete_details.reason == "max_output_tokens"
    assert cut.usage.output_tokens == 1
    assert [item.status for item in cut.output] == ["incomplete"]


def test_the_item_that_is_cut_is_incomplete_in_a_stream_too(chat_daemon):
    fields = {"max_output_tokens": 2}
    whole = chat_daemon.post("/v1/responses", {**ASKED, **fields}).json()
    events = dict(stream_events(chat_daemon, **fields))
    item = events["response.output_item.done"]["item"]
    answer = events["response.incomplete"]["response"]
    assert item["status"] == answer["status"] == whole["status"] == "incomplete"
    assert answer["output"] == [item]
    assert {**item, "id": ""} == {**whole["output"][0], "id": ""} and len(whole["output"]) == 1
    events = dict(stream_events(chat_daemon, stop=[" "], max_output_tokens=24))
    assert events["response.output_item.done"]["item"]["status"] == "completed"


def test_items_and_instructions_are_the_conversation_they_say(chat_daemon, client):
    rendered = chat_daemon.post("/v1/chat/completions", {
        "model": "demo", "temperature": 0, "max_tokens": 24,
        "messages": [{"role": "system", "content": "Be brief."},
                     {"role": "user", "content": "Hello!"},
                     {"role": "assistant", "content": "Hi."},
                     {"role": "user", "content": "Who are you?"}]}).json()
    answer = client.responses.create(
        model="demo", temperature=0, max_output_tokens=24, instructions="Be brief.",
        input=[{"role": "user", "content": "Hello!"},
               {"type": "message", "role": "assistant",
                "content": [{"type": "output_text", "text": "Hi.", "annotations": []}]},
               {"role": "user", "content": [{"type": "input_text", "text": "Who are you?"}]}])
    assert answer.output_text == rendered["choices"][0]["message"]["content"]
    assert answer.usage.input_tokens == rendered["usage"]["prompt_tokens"]
    assert answer.instructions == "Be brief."


def test_stored_state_is_refused_by_name(chat_daemon, client):
    for name, value in (("previous_response_id", "resp_1"), ("background", True),
                        ("conversation", "conv_1"), ("truncation", "auto"), ("n", 2),
                        ("include", ["message.output_text.logprobs"])):
        check_error(chat_daemon.post("/v1/responses", {**ASKED, name: value}), 400, name)
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(**ASKED, previous_response_id="resp_1")
    assert refused.value.param == "previous_response_id"
    assert client.responses.create(**ASKED, store=True).store is False


def test_items_that_are_wrong_are_refused_by_their_place(chat_daemon):
    for items, place in (
            (None, "input"), ([], "input"), (5, "input"), (["x"], "input[0]"),
            ([{"role": "robot", "content": "x"}], "input[0].role"),
            ([{"role": "user"}], "input[0].content"),
            ([{"role": "user", "content": [{"type": "input_image"}]}], "input[0].content"),
            ([{"type": "item_reference", "id": "x"}], "input[0].type"),
            ([{"type": "function_call", "name": "f", "arguments": "{}"}], "input[0].call_id"),
            ([{"type": "function_call", "call_id": "1", "name": "f", "arguments": "["}],
             "input[0].arguments"),
            ([{"type": "function_call_output", "call_id": "1"}], "input[0].output")):
        check_error(chat_daemon.post("/v1/responses", {**ASKED, "input": items}), 400, place)


def test_metadata_is_bounded_as_openais_and_repeated(chat_daemon):
    def ask(metadata):
        return chat_daemon.post("/v1/responses", {**ASKED, "metadata": metadata})

    most = {f"{'ü' * 62}{index:02}": "ß" * 512 for index in range(16)}
    for metadata in ({}, {"a": "b"}, {"": ""}, most):
        answer = ask(metadata)
        assert answer.status_code == 200, answer.text
        assert answer.json()["metadata"] == metadata
    assert ask(None).json()["metadata"] == {}
    events = stream_events(chat_daemon, metadata=most)
    told = [data["response"]["metadata"] for _, data in events if "response" in data]
    assert len(told) == 3 and all(one == most for one in told)
    for metadata, parameter, reason in (
            ({str(index): "" for index in range(17)}, "metadata", "at most 16 pairs, not 17"),
            ({"x" * 65: ""}, "metadata", "at most 64 characters, not 65"),
            ({"k": "x" * 513}, "metadata.k", "at most 512 characters, not 513"),
            ({"k": 1}, "metadata.k", "a string, not an integer"),
            ({"k": []}, "metadata.k", "a string, not an array"),
            ([], "metadata", "an object")):
        assert reason in check_error(ask(metadata), 400, parameter)["message"]


def test_what_is_repeated_is_what_was_asked(chat_daemon):
    tool = {"type": "function", "name": "f", "description": "\"d\"\n", "strict": False,
            "parameters": {"type": "object", "default": [1e15, 0.1, -3, {"a": {}}, [], None, True]}}
    fields = {"tools": [tool, {"type": "function", "name": "g"}], "tool_choice": "none",
              "instructions": "Zürich\t\"quoted\"", "temperature": 0.5, "top_p": 1, "max_output_tokens": 2,
              "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}}}
    answer = chat_daemon.post("/v1/responses", {**ASKED, **fields}).json()
    for name in ("instructions", "temperature", "top_p", "max_output_tokens", "text", "tool_choice"):
        assert answer[name] == fields[name], name
    assert answer["tools"] == [tool, {"type": "function", "name": "g", "description": None,
                                      "parameters": None, "strict": False}]
