"""Models that embed or rank and generate nothing: POST /v1/rerank, /v1/embeddings, and refusals."""

import json

import numpy as np
import pytest
from conftest import FIXTURES

ENCODERS = FIXTURES / "encoders"
MODELS = {entry["name"]: entry for entry in json.loads((ENCODERS / "index.json").read_text())["models"]}
DOCUMENTS = ["the cat", "a dog that runs", "x", "the cat sat on the mat"]


@pytest.fixture
def serve(start):
    def serve_one(name, *options):
        daemon = start("--served-model-name", "m", *options, model=ENCODERS / f"{name}.gguf")
        return daemon.wait_until_ready()
    return serve_one


def rank(daemon, path="/v1/rerank", **fields):
    return daemon.post(path, {"model": "m", "query": "the cat", "documents": DOCUMENTS, **fields})


def embed(daemon, tokens, **fields):
    answer = daemon.post("/v1/embeddings", {"model": "m", "input": tokens, **fields})
    assert answer.status_code == 200, answer.text
    return [np.array(entry["embedding"], np.float64) for entry in answer.json()["data"]]


def rows_of(entry, which):
    sequence = entry["sequences"][which]
    rows = np.fromfile(ENCODERS / sequence["rows"], "<f4").reshape(-1, entry["columns"])
    return sequence["tokens"], rows.astype(np.float64)


@pytest.mark.parametrize("name", ["bert", "nomic-bert", "jina-bert-v2", "gemma-embedding"])
def test_embeddings_are_the_means_of_another_implementations_states(serve, name):
    daemon = serve(name, "--kv-format", "f32")
    meta = daemon.get("/v1/models").json()["data"][0]["meta"]
    assert meta["pooling"] == "mean" and meta["n_embd"] == MODELS[name]["columns"]
    tokens, rows = rows_of(MODELS[name], 1)
    expected = rows.mean(0) / np.linalg.norm(rows.mean(0))
    found = embed(daemon, [tokens, [5], tokens])
    assert expected @ found[0] > 0.999999 and abs(np.linalg.norm(found[0]) - 1) < 1e-6
    assert (found[0] == found[2]).all()
    assert (embed(daemon, [tokens])[0] == found[0]).all()
    raw = embed(daemon, [tokens, tokens], normalize=False)
    assert np.abs(raw[0] - rows.mean(0)).max() < 1e-4 * rows.std()
    assert (raw[0] == raw[1]).all() and np.linalg.norm(raw[0]) > 1.01 * np.linalg.norm(found[0])


def test_scores_are_those_of_another_implementation_whatever_is_beside(serve):
    for name in ("bert-rank", "qwen3-rank"):
        daemon = serve(name)
        answer = rank(daemon)
        assert answer.status_code == 200, answer.text
        body = answer.json()
        scores = {entry["index"]: entry["relevance_score"] for entry in body["results"]}
        assert sorted(scores) == [0, 1, 2, 3] and len(set(scores.values())) == 4
        assert list(scores.values()) == sorted(scores.values(), reverse=True)
        assert body["model"] == "m" and body["usage"]["prompt_tokens"] > 20
        for index, document in enumerate(DOCUMENTS):
            alone = rank(daemon, documents=[{"text": document}]).json()["results"]
            assert alone == [{"index": 0, "relevance_score": scores[index]}]
        top = rank(daemon, "/rerank", top_n=2, return_documents=True).json()["results"]
        assert top == [{**entry, "document": {"text": DOCUMENTS[entry["index"]]}}
                       for entry in body["results"][:2]]
        normalized = {entry["index"]: entry["relevance_score"]
                      for entry in rank(daemon, normalize=True).json()["results"]}
        assert list(normalized) == list(scores)
        if name == "qwen3-rank":
            assert all(0 < score < 1 for score in scores.values()) and normalized == scores
        else:
            for index, score in scores.items():
                assert abs(normalized[index] - 1 / (1 + np.exp(-score))) < 1e-6


def test_what_a_model_is_not_for_is_refused(serve, daemon):
    for name, message in (("bert", "embeds texts"), ("bert-rank", "ranks texts")):
        only = serve(name)
        assert only.get("/health/ready").status_code == 200
        for path, body in (("/v1/completions", {"prompt": "a"}),
                           ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]})):
            answer = only.post(path, {"model": "m", **body})
            assert answer.status_code == 400, answer.text
            assert message in answer.text and "use /v1/completions" not in answer.text
    answer = only.post("/v1/embeddings", {"model": "m", "input": "a"})
    assert answer.status_code == 400 and "ranks texts" in answer.text
    answer = rank(daemon, model="stories")
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "model"
    assert "cls.output.weight" in answer.text


def test_a_text_longer_than_a_pass_is_refused_and_the_option_named(serve):
    daemon = serve("bert", "--batch-tokens", "64")
    assert daemon.get("/v1/models").json()["data"][0]["max_model_len"] == 64
    assert len(embed(daemon, [[7] * 64])) == 1
    answer = daemon.post("/v1/embeddings", {"model": "m", "input": [[7] * 65]})
    assert answer.status_code == 400
    assert "--batch-tokens" in answer.text and "64" in answer.text
    ranker = serve("bert-rank", "--batch-tokens", "64")
    answer = rank(ranker, documents=["x", "a" * 80])
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "documents[1]"
    assert "--batch-tokens" in answer.text
    # A document is not read to its end.
    assert "has at least" in answer.json()["error"]["message"]
