#!/usr/bin/env python3
"""Lists what a run of ctest skipped, also within programs and Python files that passed, and ends with
the line `N passed, N failed, N skipped`, which counts the cases of GoogleTest's programs one by one.
A skip that allowed_skips.txt does not have is a failure.

    report_skips.py CTEST_JUNIT_XML PYTEST_REPORTS_FOLDER [--also "NAME: REASON"]...
"""

import argparse
import fnmatch
import pathlib
import re
import sys
import xml.etree.ElementTree as ElementTree

ALLOWED = pathlib.Path(__file__).with_name("allowed_skips.txt")
# In the output of a GoogleTest program; the summary at its end has no duration.
GOOGLE_SKIP = re.compile(
    r"^\[ RUN      \] (?P<name>\S+)\n(?P<said>(?:(?!\[ RUN ).*\n)*?)\[  SKIPPED \] (?P=name) \(",
    re.MULTILINE)
GOOGLE_PASSED = re.compile(r"^\[       OK \] ", re.MULTILINE)


def one_line(text):
    return " ".join(text.split())


def reason_of(said):
    """What follows GoogleTest's `file:line: Skipped`, or the last line of what was said."""
    if found := re.search(r": Skipped\n(.*)", said, re.DOTALL):
        return one_line(found[1])
    lines = said.strip().splitlines()
    return one_line(lines[-1]) if lines else ""


def read_ctest(path):
    """How many cases passed, the names of tests that failed, and pairs of name and reason."""
    passed, failed, skips = 0, [], []
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        name, output = case.get("name"), case.findtext("system-out") or ""
        inner = [(found["name"], reason_of(found["said"])) for found in GOOGLE_SKIP.finditer(output)]
        skips += [(one if one == name else f"{name} {one}", reason) for one, reason in inner]
        if case.get("status") == "run":
            passed += max(1, len(GOOGLE_PASSED.findall(output)))
        elif case.find("skipped") is None:
            failed.append(name)
        elif not inner:
            skips.append((name, reason_of(output) or case.find("skipped").get("message", "")))
    return passed, failed, skips


def read_pytest(path):
    """Pairs of name and reason."""
    return [(f"{case.get('classname').replace('.', '/')}.py::{case.get('name')}",
             one_line(skipped.get("message", "")))
            for case in ElementTree.parse(path).getroot().iter("testcase")
            if (skipped := case.find("skipped")) is not None]


def read_allowed(path):
    rows = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            names, bar, reason = line.partition(" | ")
            if not bar or not reason:
                sys.exit(f"{path}:{number}: '{line}' is no 'NAMES | REASON'")
            rows.append((names.strip(), re.compile(reason)))
    return rows


def is_allowed(name, reason, rows):
    return any(fnmatch.fnmatchcase(name, names) and pattern.search(reason)
               for names, pattern in rows)


def print_skips(title, skips):
    """Grouped by reason, since one reason often keeps many from running."""
    if skips:
        print(f"\n{title}")
    for reason in dict.fromkeys(reason for _, reason in skips):
        print(f"  {reason or '(no reason is given)'}")
        for name in dict.fromkeys(name for name, other in skips if other == reason):
            print(f"    {name}")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ctest", type=pathlib.Path)
    parser.add_argument("pytest", type=pathlib.Path)
    parser.add_argument("--also", action="append", default=[], metavar="NAME: REASON")
    parser.add_argument("--allowed", type=pathlib.Path, default=ALLOWED)
    arguments = parser.parse_args()
    passed, failed, skips = read_ctest(arguments.ctest)
    for report in sorted(arguments.pytest.glob("*.xml")):
        skips += read_pytest(report)
    skips += [tuple(text.split(": ", 1)) for text in arguments.also]
    rows = read_allowed(arguments.allowed)
    wrong = [skip for skip in skips if not is_allowed(*skip, rows)]
    print_skips("Skipped:", [skip for skip in skips if skip not in wrong])
    print_skips(f"Skipped, though {arguments.allowed.name} does not have it:", wrong)
    for name in failed:
        print(f"\nFailed: {name}" if name == failed[0] else f"Failed: {name}")
    print(f"\n{passed} passed, {len(failed) + len(wrong)} failed, {len(skips) - len(wrong)} skipped")
    return 1 if failed or wrong else 0


if __name__ == "__main__":
    sys.exit(main())
