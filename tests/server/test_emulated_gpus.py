"""The daemon on GPUs emulated below the CUDA runtime, with nvcc's kernels (tests/emulators/gpu/cuda)."""

import conftest
import pytest
from conftest import ROOT, Daemon, run_program

EMULATED = ROOT / "build/cuda/emulated_lockstepd"
MODEL = ROOT / "config/demo.gguf"
PROMPT = "Once upon a time"
TOKENS = 24
# Of a log-probability, where weights and activations are multiplied as bf16.
ROUNDING = 0.02


def answer(*options, **environment):
    """Its tokens, their log-probabilities, and those of the likeliest tokens in their places."""
    daemon = Daemon(MODEL, *options, environment=environment).wait_until_ready()
    request = {"model": daemon.model_name(), "prompt": PROMPT, "max_tokens": TOKENS,
               "temperature": 0, "logprobs": 5}
    response = daemon.post("/v1/completions", request)
    assert response.status_code == 200, response.text
    assert daemon.stop() == 0
    return response.json()["choices"][0]["logprobs"]


@pytest.fixture(autouse=True)
def emulated(monkeypatch):
    if not EMULATED.exists():
        pytest.skip(f"{EMULATED} is not built: there is no nvcc")
    monkeypatch.setattr(conftest, "PROGRAM", EMULATED)


@pytest.mark.parametrize("devices", [("gpu0",), ("gpu0,gpu1",), ("gpu0,node0", "--shares", "1:1")])
def test_answers_as_on_processors(devices):
    expected = answer("--devices", "cpu")
    found = answer("--devices", *devices, EMULATED_GPUS="2")
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


@pytest.mark.parametrize("trouble, words", [
    ("EMULATED_FAILING_LAUNCH", "failed: unspecified launch failure (cudaErrorLaunchFailure)"),
    ("EMULATED_HANGING_LAUNCH", "it does not answer")])
def test_says_which_gpu_is_lost(trouble, words):
    done = run_program("generate", "--model", MODEL, "--devices", "gpu0,gpu1", "--prompt", PROMPT,
                       "--temperature", 0, environment={"EMULATED_GPUS": "2", trouble: "300"})
    assert done.returncode == 1
    assert done.stdout, "it is lost while it generates"
    assert "gpu1: what it was to do" in done.stderr
    assert words in done.stderr


# It is no part of a driver, and may be missing where one is.
MISSING = {"EMULATED_CUBLAS_LT": "libcublasLt.so.none"}
WHY = ("the 1 that the driver shows cannot be used: cuBLASLt, which computes prompts on GPUs, cannot "
       "be loaded: libcublasLt.so.none: cannot open shared object file")


def test_without_cublas_lt_processors_compute_and_the_log_says_why():
    options = ["generate", "--model", MODEL, "--prompt", PROMPT, "--max-tokens", 2,
               "--log-level", "info"]
    done = run_program(*options, environment=MISSING)
    assert done.returncode == 0, done.stderr
    assert f"there is no GPU: {WHY}" in done.stderr
    asked = run_program(*options, "--devices", "gpu0", environment=MISSING)
    assert asked.returncode == 1
    assert f'devices "gpu0": there is no gpu0: {WHY}' in asked.stderr
    assert run_program(*options, environment={}).returncode == 0
