#!/usr/bin/env python3
"""Compares lockstepd's speed with llama-bench's on this machine, and writes the table.

    scripts/bench/compare.py --peer build/bin/llama-bench --model 1b-q4_0.gguf

runs both in turn, A B A B, and prints tokens per second (medians of all repeats of all rounds),
their ratio, and the limit that the machine's memory and arithmetic set, as `lockstepd
bench-machine` measures them. The peer runs with the best of its settings: every --variant is tried
on every test first, and the fastest is taken. Nothing else should run meanwhile.

Tests are named as llama-bench names them: pp512 (a prompt of 512 tokens), tg64 (64 tokens one by
one), pp512@d8192 (with 8192 in the cache already), tg64@d128x8 (in 8 sequences side by side, all
tokens counted; the peer's is llama-batched-bench, looked for beside llama-bench). A model may have
tests of its own: --model FILE:pp512,tg64@d8192.

--isa avx2 forces that row of kernels; give a peer that was built for it alone. --devices gpu0 (or
gpu0,gpu1, or gpu: every one) compares on these GPUs, with all of the peer's layers there; both must
have CUDA. --page FILE --section NAME writes the result between marks in a page, with commands and
machine.

--goal TEST=VALUE, or MODEL:TEST=VALUE (8b-q4_0:tg128=680) adds whether the first column of ours has
reached it: tokens per second, 2x of the peer's, or 60% of the limit.

Definitions: bytes of a token are those that its pass must read (weights as the file stores them,
keys and values up to the end of the pass) over the pass's tokens; operations are 2 per element of a
matrix and token. The limit is the lower of memory bandwidth over bytes, and arithmetic over
operations: the fastest kind there is, of integers only where the weights are quantized. On GPUs
both are the sums of what bench-machine measures of each: reading, and the product of bf16.
"""

import argparse
import dataclasses
import os
import re
import shlex
import statistics
import sys
from pathlib import Path

from benchmark_page import (ROOT, PageError, describe_machine, markdown_table, shown_command,
                            write_section)
from benchmark_programs import (CompareError, Gpus, Limits, Ours, Peer, Test, Variant, Work,
                                higher)

DEFAULT_TESTS = "pp512,tg64"
DEFAULT_VARIANTS = ("-fa off", "-fa on", "-fa on -lm none", "-fa on -ctk q8_0 -ctv q8_0")
# Tokens of a prompt: by default, and as many as it takes at once.
PEERS_PASS_TOKENS = 512
PEERS_PASS_TOKENS_MAX = 2048


@dataclasses.dataclass(frozen=True)
class Model:
    path: Path
    tests: tuple[Test, ...]

    @staticmethod
    def parse(text: str, default_tests: str) -> "Model":
        path, colon, tests = text.rpartition(":")
        if not colon or Path(text).exists():
            path, tests = text, default_tests
        if not Path(path).is_file():
            raise CompareError(f"--model {path}: there is no such file")
        return Model(Path(path), tuple(Test.parse(test) for test in tests.split(",")))


@dataclasses.dataclass(frozen=True)
class Goal:
    model: str  # as the table names it; empty: every one that has the test
    test: Test
    value: float
    unit: str  # empty: tokens per second; "x": of the peer's; "%": of the limit

    @staticmethod
    def parse(text: str, models: list[Model]) -> "Goal":
        found = re.fullmatch(r"(?:(.+):)?([^:=]+)=(\d+(?:\.\d+)?)(x|%)?", text)
        if not found:
            raise CompareError(f"--goal {text}: give it as TEST=VALUE or MODEL:TEST=VALUE, like "
                               "8b-q4_0:tg128=680, tg64@d128x64=2x or pp2048=60%")
        goal = Goal(found[1] or "", Test.parse(found[2]), float(found[3]), found[4] or "")
        if not any(goal.is_of(model, test) for model in models for test in model.tests):
            raise CompareError(f"--goal {text}: no --model has this test")
        return goal

    def is_of(self, model: Model, test: Test) -> bool:
        return self.model in ("", model.path.stem) and self.test == test

    def verdict(self, ours: float, peer: float, limit: float) -> str:
        """All in tokens per second."""
        goal = self.value * {"": 1, "x": peer, "%": limit / 100}[self.unit]
        given = f"{self.value:g}{self.unit}: " if self.unit else ""
        return f"{given}{number(goal)}, {'reached' if ours >= goal else 'missed'}"


