"""The rules of the tree: layers, sizes, and what code may not speak of."""

import pathlib
import re
import shutil
import subprocess

import pytest
from cpp_functions import functions

ROOT = pathlib.Path(__file__).resolve().parents[1]

# Bottom up. A folder includes only from itself and from those before it.
LAYERS = ["base", "machine", "tensor", "kernels", "collectives", "sampling", "drafting", "graph",
          "pass", "hosts", "operations", "planner", "model", "text", "runtime", "scheduler", "tiers",
          "interface", "placement", "serving", "measure", "simulation"]
# The same of server/, whose own files come last; generated headers count as files of their folder.
SERVER_LAYERS = ["http", "options", "access", "metrics", "api/common", "api/openai",
                 "api/anthropic", "api/native", "api", "ui", "daemon", "commands", "."]

# The share of small files: what is one idea is one file. It may only shrink.
SMALL_FILE_LINES = 40
MOST_SMALL_FILES = 0.177
MOST_COLUMNS = 100
MOST_LINES = 600
MOST_FUNCTION_LINES = 70
# Tables of data, generated.
LONG_FILES = {"engine/text/jinja/unicode_table.cpp", "engine/text/word_piece_table.cpp"}


CODE = {".h", ".cpp", ".cu"}


def sources(*folders, suffixes=frozenset({".h", ".cpp"})):
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in suffixes:
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


# Branches of switches over a graph's operations; what an operation is stands in its folder and in
# its row of the table. These numbers may only shrink.
BRANCHES_BY_OPERATION = {
    "engine/graph/graph.cpp": 2,  # the rows of what an operation gives
    "engine/planner/product_roles.cpp": 4,  # a product's role by what ends its way
}


def test_operations_are_told_apart_in_their_folders():
    branches = {}
    for path in sources("engine"):
        count = path.read_text().count("case Operation::")
        if count and path.parent.parent != ROOT / "engine/operations":
            branches[str(path.relative_to(ROOT))] = count
    wrong = {name: count for name, count in branches.items()
             if count > BRANCHES_BY_OPERATION.get(name, 0)}
    assert not wrong, wrong


def test_what_runs_passes_knows_tokens_by_number_alone():
    wrong = [
        f"{path.relative_to(ROOT)} includes {include}"
        for folder in ("engine/sampling", "engine/pass", "engine/runtime")
        for path in sources(folder)
        for include in includes(path)
        if include.startswith("engine/text/")
    ]
    assert not wrong, wrong


def test_the_engine_itself_holds_its_door_alone():
    files = {path.name for path in (ROOT / "engine").iterdir() if path.is_file()}
    assert files == {"engine.h", "engine.cpp", "README.md", "CMakeLists.txt"}, files


def test_the_machine_is_read_in_one_place():
    reading = re.compile(r"\b(read_(topology|memory_limits|machine_settings|control_group_limits)"
                         r"|add_gpus)\(")
    places = {
        str(path.relative_to(ROOT))
        for path in sources("engine")
        if path.parent != ROOT / "engine/machine" and reading.search(path.read_text())
    }
    assert places == {"engine/placement/machine.cpp"}, places


def test_options_strings_are_parsed_in_one_place():
    strings = re.compile(r"\boptions\.(devices|strategy|exchange_format|kv_(key_|value_)?format"
                         r"|arithmetic)\b")
    readers = {
        str(path.relative_to(ROOT))
        for path in sources("engine")
        if "EngineOptions" in path.read_text() and strings.search(path.read_text())
    }
    # They print or vary the strings: a refusal's remedies, what a model and its memory are called.
    known = {"engine/engine.cpp"} | {
        f"engine/placement/{name}.cpp"
        for name in ("settings", "memory_remedies", "model_info")}
    assert readers == known, readers ^ known


