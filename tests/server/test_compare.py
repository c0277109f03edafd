"""scripts/compare.py: what it reads of both programs, what it computes, and a run with a made-up
peer."""

import json
import pathlib
import stat
import subprocess
import sys

import pytest

from conftest import PATIENCE_SECONDS, PROGRAM, ROOT, clean_environment

sys.path.insert(0, str(ROOT / "scripts"))
import benchmark_page  # noqa: E402
import benchmark_programs as programs  # noqa: E402
import compare  # noqa: E402

SCRIPT = ROOT / "scripts/compare.py"


def of(text):
    return programs.Test.parse(text)


@pytest.mark.parametrize("text", ["pp512", "tg64", "pp512@d8192", "tg64@d8192", "tg64@d128x8"])
def test_tests_are_read_as_they_are_written(text):
    assert str(of(text)) == text


@pytest.mark.parametrize("text", ["", "512", "pp", "pp0", "tg64x8", "pp512@d1x8", "tg64@dx8",
                                  "tg64@d1x0", "pp512,"])
def test_what_is_no_test_is_named(text):
    with pytest.raises(programs.CompareError, match="test|sequences"):
        of(text)


def test_llama_benchs_lines_are_read():
    rows = [{"n_prompt": 512, "n_gen": 0, "n_depth": 0, "samples_ts": [1.5, 2.5]},
            {"n_prompt": 0, "n_gen": 64, "n_depth": 8192, "samples_ts": [3.0]},
            {"n_prompt": 512, "n_gen": 64, "n_depth": 0, "samples_ts": [9.0]}]
    text = "a warning\n" + "\n".join(map(json.dumps, rows)) + "\n"
    assert programs.samples_of_llama_bench(text) == {
        of("pp512"): [1.5, 2.5], of("tg64@d8192"): [3.0]}
    row = {"pp": 128, "tg": 64, "pl": 8, "speed_pp": 100.0, "speed_tg": 75.5, "speed": 90.0}
    assert programs.samples_of_batched_bench(json.dumps(row)) == {of("tg64@d128x8"): [75.5]}


def machine(**more):
    def path(start, end, rate):
        return {"from_node": start, "to_node": end, "read_bytes_per_second": rate}

    def arithmetic(isa, operation, rate):
        return {"isa": isa, "operation": operation, "operations_per_second": rate}

    return {"paths": [path(0, 0, 30e9), path(0, 1, 9e9), path(1, 1, 20e9)],
            "arithmetic": [arithmetic("avx2", "f32", 100e9), arithmetic("avx2", "int8", 150e9),
                           arithmetic("amx", "bf16", 900e9)], **more}


def test_limits_are_those_of_all_nodes_and_of_the_fastest_arithmetic():
    limits = programs.limits_of(machine(), None)
    every = {"avx2 f32": 100e9, "avx2 int8": 150e9, "amx bf16": 900e9}
    assert limits == programs.Limits(50e9, every)
    avx2 = programs.limits_of(machine(), "avx2")
    assert avx2 == programs.Limits(50e9, {"avx2 f32": 100e9, "avx2 int8": 150e9})
    assert avx2.fastest(quantized=True) == "avx2 int8"
    assert avx2.fastest(quantized=False) == "avx2 f32"
    assert avx2.tokens_per_second(programs.Work(1, 1e9, quantized=False)) == 100
    with pytest.raises(programs.CompareError, match="sse9"):
        programs.limits_of(machine(), "sse9")
    assert limits.tokens_per_second(programs.Work(1e9, 1e9)) == 50
    assert limits.tokens_per_second(programs.Work(1e6, 2e9)) == 450
    other = programs.Limits(60e9, {**every, "avx2 f32": 120e9, "amx bf16": 800e9})
    best = programs.Limits(60e9, {**every, "avx2 f32": 120e9})
    assert programs.higher(limits, other) == programs.higher(other, limits) == best


def make_peer(results):
    """One that needs no program: `results` maps the variant's name to its samples."""
    class Peer(programs.Peer):
        def measure(self, model, tests, variant):
            if variant.name not in results:
                raise programs.CompareError(f"no {variant.name}")
            return {test: results[variant.name][str(test)] for test in tests}
    return Peer(pathlib.Path("peer"), pathlib.Path("batched"), 2, 1)


