#!/usr/bin/env python3
"""Compares what formats of the KV cache cost: the mean KL divergence of a model with them from the
same model with an f16 cache.

    scripts/bench/compare_kv_formats.py [--model FILE] [--formats q8_0,q4_h,q4_0]

Each format is measured for keys and values, for keys alone and for values alone, on a text that the
bundled model was not trained on (scripts/models/make_text.py), unless --text gives another. Prints
a table; --page FILE --section NAME writes it between marks in a page, with the command.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

from benchmark_page import ROOT, PageError, markdown_table, shown_command, write_section
from benchmark_programs import CompareError, run
from compare_accuracy import Accuracy, accuracy_of_lockstepd

sys.path.append(str(ROOT / "scripts/models"))
from make_text import make_text  # noqa: E402

BASE = "f16"


def cases(formats: list[str]) -> list[tuple[str, str]]:
    """Formats of keys and of values."""
    return [pair for name in formats for pair in ((name, name), (name, BASE), (BASE, name))]


def measure(arguments: argparse.Namespace, text: Path, keys: str, values: str) -> Accuracy:
    return accuracy_of_lockstepd(json.loads(run(
        [arguments.lockstepd, "evaluate", "--model", arguments.model, "--reference",
         arguments.model, "--reference-kv-format", BASE, "--kv-key-format", keys,
         "--kv-value-format", values, "--text", text, "--context", arguments.context, "--json",
         *arguments.option])))


def row(keys: str, values: str, found: Accuracy) -> list[str]:
    return [keys, values, f"{found.divergence:.7f} ± {found.error:.7f}",
            f"{100 * found.agreement:.2f} %", f"{found.perplexity:.5f}"]


def table(rows: list[list[str]]) -> str:
    return markdown_table(["keys", "values", "KL", "same top", "perplexity"], rows)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=ROOT / "config/demo.gguf", metavar="FILE",
                        help="(default: the bundled model)")
    parser.add_argument("--formats", default="q8_0,q4_h,q4_0", metavar="NAME,...",
                        help="(default: %(default)s)")
    parser.add_argument("--text", type=Path, metavar="FILE")
    parser.add_argument("--characters", type=int, default=150_000,
                        help="of the text that is made where none is given (default: %(default)s)")
    parser.add_argument("--context", type=int, default=512, help="(default: %(default)s)")
    parser.add_argument("--option", action="append", default=[], metavar="--NAME=VALUE",
                        help="of lockstepd")
    parser.add_argument("--lockstepd", type=Path, default=ROOT / "build/release/lockstepd",
                        metavar="PATH")
    parser.add_argument("--page", type=Path, metavar="FILE", help="write the table there as well")
    parser.add_argument("--section", default="kv-formats", metavar="NAME",
                        help="of the page (default: %(default)s)")
    return parser.parse_args()


def main() -> int:
    arguments = parse_arguments()
    try:
        with tempfile.TemporaryDirectory(prefix="lockstep-kv-") as folder:
            text = arguments.text or Path(folder) / "text.txt"
            if arguments.text is None:
                text.write_text(make_text(arguments.characters, seed=1), encoding="utf-8")
            rows = []
            for keys, values in cases(arguments.formats.split(",")):
                rows.append(row(keys, values, measure(arguments, text, keys, values)))
                print(table(rows[-1:]).splitlines()[-1], file=sys.stderr, flush=True)
        command = shown_command([Path(__file__).resolve(), *sys.argv[1:]])
        result = f"{table(rows)}\n\n```sh\n{command}\n```"
        print(result)
        if arguments.page:
            write_section(arguments.page, arguments.section, result)
    except (CompareError, PageError) as error:
        print(f"compare_kv_formats.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
