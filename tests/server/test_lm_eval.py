"""The requests that lm-eval 0.4.13's local-completions sends (tokenizer_backend=remote) for a task of
each kind: multiple choice, generation and rolling likelihood; recorded, as it is no small package.
scripts/serving/check_lm_eval.py runs the package itself."""

import json

import pytest

from conftest import ROOT

REQUESTS = json.loads((ROOT / "tests/fixtures/lm_eval_requests.json").read_text())


@pytest.mark.parametrize("echo", [True, False])
def test_completions_have_what_lm_eval_reads(chat_daemon, echo):
    asked = [request["body"] for request in REQUESTS
             if request["path"] == "/v1/completions" and bool(request["body"].get("echo")) == echo]
    assert asked
    for body in asked:
        answer = chat_daemon.post("/v1/completions", body)
        assert answer.status_code == 200, answer.text
        choices = answer.json()["choices"]
        prompts = body["prompt"] if isinstance(body["prompt"][0], list) else [body["prompt"]]
        assert len(choices) == len(prompts)
        for choice, prompt in zip(choices, prompts, strict=True):
            if not echo:
                assert isinstance(choice["text"], str)
                continue
            logprobs = choice["logprobs"]
            assert len(logprobs["token_logprobs"]) >= len(prompt)
            assert logprobs["token_logprobs"][0] is None
            assert all(value <= 0 for value in logprobs["token_logprobs"][1:])
            assert all(top for top in logprobs["top_logprobs"][1:])


@pytest.mark.parametrize("end", ["eos", "stop_token_ids"])
def test_a_token_that_ends_the_answer_has_its_place_after_the_prompts(chat_daemon, end):
    """lm-eval asks for one token and takes the last logprob off: it would be the prompt's else."""
    prompt = chat_daemon.post("/tokenize", {"prompt": "The sky is blue."}).json()["tokens"]
    eos = chat_daemon.get("/tokenizer_info").json()["eos_token"]
    [token] = chat_daemon.post(
        "/tokenize", {"prompt": eos if end == "eos" else "a", "add_special_tokens": False}
    ).json()["tokens"]
    more = {"logit_bias": {str(token): 100}}
    if end != "eos":
        more["stop_token_ids"] = [token]
    body = {"model": "demo", "prompt": [prompt], "temperature": 0, "logprobs": 1, "echo": True}
    [alone] = chat_daemon.post("/v1/completions", {**body, "max_tokens": 0}).json()["choices"]
    answer = chat_daemon.post("/v1/completions", {**body, **more, "max_tokens": 1}).json()
    [choice] = answer["choices"]
    assert choice["finish_reason"] == "stop" and choice["text"] == alone["text"]
    assert answer["usage"]["completion_tokens"] == 1
    for name, values in choice["logprobs"].items():
        assert len(values) == len(prompt) + 1, name
        assert values[:-1] == alone["logprobs"][name], name
    assert choice["logprobs"]["token_logprobs"][-1] < 0


def test_a_prompt_that_fills_the_context_is_scored(chat_daemon):
    context = chat_daemon.get("/v1/models/demo").json()["max_model_len"]
    prompt = [5 + index % 50 for index in range(context)]
    body = {"model": "demo", "max_tokens": 0, "echo": True, "logprobs": 1, "temperature": 0}
    answer = chat_daemon.post("/v1/completions", {**body, "prompt": prompt})
    assert answer.status_code == 200, answer.text
    [choice] = answer.json()["choices"]
    values = choice["logprobs"]["token_logprobs"]
    assert choice["finish_reason"] == "length" and len(values) == context
    assert values[0] is None and all(value <= 0 for value in values[1:])
    assert answer.json()["usage"]["completion_tokens"] == 0
    shorter = chat_daemon.post("/v1/completions", {**body, "prompt": prompt[:-1]}).json()
    assert shorter["choices"][0]["logprobs"]["token_logprobs"] == values[:-1]
    for fields in ({"prompt": [*prompt, 5]}, {"prompt": prompt, "max_tokens": 1}):
        refused = chat_daemon.post("/v1/completions", {**body, **fields})
        assert refused.status_code == 400
        error = refused.json()["error"]
        assert error["code"] == "context_length_exceeded"
        assert f"{context} tokens, but {context + 1} were requested" in error["message"]


def test_the_tokenizer_is_served_as_lm_eval_asks_for_it(chat_daemon):
    info = chat_daemon.get("/tokenizer_info").json()
    assert isinstance(info["eos_token"], str)
    for request in REQUESTS:
        if request["path"] == "/tokenize":
            text = request["body"]["prompt"]
            tokens = chat_daemon.post("/tokenize", request["body"]).json()["tokens"]
            assert chat_daemon.post("/detokenize", {"tokens": tokens}).json()["prompt"] == text