def test_the_peers_best_variant_is_taken_for_every_test():
    model = compare.Model(pathlib.Path("m.gguf"), (of("pp512"), of("tg64")))
    a, b, c = (programs.Variant(name, ()) for name in "abc")
    peer = make_peer({"a": {"pp512": [10, 11, 12], "tg64": [5]},
                      "b": {"pp512": [1, 9, 100], "tg64": [6]}})
    assert compare.choose_variants(peer, model, [a, b, c]) == {of("pp512"): a, of("tg64"): b}
    assert compare.choose_variants(peer, model, [c]) == {of("pp512"): c, of("tg64"): c}
    with pytest.raises(programs.CompareError, match="no c"):
        compare.choose_variants(peer, model, [c, c])


def test_the_table_holds_medians_ratios_and_shares():
    model = compare.Model(pathlib.Path("/x/1b-q4_0.gguf"), (of("tg64"),))
    result = compare.Result(model, of("tg64"), [10.0, 40.0, 20.0], programs.Variant("-fa on", ()),
                            {"fast": [30.0, 20.0, 1000.0], "exact": [25.0]},
                            programs.Work(0.5e9, 2e9))
    limits = programs.Limits(20e9, {"avx512 int8": 1e12})
    lines = compare.table([result], limits).splitlines()
    assert lines[0] == ("| model, test | peer | peer's settings | fast | ratio | exact | ratio | "
                        "limit | fast: of it | GB/s | GFLOP/s |")
    assert lines[2] == ("| 1b-q4_0, tg64 | 20.0 | -fa on | 30.0 | 1.50 | 25.0 | 1.25 | 40.0 | "
                        "75 % | 15.0 | 60.0 |")


def test_sections_of_a_page_are_replaced_or_added():
    page = "# Benchmarks\n\ntext\n"
    once = benchmark_page.replace_section(page, "speed", "one\n")
    assert once == "# Benchmarks\n\ntext\n\n<!-- begin speed -->\none\n<!-- end speed -->\n"
    both = benchmark_page.replace_section(once, "more", "two")
    again = benchmark_page.replace_section(both, "speed", "three")
    assert again == both.replace("one", "three")
    assert benchmark_page.replace_section(again, "speed", "three") == again
    for broken in (once.replace("<!-- end speed -->", ""), once + once,
                   "<!-- end speed -->\n<!-- begin speed -->\n"):
        with pytest.raises(benchmark_page.PageError, match="speed"):
            benchmark_page.replace_section(broken, "speed", "x")


def test_commands_are_shown_without_the_machines_folders():
    shown = benchmark_page.shown_command(
        ["/opt/a b/llama-bench", "-m", ROOT / "config/demo.gguf", "-t", 2, "--variant=-fa on"],
        {"LOCKSTEP_ISA": "avx2"})
    assert shown == ("LOCKSTEP_ISA=avx2 llama-bench -m config/demo.gguf -t 2 "
                     "'--variant=-fa on'")


def test_processors_are_described_by_name_and_instruction_sets():
    text = "processor : 0\nmodel name\t: AMD EPYC\nflags\t\t: fpu avx2 amx_tile\n"
    assert benchmark_page.describe_processors(text, 2) == "2 processors, AMD EPYC (AVX2, AMX)"


# Answers as llama-bench does, with speeds of its own; refuses what it is not.
MADE_UP_BENCH = """
import json, sys
arguments = sys.argv[1:]
value = lambda name: arguments[arguments.index(name) + 1]
if "-bad" in arguments:
    sys.exit("unknown option -bad")
faster = 2 if "-fa on" in " ".join(arguments) else 1
depth, repeat = int(value("-d")), int(value("-r"))
assert value("-o") == "jsonl" and value("-t") == "2", arguments
for name, key, speed in (("-p", "n_prompt", 4.0), ("-n", "n_gen", 2.0)):
    for tokens in map(int, value(name).split(",")):
        if tokens:
            row = {"n_prompt": 0, "n_gen": 0, "n_depth": depth, key: tokens,
                   "samples_ts": [speed * faster] * repeat}
            print(json.dumps(row))
"""
MADE_UP_BATCHED_BENCH = """
import json, sys
arguments = sys.argv[1:]
value = lambda name: int(arguments[arguments.index(name) + 1])
assert value("-c") == (value("-npp") + value("-ntg")) * value("-npl"), arguments
print("main: n_kv_max = 1")
print(json.dumps({"pp": value("-npp"), "tg": value("-ntg"), "pl": value("-npl"),
                  "speed_tg": 8.0}))
"""


