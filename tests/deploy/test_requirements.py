"""The Python packages that tests are run with: every one, down to the last that another asks for, is
named with its version and the hashes of its files."""

import re

import pytest

from conftest import ROOT

FOLDERS = ["tests", "tests/lm_eval"]


def normalized(name):
    return re.sub(r"[-_.]+", "-", name.split("[")[0]).lower()


def asked_for(folder):
    lines = (ROOT / folder / "requirements.in").read_text().splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


@pytest.mark.parametrize("folder", FOLDERS)
def test_each_package_has_a_version_and_hashes(folder):
    text = (ROOT / folder / "requirements.txt").read_text()
    assert not re.search(r"://|--(index|extra-index|find|trusted)", text)  # of no certain server
    entries = re.split(r"\n(?=\S)", re.sub(r"^ *#.*\n", "", text, flags=re.M).strip())
    pinned = {}
    for entry in entries:
        name, version = re.match(r"([\w.\[\]-]+)==([\w.+!]+) \\\n", entry).groups()
        hashes = re.findall(r"--hash=sha256:([0-9a-f]{64})(?: \\)?$", entry, re.M)
        assert len(hashes) == len(entry.splitlines()) - 1 >= 1, name
        pinned[normalized(name)] = version
    assert asked_for(folder)
    for name, version in asked_for(folder).items():
        assert pinned[normalized(name)] == version, f"run pip-compile in {folder} again"
    assert len(pinned) > len(asked_for(folder))


def test_they_are_installed_by_their_hashes():
    for script in ("scripts/test", "scripts/serving/check_lm_eval.py"):
        text = (ROOT / script).read_text()
        assert "--require-hashes" in text and "--no-deps" in text, script
