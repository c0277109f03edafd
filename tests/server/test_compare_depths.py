"""scripts/bench/compare_depths.py and svg_plot.py: what is measured by which program, the tables,
the plots, and a run with a fake peer."""

import stat
import subprocess
import sys
import xml.etree.ElementTree as xml

import pytest

from conftest import PROGRAM, ROOT, clean_environment

sys.path.insert(0, str(ROOT / "scripts/bench"))
import benchmark_programs as programs  # noqa: E402
import compare_depths  # noqa: E402
import svg_plot  # noqa: E402

SCRIPT = ROOT / "scripts/bench/compare_depths.py"


def parse(*options):
    return compare_depths.parse_arguments(["--peer", "p", "--model", "m.gguf", *options])


def test_every_depth_and_format_is_a_case_and_deep_ones_are_not_computed():
    arguments = parse("--depths", "8192,0,32768", "--kv-formats", "q8_0,f16", "--zero-from",
                      "8192", "--peer-most", "8192", "--prompt", "0")
    shown = [(str(case.test), case.kv_format, case.zero_depth, case.with_peer)
             for case in compare_depths.depth_cases(arguments)]
    assert shown == [(test, kv, *more) for kv in ("q8_0", "f16") for test, *more in (
        ("tg32", False, True), ("tg32@d8192", True, True), ("tg32@d32768", True, False))]
    counts = [(case.test.sequences, case.test.depth)
              for case in compare_depths.sequence_cases(parse("--sequences", "2,1,256"))]
    assert counts == [(1, 128), (2, 128), (256, 128)] * 2
    assert not compare_depths.sequence_cases(parse("--sequences", ""))


@pytest.mark.parametrize(("options", "named"), [
    (["--depths", "1,x"], "1,x"), (["--depths=-1"], "-1"), (["--sequences", "0"], "--sequences"),
    (["--kv-formats", "f16,q3"], "q3"), (["--rounds", "0"], "--rounds"),
    (["--depths", "", "--sequences", ""], "nothing"),
    (["--prompt", "0", "--generate", "0"], "nothing")])
def test_what_cannot_be_measured_is_named(options, named, capsys):
    with pytest.raises(SystemExit):
        parse(*options)
    assert named in capsys.readouterr().err


def test_both_programs_are_asked_for_the_same_format():
    case = compare_depths.Case(programs.Test("tg", 32, 8192), "q8_0", zero_depth=True)
    assert case.our_variant.options == ("--kv-format", "q8_0", "--zero-depth")
    assert case.peer_variant.options == ("-fa", "on", "-ctk", "q8_0", "-ctv", "q8_0")


def test_a_depth_is_computed_once_for_all_its_tests():
    arguments = parse("--depths", "0,64", "--kv-formats", "f16,q8_0")
    runs = compare_depths.of_one_run(compare_depths.depth_cases(arguments))
    assert [[f"{case.test} {case.kv_format}" for case in run] for run in runs] == [
        ["pp512 f16", "tg32 f16"], ["pp512@d64 f16", "tg32@d64 f16"],
        ["pp512 q8_0", "tg32 q8_0"], ["pp512@d64 q8_0", "tg32@d64 q8_0"]]


def cases():
    def case(kind, depth, ours, peer, zero_depth=False, sequences=1):
        return compare_depths.Case(programs.Test(kind, 32, depth, sequences), "f16", zero_depth,
                                   bool(peer), ours, peer)

    return [case("tg", 8192, [20.0], [], zero_depth=True), case("tg", 0, [50.0, 40.0, 1.0], [20.0]),
            case("pp", 0, [500.0], [250.0])], [case("tg", 128, [100.0], [50.0], sequences=4)]


def test_the_tables_hold_medians_milliseconds_and_ratios():
    of_depths, of_sequences = cases()
    lines = compare_depths.table(of_depths + of_sequences).splitlines()
    assert lines[0] == "| test | KV | peer | ms | ours | ms | ratio |"
    assert lines[2:] == ["| tg32@d8192, zeros | f16 |  |  | 20.0 | 50.0 |  |",
                         "| tg32 | f16 | 20.0 | 50.0 | 40.0 | 25.0 | 2.00 |",
                         "| pp32 | f16 | 250 | 4.00 | 500 | 2.00 | 2.00 |",
                         "| tg32@d128x4 | f16 | 50.0 | 80.0 | 100 | 40.0 | 2.00 |"]


def test_the_plots_hold_a_line_for_each_program_and_format():
    plots = compare_depths.plots(*cases(), "m")
    lines = {name: plot.lines for name, plot in plots.items()}
    assert lines == {
        "generate.svg": {"ours, f16": [(0, 25.0), (8192, 50.0)], "peer, f16": [(0, 50.0)]},
        "prompt.svg": {"ours, f16": [(0, 2.0)], "peer, f16": [(0, 4.0)]},
        "sequences.svg": {"ours, f16": [(4, 40.0)], "peer, f16": [(4, 80.0)]}}
    assert set(compare_depths.plots(cases()[0], [], "m")) == {"generate.svg", "prompt.svg"}


