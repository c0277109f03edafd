"""Compares what the program says with files under tests/goldens, which hold what it said before.

With LOCKSTEP_UPDATE_GOLDENS=1 the files are written instead (scripts/checks/update_goldens).
"""

import difflib
import json
import os
import pathlib

FOLDER = pathlib.Path(__file__).with_name("goldens")


def lines_of(records):
    """One line of JSON per record, so that a difference names its record."""
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def is_there(name):
    """Whether there is something to compare with, or a file is about to be written."""
    return os.environ.get("LOCKSTEP_UPDATE_GOLDENS") == "1" or (FOLDER / name).exists()


def compare(name, text):
    """Fails with a diff where the golden of this name has another text."""
    path = FOLDER / name
    if os.environ.get("LOCKSTEP_UPDATE_GOLDENS") == "1":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return
    assert path.exists(), f"{path} is not there: scripts/checks/update_goldens writes it"
    expected = path.read_text()
    if text == expected:
        return
    diff = difflib.unified_diff(
        expected.splitlines(), text.splitlines(), f"goldens/{name}", "now", lineterm="", n=1)
    raise AssertionError(
        "\n".join(["the golden differs; if that is meant: scripts/checks/update_goldens", *diff]))
