#!/usr/bin/env python3
"""Compares lockstepd's speed with llama-bench's on this machine, and writes the table.

    scripts/compare.py --peer build/bin/llama-bench --model 1b-q4_0.gguf

runs both in turn, A B A B, and prints tokens per second (medians of all repeats of all rounds),
their ratio, and the limit that the machine's memory and arithmetic set, as `lockstepd
bench-machine` measures them. The peer runs with the best of its settings: every --variant is tried
on every test first, and the fastest is taken. Nothing else should run meanwhile.

Tests are named as llama-bench names them: pp512 (a prompt of 512 tokens), tg64 (64 tokens one by
one), pp512@d8192 (with 8192 in the cache already), tg64@d128x8 (in 8 sequences side by side, all
tokens counted; the peer's is llama-batched-bench, looked for beside llama-bench). A model may have
tests of its own: --model FILE:pp512,tg64@d8192.

--isa avx2 forces that row of kernels; give a peer that was built for it alone. --page FILE
--section NAME writes the result between marks in a page, with commands and machine.

Definitions: bytes of a token are those that its pass must read (weights as the file stores them,
keys and values up to the end of the pass) over the pass's tokens; operations are 2 per element of a
matrix and token. The limit is the lower of memory bandwidth over bytes, and arithmetic over
operations: the fastest kind there is, of integers only where the weights are quantized.
"""

import argparse
import dataclasses
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
from pathlib import Path

from benchmark_page import (ROOT, PageError, describe_machine, markdown_table, shown_command,
                            write_section)

DEFAULT_TESTS = "pp512,tg64"
DEFAULT_VARIANTS = ("-fa off", "-fa on", "-fa on -lm none", "-fa on -ctk q8_0 -ctv q8_0")


class CompareError(Exception):
    """What was given cannot be compared, or a program failed."""


@dataclasses.dataclass(frozen=True)
class Test:
    kind: str  # "pp" or "tg"
    tokens: int
    depth: int = 0
    sequences: int = 1

    @staticmethod
    def parse(text: str) -> "Test":
        found = re.fullmatch(r"(pp|tg)(\d+)(?:@d(\d+))?(?:x(\d+))?", text)
        if not found or int(found[2]) == 0 or found[4] == "0":
            raise CompareError(f"\"{text}\" is no test; one is like pp512, tg64@d8192 or "
                               "tg64@d128x8")
        test = Test(found[1], int(found[2]), int(found[3] or 0), int(found[4] or 1))
        if test.sequences > 1 and (test.kind == "pp" or test.depth == 0):
            raise CompareError(f"\"{text}\": several sequences are compared while they generate, "
                               "after a prompt: tg64@d128x8")
        return test

    def __str__(self) -> str:
        depth = f"@d{self.depth}" if self.depth else ""
        return f"{self.kind}{self.tokens}{depth}" + (f"x{self.sequences}" if self.together else "")

    @property
    def together(self) -> bool:
        return self.sequences > 1


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
class Variant:
    """A way of running one of the programs."""
    name: str
    options: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Work:
    """Of one token."""
    bytes: float
    operations: float
    quantized: bool = True  # the weights


@dataclasses.dataclass(frozen=True)
class Limits:
    """Per second."""
    bytes: float
    operations: dict[str, float]  # by kind: "avx2 int8 dot product"

    def fastest(self, quantized: bool) -> str:
        kinds = [kind for kind in self.operations if quantized or "int8" not in kind]
        return max(kinds, key=self.operations.__getitem__)

    def tokens_per_second(self, work: Work) -> float:
        operations = self.operations[self.fastest(work.quantized)]
        return min(self.bytes / work.bytes, operations / work.operations)


Samples = dict[Test, list[float]]  # tokens per second


def run(command: list, environment: dict[str, str] | None = None) -> str:
    """The program's standard output."""
    print(f"  {shown_command(command, environment)}", file=sys.stderr, flush=True)
    try:
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True,
                              env={**os.environ, **(environment or {})}, check=False)
    except OSError as error:
        raise CompareError(f"{command[0]} cannot be run: {error.strerror}") from error
    if done.returncode != 0:
        raise CompareError(f"{shown_command(command)} ended with {done.returncode}: "
                           f"{done.stderr.strip()[-800:]}")
    return done.stdout


