"""That no skip gets lost on its way to the end of scripts/test, and that only those of the list pass."""

import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
GOOGLE = """\
Running main() from gmock_main.cc
[ RUN      ] Parser.reads
[       OK ] Parser.reads (1 ms)
[ RUN      ] Parser.may_not_read
tests/engine/parser_test.cpp:304: Skipped
{reason}

[  SKIPPED ] Parser.may_not_read (0 ms)
[----------] 2 tests from Parser (1 ms total)
[  PASSED  ] 1 test.
[  SKIPPED ] 1 test, listed below:
[  SKIPPED ] Parser.may_not_read
"""
ALLOWED = "# Words.\n\n* | no GPU: \nParser.* | the superuser\n*/test_a.py::* | strace may not\n"


def ctest_case(name, status, output, inner=""):
    return (f'<testcase name="{name}" classname="{name}" time="0.1" status="{status}">{inner}'
            f"<system-out>{output}</system-out></testcase>")


def skipped_case(name, output):
    return ctest_case(name, "notrun", output, '<skipped message="SKIP_RETURN_CODE=77"/>')


def report(folder, *cases, python="", also=(), allowed=ALLOWED):
    """The exit code and the lines printed."""
    (folder / "reports").mkdir()
    (folder / "ctest.xml").write_text(f"<testsuite>{''.join(cases)}</testsuite>")
    (folder / "reports/python-server.xml").write_text(
        f'<testsuites><testsuite name="python/server">{python}</testsuite></testsuites>')
    (folder / "allowed.txt").write_text(allowed)
    done = subprocess.run(
        [sys.executable, ROOT / "tests/report_skips.py", folder / "ctest.xml", folder / "reports",
         "--allowed", folder / "allowed.txt", *(f"--also={text}" for text in also)],
        capture_output=True, text=True)
    return done.returncode, (done.stdout + done.stderr).splitlines()


def python_case(name, reason=None):
    inner = f'<skipped type="pytest.skip" message="{reason}">x.py:1: {reason}</skipped>' * bool(reason)
    return f'<testcase classname="tests.server.test_a" name="{name}" time="0.1">{inner}</testcase>'


def test_a_run_without_skips_passes_and_says_so_last(tmp_path):
    code, lines = report(tmp_path, ctest_case("A.b", "run", ""), python=python_case("test_b"))
    assert code == 0 and lines[-1] == "1 passed, 0 failed, 0 skipped"


def test_the_cases_of_a_program_are_counted_one_by_one(tmp_path):
    said = "".join(f"[ RUN      ] A.c{number}\n[       OK ] A.c{number} (0 ms)\n"
                   for number in range(3))
    code, lines = report(tmp_path, ctest_case("a_test/1", "run", said),
                         ctest_case("A.b", "run", said[:said.index("[ RUN      ] A.c1")]))
    assert code == 0 and lines[-1] == "4 passed, 0 failed, 0 skipped"


def test_a_failure_fails(tmp_path):
    code, lines = report(tmp_path, ctest_case("A.b", "fail", "", "<failure/>"),
                         ctest_case("A.c", "run", ""))
    assert code == 1 and "Failed: A.b" in lines
    assert lines[-1] == "1 passed, 1 failed, 0 skipped"


@pytest.mark.parametrize("reason, code", [("the superuser may read", 0), ("there is no data", 1)])
def test_a_skipped_google_test_has_its_name_and_its_reason(tmp_path, reason, code):
    case = skipped_case("Parser.may_not_read", GOOGLE.format(reason=reason))
    found, lines = report(tmp_path, case)
    assert found == code
    assert f"  {reason}" in lines and "    Parser.may_not_read" in lines
    assert lines[-1] == f"0 passed, {code} failed, {1 - code} skipped"


def test_a_skip_within_a_program_that_passed_is_found(tmp_path):
    case = ctest_case("asan/parser_test", "run", GOOGLE.format(reason="there is no data"))
    code, lines = report(tmp_path, case)
    assert code == 1 and "    asan/parser_test Parser.may_not_read" in lines
    assert lines[-1] == "1 passed, 1 failed, 0 skipped"


@pytest.mark.parametrize("reason, code", [("strace may not trace", 0), ("no model", 1)])
def test_a_skip_within_a_python_file_is_found(tmp_path, reason, code):
    found, lines = report(tmp_path, ctest_case("python/server", "run", "3 passed, 1 skipped"),
                          python=python_case("test_b") + python_case("test_c", reason))
    assert found == code
    assert f"  {reason}" in lines and "    tests/server/test_a.py::test_c" in lines
    assert lines[-1] == f"1 passed, {code} failed, {1 - code} skipped"


def test_a_script_that_skips_says_why(tmp_path):
    case = skipped_case("numa/all", "starting\ntest-numa: SKIPPED: there is no rig\n")
    code, lines = report(tmp_path, case)
    assert code == 1 and "  test-numa: SKIPPED: there is no rig" in lines


def test_what_was_not_even_registered_counts(tmp_path):
    for folder, also, code in (("a", "cuda: no GPU: none", 0), ("b", "cuda: no compiler", 1)):
        (tmp_path / folder).mkdir()
        found, lines = report(tmp_path / folder, ctest_case("A.b", "run", ""), also=[also])
        assert found == code and "    cuda" in lines


def test_a_row_of_the_list_without_a_reason_is_refused(tmp_path):
    code, lines = report(tmp_path, ctest_case("A.b", "run", ""), allowed="Parser.*\n")
    assert code == 1 and "allowed.txt:1" in lines[-1]


def test_the_list_allows_no_missing_material():
    """Of its reasons none is a file, a program or a package that scripts/test can bring itself."""
    rows = [line for line in (ROOT / "tests/allowed_skips.txt").read_text().splitlines()
            if line.strip() and not line.startswith("#")]
    assert 0 < len(rows) < 40
    for row in rows:
        reason = re.compile(row.split(" | ", 1)[1])
        for missing in ("/a/model.gguf is not there", "no test data in /a", "/a/b is not built",
                        "promtool is not installed (Debian's package prometheus)",
                        "playwright is not installed", ""):
            assert not reason.search(missing), row
