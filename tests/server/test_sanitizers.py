"""That an instrumented daemon's reports reach the tests (LOCKSTEP_SANITIZER_REPORTS, see conftest)."""

import os
import subprocess

from conftest import PROGRAM, SANITIZER_REPORTS, clean_environment, take_reports


def test_a_report_is_taken_once(tmp_path):
    assert take_reports(tmp_path) == []
    (tmp_path / "tsan.123").write_text("WARNING: ThreadSanitizer: data race")
    assert take_reports(tmp_path) == ["WARNING: ThreadSanitizer: data race"]
    assert take_reports(tmp_path) == []


def test_the_daemon_that_shall_report_is_instrumented():
    """Its runtime lists its own options when asked."""
    if not SANITIZER_REPORTS:
        assert not any(name.endswith("SAN_OPTIONS") and "log_path" in value
                       for name, value in os.environ.items())
        return
    name = "TSAN" if "tsan" in PROGRAM.parts else "ASAN"
    asked = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True,
                           env=clean_environment(**{f"{name}_OPTIONS": "help=1"}))
    assert asked.returncode == 0
    full = {"TSAN": "ThreadSanitizer", "ASAN": "AddressSanitizer"}[name]
    assert f"Available flags for {full}" in asked.stdout + asked.stderr
