"""scripts/bench/compare.py: what it reads of both programs, what it computes, and a run with a fake
peer."""

import json
import pathlib
import stat
import subprocess
import sys

import pytest

from conftest import PATIENCE_SECONDS, PROGRAM, ROOT, clean_environment

sys.path.insert(0, str(ROOT / "scripts/bench"))
import benchmark_page  # noqa: E402
import benchmark_programs as programs  # noqa: E402
import compare  # noqa: E402

SCRIPT = ROOT / "scripts/bench/compare.py"


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


@pytest.mark.parametrize(
    ("text", "visible", "environment"),
    [
        ("gpu", None, {}),
        ("gpu", "4,5", {"CUDA_VISIBLE_DEVICES": "4,5"}),
        ("gpu0", None, {"CUDA_VISIBLE_DEVICES": "0"}),
        ("gpu3,gpu1,gpu3", None, {"CUDA_VISIBLE_DEVICES": "1,3"}),
        ("gpu2,gpu0", "GPU-a,GPU-b,GPU-c", {"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-c"}),
    ])
def test_both_are_shown_the_gpus_that_are_named(text, visible, environment):
    assert programs.Gpus.parse(text, visible).environment == environment


@pytest.mark.parametrize(("text", "visible", "named"), [
    ("cpu", None, "cpu"), ("all", None, "all"), ("gpu0,node0", None, "gpu0,node0"),
    ("gpux", None, "gpux"), ("gpu0,", None, "gpu0,"), ("gpu2", "5,6", "no gpu2"),
    ("gpu0", "", "no gpu0")])
def test_devices_that_are_no_gpus_are_named(text, visible, named):
    with pytest.raises(programs.CompareError, match=named):
        programs.Gpus.parse(text, visible)


def gpu(**more):
    return {"name": "Simulated GPU", "failure": None, "read_bytes_per_second": 2e12,
            "bf16_product_operations_per_second": 5e14, **more}


def test_limits_of_gpus_are_those_of_all_of_them_together():
    one = gpu(name="Other GPU", read_bytes_per_second=1e12, bf16_product_operations_per_second=1e14)
    both = programs.Gpus("gpu0,gpu1", "0,1")
    limits = programs.limits_of_gpus(machine(gpus=[gpu(), one], no_gpus=""), both)
    assert limits == programs.Limits(3e12, {"bf16 product": 6e14}, ("Simulated GPU", "Other GPU"))
    for quantized in (True, False):
        assert limits.tokens_per_second(programs.Work(1e9, 1e12, quantized)) == 600
    assert programs.higher(limits, limits) == limits
    for gpus, named in (([], "without CUDA"), ([one], "finds 1 of"),
                        ([gpu(), gpu(failure="gpu1: too warm")], "gpu1: too warm")):
        with pytest.raises(programs.CompareError, match=named):
            programs.limits_of_gpus(machine(gpus=gpus, no_gpus="without CUDA"), both)
    everyone = programs.Gpus("gpu", None)
    assert programs.limits_of_gpus(machine(gpus=[one], no_gpus=""), everyone).gpus == ("Other GPU",)


def test_the_peer_is_tried_on_gpus_in_every_way_that_the_tests_ask_for():
    assert compare.default_variants(0, [of("pp2048")]) == list(compare.DEFAULT_VARIANTS)
    assert compare.default_variants(1, [of("pp512"), of("tg64")]) == ["-fa off", "-fa on"]
    assert compare.default_variants(1, [of("pp513")])[2:] == ["-fa on -ub 2048"]
    assert compare.default_variants(1, [of("tg64@d1x2")])[2:] == ["-fa on -ctk q8_0 -ctv q8_0"]
    assert compare.default_variants(2, [of("tg64")]) == [
        "-sm layer -fa off", "-sm layer -fa on", "-sm row -fa off", "-sm row -fa on",
        "-sm tensor -fa off", "-sm tensor -fa on"]


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


