"""The rules of the tree: layers, sizes, and what code may not speak of."""

import pathlib
import re
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]

# Bottom up. A folder includes only from itself and from those before it.
LAYERS = ["base", "machine", "tensor", "kernels", "collectives", "graph", "model", "text", "runtime",
          "scheduler"]
SERVER_LAYERS = ["http", "access", "metrics", "api", "ui", "daemon", "commands"]

MOST_COLUMNS = 100
MOST_LINES = 600
# A table of data, generated.
LONG_FILES = {"engine/text/jinja/unicode_table.cpp"}


def sources(*folders):
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in {".h", ".cpp"}:
                yield path


def includes(path):
    return re.findall(r'^#include "([^"]+)"', path.read_text(), flags=re.MULTILINE)


def test_engine_includes_go_down_the_stack():
    wrong = []
    for path in sources("engine"):
        parts = path.relative_to(ROOT / "engine").parts
        layer = LAYERS.index(parts[0]) if len(parts) > 1 else len(LAYERS)
        for include in includes(path):
            target = include.split("/")
            assert target[0] == "engine", f"{path} includes {include}"
            target_layer = LAYERS.index(target[1]) if len(target) > 2 else len(LAYERS)
            if target_layer > layer:
                wrong.append(f"{path.relative_to(ROOT)} includes {include}")
    assert not wrong, wrong


def test_the_server_sees_the_engine_through_its_one_door():
    below = re.compile(r"engine/(engine\.h|base/[a-z_]+\.h|text/(tokenizer|sampler|utf8)\.h)$")
    wrong = [
        f"{path.relative_to(ROOT)} includes {include}"
        for path in sources("server")
        for include in includes(path)
        if include.startswith("engine/") and not below.match(include)
    ]
    assert not wrong, wrong


def test_http_knows_nothing_of_models():
    wrong = [
        f"{path.relative_to(ROOT)} includes {include}"
        for path in sources("server/http")
        for include in includes(path)
        if not include.startswith(("server/http/", "engine/base/"))
    ]
    assert not wrong, wrong


def test_lines_and_files_have_their_sizes():
    wrong = []
    for path in sources("engine", "server", "tests"):
        name = str(path.relative_to(ROOT))
        lines = path.read_text().splitlines()
        if len(lines) > MOST_LINES and name not in LONG_FILES:
            wrong.append(f"{name} has {len(lines)} lines")
        wrong += [
            f"{name}:{number} has {len(line)} columns"
            for number, line in enumerate(lines, 1)
            if len(line) > MOST_COLUMNS
        ]
    assert not wrong, wrong


def test_every_source_is_formatted():
    program = shutil.which("clang-format-14") or shutil.which("clang-format")
    if program is None:
        pytest.skip("clang-format is not installed")
    version = subprocess.run([program, "--version"], capture_output=True, text=True).stdout
    if " 14." not in version:
        pytest.skip(f"formatting is defined by clang-format 14; here is {version.strip()}")
    files = [str(path) for path in sources("engine", "server", "tests")]
    checked = subprocess.run(
        [program, "--dry-run", "--Werror", *files], capture_output=True, text=True, cwd=ROOT)
    assert checked.returncode == 0, checked.stderr[:4000]
