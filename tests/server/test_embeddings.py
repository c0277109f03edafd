"""POST /v1/embeddings: OpenAI's shape, with OpenAI's client; values of another implementation."""

import base64
import concurrent.futures
import json
import socket
import urllib.parse

import gguf
import numpy as np
import pytest
from conftest import FIXTURES, wait_until
from llama_reference import Llama

TEXTS = ["Once upon a time", "there was a little girl", "who liked to play outside. " * 8, " "]
MEAN, LAST = 1, 3


@pytest.fixture(scope="module")
def client(daemon):
    return daemon.client(max_retries=0)


@pytest.fixture(scope="module")
def tokens_of(daemon):
    return lambda text: daemon.post("/tokenize", {"prompt": text}).json()["tokens"]


@pytest.fixture(scope="module")
def reference(model_path):
    return Llama(model_path)


def with_pooling(model_path, folder, pooling):
    """A copy of the model file that says how rows are pooled."""
    reader = gguf.GGUFReader(model_path)
    path = folder / f"pooling-{pooling}.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        inner = field.types[1] if len(field.types) > 1 else None
        writer.add_key_value(name, field.contents(), field.types[0], inner)
    writer.add_uint32("llama.pooling_type", pooling)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def ask(daemon, **fields):
    return daemon.post("/v1/embeddings", {"model": "stories", **fields})


def vectors(answer):
    assert answer.status_code == 200, answer.text
    return [np.array(entry["embedding"], np.float32) for entry in answer.json()["data"]]


def refused(daemon, **fields):
    answer = ask(daemon, **fields)
    assert answer.status_code == 400, answer.text
    return answer.json()["error"]


@pytest.mark.parametrize("arithmetic", ["exact", "fast"])
@pytest.mark.parametrize("pooling, name", [(MEAN, "mean"), (LAST, "last")])
def test_values_are_those_of_another_implementation(
        start, model_path, tmp_path, reference, tokens_of, pooling, name, arithmetic):
    path = with_pooling(model_path, tmp_path, pooling)
    daemon = start("--served-model-name", "stories", "--arithmetic", arithmetic, "--batch-tokens",
                   "32", model=path).wait_until_ready()
    assert daemon.get("/v1/models").json()["data"][0]["meta"]["pooling"] == name
    for text, vector in zip(TEXTS, vectors(ask(daemon, input=TEXTS)), strict=True):
        expected = reference.embedding(tokens_of(text), name)
        assert abs(np.linalg.norm(vector.astype(np.float64)) - 1) < 1e-6
        assert expected @ vector > 0.9999, (text, expected @ vector)
        other = reference.embedding(tokens_of(text), "last" if name == "mean" else "mean")
        assert other @ vector < 0.999 or len(tokens_of(text)) < 3


def test_the_last_token_is_meant_where_the_file_says_nothing(daemon, model_path, reference,
                                                             tokens_of):
    assert gguf.GGUFReader(model_path).get_field("llama.pooling_type") is None
    meta = daemon.get("/v1/models").json()["data"][0]["meta"]
    vector = vectors(ask(daemon, input=TEXTS[0]))[0]
    assert meta["pooling"] == "last" and meta["n_embd"] == len(vector)
    assert reference.embedding(tokens_of(TEXTS[0]), "last") @ vector > 0.9999


def test_the_openai_client_gets_the_same_in_both_formats(client, daemon, tokens_of):
    by_default = client.embeddings.create(model="stories", input=TEXTS)  # asks for base64
    as_floats = client.embeddings.create(model="stories", input=TEXTS, encoding_format="float")
    assert by_default.object == "list" and by_default.model == "stories"
    assert [entry.index for entry in by_default.data] == [0, 1, 2, 3]
    assert {entry.object for entry in by_default.data} == {"embedding"}
    count = sum(len(tokens_of(text)) for text in TEXTS)
    assert by_default.usage.prompt_tokens == by_default.usage.total_tokens == count
    packed = ask(daemon, input=TEXTS, encoding_format="base64").json()["data"]
    for entry, floats, raw in zip(by_default.data, as_floats.data, packed, strict=True):
        expected = np.array(floats.embedding, np.float32)
        assert (np.array(entry.embedding, np.float32) == expected).all()
        assert (np.frombuffer(base64.b64decode(raw["embedding"], validate=True), "<f4")
                == expected).all()


