#!/usr/bin/env python3
"""Compares how speed falls with depth and with the number of sequences, in lockstepd and in
llama.cpp.

    scripts/bench/compare_depths.py --peer build/bin/llama-bench --model 1b-q4_0.gguf

For every format of the KV cache: a prompt and tokens one by one after so many tokens that are in
the cache already (--depths), and tokens of so many sequences side by side (--sequences, each after
--sequence-depth tokens), which the peer's llama-batched-bench does, looked for beside llama-bench.
Both run in turn, A B A B; figures are medians of all repeats of all rounds. The peer runs with
flash attention, without which it refuses quantized values. Nothing else should run meanwhile.

Computing the depth itself takes time that grows with its square. From --zero-from tokens on ours
does not compute it but takes zeros as keys and values (lockstepd bench --zero-depth), which take as
long to read; beyond --peer-most tokens the peer, which has no such way, is left out.

Prints two tables, and writes the plots prompt.svg, generate.svg (milliseconds per token by depth)
and sequences.svg (milliseconds per pass by sequences) into --plots. --page FILE --section NAME
writes the tables between marks in a page, with commands and machine.
"""

import argparse
import dataclasses
import os
import statistics
import sys
from pathlib import Path

from benchmark_page import (ROOT, PageError, describe_machine, markdown_table, shown_command,
                            write_section)
from benchmark_programs import CompareError, Ours, Peer, Test, Variant
from compare import number
from svg_plot import Plot

KV_FORMATS = ("f16", "q8_0")  # that both have


@dataclasses.dataclass
class Case:
    test: Test
    kv_format: str
    zero_depth: bool = False  # of ours
    with_peer: bool = True
    ours: list[float] = dataclasses.field(default_factory=list)  # tokens per second
    peer: list[float] = dataclasses.field(default_factory=list)

    @property
    def our_variant(self) -> Variant:
        options = ("--kv-format", self.kv_format) + ("--zero-depth",) * self.zero_depth
        return Variant(self.kv_format, options)

    @property
    def peer_variant(self) -> Variant:
        return Variant(self.kv_format, ("-fa", "on", "-ctk", self.kv_format, "-ctv",
                                        self.kv_format))

    def milliseconds(self, samples: list[float]) -> float:
        """Of a token, or of a pass with a token of each of several sequences."""
        return 1000 * self.test.sequences / statistics.median(samples)


def depth_cases(arguments: argparse.Namespace) -> list[Case]:
    cases = []
    for kv_format in arguments.kv_formats:
        for depth in arguments.depths:
            for kind, tokens in (("pp", arguments.prompt), ("tg", arguments.generate)):
                if tokens:
                    cases.append(Case(Test(kind, tokens, depth), kv_format,
                                      depth >= arguments.zero_from, depth <= arguments.peer_most))
    return cases


def sequence_cases(arguments: argparse.Namespace) -> list[Case]:
    return [Case(Test("tg", arguments.generate, arguments.sequence_depth, count), kv_format)
            for kv_format in arguments.kv_formats for count in arguments.sequences
            if arguments.generate]


def of_one_run(cases: list[Case]) -> list[list[Case]]:
    """Those of one format, depth and number of sequences: their depth is computed once."""
    runs: dict[tuple, list[Case]] = {}
    for case in cases:
        key = case.kv_format, case.test.depth, case.test.sequences
        runs.setdefault(key, []).append(case)
    return list(runs.values())


def measure(cases: list[Case], ours: Ours, peer: Peer, model: Path, rounds: int) -> None:
    for _ in range(rounds):
        for run in of_one_run(cases):
            tests = [case.test for case in run]
            samples, _ = ours.measure(model, tests, run[0].our_variant)
            for case in run:
                case.ours += samples[case.test]
            if run[0].with_peer:
                samples = peer.measure(model, tests, run[0].peer_variant)
                for case in run:
                    case.peer += samples[case.test]


def table(cases: list[Case]) -> str:
    """With milliseconds per token, or per pass of several sequences."""
    def cells(case: Case, samples: list[float]) -> list[str]:
        if not samples:
            return ["", ""]
        return [number(statistics.median(samples)), number(case.milliseconds(samples))]

    rows = []
    for case in cases:
        zeros = ", zeros" if case.zero_depth else ""
        ratio = (number(statistics.median(case.ours) / statistics.median(case.peer))
                 if case.peer else "")
        rows.append([f"{case.test}{zeros}", case.kv_format, *cells(case, case.peer),
                     *cells(case, case.ours), ratio])
    return markdown_table(["test", "KV", "peer", "ms", "ours", "ms", "ratio"], rows)


