"""scripts/check_gpu.py, with made-up programs."""

import json
import subprocess
import sys

from conftest import ROOT

sys.path.insert(0, str(ROOT / "scripts"))
import check_gpu  # noqa: E402


def check(folder, **programs):
    for name, body in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)
    done = subprocess.run([sys.executable, ROOT / "scripts/check_gpu.py", "--build", folder,
                           "--output", folder / "out", "--json", folder / "report.json"],
                          capture_output=True, text=True, timeout=60)
    rows = json.loads((folder / "report.json").read_text())
    return done.returncode, {row["step"]: row for row in rows}


def test_a_step_that_fails_keeps_no_other_from_running(tmp_path):
    code, rows = check(tmp_path, cuda_device_test="exit 0", cuda_kernels_test="echo why; exit 3",
                       cuda_rank_test='test "$GPU_LAUNCH_OVERLAP" != 0')
    assert code == 1
    states = {name: row["state"] for name, row in rows.items()}
    assert (states["kernels"], states["rank"], states["rank-apart"], states["nccl"]) == (
        "FAILED", "passed", "FAILED", "skipped")
    assert rows["kernels"]["tail"] == ["why"]


def test_without_a_gpu_nothing_else_is_run(tmp_path):
    code, rows = check(tmp_path, cuda_device_test="echo no GPU: none here",
                       cuda_kernels_test="exit 0")
    assert code == 1
    assert rows["device"]["why"] == "no GPU: none here"
    assert rows["kernels"]["state"] == "skipped" and rows["kernels"]["why"] == "no GPU"


def test_what_hangs_is_killed(tmp_path):
    assert check_gpu.run(["sleep", "1000"], {}, 0.1, tmp_path / "log") is None
    assert check_gpu.judge(None, "") == ("out of time", "")


def test_tests_are_told_their_folders_and_the_daemon_is_not(tmp_path):
    code, rows = check(tmp_path, cuda_device_test='test -d "$LOCKSTEP_SOURCE_DIR/scripts"',
                       lockstepd='test -z "$LOCKSTEP_SOURCE_DIR$LOCKSTEP_TEST_DATA"')
    assert code == 0, rows
    assert rows["machine"]["state"] == "passed"