def json_lines(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def samples_of_llama_bench(text: str) -> Samples:
    """From its output as jsonl."""
    samples: Samples = {}
    for row in json_lines(text):
        if row["n_prompt"] and row["n_gen"]:
            continue
        kind, tokens = ("pp", row["n_prompt"]) if row["n_prompt"] else ("tg", row["n_gen"])
        test = Test(kind, tokens, row.get("n_depth", 0))
        samples.setdefault(test, []).extend(row["samples_ts"])
    return samples


def samples_of_batched_bench(text: str) -> Samples:
    samples: Samples = {}
    for row in json_lines(text):
        samples.setdefault(Test("tg", row["tg"], row["pp"], row["pl"]), []).append(row["speed_tg"])
    return samples


def by_depth(tests) -> dict[int, list[Test]]:
    """Those of one sequence."""
    groups: dict[int, list[Test]] = {}
    for test in tests:
        if not test.together:
            groups.setdefault(test.depth, []).append(test)
    return groups


def counts(tests: list[Test], kind: str) -> str:
    return ",".join(str(test.tokens) for test in tests if test.kind == kind) or "0"


@dataclasses.dataclass
class Peer:
    bench: Path
    batched: Path
    threads: int
    repeat: int

    def commands(self, model: Path, tests, variant: Variant) -> list[list]:
        common = ["-m", model, "-t", self.threads]
        made = []
        for depth, group in by_depth(tests).items():
            made.append([self.bench, *common, "-p", counts(group, "pp"), "-n", counts(group, "tg"),
                         "-d", depth, "-r", self.repeat, "-o", "jsonl", *variant.options])
        for test in tests:
            if test.together:
                context = (test.depth + test.tokens) * test.sequences
                made += [[self.batched, *common, "-c", context, "-npp", test.depth, "-ntg",
                          test.tokens, "-npl", test.sequences, "--output-format", "jsonl",
                          *variant.options]] * self.repeat
        return made

    def measure(self, model: Path, tests, variant: Variant) -> Samples:
        samples: Samples = {}
        for command in self.commands(model, tests, variant):
            output = run(command)
            batched = command[0] == self.batched
            found = samples_of_batched_bench(output) if batched else samples_of_llama_bench(output)
            for test, values in found.items():
                samples.setdefault(test, []).extend(values)
        return complete(samples, tests, self.bench)


@dataclasses.dataclass
class Ours:
    program: Path
    environment: dict[str, str]
    repeat: int
    machine_options: tuple[str, ...]

    def commands(self, model: Path, tests, variant: Variant) -> list[list]:
        common = [self.program, "bench", "--model", model]
        rest = ["--repeat", self.repeat, "--no-limits", "--json", *variant.options]
        made = []
        for depth, group in by_depth(tests).items():
            made.append([*common, "--prompt", counts(group, "pp"), "--generate",
                         counts(group, "tg"), "--depth", depth, *rest])
        for test in tests:
            if test.together:
                made.append([*common, "--prompt", 0, "--generate", test.tokens, "--depth",
                             test.depth, "--sequences", test.sequences, *rest])
        return made

    def measure(self, model: Path, tests, variant: Variant) -> tuple[Samples, dict[Test, Work]]:
        samples: Samples = {}
        works: dict[Test, Work] = {}
        for command in self.commands(model, tests, variant):
            body = json.loads(run(command, self.environment))
            for row in body["results"]:
                test = test_of_lockstep(row)
                samples.setdefault(test, []).extend(row["samples"])
                works[test] = Work(row["bytes_per_token"], row["operations_per_token"],
                                   body["format"].startswith("Q"))
        return complete(samples, tests, self.program), works

    def limits(self) -> Limits:
        body = json.loads(run([self.program, "bench-machine", "--json", "--no-exchanges",
                               *self.machine_options]))
        return limits_of(body, self.environment.get("LOCKSTEP_ISA"))


def higher(first: Limits, second: Limits) -> Limits:
    """What was disturbed is no limit."""
    operations = {kind: max(rate, second.operations[kind])
                  for kind, rate in first.operations.items()}
    return Limits(max(first.bytes, second.bytes), operations)


def test_of_lockstep(row: dict) -> Test:
    kind, tokens = (("pp", row["prompt_tokens"]) if row["prompt_tokens"]
                    else ("tg", row["generated_tokens"]))
    return Test(kind, tokens, row["depth_tokens"], row["sequences"])


def limits_of(body: dict, isa: str | None) -> Limits:
    """From bench-machine's JSON: every node's cores at its own memory, and the arithmetic of the
    instruction set (none: of all)."""
    reads = [path["read_bytes_per_second"] for path in body["paths"]
             if path["from_node"] == path["to_node"]]
    operations = {f"{each['isa']} {each['operation']}": each["operations_per_second"]
                  for each in body["arithmetic"] if isa is None or each["isa"] == isa}
    if not operations:
        raise CompareError(f"bench-machine measured no arithmetic of --isa {isa}")
    return Limits(sum(reads), operations)


def complete(samples: Samples, tests, program: Path) -> Samples:
    missing = [str(test) for test in tests if not samples.get(test)]
    if missing:
        raise CompareError(f"{program} reported nothing for {', '.join(missing)}")
    return samples


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


def table(results: list[Result], limits: Limits) -> str:
    names = list(results[0].ours)
    heading = ["model, test", "peer", "peer's settings"]
    for name in names:
        heading += [name, "ratio"]
    heading += ["limit", f"{names[0]}: of it", "GB/s", "GFLOP/s"]
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
        rows.append(row)
    return markdown_table(heading, rows)


def report(results: list[Result], limits: Limits, arguments: argparse.Namespace) -> str:
    note = f" Peer: {arguments.peer_note}." if arguments.peer_note else ""
    kinds = {limits.fastest(result.work.quantized) for result in results}
    arithmetic = ", ".join(f"{kind} {limits.operations[kind] / 1e9:.0f} Gop/s"
                           for kind in sorted(kinds))
    return f"""\
Tokens per second, medians of {arguments.rounds} rounds of {arguments.repeat} repeats, in turns \
({describe_machine()}).{note}

{table(results, limits)}

Measured limits: memory {limits.bytes / 1e9:.1f} GB/s, {arithmetic}. The limit of a row is the \
lower of both over what a token must read and multiply.

```sh
{shown_command([Path(__file__).resolve(), *sys.argv[1:]])}
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
                        f"(default: {'; '.join(DEFAULT_VARIANTS)})")
    parser.add_argument("--ours", action="append", metavar="NAME=OPTIONS",
                        help="columns of ours (default: lockstepd as it is)")
    parser.add_argument("--isa", help="the row of kernels that ours is forced to")
    parser.add_argument("--lockstepd", type=Path, default=ROOT / "build/release/lockstepd",
                        metavar="PATH")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)),
                        help="of the peer (default: all %(default)s processors)")
    parser.add_argument("--machine", default="", metavar="OPTIONS",
                        help="of lockstepd bench-machine, written --machine=\"--seconds 1\"")
    parser.add_argument("--rounds", type=int, default=2, help="(default: %(default)s)")
    parser.add_argument("--repeat", type=int, default=3, help="(default: %(default)s)")
    parser.add_argument("--page", type=Path, metavar="FILE", help="write the table there as well")
    parser.add_argument("--section", default="compare", metavar="NAME",
                        help="of the page (default: %(default)s)")
    arguments = parser.parse_args()
    for name in ("threads", "rounds", "repeat"):
        if getattr(arguments, name) < 1:
            parser.error(f"--{name} must be at least 1")
    return arguments


def main() -> int:
    arguments = parse_arguments()
    try:
        models = [Model.parse(text, arguments.tests) for text in arguments.model]
        our_variants = [our_variant(text) for text in arguments.ours or ["ours="]]
        variants = [Variant(text, tuple(shlex.split(text)))
                    for text in arguments.variant or DEFAULT_VARIANTS]
        batched = arguments.peer_batched or arguments.peer.with_name("llama-batched-bench")
        peer = Peer(arguments.peer, batched, arguments.threads, arguments.repeat)
        isa = {"LOCKSTEP_ISA": arguments.isa} if arguments.isa else {}
        ours = Ours(arguments.lockstepd, isa, arguments.repeat,
                    tuple(shlex.split(arguments.machine)))
        limits = ours.limits()
        results = []
        for model in models:
            chosen = choose_variants(peer, model, variants)
            results += compare(ours, our_variants, peer, chosen, model, arguments.rounds)
        limits = higher(limits, ours.limits())
        text = report(results, limits, arguments)
        print(text)
        if arguments.page:
            write_section(arguments.page, arguments.section, text)
    except (CompareError, PageError) as error:
        print(f"compare.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
