"""What a client's own fields make impossible is a 400 of a kind of its own; output that is no number is
a 500, and, request after request, makes the daemon not ready."""

import json

import gguf
import numpy as np
import pytest

from conftest import ROOT, parse_events, wait_until
from openai_schema import check_error

COMPLETIONS = "/v1/completions"
DEMO = ROOT / "config/demo.gguf"
# Six hundred rules, each of which may be where an answer of a's stands.
AMBIGUOUS = "root ::= " + " | ".join(f"r{index}" for index in range(600)) + "\n" + "\n".join(
    f'r{index} ::= "a" r{index} "b" | "a" "{index}"' for index in range(600))


def token_of(daemon, text):
    (token,) = daemon.post("/tokenize", {"prompt": text, "add_special_tokens": False}).json()["tokens"]
    return token


def no_token_left(daemon):
    """Fields that forbid the only token that they allow."""
    return {"choice": ["~"], "min_tokens": 1, "stop_token_ids": [token_of(daemon, "~")]}


def ended(daemon, reason):
    return daemon.metric("lockstep_requests_total", finish_reason=reason)


@pytest.fixture(scope="module")
def demo(chat_daemon):
    return chat_daemon


@pytest.mark.parametrize("fields, parameter, why", [
    (no_token_left, "choice", "no token is left"),
    (lambda _: {"grammar": AMBIGUOUS}, "grammar", "too ambiguous"),
])
def test_an_answer_that_cannot_go_on_is_a_400_of_its_own_kind(demo, fields, parameter, why):
    invalid, errors = ended(demo, "invalid_request"), ended(demo, "error")
    body = {"model": "demo", "prompt": "a", "max_tokens": 8, **fields(demo)}
    error = check_error(demo.post(COMPLETIONS, body), 400, parameter, "impossible_answer")
    assert why in error["message"]
    events = demo.post(COMPLETIONS, {**body, "stream": True})
    assert events.status_code == 200  # it has begun
    told = parse_events(events.content)[-2]["error"]
    assert told["type"] == "invalid_request_error" and told["code"] == "impossible_answer"
    assert told["param"] == parameter and why in told["message"]
    wait_until(lambda: ended(demo, "invalid_request") == invalid + 2)
    assert ended(demo, "error") == errors
    assert demo.metric("lockstep_http_requests_total", code="500") == 0


def test_chats_responses_and_messages_say_so_in_their_own_words(demo):
    messages = [{"role": "user", "content": "Hi"}]
    fields = {"model": "demo", "max_tokens": 8, "messages": messages, **no_token_left(demo)}
    check_error(demo.post("/v1/chat/completions", fields), 400, "choice", "impossible_answer")
    answer = demo.post("/v1/messages", fields)
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"
    fields = {"model": "demo", "input": "Hi", "stream": True, **no_token_left(demo)}
    text = demo.post("/v1/responses", fields).content.decode()
    last = json.loads(text.strip().rsplit("data: ", 1)[1])
    assert last["type"] == "response.failed"
    assert last["response"]["error"]["code"] == "invalid_prompt"


def test_an_answer_that_nests_too_deep_is_a_400(start):
    daemon = start("--served-model-name", "m", "--context", "4096", model=DEMO).wait_until_ready()
    grammar = 'root ::= "(" root ")" | "x"'
    body = {"model": "m", "prompt": "a", "max_tokens": 3000, "temperature": 0, "grammar": grammar,
            "logit_bias": {str(token_of(daemon, "(")): 100}}
    error = check_error(daemon.post(COMPLETIONS, body), 400, "grammar", "impossible_answer")
    assert "1024 rules" in error["message"]
    assert ended(daemon, "invalid_request") == 1 and ended(daemon, "error") == 0


@pytest.fixture
def damaged(start, model_path, tmp_path):
    """A daemon whose model makes NaN of token 100 when it reads it, and of no other."""
    path = tmp_path / "damaged.gguf"
    reader = gguf.GGUFReader(model_path)
    writer = gguf.GGUFWriter(path, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            is_array = field.types[0] == gguf.GGUFValueType.ARRAY
            writer.add_key_value(name, field.contents(), field.types[0],
                                 field.types[-1] if is_array else None)
    names = [tensor.name for tensor in reader.tensors]
    for tensor in reader.tensors:
        data = tensor.data
        if tensor.name == "token_embd.weight":
            assert data.dtype in (np.float16, np.float32)
            if "output.weight" not in names:  # or the damage would be in every token's logits
                writer.add_tensor("output.weight", data.copy(), raw_dtype=tensor.tensor_type)
            data = data.copy()
            data[100] = np.nan
        writer.add_tensor(tensor.name, data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return start("--served-model-name", "m", model=path).wait_until_ready()


def ask(daemon, prompt, **fields):
    return daemon.post(COMPLETIONS, {"model": "m", "prompt": prompt, "max_tokens": 2, "temperature": 0,
                                     "logit_bias": {"100": -100}, **fields})


def test_output_that_is_no_number_again_and_again_makes_it_not_ready(damaged):
    bad, good = [5, 100, 7], [5, 6, 7]
    streak = lambda: damaged.metric("lockstep_unusable_submissions")
    for count in (1, 2):
        check_error(ask(damaged, bad), 500)
        assert streak() == count and damaged.get("/health/ready").status_code == 200
    # One that ends well in between: it was the prompts.
    assert ask(damaged, good).status_code == 200
    wait_until(lambda: streak() == 0)
    # Choices of one prompt fail together and are no streak.
    check_error(ask(damaged, bad, n=8), 500)
    assert streak() == 1 and damaged.get("/health/ready").status_code == 200
    # What a client makes impossible says nothing of the model.
    impossible = ask(damaged, good, grammar=AMBIGUOUS)
    assert impossible.status_code == 400 and streak() == 1
    for _ in range(2):
        check_error(ask(damaged, bad), 500)
    answer = damaged.get("/health/ready")
    assert answer.status_code == 503 and answer.json()["status"] == "output_damaged"
    assert "NaN" in answer.json()["error"]["message"]
    assert damaged.get("/health/live").status_code == 200
    damaged.wait_until_logged("3 submissions in a row holds no usable numbers")
    # Requests are still taken, and one that ends well makes it ready again.
    assert ask(damaged, good).status_code == 200
    damaged.wait_until_ready()
    damaged.wait_until_logged("usable again")
