#!/usr/bin/env python3
"""Compares how far quantized models are from their original in lockstepd and in the peer.

    scripts/bench/compare_accuracy.py --peer build/bin/llama-perplexity

For every format: the peer's llama-quantize (looked for beside it) makes the file from the original,
and both programs compute the mean KL divergence of it from the original over the same text, each
with its own arithmetic for both models: lockstepd evaluate, llama-perplexity --kl-divergence. The
text is one that the bundled model was not trained on (scripts/models/make_text.py), unless --text
gives another. Prints a table; --page FILE --section NAME writes it between marks in a page, with commands
and machine.

The peer prints six decimals, so the ratio of small divergences has few digits that count.
"""

import argparse
import dataclasses
import json
import re
import shlex
import sys
from pathlib import Path

from benchmark_page import ROOT, PageError, markdown_table, shown_command, write_section
from benchmark_programs import CompareError, Variant, run
from compare import our_variant

sys.path.append(str(ROOT / "scripts/models"))
from make_text import make_text  # noqa: E402

# The peer's names of the formats; all are formats that lockstepd reads.
DEFAULT_FORMATS = "Q4_0,Q4_1,Q5_0,Q5_1,Q8_0,Q4_K_S,Q4_K_M,Q5_K_S,Q5_K_M,Q6_K"


@dataclasses.dataclass(frozen=True)
class Accuracy:
    divergence: float  # mean, nats
    error: float       # standard
    agreement: float   # on the likeliest token, from 0 to 1
    perplexity: float


def accuracy_of_lockstepd(body: dict) -> Accuracy:
    than = body["reference"]
    return Accuracy(than["kl_divergence"]["mean"], than["kl_divergence"]["standard_error"],
                    than["top_token_agreement"]["mean"], body["perplexity"]["mean"])


def accuracy_of_llama_perplexity(text: str) -> Accuracy:
    def find(name: str) -> tuple[float, float]:
        found = re.search(rf"^{re.escape(name)}\s*:\s*(-?[\d.]+)\s*±\s*(-?[\d.]+)", text,
                          flags=re.MULTILINE)
        if not found:
            raise CompareError(f"llama-perplexity printed no \"{name}\": {text.strip()[-400:]}")
        return float(found[1]), float(found[2])

    divergence, error = find("Mean    KLD")
    return Accuracy(divergence, error, find("Same top p")[0] / 100, find("Mean PPL(Q)")[0])


@dataclasses.dataclass
class Measurer:
    peer: Path
    lockstepd: Path
    original: Path
    text: Path
    folder: Path
    context: int
    threads: int

    def quantize(self, name: str) -> Path:
        path = self.folder / f"{self.original.stem}-{name}.gguf"
        run([self.peer.with_name("llama-quantize"), self.original, path, name, self.threads])
        return path

    @property
    def base(self) -> Path:
        """The peer's log-probabilities of the original."""
        return self.folder / f"{self.original.stem}.kld"

    def run_peer(self, model: Path, *options) -> str:
        return run([self.peer, "-m", model, "-f", self.text, "-c", self.context, "-t", self.threads,
                    "--kl-divergence-base", self.base, *options])

    def measure_peer(self, model: Path) -> Accuracy:
        return accuracy_of_llama_perplexity(self.run_peer(model, "--kl-divergence"))

    def measure_ours(self, model: Path, variant: Variant) -> Accuracy:
        return accuracy_of_lockstepd(json.loads(run(
            [self.lockstepd, "evaluate", "--model", model, "--reference", self.original, "--text",
             self.text, "--context", self.context, "--json", *variant.options])))


@dataclasses.dataclass
class Row:
    format: str
    peer: Accuracy
    ours: dict[str, Accuracy]  # by variant


