"""The rules of the tree: layers, sizes, and what code may not speak of."""

import graphlib
import pathlib
import re
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]

# Bottom up. A folder includes only from itself and from those before it.
LAYERS = ["base", "machine", "tensor", "kernels", "collectives", "graph", "model", "text", "runtime",
          "scheduler"]
# The same of server/, whose own files come last; generated headers count as files of their folder.
SERVER_LAYERS = ["http", "options", "access", "metrics", "api/common", "api/openai",
                 "api/anthropic", "api/native", "api", "ui", "daemon", "commands", "."]

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


def server_layer(path):
    return SERVER_LAYERS.index(str(path.relative_to("server").parent))


def test_server_includes_go_down_its_layers():
    wrong = []
    for path in sources("server"):
        name = path.relative_to(ROOT)
        for include in includes(path):
            if not include.startswith("server/"):
                continue
            if server_layer(pathlib.PurePath(include)) > server_layer(name):
                wrong.append(f"{name} includes {include}")
    assert not wrong, wrong


def test_no_dialect_includes_another():
    dialects = {"openai", "anthropic"}
    wrong = [
        f"{path.relative_to(ROOT)} includes {include}"
        for dialect in dialects
        for path in sources(f"server/api/{dialect}")
        for include in includes(path)
        for other in dialects - {dialect}
        if include.startswith(f"server/api/{other}/")
    ]
    assert not wrong, wrong


def components(*folders):
    """What each component (NAME.h with NAME.cpp) includes of other components."""
    found = {}
    for path in sources(*folders):
        name = str(path.relative_to(ROOT).with_suffix(""))
        below = found.setdefault(name, set())
        below.update(include.removesuffix(".h") for include in includes(path))
        below.discard(name)
    return found


def test_no_component_of_the_server_includes_itself_around_others():
    below = components("server")
    order = graphlib.TopologicalSorter(below)
    try:
        order.prepare()
    except graphlib.CycleError as error:
        pytest.fail("includes go in a circle: " + " -> ".join(error.args[1]))
    assert len(below) > 100


# A value that a thread carries beside its arguments: a thread-local, or a map by the thread's id.
CARRIED_BY_THREADS = re.compile(r"\bthread_local\b|this_thread::get_id|<std::thread::id\b")


def test_no_thread_of_the_server_carries_values_beside_its_arguments():
    wrong = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sources("server")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if CARRIED_BY_THREADS.search(line)
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


# The standard library's locks have no annotations, so clang could not check what they guard.
BARE_LOCK = re.compile(
    r"std::(\w*mutex|lock_guard|unique_lock|shared_lock|scoped_lock|condition_variable\w*)\b"
    r"|\bpthread_(mutex|rwlock|cond)_|<(condition_variable|shared_mutex)>"
    r"|no_thread_safety_analysis")
# Beside one that guards no member stands a comment that says so.
LOCK = re.compile(r"\bMutex(?:, \w+>)? (\w+);(.*)")


def test_every_lock_is_one_that_clang_checks():
    wrong = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sources("engine", "server")
        if path != ROOT / "engine/base/mutex.h"
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if BARE_LOCK.search(line)
    ]
    assert not wrong, wrong


def test_every_lock_says_what_it_guards():
    locks, wrong = 0, []
    for path in sources("engine", "server"):
        text = path.read_text()
        for name, comment in LOCK.findall(text):
            locks += 1
            guarded = re.search(rf"LOCKSTEP_GUARDED_BY\({name}\)", text)
            if not guarded and not re.search("guards? no member", comment):
                wrong.append(f"{path.relative_to(ROOT)}: {name}")
    assert locks > 20 and not wrong, (locks, wrong)


def test_locks_beside_cuda_are_held_for_what_they_guard():
    """The clang build has no CUDA: what includes its headers and holds a lock is checked here."""
    clang, nvcc = shutil.which("clang++-19"), shutil.which("nvcc", path="/usr/local/cuda/bin")
    nvcc = shutil.which("nvcc") or nvcc
    if clang is None or nvcc is None:
        pytest.skip("there is no nvcc" if nvcc is None else "clang-19 is not installed")
    headers = pathlib.Path(nvcc).resolve().parents[1] / "include"
    places = [headers, pathlib.Path("/usr/include"), pathlib.Path("/usr/local/include")]
    has_nccl = any((place / "nccl.h").exists() for place in places)
    files = []
    for path in sources("engine", "server"):
        text = path.read_text()
        is_checked = "#include <cuda" in text and (has_nccl or "#include <nccl" not in text)
        if "Mutex" in text and is_checked:
            files.append(path)
    assert files
    for path in files:
        checked = subprocess.run(
            [clang, "-xc++", "-std=c++23", "-fsyntax-only", "-Wthread-safety", "-Werror",
             f"-I{ROOT}", "-isystem", str(headers), "-Wno-pragma-once-outside-header", str(path)],
            capture_output=True, text=True)
        assert checked.returncode == 0, checked.stderr[:4000]


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