@pytest.fixture
def made_up_peer(tmp_path):
    for name, body in (("llama-bench", MADE_UP_BENCH),
                       ("llama-batched-bench", MADE_UP_BATCHED_BENCH)):
        path = tmp_path / name
        path.write_text(f"#!{sys.executable}\n{body}")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return tmp_path / "llama-bench"


def run_script(*arguments):
    return subprocess.run(
        [sys.executable, SCRIPT, "--lockstepd", PROGRAM, "--threads", "2",
         "--machine=--seconds 0 --size-mib 64", *map(str, arguments)],
        capture_output=True, text=True, timeout=PATIENCE_SECONDS, env=clean_environment())


def test_a_run_with_a_made_up_peer_writes_its_section(made_up_peer, model_path, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# Page\n\nabove\n\n<!-- begin speed -->\nold\n<!-- end speed -->\n\nbelow\n")
    result = run_script(
        "--peer", made_up_peer, "--model", f"{model_path}:pp8,tg4,tg4@d16,tg4@d16x2",
        "--variant=-fa off", "--variant=-fa on", "--variant=-bad", "--rounds", "2", "--repeat", "1",
        "--ours", "one=", "--ours", "half=--workers 1", "--peer-note", "made up",
        "--page", page, "--section", "speed")
    assert result.returncode == 0, result.stderr
    assert "left out" in result.stderr and "-bad" in result.stderr
    text = page.read_text()
    assert text.startswith("# Page\n\nabove\n") and text.endswith("\n\nbelow\n")
    assert "old" not in text and result.stdout.strip() in text
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()
            if line.startswith(f"| {model_path.stem}")]
    assert [row[0].split(", ")[1] for row in rows] == ["pp8", "tg4", "tg4@d16", "tg4@d16x2"]
    assert [row[1] for row in rows] == ["8.00", "4.00", "4.00", "8.00"]
    assert {row[2] for row in rows[:3]} == {"-fa on"}
    for row in rows:
        assert float(row[3]) > 0 and float(row[5]) > 0
        assert float(row[4]) == pytest.approx(float(row[3]) / float(row[1]), rel=0.01, abs=0.01)
    assert "made up" in text and "GB/s" in text
    assert "scripts/compare.py --lockstepd" in text and str(tmp_path) not in text
    # In turns: ours, ours, the peer; twice.
    turns = [line.split()[0] for line in result.stderr.splitlines() if line.startswith("  ")]
    ours = [index for index, name in enumerate(turns) if name.endswith("lockstepd")]
    assert len(ours) == 2 + 2 * 2 * 3  # limits; rounds, variants, commands
    assert turns[ours[7] - 1].endswith("bench") and "lockstepd" not in turns[ours[7] - 1]


def test_the_instruction_set_is_forced(made_up_peer, model_path):
    result = run_script("--peer", made_up_peer, "--model", f"{model_path}:tg2", "--isa", "scalar",
                        "--variant=-fa on", "--rounds", "1", "--repeat", "1")
    assert result.returncode == 0, result.stderr
    assert "scalar f32" in result.stdout
    assert "LOCKSTEP_ISA=scalar" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--model", "/nowhere.gguf"], "/nowhere.gguf"),
        (["--tests", "pp"], "pp"),
        (["--ours", "fast"], "NAME=OPTIONS"),
        (["--peer", "/nowhere/llama-bench"], "/nowhere/llama-bench"),
        (["--variant=-bad"], "unknown option -bad"),
        (["--isa", "sse9"], "sse9"),
    ],
)
def test_what_is_wrong_is_named(made_up_peer, model_path, arguments, named):
    result = run_script("--peer", made_up_peer, "--model", model_path, "--rounds", "1",
                        "--repeat", "1", *arguments)
    assert result.returncode == 1
    assert named in result.stderr and result.stdout == ""