def test_the_server_sees_the_engine_through_its_one_door():
    below = re.compile(r"engine/(engine\.h|(base|interface)/[a-z_]+\.h"
                       r"|text/(tokenizer|utf8)\.h)$")
    wrong = [
        f"{path.relative_to(ROOT)} includes {include}"
        for path in sources("server")
        for include in includes(path)
        if include.startswith("engine/") and not below.match(include)
    ]
    assert not wrong, wrong


# Lines that ask whether something is a GPU, or whether GPUs or nodes are among the devices. What
# differs by device is behind an interface, whose body a factory chooses.
ASKS_FOR_GPUS = re.compile("|".join([
    r"\b(?:is_)?on_gpus?\b(?!;)", r"\bis_gpu\b", r"\bis_mixed\b", r"\ball_gpus\b(?!\(const)",
    r"\b(?:devices|choice|chosen|topology|measured|plan)(?:\.|->)gpus\.empty\(\)",
    r"\b(?:devices|choice|chosen)(?:\.|->)nodes\.empty\(\)",
    r"\b(?:gpu_|node_)?places(?:\(\))?\.empty\(\)",
    r"(?:\.|->)gpu(?=\s*(?:\?|\)|&&|\|\||==|!=|;|\.has_value))", r"\*\w+(?:\.|->)gpu\b",
    r"\bgpu\s*(?:>=|<)\s*0\b", r"\bgpu\(\)\s*(?:==|!=|>=)",
    r"\b(?:get_if|get|holds_alternative)<(?:Gpu|Node)Place>",
]))
# Code of GPUs alone asks nothing.
OF_GPUS = re.compile(r"/(?:gpu|cuda)(?:_|/)")
# What chooses a body, reads names of devices, or tells of GPUs to people: so many lines at most.
DEVICE_FACTORIES = {
    "engine/machine/device_choice.cpp": 9,  # reads --devices
    "engine/placement/device_rules.cpp": 2,  # rules_of()
    "engine/placement/rank_device.cpp": 2,  # device_of(), and its body of a GPU
    "engine/runtime/ranks.cpp": 5,  # starts the bodies of ranks
    "engine/measure/speed_estimate.cpp": 2,  # speed_model()
    "engine/measure/plan_report.cpp": 2,
    "engine/serving/rank_report.cpp": 2,
    "server/commands/bench_machine.cpp": 1,
    "server/commands/plan.cpp": 2,
    "server/commands/plan_json.cpp": 1,
    "server/metrics/engine_metrics.cpp": 3,
}
# All other lines together. These numbers may only shrink.
MOST_ASKS_FOR_GPUS = 6


def test_only_factories_ask_for_gpus():
    asks = {}
    for path in sources("engine", "server", suffixes=CODE):
        name = str(path.relative_to(ROOT))
        text = path.read_text()
        if OF_GPUS.search(name) or not ASKS_FOR_GPUS.search(text):
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if ASKS_FOR_GPUS.search(line.split("//")[0]):
                asks.setdefault(name, []).append(f"{name}:{number}: {line.strip()}")
    wrong = [line for name, most in DEVICE_FACTORIES.items() if len(asks.get(name, [])) > most
             for line in asks[name]]
    assert not wrong, wrong
    others = [line for name, lines in asks.items() if name not in DEVICE_FACTORIES
              for line in lines]
    assert len(others) <= MOST_ASKS_FOR_GPUS, (len(others), others)


ENVIRONMENT = re.compile(r"\b(secure_)?getenv\b|\benviron\b")


def test_the_environment_is_read_in_one_place():
    """What a variable says is a row of the table of options, or the service manager's word."""
    readers = {
        str(path.relative_to(ROOT))
        for path in sources("engine", "server", suffixes=CODE)
        if ENVIRONMENT.search(path.read_text())
    }
    assert readers == {"server/options/options.cpp"}, readers


def component(name):
    return re.sub(r"(\.inl)?\.(h|cpp|cu)$", "", name)


def include_graph(*folders):
    """The components of these folders, and for each those that it includes."""
    graph = {}
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in {".h", ".cpp", ".cu"}:
                edges = graph.setdefault(component(str(path.relative_to(ROOT))), set())
                edges.update(component(include) for include in includes(path))
    return {name: {other for other in edges if other in graph and other != name}
            for name, edges in graph.items()}


