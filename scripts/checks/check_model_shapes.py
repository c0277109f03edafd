#!/usr/bin/env python3
"""Shows that the files of scripts/models/make_model.py are what they say: for every shape,
lockstepd and llama.cpp compute the same from the same file.

    scripts/checks/check_model_shapes.py --program build/release/lockstepd [--shape NAME ...]

Writes each shape as with --tiny, in F32 unless --format says another, and compares the
log-probabilities of a prompt's tokens, each after those before it. The largest difference is
printed in units of their spread. llama.cpp takes GELU from a table in f16, so that families with it
differ by more; so does qwen35, whose random weights make roundings larger from layer to layer:
lockstepd differs from float64 by as much as from llama.cpp (2e-4 of the spread for 0.8B), and what
roundings may make of it is 1e-2.

It needs numpy, gguf and llama-cpp-python (whose vendored llama.cpp is llama.cpp's own).
LLAMA_CPP_LIB_PATH may name a folder with its libraries. --folder keeps the files.
"""

import argparse
import dataclasses
import json
import pathlib
import sys
import tempfile
import urllib.request

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "scripts/models"), str(ROOT / "scripts/serving")]
from llama_cpp_logits import llama_logits, quiet_llama  # noqa: E402
from make_model import write_model  # noqa: E402
from model_shapes import SHAPES, Shape, tiny  # noqa: E402
from model_tensors import FORMATS  # noqa: E402
from serving_rig import Daemon  # noqa: E402

CONTEXT = 256
TOKENS = 100
# With quantized weights the bound is wider: both programs round activations to 8 bits then.
BOUND, GELU_BOUND, QUANTIZED_BOUND = 1e-4, 1e-2, 0.3
GELU = ("gemma", "starcoder2")  # how architectures with it begin
WIDER = {"qwen35": 2e-3}


def has_gelu(name: str) -> bool:
    return SHAPES[name].architecture.startswith(GELU)


def log_probabilities(program: pathlib.Path, path: pathlib.Path, tokens: list[int]) -> np.ndarray:
    """Of each token but the first after those before it, by lockstepd."""
    options = ("--context", CONTEXT, "--kv-format", "f32", "--sequences", "1", "--workers", "1")
    body = {"model": "m", "prompt": tokens, "max_tokens": 0, "echo": True, "logprobs": 0}
    with Daemon(program, path, *options) as daemon:
        request = urllib.request.Request(
            f"http://127.0.0.1:{daemon.port}/v1/completions", json.dumps(body).encode(),
            {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as response:
            choice = json.load(response)["choices"][0]
    return np.array(choice["logprobs"]["token_logprobs"][1:], dtype=np.float64)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    logits = logits.astype(np.float64)
    logits -= logits.max(axis=1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def compared(shape: Shape, is_exact: bool) -> Shape:
    """The tiny form without what differs for a known reason: llama.cpp rounds the bounds of YaRN's
    ramp, which gpt-oss does not, and takes the usual ones whatever deepseek2's files say; where
    rounding is coarse, a token may get other experts.
    """
    shape = tiny(shape)
    if shape.architecture == "gpt-oss":
        shape = dataclasses.replace(shape, keys={})
    if shape.architecture == "deepseek2":
        keys = {key: value for key, value in shape.keys.items() if "yarn_beta" not in key}
        shape = dataclasses.replace(shape, keys=keys)
    if shape.mixture and not is_exact:
        mixture = dataclasses.replace(shape.mixture, used=shape.mixture.experts)
        shape = dataclasses.replace(shape, mixture=mixture)
    return shape


def difference(name: str, arguments: argparse.Namespace, folder: pathlib.Path) -> float:
    shape = compared(SHAPES[name], arguments.format == "F32" and not has_gelu(name))
    path = folder / f"{name}.gguf"
    write_model(path, shape, arguments.format, name)
    tokens = np.random.default_rng(1).integers(0, shape.vocabulary, TOKENS).tolist()
    ours = log_probabilities(arguments.program, path, tokens)
    lacks_query_rank = shape.latents is not None and not shape.latents.query
    logits = llama_logits(path, tokens, CONTEXT, shape.vocabulary, TOKENS, lacks_query_rank)
    theirs = log_softmax(logits)[np.arange(TOKENS - 1), tokens[1:]]
    if not arguments.folder:
        path.unlink()
    if not np.isfinite(ours).all() or not np.isfinite(theirs).all():
        raise ValueError(f"{name}: log-probabilities are not finite")
    return float(np.abs(ours - theirs).max() / theirs.std())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=pathlib.Path, default=ROOT / "build/release/lockstepd")
    parser.add_argument("--shape", action="append", choices=SHAPES, help="only this; may be given "
                        "again")
    parser.add_argument("--format", default="F32", choices=FORMATS)
    parser.add_argument("--folder", type=pathlib.Path)
    arguments = parser.parse_args()
    quiet = quiet_llama()  # as long as llama.cpp may call it
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.shape or SHAPES:
            try:
                found = difference(name, arguments, arguments.folder or pathlib.Path(folder))
            except (ValueError, OSError, SystemExit) as error:
                wrong.append(name)
                print(f"{name}: {error}", flush=True)
                continue
            bound = WIDER.get(SHAPES[name].architecture, BOUND)
            if has_gelu(name):
                bound = GELU_BOUND
            if arguments.format != "F32":
                bound = QUANTIZED_BOUND
            print(f"{name} ({SHAPES[name].architecture}): {found:.1e}"
                  f"{'' if found < bound else f', more than {bound}'}", flush=True)
            if not found < bound:
                wrong.append(name)
    print(f"wrong: {', '.join(wrong)}" if wrong else "all agree")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
