"""POST /v1/messages, with Anthropic's own client."""

import json
import socket

import anthropic
import pytest

ASKED = {"model": "demo", "max_tokens": 24,
         "messages": [{"role": "user", "content": "Hello! Who are you?"}]}
GREEDY = {"temperature": 0}  # which the client does not know any more


def create(client, **fields):
    return client.messages.create(**{**ASKED, "extra_body": GREEDY, **fields})


def stream_of(client, **fields):
    return client.messages.stream(**{**ASKED, "extra_body": GREEDY, **fields})


@pytest.fixture(scope="module")
def client(chat_daemon):
    return anthropic.Anthropic(base_url=chat_daemon.url, api_key="none", max_retries=0, timeout=300)


def test_a_message_whole_and_streamed(client):
    whole = create(client)
    assert whole.type == "message" and whole.role == "assistant"
    assert [block.type for block in whole.content] == ["text"]
    assert whole.stop_reason in ("end_turn", "max_tokens") and whole.stop_sequence is None
    assert whole.usage.input_tokens > 0 and whole.usage.output_tokens > 0
    with stream_of(client) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text == final.content[0].text
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_events_come_in_anthropics_order(chat_daemon):
    answer = chat_daemon.post("/v1/messages", {**ASKED, **GREEDY, "stream": True},
                              headers={"anthropic-version": "2023-06-01", "x-api-key": "none"})
    assert answer.status_code == 200
    names = []
    for block in answer.content.decode().strip().split("\n\n"):
        name, data = block.split("\n")
        names.append(name.removeprefix("event: "))
        assert json.loads(data.removeprefix("data: "))["type"] == names[-1]
    assert names[:3] == ["message_start", "ping", "content_block_start"]
    assert set(names[3:-3]) <= {"content_block_delta", "ping"}
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]


def test_blocks_and_system_are_the_conversation_they_say(chat_daemon, client):
    blocks = create(
        client,
        system=[{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        messages=[{"role": "user", "content": [{"type": "text", "text": "Hel"},
                                                  {"type": "text", "text": "lo!"}]},
                     {"role": "assistant", "content": [{"type": "text", "text": "Hi."}]},
                     {"role": "user", "content": "Who are you?"}])
    chat = chat_daemon.post("/v1/chat/completions", {
        "model": "demo", "temperature": 0, "max_tokens": 24,
        "messages": [{"role": "system", "content": "Be brief."},
                     {"role": "user", "content": "Hello!"},
                     {"role": "assistant", "content": "Hi."},
                     {"role": "user", "content": "Who are you?"}]}).json()
    assert blocks.content[0].text == chat["choices"][0]["message"]["content"]
    assert blocks.usage.input_tokens == chat["usage"]["prompt_tokens"]


def test_stop_sequences_are_named(client):
    plain = create(client).content[0].text
    stop = plain[8:12]
    stopped = create(client, stop_sequences=["never said", stop])
    assert stopped.stop_reason == "stop_sequence" and stopped.stop_sequence == stop
    assert stopped.content[0].text == plain[: plain.index(stop)]
    with stream_of(client, stop_sequences=[stop]) as stream:
        assert stream.get_final_message().stop_sequence == stop


def test_an_answer_goes_on_with_the_assistants_last_message(client):
    whole = create(client).content[0].text
    begun = whole.split()[0]
    more = create(
        client, messages=[*ASKED["messages"], {"role": "assistant", "content": begun}])
    assert (begun + more.content[0].text)[:12] == whole[:12]


def test_an_answer_goes_on_where_the_message_ends_whatever_the_template_writes_behind_it(
        chat_daemon):
    for begun in ("<", "im_end", "So\n", "Hello!"):
        messages = [*ASKED["messages"], {"role": "assistant", "content": begun}]
        rendered = chat_daemon.post("/apply-template", {
            "model": "demo", "messages": messages, "continue_final_message": True}).json()
        assert rendered["prompt"].endswith("<|im_end|>\n<|im_start|>assistant\n" + begun)
        counted = chat_daemon.post("/v1/messages/count_tokens",
                                   {"model": "demo", "messages": messages}).json()
        assert counted["input_tokens"] == rendered["count"]


def test_what_the_context_cannot_hold_is_cut_off(client):
    long = create(client, max_tokens=1_000_000, extra_body={"ignore_eos": True})
    assert long.stop_reason == "model_context_window_exceeded"


def test_tokens_are_counted(client):
    count = client.messages.count_tokens(model="demo", messages=ASKED["messages"])
    assert count.input_tokens == create(client).usage.input_tokens


def test_errors_are_the_clients_exceptions(client):
    with pytest.raises(anthropic.NotFoundError) as unknown:
        create(client, model="other")
    assert unknown.value.body["error"]["type"] == "not_found_error"
    with pytest.raises(anthropic.BadRequestError) as wrong:
        create(client, extra_body={"temperature": 3})
    assert wrong.value.body["type"] == "error"
    assert "temperature" in wrong.value.body["error"]["message"]


def test_what_is_wrong_is_refused_by_its_place(chat_daemon):
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}
    for fields, place in (
            ({"max_tokens": None}, "max_tokens"), ({"max_tokens": 0}, "max_tokens"),
            ({"messages": []}, "messages"), ({"messages": ["x"]}, "messages[0]"),
            ({"messages": [{"role": "system", "content": "x"}]}, "messages[0].role"),
            ({"messages": [{"role": "user"}]}, "messages[0].content"),
            ({"messages": [{"role": "user", "content": [image]}]}, "messages[0].content[0].type"),
            ({"messages": [{"role": "user", "content": [{"type": "tool_use"}]}]},
             "messages[0].content[0].type"),
            ({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "name": "f",
                                                              "input": {}}]}]},
             "messages[0].content[0].id"),
            ({"system": [{"type": "image"}]}, "system"), ({"stop_sequences": [""]}, "stop_sequences"),
            ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
            ({"tools": [{"type": "web_search_20250305", "name": "f"}]}, "tools[0].type"),
            ({"tool_choice": {"type": "any"}}, "tool_choice"), ({"n": 2}, "n")):
        answer = chat_daemon.post("/v1/messages", {**ASKED, **fields})
        assert answer.status_code == 400, (fields, answer.text)
        error = answer.json()["error"]
        assert error["type"] == "invalid_request_error"
        assert error["message"].startswith(f"'{place}'"), error