def find_circles(graph):
    """The strongly connected components of more than one member (Tarjan's algorithm)."""
    numbers, lowest, stack, circles = {}, {}, [], []

    def visit(name):
        numbers[name] = lowest[name] = len(numbers)
        stack.append(name)
        for other in sorted(graph[name]):
            if other not in numbers:
                visit(other)
            if other in stack:
                lowest[name] = min(lowest[name], lowest[other])
        if lowest[name] == numbers[name]:
            first = stack.index(name)
            circle = sorted(stack[first:])
            del stack[first:]
            if len(circle) > 1:
                circles.append(circle)

    for name in sorted(graph):
        if name not in numbers:
            visit(name)
    return sorted(circles)


def test_circles_are_found():
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set(), "e": {"f", "a"}, "f": {"e"}}
    assert find_circles(graph) == [["b", "c"], ["e", "f"]]


def test_components_include_one_another_in_no_circles():
    """A component is x.h, x.inl.h, x.cpp and x.cu together."""
    circles = find_circles(include_graph("engine", "server"))
    assert not circles, circles


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
    for path in sources("engine", "server", "tests", suffixes=CODE):
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


def test_few_files_are_small():
    lines = [len(path.read_text().splitlines())
             for path in sources("engine", "server", suffixes=CODE)]
    share = sum(count <= SMALL_FILE_LINES for count in lines) / len(lines)
    assert share <= MOST_SMALL_FILES, share


def test_functions_fit_a_screen():
    measured, wrong = 0, []
    for path in sources("engine", "server", "tests", suffixes=CODE):
        for function in functions(path.read_text()):
            measured += 1
            if function.lines > MOST_FUNCTION_LINES:
                wrong.append(f"{path.relative_to(ROOT)}:{function.first}: {function.name} has "
                             f"{function.lines} lines")
    assert measured > 8000 and not wrong, (measured, wrong)


# What the preprocessor chooses, each with its reason. A choice that the build or the machine makes is
# a file or a row of a table instead. The list may only shrink: an entry that is gone fails as well.
CONDITIONS = {
    # GCC has no thread safety analysis, and warns of attributes that it does not know.
    ("engine/base/mutex.h", "#ifdef __clang__"),
    # nvcc compiles one text for several generations, of which the older lack the instruction.
    ("engine/kernels/cuda/launch_overlap.h",
     "#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900"),
    # ... or lack it again: products of warp groups are Hopper's alone.
    ("engine/kernels/cuda/gpu_code.h",
     "#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)"),
    # A compiler says in no other way that it instruments for threads, which makes sums slow.
    ("tests/engine/collectives/all_reduce_test.cpp", "#ifdef __SANITIZE_THREAD__"),
}
CONDITION = re.compile(r"^[ \t]*#[ \t]*(?:if|ifdef|ifndef|elif\w*)\b(?:\\\n|[^\n])*", re.MULTILINE)


TYPE = "(?:class|struct|union|enum class)"


def types_of(text):
    """The full names of the types that a file's namespaces hold; those of unnamed ones are left out."""
    spaces = []
    for line in text.splitlines():
        if opened := re.match(r"(?:inline )?namespace ([\w:]*) ?\{$", line):
            spaces.append(opened[1])
        elif re.match(r"\}  // (?:anonymous |unnamed )?namespace", line):
            spaces.pop()
        elif held := re.match(rf"{TYPE} (?:\w+\([^)]*\) )*((?:\w|::)+)[^;]*\{{", line):
            if "" not in spaces:
                yield "::".join([*spaces, held[1]])


def test_types_of_files_are_found():
    text = """namespace lockstep {
class A final : public B {
};
class C;
namespace {
struct D {};
}  // namespace
struct alignas(64) E {
}  // namespace lockstep
"""
    assert list(types_of(text)) == ["lockstep::A", "lockstep::E"]