def test_all_four_kinds_of_input_give_the_same(daemon, tokens_of):
    ids = [tokens_of(text) for text in TEXTS]
    by_text = vectors(ask(daemon, input=TEXTS))
    by_ids = vectors(ask(daemon, input=ids))
    for index, (text, one) in enumerate(zip(TEXTS, ids, strict=True)):
        for vector in (by_text[index], by_ids[index], *vectors(ask(daemon, input=text)),
                       *vectors(ask(daemon, input=one))):
            assert (vector == by_text[index]).all()
    # Special tokens are added to texts alone, and only if they are not unwanted.
    bare = vectors(ask(daemon, input=TEXTS[0], add_special_tokens=False))[0]
    assert (bare == vectors(ask(daemon, input=ids[0][1:]))[0]).all()
    assert (bare != by_text[0]).any()


def test_neighbours_and_ranks_do_not_change_a_bit(daemon, start, model_path):
    alone = [vectors(ask(daemon, input=text))[0] for text in TEXTS]
    split = start("--served-model-name", "stories", "--ranks", "2", "--batch-tokens", "16")
    split.wait_until_ready()
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        busy = [pool.submit(split.post, "/v1/completions", {
            "model": "stories", "prompt": TEXTS[index % 3], "max_tokens": 60}) for index in range(4)]
        several = [pool.submit(ask, split, input=TEXTS) for _ in range(4)]
        for answer in several:
            for vector, expected in zip(vectors(answer.result()), alone, strict=True):
                assert (vector == expected).all()
        assert all(answer.result().status_code == 200 for answer in busy)


def test_wrong_inputs_are_refused_by_place(daemon):
    assert refused(daemon)["param"] == "input"
    for value in (None, "", [], {}, 5, True, 1.5):
        assert refused(daemon, input=value)["param"] == "input", value
    for value, place in ((["a", ""], "input[1]"), (["a", 1], "input[1]"), ([[1], []], "input[1]"),
                         ([[1], [2.0]], "input[1]"), ([[1], ["2"]], "input[1]"),
                         ([[True]], "input[0]"), ([1, 2.0], "input"), ([1, "a"], "input"),
                         ([-1], "input"), ([10**9], "input"), (["a"] * 2049, "input")):
        assert refused(daemon, input=value)["param"] == place, value
    long = refused(daemon, input=["short", "word " * 2000])
    assert long["param"] == "input[1]" and long["code"] == "context_length_exceeded"
    assert "512" in long["message"]


def test_other_wrong_fields_are_refused_by_name(daemon):
    width = daemon.get("/v1/models").json()["data"][0]["meta"]["n_embd"]
    assert ask(daemon, input="a", dimensions=width, user="me").status_code == 200
    for fields in ({"dimensions": width - 1}, {"dimensions": 0}, {"dimensions": float(width)},
                   {"dimensions": str(width)}, {"encoding_format": "int8"},
                   {"encoding_format": 1}, {"user": 1}, {"stream": True}, {"normalize": "no"},
                   {"model": 7}):
        error = refused(daemon, **{"input": "a", **fields})
        assert error["param"] == next(iter(fields)), error
    assert str(width) in refused(daemon, input="a", dimensions=3)["message"]
    unknown = ask(daemon, input="a", model="other")
    assert unknown.status_code == 404 and unknown.json()["error"]["code"] == "model_not_found"


def test_2048_inputs_go_at_once_and_are_counted(daemon):
    before = daemon.metric("lockstep_prompt_tokens_total")
    answer = ask(daemon, input=[[index % 100 + 3, 5] for index in range(2048)])
    found = vectors(answer)
    assert len(found) == 2048
    assert (found[0] == found[100]).all() and (found[0] != found[1]).any()
    assert answer.json()["usage"] == {"prompt_tokens": 4096, "total_tokens": 4096}
    assert daemon.metric("lockstep_prompt_tokens_total") == before + 4096