@pytest.mark.parametrize(("goal", "verdicts"), [
    ("tg64=30", ["30.0, reached"] * 2),
    ("tg64=30.1", ["30.1, missed"] * 2),
    ("1b-q4_0:tg64=680", ["680, missed", ""]),
    ("8b:tg64=1.5x", ["", "1.5x: 30.0, reached"]),
    ("tg64=2x", ["2x: 40.0, missed"] * 2),
    ("tg64=75%", ["75%: 30.0, reached"] * 2),
    ("tg64=76%", ["76%: 30.4, missed"] * 2),
])
def test_goals_are_held_against_ours_the_peer_and_the_limit(goal, verdicts):
    models = [compare.Model(pathlib.Path(name), (of("tg64"),)) for name in ("1b-q4_0.gguf", "8b")]
    results = [compare.Result(model, of("tg64"), [20.0], programs.Variant("", ()),
                              {"fast": [30.0], "exact": [1000.0]}, programs.Work(0.5e9, 2e9))
               for model in models]
    goals = (compare.Goal.parse(goal, models),)
    lines = compare.table(results, programs.Limits(20e9, {"f32": 1e12}), goals).splitlines()
    assert lines[0].endswith(" | goal |")
    assert [line.split("|")[-2].strip() for line in lines[2:]] == verdicts


def test_a_goal_that_nothing_measures_is_named():
    models = [compare.Model(pathlib.Path("1b.gguf"), (of("tg64"), of("pp512")))]
    for text in ("tg64", "tg64=", "=5", "tg64=fast", "1b:tg65=5", "8b:tg64=5", "pp9=5", "1b:=5"):
        with pytest.raises(programs.CompareError, match=text):
            compare.Goal.parse(text, models)


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


def test_gpus_are_described_by_their_names_and_number():
    assert benchmark_page.describe_gpus(("A", "B", "A")) == "2 x A, 1 x B"
    machine_alone = benchmark_page.describe_machine()
    assert benchmark_page.describe_machine(("A",)) == machine_alone.replace(
        " GiB,", " GiB, 1 x A,")


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
def simulated_peer(tmp_path):
    for name, body in (("llama-bench", MADE_UP_BENCH),
                       ("llama-batched-bench", MADE_UP_BATCHED_BENCH)):
        path = tmp_path / name
        path.write_text(f"#!{sys.executable}\n{body}")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return tmp_path / "llama-bench"


def run_script(*arguments):
    """Without a bound of its own: it runs some twenty programs, each as long as the machine makes
    it take."""
    return subprocess.run(
        [sys.executable, SCRIPT, "--lockstepd", PROGRAM, "--threads", "2",
         "--machine=--seconds 0 --size-mib 64", *map(str, arguments)],
        capture_output=True, text=True, env=clean_environment())