def test_no_two_files_define_types_of_one_name():
    """The linker would take the members of one for those of the other, without a word."""
    files = {}
    for path in sources("engine", "server", "tests", suffixes=CODE):
        for name in set(types_of(path.read_text())):
            files.setdefault(name, []).append(str(path.relative_to(ROOT)))
    twice = {name: held for name, held in files.items() if len(held) > 1}
    assert not twice, twice


def test_the_preprocessor_chooses_nothing_else():
    found = [(str(path.relative_to(ROOT)), condition)
             for path in sources("engine", "server", "tests", suffixes=CODE)
             for condition in CONDITION.findall(path.read_text())]
    assert sorted(found) == sorted(CONDITIONS), set(found) ^ CONDITIONS


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


def test_every_file_of_kernels_is_known_to_the_program():
    """What is not is loaded while the model computes (gpu_kernel_load.h)."""
    files = sorted((ROOT / "engine").rglob("*.cu"))
    assert len(files) > 5
    for path in files:
        assert path.read_text().count('#include "engine/kernels/cuda/kernel_file.h"') == 1, path


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
        is_checked = "#include <cuda" in text and (has_nccl or "nccl_library.h" not in text)
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
    files = [str(path) for path in sources("engine", "server", "tests", suffixes=CODE)]
    checked = subprocess.run(
        [program, "--dry-run", "--Werror", *files], capture_output=True, text=True, cwd=ROOT)
    assert checked.returncode == 0, checked.stderr[:4000]


# Words that the project no longer uses, and the field's words beside them.
OLD_WORDS = {
    "made up": r"\b[Mm]ade[- _][Uu]p",  # simulated, fake
    "played": r"\b(?:[Pp]layed|[Pp]lays)\b|PLAYED",  # emulated
    "whoever": r"\b[Ww]hoever\b",  # the thing's name
    "wish": r"[Ww]ish(?:es)?",  # request, hint
    "thoughts": r"[Tt]houghts?\b",  # reasoning
    "meeting": r"\b[Mm]eetings?\b",  # barrier
    "room": r"\b[Rr]oom\b|Room|_room",  # budget, capacity
}
# No comment begins with one of these: a sentence with a subject is easier to read.
OPENER = re.compile(r"//+ (?:Of|What|Where|Who|Whoever|So) ")


def begins_badly(lines):
    """How many comments begin with an opener: not lines that go on with one."""
    before = False
    count = 0
    for line in lines:
        is_comment = line.lstrip().startswith("//")
        if OPENER.search(line) and not (is_comment and before):
            count += 1
        before = is_comment
    return count


def old_words(text):
    """Each with its line and that line's number. A text that has none is searched once for each."""
    for word, pattern in OLD_WORDS.items():
        if re.search(pattern, text):
            for number, line in enumerate(text.splitlines(), 1):
                if re.search(pattern, line):
                    yield number, word, line.strip()


def test_words_are_the_fields():
    wrong = [f"{path.relative_to(ROOT)}:{number}: '{word}': {line}"
             for path in sources("engine", "server", "tests", suffixes=CODE)
             for number, word, line in old_words(path.read_text())]
    assert not wrong, wrong


def test_old_words_are_found_with_their_lines():
    text = "int a;  // wishes\n// a barrier\n// A meeting: made up.\nint b;\n"
    assert sorted(old_words(text)) == [
        (1, "wish", "int a;  // wishes"), (3, "made up", "// A meeting: made up."),
        (3, "meeting", "// A meeting: made up.")]


def test_comments_begin_plainly():
    counts = {str(path.relative_to(ROOT)): begins_badly(path.read_text().splitlines())
              for path in sources("engine", "server", "tests", suffixes=CODE)}
    found = {name: count for name, count in counts.items() if count > 0}
    assert not found, found


def test_a_comment_that_begins_badly_is_counted_once():
    assert begins_badly(["// What it is.", "// Of a pass.", "int a;  // So many", "// A sum.",
                         "// Where it lies."]) == 2
