"""lockstepd evaluate: perplexity, divergence from a reference, and what it refuses."""

import json
import math

import pytest

from conftest import ROOT, run_program

# Whole numbers of words, so that every vocabulary makes several chunks of it.
TEXT = "Once upon a time there was a little bear who liked to play in the sun. " * 40
OTHER_VOCABULARY = ROOT / "tests/fixtures/logits/llama-mha-f32.gguf"


@pytest.fixture
def text_path(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


def evaluate(model, text, *options, **more):
    result = run_program("evaluate", "--model", model, "--text", text, "--context", "64", *options,
                         **more)
    assert result.returncode == 0, result.stderr
    return result.stdout


def evaluate_json(*arguments, **more):
    return json.loads(evaluate(*arguments, "--json", **more))


def tokens_of(daemon, text):
    return daemon.post("/tokenize", {"prompt": text}).json()


def test_the_perplexity_is_that_of_the_logprobs_the_server_gives(model_path, text_path, daemon):
    body = evaluate_json(model_path, text_path, "--chunks", "3")
    assert body["chunks"] == 3 and body["context_tokens"] == 64
    assert body["scored_tokens"] == 3 * 31
    tokens = tokens_of(daemon, TEXT)["tokens"]
    assert body["text_tokens"] == len(tokens)
    losses = []
    for begin in range(0, 192, 64):
        # Every chunk begins as a text does.
        chunk = tokens[:1] + tokens[begin + 1:begin + 64]
        answer = daemon.post("/v1/completions", {
            "model": "stories", "prompt": chunk, "max_tokens": 0, "echo": True, "logprobs": 0})
        losses += [-x for x in answer.json()["choices"][0]["logprobs"]["token_logprobs"][33:]]
    assert len(losses) == 93
    assert body["log_loss"]["mean"] == pytest.approx(sum(losses) / 93, rel=1e-5)
    assert body["perplexity"]["mean"] == pytest.approx(math.exp(body["log_loss"]["mean"]))
    assert "reference" not in body


def test_a_model_is_at_no_distance_from_itself(model_path, text_path):
    body = evaluate_json(model_path, text_path, "--reference", model_path)
    than = body["reference"]
    assert than["file"] == str(model_path)
    assert than["kl_divergence"]["mean"] == 0 and than["kl_divergence"]["max"] == 0
    assert than["log_perplexity_ratio"]["mean"] == 0
    assert than["top_token_agreement"]["mean"] == 1
    assert than["perplexity"] == body["perplexity"]


def test_a_cache_format_is_compared_with_another(model_path, text_path):
    options = ["--chunks", "2", "--reference", model_path, "--reference-kv-format", "f16"]
    divergence = {}
    for name in ("f16", "q8_0", "q4_h"):
        body = evaluate_json(model_path, text_path, *options, "--kv-format", name)
        assert body["kv_format"] == name and body["reference"]["kv_format"] == "f16"
        divergence[name] = body["reference"]["kl_divergence"]["mean"]
    assert divergence["f16"] == 0 < divergence["q8_0"] < divergence["q4_h"]
    mixed = evaluate_json(model_path, text_path, *options, "--kv-format", "q4_h",
                          "--kv-key-format", "q8_0")
    assert mixed["kv_format"] == "q8_0/q4_h"
    assert 0 < mixed["reference"]["kl_divergence"]["mean"] < divergence["q4_h"]


def test_any_ranks_and_passes_give_the_same_figures(model_path, text_path):
    first = evaluate_json(model_path, text_path, "--chunks", "2")
    for options in (["--ranks", "2"], ["--workers", "1"], ["--batch-tokens", "24"]):
        other = evaluate_json(model_path, text_path, "--chunks", "2", *options)
        assert other["perplexity"] == first["perplexity"], options


def test_any_instruction_set_gives_the_same_figures_exactly(model_path, text_path):
    options = ["--chunks", "2", "--arithmetic", "exact"]
    first = evaluate_json(model_path, text_path, *options)
    other = evaluate_json(model_path, text_path, *options, "--isa", "scalar")
    assert other["perplexity"] == first["perplexity"]


def test_tokens_may_be_scored_as_generated_ones(model_path, text_path):
    prompted = evaluate_json(model_path, text_path)
    generated = evaluate_json(model_path, text_path, "--generated", "--sequences", "3")
    assert generated["generated"] and not prompted["generated"]
    assert generated["scored_tokens"] == prompted["scored_tokens"]
    # The same in the exact profile, near in any other.
    assert generated["log_loss"]["mean"] == pytest.approx(prompted["log_loss"]["mean"], rel=0.01)


def test_the_table_names_every_figure(model_path, text_path):
    table = evaluate(model_path, text_path, "--reference", model_path)
    for part in ("tokens", "scored", "perplexity ", "perplexity of the reference", "ln of",
                 "KL divergence, nats", "100.00 ± 0.00 %"):
        assert part in table, part


def refusal(*arguments):
    result = run_program("evaluate", *arguments)
    assert result.returncode == 2, result.stderr
    assert result.stdout == ""
    return result.stderr


def test_what_cannot_be_evaluated_is_exit_2_and_is_named(model_path, text_path, tmp_path):
    given = ["--model", model_path, "--text", text_path]
    assert "--text" in refusal("--model", model_path)
    assert "no model was given" in refusal("--text", text_path)
    assert "/nowhere.txt" in refusal("--model", model_path, "--text", "/nowhere.txt")
    assert str(tmp_path) in refusal("--model", model_path, "--text", tmp_path)
    assert "/nowhere.gguf" in refusal("--model", "/nowhere.gguf", "--text", text_path)
    assert "/nowhere.gguf" in refusal(*given, "--reference", "/nowhere.gguf")
    assert "--context" in refusal(*given, "--context", "8")
    assert "too few" in refusal(*given, "--context", "100000")
    message = refusal(*given, "--context", "64", "--reference", OTHER_VOCABULARY)
    assert "vocabularies differ" in message and "131" in message


def test_an_empty_text_is_refused_with_the_numbers(model_path, tmp_path):
    path = tmp_path / "empty.txt"
    path.write_text("")
    message = refusal("--model", model_path, "--text", path)
    assert "too few for one chunk of 512" in message
