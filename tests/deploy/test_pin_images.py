"""scripts/generate/pin_images.py, with a fake registry."""

import os
import re
import subprocess

from conftest import ROOT

DIGEST = "sha256:" + 8 * "0123abcd"
FILES = ("Dockerfile", "deploy/compose.yaml")


def run(root, *arguments):
    program = ROOT / "scripts/generate/pin_images.py"
    return subprocess.run([program, "--root", root, *arguments], text=True,
                          capture_output=True,
                          env={**os.environ, "PATH": f"{root}/bin:{os.environ['PATH']}"})


def make_copy(folder, answer):
    (folder / "deploy").mkdir()
    (folder / "bin").mkdir()
    for name in FILES:
        (folder / name).write_text((ROOT / name).read_text())
    skopeo = folder / "bin/skopeo"
    skopeo.write_text(f"#!/bin/sh\necho \"$@\" >> {folder}/asked\n{answer}\n")
    skopeo.chmod(0o755)


def test_every_image_is_pinned_and_only_then_is_the_check_content(tmp_path):
    make_copy(tmp_path, f"echo {DIGEST}")
    text = (tmp_path / "Dockerfile").read_text()
    (tmp_path / "Dockerfile").write_text(re.sub(r"@sha256:[0-9a-f]+", "", text))
    checked = run(tmp_path, "--check")
    assert checked.returncode == 1 and "debian:bookworm-slim" in checked.stderr
    assert run(tmp_path).returncode == 0
    assert run(tmp_path, "--check").returncode == 0
    assert f"ARG BASE=debian:bookworm-slim@{DIGEST}\n" in (tmp_path / "Dockerfile").read_text()
    assert (tmp_path / "deploy/compose.yaml").read_text().count(DIGEST) == 2
    assert len((tmp_path / "asked").read_text().splitlines()) == 4
    pinned = [(tmp_path / name).read_text() for name in FILES]
    assert run(tmp_path).returncode == 0  # once more: what the registry tells then
    assert [(tmp_path / name).read_text() for name in FILES] == pinned


def test_a_registry_that_tells_nothing_changes_nothing(tmp_path):
    for answer in ("exit 1", "echo no digest"):
        folder = tmp_path / answer.split()[0]
        folder.mkdir()
        make_copy(folder, answer)
        assert run(folder).returncode == 1
        assert (folder / "Dockerfile").read_text() == (ROOT / "Dockerfile").read_text()


def test_what_is_not_pinned_is_told():
    """The check passes, or the document says that it does not."""
    result = run(ROOT, "--check")
    document = (ROOT / "deploy/README.md").read_text()
    assert (result.returncode == 1) == ("are not pinned" in document)