def lines_of(cases: list[Case], kind: str, by: str) -> dict[str, list[tuple[float, float]]]:
    """Milliseconds by depth or sequences (`by`, an attribute of the test)."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for case in cases:
        if case.test.kind != kind:
            continue
        for name, samples in (("ours", case.ours), ("peer", case.peer)):
            if samples:
                point = (getattr(case.test, by), case.milliseconds(samples))
                lines.setdefault(f"{name}, {case.kv_format}", []).append(point)
    return {name: sorted(line) for name, line in lines.items()}


def plots(of_depths: list[Case], of_sequences: list[Case], model: str) -> dict[str, Plot]:
    """By file name; those that have points."""
    per_token = ("tokens in the cache", "milliseconds per token")
    made = {
        "prompt.svg": Plot(f"{model}: a prompt after a depth", *per_token,
                           lines_of(of_depths, "pp", "depth")),
        "generate.svg": Plot(f"{model}: generation after a depth", *per_token,
                             lines_of(of_depths, "tg", "depth")),
        "sequences.svg": Plot(f"{model}: generation side by side", "sequences",
                              "milliseconds per pass", lines_of(of_sequences, "tg", "sequences"),
                              x_by_ratio=True),
    }
    return {name: plot for name, plot in made.items() if plot.lines}


def report(of_depths: list[Case], of_sequences: list[Case], arguments: argparse.Namespace) -> str:
    note = f" Peer: {arguments.peer_note}." if arguments.peer_note else ""
    tables = "\n\n".join(table(cases) for cases in (of_depths, of_sequences) if cases)
    zeros = (" \"Zeros\": the depth's keys and values are zeros, which take as long to read."
             if any(case.zero_depth for case in of_depths) else "")
    return f"""\
{arguments.model.stem}: tokens per second and milliseconds per token (of several sequences: per \
pass), medians of {arguments.rounds} rounds of {arguments.repeat} repeats, in turns \
({describe_machine()}).{zeros}{note}

{tables}

```sh
{shown_command([Path(__file__).resolve(), *sys.argv[1:]])}
```"""


def counts(text: str) -> list[int]:
    try:
        values = sorted({int(part) for part in text.split(",")}) if text else []
    except ValueError:
        values = [-1]
    if any(value < 0 for value in values):
        raise argparse.ArgumentTypeError(f"\"{text}\" is no list of numbers like 0,8192")
    return values


def kv_formats(text: str) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in KV_FORMATS]
    if unknown:
        raise argparse.ArgumentTypeError(f"\"{unknown[0]}\" is not among {', '.join(KV_FORMATS)}")
    return names


def parse_arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", type=Path, required=True, metavar="PATH", help="llama-bench")
    parser.add_argument("--peer-batched", type=Path, metavar="PATH",
                        help="llama-batched-bench (default: beside llama-bench)")
    parser.add_argument("--peer-note", default="", metavar="TEXT",
                        help="what the peer is and how it was built, for the page")
    parser.add_argument("--model", type=Path, required=True, metavar="FILE")
    parser.add_argument("--kv-formats", type=kv_formats, default=list(KV_FORMATS),
                        metavar="NAME,...", help=f"(default: {','.join(KV_FORMATS)})")
    parser.add_argument("--depths", type=counts, default=[0, 8192, 32768, 131072],
                        metavar="N,...", help="(default: 0,8192,32768,131072)")
    parser.add_argument("--prompt", type=int, default=512, metavar="N",
                        help="tokens after a depth; 0: none (default: %(default)s)")
    parser.add_argument("--generate", type=int, default=32, metavar="N",
                        help="tokens; 0: none (default: %(default)s)")
    parser.add_argument("--sequences", type=counts, default=[1, 4, 16, 64, 256], metavar="N,...",
                        help="side by side; empty: none (default: 1,4,16,64,256)")
    parser.add_argument("--sequence-depth", type=int, default=128, metavar="N",
                        help="of each of them (default: %(default)s)")
    parser.add_argument("--zero-from", type=int, default=sys.maxsize, metavar="N",
                        help="depths from so many tokens on are not computed by ours "
                        "(default: all are)")
    parser.add_argument("--peer-most", type=int, default=sys.maxsize, metavar="N",
                        help="the peer's greatest depth (default: any)")
    parser.add_argument("--lockstepd", type=Path, default=ROOT / "build/release/lockstepd",
                        metavar="PATH")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)),
                        help="of the peer (default: as many as processors)")
    parser.add_argument("--rounds", type=int, default=2, help="(default: %(default)s)")
    parser.add_argument("--repeat", type=int, default=1, help="(default: %(default)s)")
    parser.add_argument("--plots", type=Path, default=ROOT / "build/plots", metavar="FOLDER",
                        help="(default: build/plots)")
    parser.add_argument("--page", type=Path, metavar="FILE", help="write the tables there as well")
    parser.add_argument("--section", default="depths", metavar="NAME",
                        help="of the page (default: %(default)s)")
    arguments = parser.parse_args(given)
    for name in ("threads", "rounds", "repeat", "sequence_depth"):
        if getattr(arguments, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1")
    if not (arguments.prompt or arguments.generate) or not (arguments.depths or
                                                            arguments.sequences):
        parser.error("there is nothing to measure")
    if 0 in arguments.sequences:
        parser.error("--sequences must be at least 1 each")
    return arguments


def main() -> int:
    arguments = parse_arguments()
    batched = arguments.peer_batched or arguments.peer.with_name("llama-batched-bench")
    peer = Peer(arguments.peer, batched, arguments.threads, arguments.repeat)
    ours = Ours(arguments.lockstepd, None, arguments.repeat, ())
    of_depths, of_sequences = depth_cases(arguments), sequence_cases(arguments)
    try:
        for cases in (of_depths, of_sequences):
            measure(cases, ours, peer, arguments.model, arguments.rounds)
        text = report(of_depths, of_sequences, arguments)
        print(text)
        arguments.plots.mkdir(parents=True, exist_ok=True)
        for name, plot in plots(of_depths, of_sequences, arguments.model.stem).items():
            (arguments.plots / name).write_text(plot.svg(), encoding="utf-8")
        if arguments.page:
            write_section(arguments.page, arguments.section, text)
    except (CompareError, PageError) as error:
        print(f"compare_depths.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
