#!/usr/bin/env python3
"""Runs lm-eval's local-completions against a daemon and compares every figure that it computes.

    scripts/serving/check_lm_eval.py [--model config/demo.gguf]
        [--lockstepd build/release/lockstepd]

The tasks are those of tests/lm_eval: multiple choice, last words, rolling likelihood of whole texts
and generation; their data is made for this. lm-eval (from PyPI, without torch) is installed into
build/lm-eval first. It runs with one request at a time and with four of up to eight prompts each.
The daemon is then asked, one prompt at a time and with nothing generated, for the same
log-likelihoods: all must be equal to the last bit, and so must the texts. Prints lm-eval's results;
ends with 1 if anything differs.
"""

import argparse
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import urllib.request

import serving_rig

ROOT = pathlib.Path(__file__).resolve().parents[2]
TASKS = ROOT / "tests/lm_eval"
VENV = ROOT / "build/lm-eval"
# Requests at a time, and prompts in each.
RUNS = {"one by one": (1, 1), "side by side": (4, 8)}


def install():
    """lm-eval in an environment of its own, as it brings many packages."""
    wanted = TASKS / "requirements.txt"
    installed = VENV / "requirements.txt"
    if installed.exists() and installed.read_text() == wanted.read_text():
        return
    subprocess.run([sys.executable, "-m", "venv", "--clear", VENV], check=True)
    subprocess.run([VENV / "bin/python", "-m", "pip", "install", "--quiet",
                    "--disable-pip-version-check", "--require-hashes", "--no-deps", "--requirement",
                    wanted], check=True)  # all that they depend on is in the list
    installed.write_text(wanted.read_text())


class Server(serving_rig.Daemon):
    """The daemon, and what is asked of it directly."""

    def __init__(self, program, model):
        super().__init__(program, model)
        self.url = f"http://127.0.0.1:{self.port}"
        self.info = self.ask("/tokenizer_info")

    def ask(self, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data,
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=300) as answer:
            return json.load(answer)

    def tokens(self, text):
        return self.ask("/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"]

    def beginning(self):
        return self.tokens(self.info["bos_token"] or self.info["eos_token"])[:1]

    def likelihood(self, given, scored):
        """The log-likelihood of tokens after others, and whether each is the likeliest there."""
        [choice] = self.ask("/v1/completions", {
            "model": "m", "prompt": given + scored, "max_tokens": 0, "echo": True,
            "logprobs": 3})["choices"]
        values = choice["logprobs"]["token_logprobs"]
        tops = choice["logprobs"]["top_logprobs"]
        assert len(values) == len(given + scored), (len(values), given, scored)
        greedy = all(value == max(top.values()) for value, top in
                     zip(values[len(given):], tops[len(given):], strict=True))
        return sum(values[len(given):]), greedy


def pair_likelihood(server, context, continuation):
    """As lm-eval cuts a pair: blanks that end the context belong to the continuation."""
    kept = context.rstrip()
    whole = server.tokens(context + continuation)
    given = server.tokens(kept) if kept else []
    return server.likelihood(given or server.beginning(), whole[len(given):])


def text_likelihood(server, text):
    """Every token once, each window after as many of the tokens before it as the context holds."""
    tokens = server.tokens(text)
    # lm-eval keeps a token for what is generated and one for what a window begins after.
    window = server.info["model_max_length"] - 2
    total = 0
    for begin in range(0, len(tokens), window):
        end = min(begin + window, len(tokens))
        given = tokens[end - window - 1:begin] if begin else server.beginning()
        total += server.likelihood(given, tokens[begin:end])[0]
    return total


def generated_text(server, context, options):
    return server.ask("/v1/completions", {
        "model": "m", "prompt": server.tokens(context), "temperature": 0,
        "max_tokens": options["max_gen_toks"], "stop": options["until"]})["choices"][0]["text"]


def expected(server, arguments):
    """What lm-eval must have computed of one request of a task."""
    if len(arguments) == 1:
        return [text_likelihood(server, arguments[0])]
    if isinstance(arguments[1], str):
        return list(pair_likelihood(server, *arguments))
    return [generated_text(server, *arguments)]


def read_number(value):
    """A value of lm-eval's file of samples, which has numbers as text."""
    return {"True": True, "False": False}[value] if value in ("True", "False") else float(value)


def samples(folder):
    """(task, arguments, result) of every request that lm-eval has made."""
    for path in sorted(folder.rglob("samples_*.jsonl")):
        for line in path.read_text().splitlines():
            sample = json.loads(line)
            requests = [list(one.values()) for one in sample["arguments"].values()]
            for arguments, [result] in zip(requests, sample["resps"], strict=True):
                result = result if isinstance(result, list) else [result]
                yield path.name.split("_2")[0].removeprefix("samples_"), arguments, result


def run_lm_eval(server, requests, prompts, folder):
    arguments = {"base_url": server.url + "/v1/completions", "model": "m",
                 "max_length": server.info["model_max_length"], "num_concurrent": requests}
    names = [path.stem for path in sorted(TASKS.glob("*.yaml"))]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1",
                   "HF_HOME": str(folder / "cache"), "TQDM_DISABLE": "1"}
    done = subprocess.run(
        [VENV / "bin/lm_eval", "run", "--model", "local-completions", "--model_args",
         ",".join(f"{name}={value}" for name, value in arguments.items()), "--include_path", ".",
         "--tasks", ",".join(f"lockstep_{name}" for name in names), "--log_samples",
         "--batch_size", str(prompts), "--output_path", folder],
        cwd=TASKS, env=environment, text=True, capture_output=True)
    if done.returncode != 0:
        sys.exit(f"check-lm-eval: lm-eval ended with {done.returncode}\n{done.stderr[-4000:]}")
    print(done.stdout)


def check(server, folder):
    """Compares every result; returns how many differ."""
    wrong = 0
    checked = {}
    for task, arguments, result in samples(folder):
        truth = expected(server, arguments)
        if not isinstance(arguments[-1], dict):
            result = [read_number(value) for value in result]
            assert math.isfinite(result[0]) and result[0] < 0, (task, arguments, result)
        checked[task] = checked.get(task, 0) + 1
        if result != truth:
            wrong += 1
            print(f"{task} {arguments}: lm-eval has {result}, the daemon says {truth}")
    if len(checked) != len(list(TASKS.glob("*.yaml"))):
        sys.exit(f"check-lm-eval: only {', '.join(checked)} gave samples")
    print("compared:", ", ".join(f"{count} of {task}" for task, count in checked.items()))
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, default=ROOT / "config/demo.gguf")
    parser.add_argument("--lockstepd", type=pathlib.Path,
                        default=ROOT / "build/release/lockstepd")
    options = parser.parse_args()
    install()
    wrong = 0
    with Server(options.lockstepd, options.model) as server:
        for name, (requests, prompts) in RUNS.items():
            print(f"{name}:")
            with tempfile.TemporaryDirectory() as folder:
                run_lm_eval(server, requests, prompts, pathlib.Path(folder))
                wrong += check(server, pathlib.Path(folder))
    print(f"{wrong} differ")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