def test_what_the_gate_refuses_has_anthropics_shape_here_and_openais_elsewhere(chat_daemon):
    host, port = chat_daemon.url.removeprefix("http://").split(":")

    def refusal(head):
        with socket.create_connection((host, int(port)), timeout=300) as connection:
            connection.sendall(head)
            connection.shutdown(socket.SHUT_WR)
            answer = b""
            while more := connection.recv(65536):
                answer += more
        head, body = answer.split(b"\r\n\r\n", 1)
        return int(head.split()[1]), json.loads(body)

    for path in ("/v1/messages", "/v1/messages/count_tokens", "/v1/messages/batches",
                 "/v1/messagesx", "/v1/chat/completions"):
        line = b" " + path.encode() + b" HTTP/1.1\r\nHost: localhost\r\n"
        cases = [(413, b"POST" + line + b"Content-Length: 999999999\r\n\r\n"),
                 (415, b"POST" + line + b"Content-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx"),
                 (431, b"POST" + line + b"X: " + b"x" * 20000),
                 (400, b"POST" + line + b"no field\r\n\r\n"),
                 (400, b"POST" + line + b"Content-Length: 1\r\nContent-Length: 1\r\n\r\nx"),
                 (405, b"PUT" + line + b"\r\n")]
        for wanted, head in cases:
            status, body = refusal(head)
            # Where nothing is served, a sound head is 404 whatever follows it.
            served = not path.endswith(("batches", "x"))
            assert status == wanted or (not served and status == 404), (path, head, status, body)
            if path.startswith("/v1/messages") and path != "/v1/messagesx":
                assert body["type"] == "error" and set(body["error"]) == {"type", "message"}, body
            else:
                assert set(body) == {"error"} and "param" in body["error"], body


def test_anthropics_client_knows_what_the_gate_refuses(chat_daemon):
    client = anthropic.Anthropic(base_url=chat_daemon.url, api_key="none", max_retries=0)
    with pytest.raises(anthropic.APIStatusError) as refused:
        create(client, messages=[{"role": "user", "content": "x" * 5_000_000}])
    assert refused.value.status_code == 413
    assert refused.value.body["error"]["type"] == "request_too_large"
