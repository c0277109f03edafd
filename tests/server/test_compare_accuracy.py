"""scripts/bench/compare_accuracy.py and make_text.py: what they read and print, and a run with a fake
peer."""

import stat
import subprocess
import sys

import pytest

from conftest import PATIENCE_SECONDS, PROGRAM, ROOT, clean_environment

sys.path[:0] = [str(ROOT / "scripts/bench"), str(ROOT / "scripts/models")]
import compare_accuracy  # noqa: E402
import make_text  # noqa: E402
from benchmark_programs import CompareError  # noqa: E402

SCRIPT = ROOT / "scripts/bench/compare_accuracy.py"

PEERS_OUTPUT = """\
====== Perplexity statistics ======
Mean PPL(Q)                   :   1.647751 ±   0.017261
Mean PPL(base)                :   1.645969 ±   0.017272
====== KL divergence statistics ======
Mean    KLD:   0.001711 ±   0.000068
Maximum KLD:   0.681907
Same top p: 96.979 ± 0.125 %
"""


def test_the_peers_figures_are_read():
    assert compare_accuracy.accuracy_of_llama_perplexity(PEERS_OUTPUT) == (
        compare_accuracy.Accuracy(0.001711, 0.000068, 0.96979, 1.647751))
    with pytest.raises(CompareError, match="Mean    KLD"):
        compare_accuracy.accuracy_of_llama_perplexity("an error\n")


def test_the_table_holds_the_ratio_of_the_divergences():
    peer = compare_accuracy.Accuracy(0.002, 0.0001, 0.97, 1.6)
    ours = compare_accuracy.Accuracy(0.0015, 0.0002, 0.98, 1.5)
    lines = compare_accuracy.table(
        [compare_accuracy.Row("Q4_0", peer, {"fast": ours, "exact": peer})]).splitlines()
    assert lines[0].count("|") == lines[2].count("|") == 10
    assert lines[2] == ("| Q4_0 | 0.002000 ± 0.000100 | 97.00 % | 0.0015000 ± 0.0002000 | 0.750 | "
                        "98.00 % | 0.0020000 ± 0.0001000 | 1.000 | 97.00 % |")


def test_texts_are_long_enough_plain_and_the_same_every_time():
    text = make_text.make_text(5000, seed=3)
    assert 5000 <= len(text) < 8000
    assert "<|" not in text
    assert make_text.make_text(5000, seed=3) == text != make_text.make_text(5000, seed=4)


# llama-quantize copies, llama-perplexity says the same of everything.
MADE_UP_QUANTIZE = """
import shutil, sys
source, target, name, threads = sys.argv[1:]
shutil.copy(source, target)
"""
MADE_UP_PERPLEXITY = f"""
import pathlib, sys
arguments = sys.argv[1:]
base = pathlib.Path(arguments[arguments.index("--kl-divergence-base") + 1])
if "--kl-divergence" in arguments:
    assert base.exists()
    print({PEERS_OUTPUT!r})
else:
    base.touch()
"""


def test_a_run_with_a_simulated_peer(tmp_path):
    for name, body in (("llama-quantize", MADE_UP_QUANTIZE),
                       ("llama-perplexity", MADE_UP_PERPLEXITY)):
        path = tmp_path / name
        path.write_text(f"#!{sys.executable}\n{body}")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    page = tmp_path / "page.md"
    result = subprocess.run(
        [sys.executable, SCRIPT, "--peer", tmp_path / "llama-perplexity", "--lockstepd", PROGRAM,
         "--formats", "Q4_0", "--characters", "3000", "--context", "64", "--folder",
         tmp_path / "made", "--page", page, "--peer-note", "simulated"],
        capture_output=True, text=True, timeout=PATIENCE_SECONDS, env=clean_environment())
    assert result.returncode == 0, result.stderr
    text = page.read_text()
    assert ("| Q4_0 | 0.001711 ± 0.000068 | 96.98 % | 0.0000000 ± 0.0000000 | 0.000 | 100.00 % |"
            in text)
    assert "<!-- begin accuracy -->" in text and "simulated" in text and "tokens scored" in text
    assert str(tmp_path) not in text


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--model", "/nowhere.gguf"], "/nowhere.gguf"),
        (["--text", "/nowhere.txt"], "/nowhere.txt"),
        (["--ours", "x"], "NAME=OPTIONS"),
        ([], "llama-perplexity cannot be run"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, arguments, named):
    result = subprocess.run(
        [sys.executable, SCRIPT, "--peer", tmp_path / "llama-perplexity", "--folder", tmp_path,
         *arguments],
        capture_output=True, text=True, timeout=PATIENCE_SECONDS, env=clean_environment())
    assert result.returncode == 1
    assert named in result.stderr
