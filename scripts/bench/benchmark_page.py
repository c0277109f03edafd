"""Sections of a page of benchmarks that programs write, and the machine they were measured on."""

import os
import platform
import re
import shlex
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
INTERESTING_FLAGS = {"avx2": "AVX2", "avx512f": "AVX-512", "avx512_vnni": "VNNI",
                     "avx512_bf16": "AVX-512 BF16", "amx_tile": "AMX"}


class PageError(Exception):
    """A page whose marks do not fit."""


def replace_section(page: str, name: str, body: str) -> str:
    """The page with the section's content replaced; appended where there is none yet."""
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    section = f"{begin}\n{body.strip()}\n{end}"
    counts = page.count(begin), page.count(end)
    if counts == (0, 0):
        return f"{page.rstrip()}\n\n{section}\n"
    if counts != (1, 1) or page.index(begin) > page.index(end):
        raise PageError(f"the page has {counts[0]} times \"{begin}\" and {counts[1]} times "
                        f"\"{end}\"; leave one of each, in this order, or none")
    return page[:page.index(begin)] + section + page[page.index(end) + len(end):]


def write_section(path: Path, name: str, body: str) -> None:
    page = path.read_text(encoding="utf-8") if path.exists() else "# Benchmarks\n"
    path.write_text(replace_section(page, name, body), encoding="utf-8")


def markdown_table(heading: list[str], rows: list[list[str]]) -> str:
    """The first column to the left, all others to the right."""
    for row in rows:
        if len(row) != len(heading):
            raise ValueError(f"a row of {len(row)} cells under {len(heading)}")
    rule = ["---"] + ["---:"] * (len(heading) - 1)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [heading, rule, *rows])


def shown_command(command: list, environment: dict[str, str] | None = None) -> str:
    """As a reader would type it: what lies outside of the repository by its name alone."""
    def shown(part) -> str:
        text = str(part)
        if not text.startswith("/"):
            return shlex.quote(text)
        path = Path(text)
        inside = path.is_relative_to(ROOT)
        return shlex.quote(str(path.relative_to(ROOT)) if inside else path.name)

    settings = [f"{name}={shlex.quote(value)}" for name, value in (environment or {}).items()]
    return " ".join(settings + [shown(part) for part in command])


def describe_processors(cpuinfo: str, count: int) -> str:
    """"2 cores of an AMD EPYC (AVX2, AVX-512)", from /proc/cpuinfo's text."""
    name = re.search(r"^model name\s*: (.+)$", cpuinfo, flags=re.MULTILINE)
    found = re.search(r"^flags\s*: (.+)$", cpuinfo, flags=re.MULTILINE)
    flags = set(found[1].split()) if found else set()
    sets = [shown for flag, shown in INTERESTING_FLAGS.items() if flag in flags]
    return (f"{count} processors, {name[1].strip() if name else platform.machine()} "
            f"({', '.join(sets) or 'no vector extensions'})")


def describe_gpus(names: tuple[str, ...]) -> str:
    """"2 x NVIDIA H100, 1 x NVIDIA L4", from a name for each."""
    return ", ".join(f"{count} x {name}" for name, count in Counter(names).items())


def describe_machine(gpus: tuple[str, ...] = ()) -> str:
    """`gpus`: the names of those that were measured."""
    cpuinfo = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    memory = re.search(r"^MemTotal:\s*(\d+)", Path("/proc/meminfo").read_text(encoding="utf-8"))
    gibibytes = round(int(memory[1]) / 2**20) if memory else 0
    processors = describe_processors(cpuinfo, len(os.sched_getaffinity(0)))
    parts = [processors, f"{gibibytes} GiB", describe_gpus(gpus),
             f"Linux {platform.release().split('-')[0]}", time.strftime("%B %Y")]
    return ", ".join(filter(None, parts))