def test_a_model_that_is_for_something_else_refuses(start, model_path, tmp_path):
    daemon = start("--served-model-name", "stories", model=with_pooling(model_path, tmp_path, 4))
    daemon.wait_until_ready()
    error = refused(daemon, input="a")
    assert error["param"] == "model" and "pooling_type is 4" in error["message"]
    assert daemon.get("/v1/models").json()["data"][0]["meta"]["pooling"] is None
    assert daemon.post("/v1/completions", {"model": "stories", "prompt": "a"}).status_code == 200


def test_numbers_that_are_none_fail_one_request_alone(start, model_path, tmp_path):
    path = with_pooling(model_path, tmp_path, MEAN)
    tensor = next(t for t in gguf.GGUFReader(path, "r+").tensors if t.name == "token_embd.weight")
    tensor.data[100] = np.nan
    tensor.data.flush()
    daemon = start("--served-model-name", "stories", model=path).wait_until_ready()
    healthy = vectors(ask(daemon, input=[[5, 6, 7]]))[0]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        good = [pool.submit(ask, daemon, input=[[5, 6, 7]] * 8) for _ in range(3)]
        bad = pool.submit(ask, daemon, input=[[5, 100, 7]]).result()
        assert bad.status_code == 500 and "NaN" in bad.json()["error"]["message"]
        for answer in good:
            assert all((vector == healthy).all() for vector in vectors(answer.result()))


def test_a_client_that_leaves_stops_its_inputs(start):
    daemon = start("--served-model-name", "stories", "--batch-tokens", "8", "--sequences", "1")
    daemon.wait_until_ready()
    body = json.dumps({"model": "stories", "input": [[5] * 500] * 500}).encode()
    address = urllib.parse.urlsplit(daemon.url)
    with socket.create_connection((address.hostname, address.port)) as client:
        client.sendall(b"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\n"
                       b"Content-Type: application/json\r\n"
                       b"Content-Length: %d\r\n\r\n" % len(body) + body)
        wait_until(lambda: daemon.metric("lockstep_requests_running") > 0)
    wait_until(lambda: daemon.metric("lockstep_requests_running") == 0
               and daemon.metric("lockstep_requests_waiting") == 0)
    assert daemon.metric("lockstep_prompt_tokens_total") < 500 * 500
    assert daemon.metric("lockstep_requests_total", finish_reason="cancelled") > 0


def test_a_timeout_ends_it(start):
    daemon = start("--served-model-name", "stories", "--batch-tokens", "8", "--sequences", "1")
    daemon.wait_until_ready()
    answer = ask(daemon, input=[[5] * 500] * 300, timeout=0.001)
    assert answer.status_code == 504
    assert answer.json()["error"]["code"] == "deadline_exceeded"


def test_the_log_has_a_line_of_it(start):
    daemon = start("--served-model-name", "stories", "--log-format", "json").wait_until_ready()
    usage = ask(daemon, input=["a", "b"]).json()["usage"]
    line = json.loads(daemon.wait_for_line(r'.*"/v1/embeddings".*').group(0))
    assert line["status"] == 200 and line["finish"] == "stop"
    assert line["prompt_tokens"] == usage["prompt_tokens"] and line["generated_tokens"] == 0


def test_a_model_with_layer_norms_gives_none(start):
    model = FIXTURES / "families/starcoder2.gguf"
    daemon = start("--served-model-name", "stories", model=model).wait_until_ready()
    answer = ask(daemon, input=[5, 6, 7])
    assert answer.status_code == 400
    assert "last norm is no RMS norm" in answer.json()["error"]["message"]


# Scales and caps stand behind the product whose input is the hidden state.
@pytest.mark.parametrize("family", ["gemma2", "granite"])
def test_scaled_logits_do_not_change_the_width(start, family):
    model = FIXTURES / f"families/{family}.gguf"
    daemon = start("--served-model-name", "stories", model=model).wait_until_ready()
    assert len(ask(daemon, input=[5, 6, 7]).json()["data"][0]["embedding"]) == 32