def default_variants(gpu_count: int, tests) -> list[str]:
    """Of the peer, on processors (no GPU) or on GPUs: there with a smaller cache where a test has
    one, with larger passes where a prompt fills them, and split in every way between several."""
    if gpu_count == 0:
        return list(DEFAULT_VARIANTS)
    made = ["-fa off", "-fa on"]
    if any(test.kind == "pp" and test.tokens > PEERS_PASS_TOKENS for test in tests):
        made.append(f"-fa on -ub {PEERS_PASS_TOKENS_MAX}")
    if any(test.depth for test in tests):
        made.append("-fa on -ctk q8_0 -ctv q8_0")
    if gpu_count == 1:
        return made
    return [f"-sm {split} {variant}" for split in ("layer", "row", "tensor") for variant in made]


def choose_variants(peer: Peer, model: Model, variants: list[Variant]) -> dict[Test, Variant]:
    """The peer's fastest for every test. One that fails (an option it does not have) is left
    out, unless all do."""
    if len(variants) == 1:
        return {test: variants[0] for test in model.tests}
    medians: dict[Test, list[tuple[float, int]]] = {test: [] for test in model.tests}
    failures = []
    for index, variant in enumerate(variants):
        try:
            samples = peer.measure(model.path, model.tests, variant)
        except CompareError as error:
            failures.append(str(error))
            print(f"  left out: {error}", file=sys.stderr)
            continue
        for test in model.tests:
            medians[test].append((statistics.median(samples[test]), index))
    if len(failures) == len(variants):
        raise CompareError(f"none of the peer's variants ran: {failures[0]}")
    return {test: variants[max(found)[1]] for test, found in medians.items()}


def by_variant(chosen: dict[Test, Variant]) -> dict[Variant, list[Test]]:
    groups: dict[Variant, list[Test]] = {}
    for test, variant in chosen.items():
        groups.setdefault(variant, []).append(test)
    return groups


@dataclasses.dataclass
class Result:
    model: Model
    test: Test
    peer: list[float]
    peer_variant: Variant
    ours: dict[str, list[float]]  # by variant
    work: Work


def compare(ours: Ours, our_variants: list[Variant], peer: Peer, chosen: dict[Test, Variant],
            model: Model, rounds: int) -> list[Result]:
    results = {test: Result(model, test, [], chosen[test], {v.name: [] for v in our_variants},
                            Work(1, 1)) for test in model.tests}
    for _ in range(rounds):
        for variant in our_variants:
            samples, works = ours.measure(model.path, model.tests, variant)
            for test, result in results.items():
                result.ours[variant.name] += samples[test]
                if variant is our_variants[0]:  # whose limit the table shows
                    result.work = works[test]
        for variant, tests in by_variant(chosen).items():
            samples = peer.measure(model.path, tests, variant)
            for test in tests:
                results[test].peer += samples[test]
    return list(results.values())


def number(value: float) -> str:
    """Three digits that count, or all before the point."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def table(results: list[Result], limits: Limits, goals: tuple[Goal, ...] = ()) -> str:
    names = list(results[0].ours)
    heading = ["model, test", "peer", "peer's settings"]
    for name in names:
        heading += [name, "ratio"]
    heading += ["limit", f"{names[0]}: of it", "GB/s", "GFLOP/s"] + ["goal"] * bool(goals)
    rows = []
    for result in results:
        theirs = statistics.median(result.peer)
        row = [f"{result.model.path.stem}, {result.test}", number(theirs),
               result.peer_variant.name]
        for name in names:
            value = statistics.median(result.ours[name])
            row += [number(value), f"{value / theirs:.2f}"]
        first = statistics.median(result.ours[names[0]])
        limit = limits.tokens_per_second(result.work)
        row += [number(limit), f"{100 * first / limit:.0f} %",
                number(first * result.work.bytes / 1e9),
                number(first * result.work.operations / 1e9)]
        if goals:
            row.append("; ".join(goal.verdict(first, theirs, limit) for goal in goals
                                 if goal.is_of(result.model, result.test)))
        rows.append(row)
    return markdown_table(heading, rows)


def shown_environment(arguments: argparse.Namespace) -> dict[str, str]:
    """What the command's GPUs depend on."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return {"CUDA_VISIBLE_DEVICES": visible} if arguments.devices and visible else {}


def report(results: list[Result], limits: Limits, goals: tuple[Goal, ...],
           arguments: argparse.Namespace) -> str:
    note = f" Peer: {arguments.peer_note}." if arguments.peer_note else ""
    kinds = {limits.fastest(result.work.quantized) for result in results}
    arithmetic = ", ".join(f"{kind} {limits.operations[kind] / 1e9:.0f} Gop/s"
                           for kind in sorted(kinds))
    return f"""\
Tokens per second, medians of {arguments.rounds} rounds of {arguments.repeat} repeats, in turns \
({describe_machine(limits.gpus)}).{note}

{table(results, limits, goals)}

Measured limits: memory {limits.bytes / 1e9:.1f} GB/s, {arithmetic}. The limit of a row is the \
lower of both over what a token must read and multiply.

```sh
{shown_command([Path(__file__).resolve(), *sys.argv[1:]], shown_environment(arguments))}
```"""