def table(rows: list[Row]) -> str:
    names = list(rows[0].ours)
    heading = ["format", "peer: KL", "same top"]
    for name in names:
        heading += [f"{name}: KL", "ratio", "same top"]
    cells = []
    for row in rows:
        line = [row.format, f"{row.peer.divergence:.6f} ± {row.peer.error:.6f}",
                f"{100 * row.peer.agreement:.2f} %"]
        for name in names:
            own = row.ours[name]
            ratio = own.divergence / row.peer.divergence if row.peer.divergence > 0 else 1
            line += [f"{own.divergence:.7f} ± {own.error:.7f}", f"{ratio:.3f}",
                     f"{100 * own.agreement:.2f} %"]
        cells.append(line)
    return markdown_table(heading, cells)


def report(rows: list[Row], tokens: int, arguments: argparse.Namespace) -> str:
    note = f" Peer: {arguments.peer_note}." if arguments.peer_note else ""
    return f"""\
Mean KL divergence from the original (nats), {tokens} tokens scored.{note}

{table(rows)}

```sh
{shown_command([Path(__file__).resolve(), *sys.argv[1:]])}
```"""


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", type=Path, required=True, metavar="PATH",
                        help="llama-perplexity")
    parser.add_argument("--peer-note", default="", metavar="TEXT",
                        help="what the peer is and how it was built, for the page")
    parser.add_argument("--model", type=Path, default=ROOT / "config/demo.gguf", metavar="FILE",
                        help="the original (default: the bundled model)")
    parser.add_argument("--formats", default=DEFAULT_FORMATS, metavar="NAME,...",
                        help="as llama-quantize names them (default: %(default)s)")
    parser.add_argument("--text", type=Path, metavar="FILE")
    parser.add_argument("--characters", type=int, default=150_000,
                        help="of the text that is made where none is given (default: %(default)s)")
    parser.add_argument("--context", type=int, default=512, help="(default: %(default)s)")
    parser.add_argument("--ours", action="append", metavar="NAME=OPTIONS",
                        help="columns of ours (default: lockstepd as it is)")
    parser.add_argument("--lockstepd", type=Path, default=ROOT / "build/release/lockstepd",
                        metavar="PATH")
    parser.add_argument("--threads", type=int, default=2, help="of the peer (default: %(default)s)")
    parser.add_argument("--folder", type=Path, default=ROOT / "build/accuracy", metavar="PATH",
                        help="for the files that are made (default: build/accuracy)")
    parser.add_argument("--page", type=Path, metavar="FILE", help="write the table there as well")
    parser.add_argument("--section", default="accuracy", metavar="NAME",
                        help="of the page (default: %(default)s)")
    return parser.parse_args()


def measure(measurer: Measurer, formats: list[str], variants: list[Variant]) -> list[Row]:
    measurer.run_peer(measurer.original)  # writes the base
    rows = []
    for name in ["original", *formats]:
        model = measurer.original if name == "original" else measurer.quantize(name)
        rows.append(Row(name, measurer.measure_peer(model),
                        {v.name: measurer.measure_ours(model, v) for v in variants}))
        print(table(rows[-1:]).splitlines()[-1], file=sys.stderr, flush=True)
    return rows


def scored_tokens(measurer: Measurer) -> int:
    body = json.loads(run([measurer.lockstepd, "evaluate", "--model", measurer.original, "--text",
                           measurer.text, "--context", measurer.context, "--json"]))
    return body["scored_tokens"]


def main() -> int:
    arguments = parse_arguments()
    try:
        variants = [our_variant(text) for text in arguments.ours or ["ours="]]
        for path in (arguments.model, arguments.text):
            if path is not None and not path.is_file():
                raise CompareError(f"{path}: there is no such file")
        arguments.folder.mkdir(parents=True, exist_ok=True)
        text = arguments.text
        if text is None:
            text = arguments.folder / "text.txt"
            text.write_text(make_text(arguments.characters, seed=1), encoding="utf-8")
        measurer = Measurer(arguments.peer, arguments.lockstepd, arguments.model, text,
                            arguments.folder, arguments.context, arguments.threads)
        rows = measure(measurer, arguments.formats.split(","), variants)
        result = report(rows, scored_tokens(measurer), arguments)
        print(result)
        if arguments.page:
            write_section(arguments.page, arguments.section, result)
    except (CompareError, PageError) as error:
        print(f"compare_accuracy.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
