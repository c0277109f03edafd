"""The daemon on GPUs that are made up below the CUDA runtime, with nvcc's kernels (tests/ptx/cuda)."""

import conftest
import pytest
from conftest import ROOT, Daemon

PLAYED = ROOT / "build/cuda/played_lockstepd"
MODEL = ROOT / "config/demo.gguf"
PROMPT = "Once upon a time"
TOKENS = 24
# Of a log-probability, where weights and activations are multiplied as bf16.
ROUNDING = 0.02


def answer(monkeypatch, *options, **environment):
    """Its tokens, their log-probabilities, and those of the likeliest tokens in their places."""
    monkeypatch.setattr(conftest, "PROGRAM", PLAYED)
    daemon = Daemon(MODEL, *options, environment=environment).wait_until_ready()
    request = {"model": daemon.model_name(), "prompt": PROMPT, "max_tokens": TOKENS,
               "temperature": 0, "logprobs": 5}
    response = daemon.post("/v1/completions", request)
    assert response.status_code == 200, response.text
    assert daemon.stop() == 0
    return response.json()["choices"][0]["logprobs"]


@pytest.mark.skipif(not PLAYED.exists(), reason="there is no nvcc, so nothing is built for GPUs")
@pytest.mark.parametrize("devices", [("gpu0",), ("gpu0,gpu1",), ("gpu0,node0", "--shares", "1:1")])
def test_answers_as_on_processors(monkeypatch, devices):
    expected = answer(monkeypatch, "--devices", "cpu")
    found = answer(monkeypatch, "--devices", *devices, PLAYED_GPUS="2")
    assert len(expected["tokens"]) == TOKENS
    for place, token in enumerate(expected["tokens"]):
        likely = expected["top_logprobs"][place]
        # Two that are equally likely may change places; what follows is another text then.
        if found["tokens"][place] != token:
            assert likely[token] - likely[found["tokens"][place]] < ROUNDING
            assert place > 0, "another text from the start"
            return
        assert found["token_logprobs"][place] == pytest.approx(
            expected["token_logprobs"][place], abs=ROUNDING)
