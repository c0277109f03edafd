"""Every answer and every chunk of a stream against OpenAI's specification."""

import re

import pytest

from conftest import PLAIN, Daemon
from openai_schema import check, check_error

PROMPT = {"model": "stories", "prompt": "Once upon a time", "temperature": 0, "max_tokens": 8}


def complete(daemon, **fields):
    answer = daemon.post("/v1/completions", {**PROMPT, **fields})
    assert answer.status_code == 200, answer.text
    body = answer.json()
    check(body, "CreateCompletionResponse", relaxed=bool(fields.get("echo")))
    return body


def stream(daemon, **fields):
    events = daemon.events("/v1/completions", {**PROMPT, **fields})[:-1]
    for event in events:
        check(event, "CreateCompletionResponse", relaxed=True)
    return events


def text_of(events, index=0):
    return "".join(
        choice["text"] for event in events for choice in event["choices"]
        if choice["index"] == index
    )


def test_a_completion_has_openais_shape(daemon):
    body = complete(daemon)
    assert re.fullmatch(r"cmpl-[0-9a-f]{32}", body["id"])
    assert body["object"] == "text_completion"
    assert body["model"] == "stories"
    assert body["system_fingerprint"]
    [choice] = body["choices"]
    assert choice["finish_reason"] == "length"
    assert choice["logprobs"] is None
    usage = body["usage"]
    assert usage["completion_tokens"] == 8
    assert usage["total_tokens"] == usage["prompt_tokens"] + 8


def test_the_default_length_is_16_tokens(daemon):
    body = daemon.post("/v1/completions", {
        "model": "stories", "prompt": "Once upon", "ignore_eos": True}).json()
    assert body["usage"]["completion_tokens"] == 16


def test_the_model_is_named_as_the_request_named_it(daemon):
    assert complete(daemon, model="alias")["model"] == "alias"


def test_a_stream_says_what_the_whole_answer_says(daemon):
    whole = complete(daemon)
    events = stream(daemon)
    assert text_of(events) == whole["choices"][0]["text"]
    assert len({event["id"] for event in events}) == 1
    assert len({event["created"] for event in events}) == 1
    assert all("usage" not in event for event in events)
    reasons = [event["choices"][0]["finish_reason"] for event in events]
    assert reasons[-1] == "length" and set(reasons[:-1]) <= {None}


def test_usage_comes_in_a_chunk_of_its_own_when_it_is_asked_for(daemon):
    whole = complete(daemon)
    events = stream(daemon, stream_options={"include_usage": True})
    assert all(event["usage"] is None for event in events[:-1])
    assert events[-1]["choices"] == []
    assert events[-1]["usage"] == whole["usage"]


def test_every_form_of_a_prompt_gives_the_same_answer(daemon):
    tokens = daemon.post("/tokenize", {"prompt": PROMPT["prompt"]}).json()["tokens"]
    texts = [
        [choice["text"] for choice in complete(daemon, prompt=prompt)["choices"]]
        for prompt in (PROMPT["prompt"], [PROMPT["prompt"]], tokens, [tokens])
    ]
    assert all(text == texts[0] for text in texts)


def test_indices_run_over_prompts_and_choices(daemon):
    body = complete(daemon, prompt=["Once", "Lily"], n=3, temperature=1, seed=5)
    assert [choice["index"] for choice in body["choices"]] == list(range(6))
    assert body["usage"]["completion_tokens"] == 6 * 8
    alone = [complete(daemon, prompt=prompt, n=1, temperature=1, seed=5) for prompt in
             ("Once", "Lily")]
    for first, answer in zip((0, 3), alone, strict=True):
        assert body["choices"][first]["text"] == answer["choices"][0]["text"]
    assert body["usage"]["prompt_tokens"] == sum(
        answer["usage"]["prompt_tokens"] for answer in alone)
    events = stream(daemon, prompt=["Once", "Lily"], n=3, temperature=1, seed=5)
    for choice in body["choices"]:
        assert text_of(events, choice["index"]) == choice["text"]