def our_variant(text: str) -> Variant:
    name, equals, options = text.partition("=")
    if not equals or not name:
        raise CompareError(f"--ours {text}: give it as NAME=OPTIONS, like \"fast=--arithmetic "
                           "fast\"")
    return Variant(name, tuple(shlex.split(options)))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", type=Path, required=True, metavar="PATH", help="llama-bench")
    parser.add_argument("--peer-batched", type=Path, metavar="PATH",
                        help="llama-batched-bench (default: beside llama-bench)")
    parser.add_argument("--peer-note", default="", metavar="TEXT",
                        help="what the peer is and how it was built, for the page")
    parser.add_argument("--model", action="append", required=True, metavar="FILE[:TESTS]")
    parser.add_argument("--tests", default=DEFAULT_TESTS, metavar="TEST,...",
                        help="of models that name none (default: %(default)s)")
    parser.add_argument("--variant", action="append", metavar="OPTIONS",
                        help="of the peer, to choose the best from, written --variant=\"-fa on\" "
                        f"(default: {'; '.join(DEFAULT_VARIANTS)}; on GPUs by their number and "
                        "the tests)")
    parser.add_argument("--ours", action="append", metavar="NAME=OPTIONS",
                        help="columns of ours (default: lockstepd as it is)")
    parser.add_argument("--devices", metavar="GPUS", help="that both compute on, as lockstepd's: "
                        "gpu0,gpu1, or gpu: every one (default: processors)")
    parser.add_argument("--goal", action="append", default=[], metavar="[MODEL:]TEST=VALUE",
                        help="a column for whether ours reaches it")
    parser.add_argument("--isa", help="the row of kernels that ours is forced to")
    parser.add_argument("--lockstepd", type=Path, default=ROOT / "build/release/lockstepd",
                        metavar="PATH")
    parser.add_argument("--threads", type=int,
                        help="of the peer (default: as many as processors; with --devices 1)")
    parser.add_argument("--machine", default="", metavar="OPTIONS",
                        help="of lockstepd bench-machine, written --machine=\"--seconds 1\"")
    parser.add_argument("--rounds", type=int, default=2, help="(default: %(default)s)")
    parser.add_argument("--repeat", type=int, default=3, help="(default: %(default)s)")
    parser.add_argument("--page", type=Path, metavar="FILE", help="write the table there as well")
    parser.add_argument("--section", default="compare", metavar="NAME",
                        help="of the page (default: %(default)s)")
    arguments = parser.parse_args()
    if arguments.isa and arguments.devices:
        parser.error("--isa is of processors, --devices names GPUs: give one of them")
    if arguments.threads is None:
        # With all layers on GPUs what is left is the embedding, which takes no more than one.
        arguments.threads = 1 if arguments.devices else len(os.sched_getaffinity(0))
    for name in ("threads", "rounds", "repeat"):
        if getattr(arguments, name) < 1:
            parser.error(f"--{name} must be at least 1")
    return arguments


def main() -> int:
    arguments = parse_arguments()
    try:
        models = [Model.parse(text, arguments.tests) for text in arguments.model]
        goals = tuple(Goal.parse(text, models) for text in arguments.goal)
        our_variants = [our_variant(text) for text in arguments.ours or ["ours="]]
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        gpus = Gpus.parse(arguments.devices, visible) if arguments.devices else None
        batched = arguments.peer_batched or arguments.peer.with_name("llama-batched-bench")
        peer = Peer(arguments.peer, batched, arguments.threads, arguments.repeat, gpus)
        ours = Ours(arguments.lockstepd, arguments.isa, arguments.repeat,
                    tuple(shlex.split(arguments.machine)), gpus)
        limits = ours.limits()
        if gpus:
            peer.require_gpus(len(limits.gpus), [test for model in models for test in model.tests])
        results = []
        for model in models:
            texts = arguments.variant or default_variants(len(limits.gpus), model.tests)
            variants = [Variant(text, tuple(shlex.split(text))) for text in texts]
            chosen = choose_variants(peer, model, variants)
            results += compare(ours, our_variants, peer, chosen, model, arguments.rounds)
        limits = higher(limits, ours.limits())
        text = report(results, limits, goals, arguments)
        print(text)
        if arguments.page:
            write_section(arguments.page, arguments.section, text)
    except (CompareError, PageError) as error:
        print(f"compare.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
