"""scripts/serving/compare_turns.py in small, without a peer, and what it makes of its figures."""

import json
import subprocess
import sys

from conftest import FIXTURES, PATIENCE_SECONDS, PROGRAM, ROOT

SCRIPT = ROOT / "scripts/serving/compare_turns.py"
sys.path.insert(0, str(SCRIPT.parent))
import compare_turns  # noqa: E402


def run(tmp_path, model, *arguments):
    report = tmp_path / "report.json"
    result = subprocess.run(
        [sys.executable, str(SCRIPT), "--program", PROGRAM, "--model", model, "--threads", "1",
         "--json", report, *map(str, arguments)],
        capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "turns from the second on: " in result.stdout
    return json.loads(report.read_text())


def test_a_conversation_in_small(tmp_path):
    figures = run(tmp_path, ROOT / "config/demo.gguf", "--turns", 4, "--new", 100, "--answer", 8,
                  "--after-restart", 2, "--vocabulary", 2000, "--sample", 3, "--repeat", 1)
    turns = figures["lockstepd"]
    assert [turn["number"] for turn in turns] == [1, 2, 3, 4, 5, 6]
    assert [turn["depth"] for turn in turns] == [108 * number for number in range(6)]
    assert [turn["restarted"] for turn in turns] == [False] * 4 + [True] * 2
    assert turns[0]["computed"] == 100 and all(turn["computed"] >= 100 for turn in turns)
    assert all(turn["first_seconds"] > 0 and turn["alone_seconds"] > 0 for turn in turns)
    assert figures["llama-server"] == [] and figures["faults"] == []


def test_a_conversation_with_states(tmp_path):
    """Turns of two pages and more, as checkpoints of states are no nearer to one another."""
    figures = run(tmp_path, FIXTURES / "families/qwen35.gguf", "--turns", 2, "--new", 130,
                  "--answer", 4, "--after-restart", 1, "--vocabulary", 80, "--lowest", 5,
                  "--sample", 9, "--repeat", 1)
    assert len(figures["lockstepd"]) == 3 and figures["faults"] == []


def turn(number, depth, **fields):
    made = {"new": 600, "computed": 640, "first_seconds": 2.0, **fields}
    return compare_turns.Turn(number=number, depth=depth, **made)


def test_a_turn_that_computes_more_is_a_fault():
    turns = [turn(1, 0, computed=900), turn(2, 616), turn(3, 1232, computed=680)]
    assert list(compare_turns.find_faults(turns, 16)) == []
    [fault] = compare_turns.find_faults([*turns, turn(4, 1848, computed=681)], 16)
    assert "turn 4 computed 681 tokens" in fault


def test_turns_between_samples_lie_between_them():
    turns = [turn(1, 0, alone_seconds=1.0), turn(2, 500), turn(3, 1000, alone_seconds=2.0),
             turn(4, 1500)]
    compare_turns.interpolate(turns)
    assert [each.alone_seconds for each in turns] == [1.0, 1.5, 2.0, 2.0]
    assert turns[1].ratio == 2.0 / 1.5