def test_legacy_logprobs_are_four_parallel_arrays(daemon):
    [choice] = complete(daemon, logprobs=3)["choices"]
    logprobs = choice["logprobs"]
    assert set(logprobs) == {"tokens", "token_logprobs", "top_logprobs", "text_offset"}
    assert {len(array) for array in logprobs.values()} == {8}
    assert "".join(logprobs["tokens"]) == choice["text"]
    for token, logprob, top, offset in zip(
        logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"],
        logprobs["text_offset"], strict=True,
    ):
        assert choice["text"][offset:].startswith(token)
        assert 3 <= len(top) <= 4 and top[token] == logprob <= 0
        assert logprob == max(top.values())  # greedy


def test_no_alternatives_leave_the_tokens_own_logprob(daemon):
    [choice] = complete(daemon, logprobs=0)["choices"]
    assert all(len(top) == 1 for top in choice["logprobs"]["top_logprobs"])


def test_streamed_logprobs_are_those_of_the_whole_answer(daemon):
    whole = complete(daemon, logprobs=2)["choices"][0]["logprobs"]
    joined = {name: [] for name in whole}
    for event in stream(daemon, logprobs=2):
        for name, values in event["choices"][0]["logprobs"].items():
            joined[name].extend(values)
    assert joined == whole


def test_echo_gives_the_prompt_back_with_its_logprobs(daemon):
    [choice] = complete(daemon, echo=True, logprobs=1)["choices"]
    assert choice["text"].startswith(PROMPT["prompt"])
    logprobs = choice["logprobs"]
    assert logprobs["token_logprobs"][0] is None and logprobs["top_logprobs"][0] is None
    assert all(value <= 0 for value in logprobs["token_logprobs"][1:])
    for token, offset in list(zip(logprobs["tokens"], logprobs["text_offset"], strict=True))[1:]:
        assert choice["text"][offset:].startswith(token), (token, offset)
    plain = complete(daemon)["choices"][0]["text"]
    assert choice["text"] == PROMPT["prompt"] + plain
    assert text_of(stream(daemon, echo=True)) == choice["text"]


def test_echo_of_the_prompt_alone_generates_nothing(daemon):
    body = complete(daemon, echo=True, logprobs=0, max_tokens=0)
    [choice] = body["choices"]
    assert choice["text"] == PROMPT["prompt"]
    assert choice["finish_reason"] == "length"
    assert len(choice["logprobs"]["tokens"]) == body["usage"]["prompt_tokens"]
    assert body["usage"]["completion_tokens"] == 0


def test_the_prompts_logprobs_are_those_of_generating_it(daemon):
    """What greedy decoding said of its own tokens, the same tokens as a prompt must be given."""
    generated = complete(daemon, logprobs=0)
    tokens = daemon.post("/tokenize", {"prompt": PROMPT["prompt"]}).json()["tokens"]
    texts = generated["choices"][0]["logprobs"]["tokens"]
    ids = daemon.post(
        "/tokenize", {"prompt": PROMPT["prompt"] + generated["choices"][0]["text"]}
    ).json()["tokens"]
    assert len(ids) == len(tokens) + len(texts)  # the tokenizer cuts the model's words as it did
    echoed = complete(daemon, prompt=ids, echo=True, logprobs=0, max_tokens=0)
    ours = echoed["choices"][0]["logprobs"]["token_logprobs"][len(tokens):]
    assert ours == pytest.approx(
        generated["choices"][0]["logprobs"]["token_logprobs"], abs=0.02)


def test_a_stop_string_ends_the_text_before_it(daemon):
    plain = complete(daemon, max_tokens=32)["choices"][0]["text"]
    stop = plain[10:13]
    [choice] = complete(daemon, max_tokens=32, stop=["never there", stop])["choices"]
    assert choice["finish_reason"] == "stop"
    assert choice["text"] == plain[: plain.index(stop)]
    assert text_of(stream(daemon, max_tokens=32, stop=stop)) == choice["text"]