def test_a_run_with_a_simulated_peer_writes_its_section(simulated_peer, model_path, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# Page\n\nabove\n\n<!-- begin speed -->\nold\n<!-- end speed -->\n\nbelow\n")
    result = run_script(
        "--peer", simulated_peer, "--model", f"{model_path}:pp8,tg4,tg4@d16,tg4@d16x2",
        "--variant=-fa off", "--variant=-fa on", "--variant=-bad", "--rounds", "2", "--repeat", "1",
        "--ours", "one=", "--ours", "half=--workers 1", "--peer-note", "simulated",
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
    assert "simulated" in text and "GB/s" in text
    assert "scripts/bench/compare.py --lockstepd" in text and str(tmp_path) not in text
    # In turns: ours, ours, the peer; twice.
    turns = [line.split()[0] for line in result.stderr.splitlines() if line.startswith("  ")]
    ours = [index for index, name in enumerate(turns) if name.endswith("lockstepd")]
    assert len(ours) == 2 + 2 * 2 * 3  # limits; rounds, variants, commands
    assert turns[ours[7] - 1].endswith("bench") and "lockstepd" not in turns[ours[7] - 1]


def test_the_instruction_set_is_forced(simulated_peer, model_path):
    result = run_script("--peer", simulated_peer, "--model", f"{model_path}:tg2", "--isa", "scalar",
                        "--variant=-fa on", "--rounds", "1", "--repeat", "1")
    assert result.returncode == 0, result.stderr
    assert "scalar f32" in result.stdout
    assert "LOCKSTEP_ISA=scalar" in result.stderr


# Both programs as on a machine of four GPUs: what they say of them lies beside them.
MADE_UP_LISTING = """
import os, pathlib, sys
visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0,1,2,3").split(",")
beside = pathlib.Path(__file__)
if sys.argv[1:] == ["--list-devices"]:
    print("Available devices:")
    hidden = beside.with_name(beside.name + ".hidden")
    cuda = len(visible) - (int(hidden.read_text()) if hidden.exists() else 0)
    for index in range(len(visible)):
        print(f"  {'CUDA' if index < cuda else 'Vulkan'}{index}: Simulated GPU (9 MiB, 8 MiB free)")
    sys.exit()
assert ["-t", "1", "-ngl", "99"] == sys.argv[3:7], sys.argv
sys.argv[sys.argv.index("-t") + 1] = "2"
"""
MADE_UP_LOCKSTEPD = """
import json, os, pathlib, sys
visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0,1,2,3").split(",")
if sys.argv[1] == "bench-machine":
    machine = json.loads(pathlib.Path(__file__).with_name("machine.json").read_text())
    print(json.dumps({**machine, "gpus": machine["gpus"] * len(visible)}))
    sys.exit()
assert sys.argv[1] == "bench"
value = lambda name: sys.argv[sys.argv.index(name) + 1]
assert value("--devices") == "gpu", sys.argv
sequences = int(value("--sequences")) if "--sequences" in sys.argv else 1
results = []
for name, key in (("--prompt", "prompt_tokens"), ("--generate", "generated_tokens")):
    for tokens in map(int, value(name).split(",")):
        if tokens:
            results.append({"prompt_tokens": 0, "generated_tokens": 0, "sequences": sequences,
                            "depth_tokens": int(value("--depth")), "samples": [7.0], key: tokens,
                            "bytes_per_token": 1e11, "operations_per_token": 1e13})
print(json.dumps({"results": results, "format": "Q4_0"}))
"""


@pytest.fixture
def gpu_programs(simulated_peer):
    """The folder of all three."""
    folder = simulated_peer.parent
    for name, body in (("llama-bench", MADE_UP_LISTING + MADE_UP_BENCH),
                       ("llama-batched-bench", MADE_UP_LISTING + MADE_UP_BATCHED_BENCH),
                       ("lockstepd", MADE_UP_LOCKSTEPD)):
        path = folder / name
        path.write_text(f"#!{sys.executable}\n{body}")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    (folder / "machine.json").write_text(json.dumps(machine(gpus=[gpu()], no_gpus="")))
    return folder


def run_on_gpus(folder, *arguments, **more):
    (folder / "m.gguf").touch()
    environment = clean_environment(**more)
    if not more:
        environment.pop("CUDA_VISIBLE_DEVICES", None)
    return subprocess.run(
        [sys.executable, SCRIPT, "--lockstepd", folder / "lockstepd", "--peer",
         folder / "llama-bench", "--rounds", "1", "--repeat", "1", *map(str, arguments)],
        capture_output=True, text=True, timeout=PATIENCE_SECONDS, env=environment)


def test_both_are_compared_on_gpus(gpu_programs):
    result = run_on_gpus(
        gpu_programs, "--devices", "gpu1,gpu3", "--model",
        f"{gpu_programs}/m.gguf:pp8,tg4,tg4@d16x2", "--goal", "tg4=6.5", "--goal", "m:pp8=60%")
    assert result.returncode == 0, result.stderr
    assert ", 2 x Simulated GPU, Linux" in result.stdout
    assert "memory 4000.0 GB/s, bf16 product 1000000 Gop/s." in result.stdout
    rows = [[cell.strip() for cell in line.split("|")[1:-1]]
            for line in result.stdout.splitlines() if line.startswith("| m, ")]
    assert [row[0] for row in rows] == ["m, pp8", "m, tg4", "m, tg4@d16x2"]
    assert [row[1] for row in rows] == ["8.00", "4.00", "8.00"]
    assert [row[5:7] for row in rows] == [["40.0", "18 %"]] * 3
    assert [row[9] for row in rows] == ["60%: 24.0, missed", "6.50, reached", ""]
    commands = [line.strip() for line in result.stderr.splitlines() if line.startswith("  ")]
    assert all(line.startswith("CUDA_VISIBLE_DEVICES=1,3 ") for line in commands)
    for split in ("layer", "row", "tensor"):
        for more in ("-fa off", "-fa on", "-fa on -ctk q8_0 -ctv q8_0"):
            assert any(line.endswith(f"-sm {split} {more}") for line in commands)


def test_every_gpu_that_cuda_shows_is_used_where_none_is_named(gpu_programs):
    for shown, count in (({}, 4), ({"CUDA_VISIBLE_DEVICES": "GPU-a"}, 1)):
        result = run_on_gpus(gpu_programs, "--devices", "gpu", "--variant=-fa on", "--tests", "tg4",
                             "--model", gpu_programs / "m.gguf", **shown)
        assert result.returncode == 0, result.stderr
        assert f", {count} x Simulated GPU, Linux" in result.stdout
        assert ("CUDA_VISIBLE_DEVICES=GPU-a " in result.stderr) == bool(shown)


@pytest.mark.parametrize(("hidden", "tests"), [("llama-bench", "tg4"),
                                               ("llama-batched-bench", "tg4@d16x2")])
def test_a_peer_without_cuda_is_refused(gpu_programs, hidden, tests):
    arguments = ("--devices", "gpu0,gpu1", "--variant=-fa on", "--model", gpu_programs / "m.gguf")
    for missing in (1, 2):
        (gpu_programs / f"{hidden}.hidden").write_text(str(missing))
        result = run_on_gpus(gpu_programs, *arguments, "--tests", tests)
        assert result.returncode == 1 and result.stdout == ""
        assert f"/{hidden} lists {2 - missing} of CUDA's GPUs where lockstepd finds 2" in \
            result.stderr
        assert "-DGGML_CUDA=ON" in result.stderr
    if "batched" in hidden:  # it is not asked where no test needs it
        assert run_on_gpus(gpu_programs, *arguments, "--tests", "tg4").returncode == 0


def test_a_lockstepd_without_cuda_is_refused(gpu_programs):
    (gpu_programs / "machine.json").write_text(
        json.dumps(machine(gpus=[], no_gpus="this program was built without CUDA")))
    result = run_on_gpus(gpu_programs, "--devices", "gpu0", "--model", gpu_programs / "m.gguf")
    assert result.returncode == 1 and result.stdout == ""
    assert "no GPU for --devices gpu0: this program was built without CUDA" in result.stderr
    result = run_on_gpus(gpu_programs, "--devices", "gpu0", "--isa", "avx2", "--model",
                         gpu_programs / "m.gguf")
    assert result.returncode == 2 and "--isa" in result.stderr and "--devices" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--model", "/nowhere.gguf"], "/nowhere.gguf"),
        (["--tests", "pp"], "pp"),
        (["--ours", "fast"], "NAME=OPTIONS"),
        (["--peer", "/nowhere/llama-bench"], "/nowhere/llama-bench"),
        (["--variant=-bad"], "unknown option -bad"),
        (["--isa", "sse9"], "sse9"),
        (["--devices", "gpu0,node0"], "gpu0,node0"),
        (["--goal", "tg65=9"], "tg65=9"),
    ],
)
def test_what_is_wrong_is_named(simulated_peer, model_path, arguments, named):
    result = run_script("--peer", simulated_peer, "--model", model_path, "--rounds", "1",
                        "--repeat", "1", *arguments)
    assert result.returncode == 1
    assert named in result.stderr and result.stdout == ""