def drawn(plot):
    """The texts, and the points of each line in the picture."""
    root = xml.fromstring(plot.svg())
    space = "{http://www.w3.org/2000/svg}"
    lines = [[tuple(map(float, point.split(","))) for point in line.get("points").split()]
             for line in root.iter(space + "polyline")]
    return [text.text for text in root.iter(space + "text")], lines


def test_points_lie_where_their_values_are():
    plot = svg_plot.Plot("a < b", "x", "y", {"one": [(0, 0), (1024, 5), (4096, 10)],
                                             "two": [(4096, 5)]})
    texts, (one, two) = drawn(plot)
    assert {"a < b", "x", "y", "one", "two", "0", "1k", "4k", "10", "2"} <= set(texts)
    left, right = svg_plot.LEFT, svg_plot.WIDTH - svg_plot.RIGHT
    top, bottom = svg_plot.TOP, svg_plot.HEIGHT - svg_plot.BOTTOM
    assert one == [(left, bottom), (left + (right - left) / 4, (top + bottom) / 2), (right, top)]
    assert two == [(right, (top + bottom) / 2)]


def test_ratios_are_distances_where_they_are_asked_for():
    _, (line,) = drawn(svg_plot.Plot("", "", "", {"": [(1, 1), (4, 1), (16, 1)]}, x_by_ratio=True))
    assert line[1][0] == pytest.approx((line[0][0] + line[2][0]) / 2)


def test_ticks_that_would_overlap_are_left_out_and_nothing_is_no_plot():
    texts, _ = drawn(svg_plot.Plot("", "", "", {"": [(0, 1), (10, 1), (131072, 1)]}))
    assert "128k" in texts and "10" not in texts
    with pytest.raises(ValueError, match="nothing"):
        svg_plot.Plot("", "", "", {}).svg()


@pytest.mark.parametrize(("most", "ticks"), [
    (0, [0]), (1, [0, 0.2, 0.4, 0.6, 0.8, 1]), (7, [0, 2, 4, 6]), (130, [0, 50, 100]),
    (6, [0, 1, 2, 3, 4, 5, 6])])
def test_ticks_are_round_and_few(most, ticks):
    assert svg_plot.round_ticks(most) == pytest.approx(ticks)


# As llama-bench and llama-batched-bench answer. The first knows no --zero-depth.
MADE_UP_PEER = """
import json, sys
arguments = sys.argv[1:]
value = lambda name: arguments[arguments.index(name) + 1]
assert value("-fa") == "on" and value("-ctk") == value("-ctv"), arguments
if "-npl" in arguments:
    print(json.dumps({"pp": int(value("-npp")), "tg": int(value("-ntg")), "pl": int(value("-npl")),
                      "speed_tg": 8.0}))
    sys.exit()
assert int(value("-d")) <= 16, arguments
for name, key in (("-p", "n_prompt"), ("-n", "n_gen")):
    if value(name) != "0":
        row = {"n_prompt": 0, "n_gen": 0, "n_depth": int(value("-d")), key: int(value(name)),
               "samples_ts": [4.0]}
        print(json.dumps(row))
"""


def test_a_run_with_a_simulated_peer_writes_tables_and_plots(model_path, tmp_path):
    for name in ("llama-bench", "llama-batched-bench"):
        path = tmp_path / name
        path.write_text(f"#!{sys.executable}\n{MADE_UP_PEER}")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    page = tmp_path / "page.md"
    result = subprocess.run(
        [sys.executable, SCRIPT, "--lockstepd", PROGRAM, "--peer", tmp_path / "llama-bench",
         "--model", model_path, "--kv-formats", "f16", "--depths", "0,16,64", "--prompt", "8",
         "--generate", "2", "--sequences", "1,2", "--sequence-depth", "4", "--zero-from", "64",
         "--peer-most", "16", "--rounds", "1", "--plots", tmp_path / "plots", "--page", page],
        capture_output=True, text=True, env=clean_environment())
    assert result.returncode == 0, result.stderr
    rows = [[cell.strip() for cell in line.split("|")[1:-1]]
            for line in page.read_text().splitlines() if line.startswith(("| pp", "| tg"))]
    assert [row[0] for row in rows] == ["pp8", "tg2", "pp8@d16", "tg2@d16", "pp8@d64, zeros",
                                        "tg2@d64, zeros", "tg2@d4", "tg2@d4x2"]
    assert [row[2] for row in rows] == ["4.00"] * 4 + [""] * 2 + ["4.00", "8.00"]
    assert all(float(row[4]) > 0 for row in rows)
    assert {path.name for path in (tmp_path / "plots").iterdir()} == {
        "prompt.svg", "generate.svg", "sequences.svg"}
    assert "scripts/bench/compare_depths.py" in page.read_text()
    assert result.stdout.strip() in page.read_text()