def test_a_stop_token_ends_it(daemon):
    [choice] = complete(daemon, logprobs=0)["choices"]
    tokens = daemon.post("/tokenize", {"prompt": PROMPT["prompt"] + choice["text"]}).json()["tokens"]
    body = complete(daemon, stop_token_ids=[tokens[-1]])
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["usage"]["completion_tokens"] <= 8


def test_a_bias_rules_a_token_in_and_out(daemon):
    token = daemon.post("/tokenize", {"prompt": " a", "add_special_tokens": False}).json()["tokens"][-1]
    first = complete(daemon, logit_bias={str(token): 100}, max_tokens=3)
    assert len(set(first["choices"][0]["text"].split())) == 1


def test_the_same_seed_gives_the_same_text_and_another_seed_another(daemon):
    texts = [
        complete(daemon, temperature=1.5, seed=seed, max_tokens=32)["choices"][0]["text"]
        for seed in (1, 1, 2)
    ]
    assert texts[0] == texts[1] != texts[2]


def test_models_are_listed_and_found_by_name(daemon):
    body = daemon.get("/v1/models").json()
    check(body, "ListModelsResponse")
    assert [model["id"] for model in body["data"]] == ["stories", "alias", "org/model"]
    one = daemon.get("/v1/models/alias").json()
    check(one, "Model")
    assert one == body["data"][1]
    assert one["max_model_len"] > 0
    for path in ("org/model", "org%2Fmodel"):
        assert daemon.get(f"/v1/models/{path}").json() == body["data"][2]
    assert daemon.client().models.retrieve("org/model").id == "org/model"
    for path in ("other", "org", "org/other", "stories/x"):
        check_error(daemon.get(f"/v1/models/{path}"), 404, "model", "model_not_found")


def test_tokens_and_text_go_both_ways(daemon):
    body = daemon.post("/tokenize", {"model": "stories", "prompt": "Once upon a time"}).json()
    assert body["count"] == len(body["tokens"]) and body["token_strs"] is None
    assert body["max_model_len"] == daemon.get("/v1/models/alias").json()["max_model_len"]
    bare = daemon.post("/tokenize", {"prompt": "Once upon a time", "add_special_tokens": False})
    assert body["tokens"][1:] == bare.json()["tokens"]
    assert daemon.post("/tokenize", {"content": "Once upon a time"}).json() == bare.json()
    text = daemon.post("/detokenize", {"tokens": bare.json()["tokens"]}).json()
    assert text == {"prompt": "Once upon a time", "content": "Once upon a time"}
    named = daemon.post("/tokenize", {"prompt": "Once", "return_token_strs": True}).json()
    assert len(named["token_strs"]) == named["count"]


def test_version_and_health_answer(daemon):
    assert re.fullmatch(r"\d+\.\d+\.\d+", daemon.get("/version").json()["version"])
    assert daemon.get("/health/live").json() == {"status": "alive"}
    for path in ("/health/ready", "/health"):
        assert daemon.get(path).json() == {"status": "ready"}


def test_a_request_id_is_echoed_or_simulated(daemon):
    answer = daemon.get("/version", headers={"X-Request-Id": "mine-1"})
    assert answer.headers["X-Request-Id"] == "mine-1"
    assert daemon.get("/version").headers["X-Request-Id"]


MESSAGES = [{"role": "user", "content": "Hello! Who are you?"}]


def chat(daemon, **fields):
    answer = daemon.post(
        "/v1/chat/completions",
        {"model": "demo", "messages": MESSAGES, "temperature": 0, "max_tokens": 12, **fields})
    assert answer.status_code == 200, answer.text
    check(answer.json(), "CreateChatCompletionResponse")
    return answer.json()


def chat_stream(daemon, **fields):
    events = daemon.events(
        "/v1/chat/completions",
        {"model": "demo", "messages": MESSAGES, "temperature": 0, "max_tokens": 12, **fields})[:-1]
    for event in events:
        check(event, "CreateChatCompletionStreamResponse")
    return events


