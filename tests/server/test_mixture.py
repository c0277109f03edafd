"""A mixture of experts on the real daemon: a tiny one of Qwen 3's kind, with random weights."""

import concurrent.futures
import json
import subprocess
import sys

import pytest

from conftest import PROGRAM, ROOT, Daemon, clean_environment

PROMPTS = [f"{word} and then {word} again" for word in
           ("one", "seven", "blue", "water", "a long way", "nobody", "It rained", "Here")]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "mixture.gguf"
    subprocess.run([sys.executable, str(ROOT / "scripts/models/make_model.py"), "--shape",
                    "tiny-qwen3moe", "--format", "Q4_0", "--output", str(path)],
                   check=True, capture_output=True)
    return path


def answer(daemon, prompt):
    """The tokens of the answer and their log-probabilities, to the last digit."""
    response = daemon.post("/v1/completions", {"model": "mixture", "prompt": prompt, "max_tokens": 24,
                                               "temperature": 0, "logprobs": 2,
                                               "ignore_eos": True})
    assert response.status_code == 200, response.text
    choice = response.json()["choices"][0]
    return choice["text"], choice["logprobs"]["token_logprobs"]


def answers_of(model, *options):
    """Of each prompt alone, and of all at once."""
    daemon = Daemon(model, "--served-model-name", "mixture", *options).wait_until_ready()
    alone = [answer(daemon, prompt) for prompt in PROMPTS]
    with concurrent.futures.ThreadPoolExecutor(len(PROMPTS)) as pool:
        together = list(pool.map(lambda prompt: answer(daemon, prompt), PROMPTS))
    assert daemon.stop() == 0
    return alone, together


def test_answers_have_the_same_bits_alone_among_others_and_on_any_ranks(model):
    alone, together = answers_of(model, "--workers", "2", "--arithmetic", "exact")
    assert alone == together
    assert len({text for text, _ in alone}) > 1
    for options in (("--workers", "1"), ("--ranks", "2", "--workers", "1")):
        alone_here, together_here = answers_of(model, "--arithmetic", "exact", *options)
        assert alone_here == alone, options
        assert together_here == alone, options


def test_parts_of_experts_are_summed_where_that_is_asked_for(model):
    alone, together = answers_of(model, "--ranks", "2", "--workers", "1", "--strategy", "reduce")
    assert alone == together


def test_the_plan_counts_of_the_experts_those_that_a_token_reads(model):
    done = subprocess.run([str(PROGRAM), "plan", "--model", str(model), "--json", "--ranks", "2"],
                          check=True, capture_output=True, text=True, env=clean_environment())
    plan = json.loads(done.stdout)
    for rank in plan["ranks"]:
        assert rank["share"] == rank["expert_share"] == 0.5
        assert 0 < rank["read_expert_bytes_per_token"] < rank["read_bytes_per_token"]
        assert rank["read_bytes_per_token"] < rank["weight_bytes"]
    held_twice = {replica["what"] for replica in plan["replicas"]}
    assert "routers" in held_twice
