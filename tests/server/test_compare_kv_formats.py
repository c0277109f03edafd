"""scripts/bench/compare_kv_formats.py: what it measures and prints."""

import subprocess
import sys

from conftest import FIXTURES, PATIENCE_SECONDS, PROGRAM, ROOT

sys.path.insert(0, str(ROOT / "scripts/bench"))
import compare_kv_formats  # noqa: E402

SCRIPT = ROOT / "scripts/bench/compare_kv_formats.py"


def test_each_format_is_measured_of_keys_and_values_apart():
    assert compare_kv_formats.cases(["q4_h", "q8_0"]) == [
        ("q4_h", "q4_h"), ("q4_h", "f16"), ("f16", "q4_h"),
        ("q8_0", "q8_0"), ("q8_0", "f16"), ("f16", "q8_0")]


def test_it_prints_a_row_for_each(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("Once upon a time there was a little girl. " * 20)
    result = subprocess.run(
        [sys.executable, SCRIPT, "--lockstepd", PROGRAM, "--model",
         FIXTURES / "families/qwen3vl.gguf", "--formats", "f16,q4_h", "--text", text, "--context",
         "64"], capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert result.returncode == 0, result.stderr
    rows = [line.split(" | ") for line in result.stdout.splitlines() if line.startswith("| ")]
    assert [(row[0].removeprefix("| "), row[1]) for row in rows[2:]] == (
        compare_kv_formats.cases(["f16", "q4_h"]))
    divergences = [float(row[2].split(" ")[0]) for row in rows[2:]]
    assert divergences[:3] == [0, 0, 0] and min(divergences[3:]) > 0