def test_a_chat_has_openais_shape(chat_daemon):
    body = chat(chat_daemon)
    assert re.fullmatch(r"chatcmpl-[0-9a-f]{32}", body["id"])
    [choice] = body["choices"]
    assert choice["message"]["role"] == "assistant" and choice["message"]["refusal"] is None
    assert choice["message"]["content"]
    assert choice["logprobs"] is None


def test_a_chat_stream_says_what_the_whole_answer_says(chat_daemon):
    whole = chat(chat_daemon, n=2, seed=3, temperature=1)
    events = chat_stream(
        chat_daemon, n=2, seed=3, temperature=1, stream_options={"include_usage": True})
    assert events[-1]["usage"] == whole["usage"] and events[-1]["choices"] == []
    for choice in whole["choices"]:
        parts = [part for event in events for part in event["choices"]
                 if part["index"] == choice["index"]]
        assert parts[0]["delta"]["role"] == "assistant"
        assert parts[-1]["delta"] == {}
        assert parts[-1]["finish_reason"] == choice["finish_reason"]
        assert all(part["finish_reason"] is None for part in parts[:-1])
        content = "".join(part["delta"].get("content", "") for part in parts)
        assert content == choice["message"]["content"]


def test_chat_logprobs_carry_bytes(chat_daemon):
    body = chat(chat_daemon, logprobs=True, top_logprobs=4)
    [choice] = body["choices"]
    content = choice["logprobs"]["content"]
    assert choice["logprobs"]["refusal"] is None
    assert len(content) == body["usage"]["completion_tokens"] or choice["finish_reason"] == "stop"
    text = b"".join(bytes(entry["bytes"]) for entry in content).decode(errors="replace")
    assert text.startswith(choice["message"]["content"])
    for entry in content:
        assert len(entry["top_logprobs"]) == 4
        assert entry["top_logprobs"][0]["logprob"] == entry["logprob"]
    parts = [part for event in chat_stream(chat_daemon, logprobs=True, top_logprobs=4)
             for part in event["choices"] if part["logprobs"]]
    assert [entry for part in parts for entry in part["logprobs"]["content"]] == content


def test_messages_can_be_tokenized(chat_daemon):
    tokens = chat_daemon.post("/tokenize", {"messages": MESSAGES}).json()["tokens"]
    assert len(tokens) == chat(chat_daemon)["usage"]["prompt_tokens"]


@pytest.fixture(scope="module")
def plain_daemon():
    running = Daemon(PLAIN, "--served-model-name", "stories", "--workers", "1").wait_until_ready()
    yield running
    assert running.stop() == 0


def test_a_model_without_a_chat_template_says_so(plain_daemon):
    answer = plain_daemon.post("/v1/chat/completions", {"model": "stories", "messages": MESSAGES})
    assert "chat template" in check_error(answer, 400, "messages")["message"]


@pytest.mark.parametrize("prompt", ["Once upon a time", " two  spaces", "Äpfel, 早上好 😀\n"])
def test_sentence_pieces_come_streamed_as_they_come_whole(plain_daemon, prompt):
    """Their first space is no part of the text, and many of their tokens are a byte of a letter."""
    fields = {"prompt": prompt, "max_tokens": 40, "logprobs": 2, "echo": True, "ignore_eos": True}
    body = complete(plain_daemon, **fields)
    whole = body["choices"][0]["text"]
    assert whole.startswith(prompt) and len(whole) > len(prompt)
    assert body["usage"]["completion_tokens"] == 40
    assert text_of(stream(plain_daemon, **fields)) == whole
    tokens = plain_daemon.post("/tokenize", {"prompt": prompt}).json()["tokens"]
    again = plain_daemon.post("/detokenize", {"tokens": tokens}).json()["prompt"]
    assert again.removeprefix("<s>") == prompt
