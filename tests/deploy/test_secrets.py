"""deploy/systemd/lockstepd-secrets: hands the daemon's user copies of what only root reads, and does
nothing as root in a place that this user could change. The attacks are made by another user while
the script runs, so they need root; scripts/checks/test_systemd makes them in a booted systemd."""

import os
import pathlib
import shutil
import stat
import subprocess
import tempfile

import pytest

from conftest import DEPLOY

SCRIPT = DEPLOY / "systemd/lockstepd-secrets"
DAEMON, GROUP, STRANGER = 61184, 61184, 61185  # no names: as DynamicUser= gives them
PATIENCE_SECONDS = 60
COMMANDS = ("id", "stat", "mkdir", "chgrp", "chmod", "install", "mv", "rm")
only_root = pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")


class Place:
    """What systemd makes, in a folder that every user can reach."""

    def __init__(self, folder):
        self.folder = folder
        folder.chmod(0o755)
        self.source = folder / "etc"
        self.runtime = folder / "run/lockstepd"
        self.copies = folder / "run/lockstepd-secrets"
        self.victim = folder / "victim"
        self.path = os.environ["PATH"]
        self.source.mkdir(0o700)
        self.runtime.mkdir(parents=True)
        self.runtime.chmod(0o750)
        self.victim.mkdir(0o755)
        (self.victim / "shadow").write_text("root's")
        (self.victim / "shadow").chmod(0o600)
        self.unharmed = self.look_at_victim()
        if os.geteuid() == 0:
            os.chown(self.runtime, DAEMON, GROUP)

    def look_at_victim(self):
        return {path.name: (path.lstat().st_uid, path.lstat().st_gid, path.lstat().st_mode,
                            path.lstat().st_nlink, path.read_text() if path.is_file() else None)
                for path in (self.victim, *self.victim.iterdir())}

    def run(self, *arguments):
        return subprocess.run(
            [SCRIPT, *arguments], capture_output=True, text=True, timeout=PATIENCE_SECONDS,
            env={"PATH": self.path, "RUNTIME_DIRECTORY": str(self.runtime),
                 "SECRETS_FROM": str(self.source)})

    def copy(self, *arguments):
        result = self.run(*arguments)
        assert (result.returncode, result.stderr) == (0, "")

    def copied(self):
        return {path.name: path.read_text() for path in self.copies.iterdir()}

    def run_as(self, user, command):
        return subprocess.run(["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups",
                               "sh", "-c", command], capture_output=True, text=True,
                              timeout=PATIENCE_SECONDS)

    def attack_at_each_step(self, command):
        """The script's commands are preceded by one of the daemon's user; returns its log."""
        folder, log = self.folder / "bin", self.folder / "log"
        folder.mkdir(exist_ok=True)
        log.write_text("")
        log.chmod(0o666)
        (self.folder / "attack").write_text(f"#!/bin/sh\n{command}\necho done >> {log}\n")
        (self.folder / "attack").chmod(0o755)
        for name in COMMANDS:
            (folder / name).write_text(
                f"#!/bin/sh\nPATH={os.environ['PATH']}\n"
                f"setpriv --reuid={DAEMON} --regid={GROUP} --clear-groups {self.folder}/attack "
                f"2> /dev/null\nexec {shutil.which(name)} \"$@\"\n")
            (folder / name).chmod(0o755)
        self.path = f"{folder}:{os.environ['PATH']}"
        return log


@pytest.fixture
def place():
    with tempfile.TemporaryDirectory(prefix="lockstep-secrets-") as folder:
        yield Place(pathlib.Path(folder))


def test_secrets_are_copied_afresh_and_taken_away(place):
    place.source.rmdir()
    place.copy()  # none are there
    assert not place.copies.exists()
    place.source.mkdir(0o700)
    (place.source / "keys").write_text("a")
    (place.source / "tls key").write_text("b")
    (place.source / "folder").mkdir()
    place.copy()
    assert place.copied() == {"keys": "a", "tls key": "b"}
    assert stat.S_IMODE(place.copies.stat().st_mode) == 0o750
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o440 for path in place.copies.iterdir())
    (place.source / "keys").write_text("c")
    (place.source / "tls key").unlink()
    place.copy()
    assert place.copied() == {"keys": "c"}
    place.copy("remove")
    assert not place.copies.exists()
    place.copy("remove")
    assert list(place.runtime.iterdir()) == []


def test_copies_go_when_there_are_no_secrets_any_more(place):
    (place.source / "keys").write_text("a")
    place.copy()
    shutil.rmtree(place.source)
    place.copy()
    assert not place.copies.exists()


def test_what_a_run_that_was_cut_off_has_left_is_gone(place):
    place.copy()
    (place.copies / ".new").write_text("half")
    place.copy()
    assert list(place.copies.iterdir()) == []


def test_an_unknown_argument_is_refused(place):
    result = place.run("delete")
    assert result.returncode == 1 and '"delete"' in result.stderr


@only_root
def test_the_daemons_user_reads_and_nobody_else_does(place):
    (place.source / "keys").write_text("secret")
    place.copy()
    keys = place.copies / "keys"
    assert place.run_as(DAEMON, f"cat {keys}").stdout == "secret"
    for command in (f"cat {keys}", f"ls {place.copies}"):
        assert place.run_as(STRANGER, command).returncode != 0, command
    for command in (f"echo x > {keys}", f"echo x > {place.copies}/more", f"rm -f {keys}",
                    f"chmod 666 {keys}", f"chmod 777 {place.copies}", f"mv {place.copies} {keys}2",
                    f"ln -sfT /etc {place.copies}/link", f"rmdir {place.copies}"):
        result = place.run_as(DAEMON, command)
        assert result.returncode != 0 and result.stderr, command
    assert place.copied() == {"keys": "secret"}


@only_root
def test_the_next_daemons_user_reads_and_the_last_ones_does_not(place):
    (place.source / "keys").write_text("secret")
    place.copy()
    os.chown(place.runtime, STRANGER, STRANGER)
    place.copy()
    keys = place.copies / "keys"
    assert place.run_as(STRANGER, f"cat {keys}").stdout == "secret"
    assert place.run_as(DAEMON, f"cat {keys}").returncode != 0


# What the daemon's user may try in its own directory and beside it. {0}: a name there.
PLANTS = {
    "symlink to a directory": "ln -sfT {victim} {0}",
    "symlink to a file": "ln -sfT {victim}/shadow {0}",
    "symlink that leads nowhere": "ln -sfT {victim}/made {0}",
    "hard link": "ln -fT {victim}/shadow {0}",
    "fifo": "mkfifo {0}",
    "directory": "mkdir {0}",
    "directory and symlink in turn":
        "if [ -L {0} ]; then rm {0}; mkdir {0}; else ln -sfT {victim} {0}; fi",
}


@only_root
@pytest.mark.parametrize("plant", PLANTS)
def test_what_the_daemons_user_plants_between_any_two_steps_is_never_followed(place, plant):
    names = [place.runtime / name for name in ("secrets", "secrets/.new", "secrets/keys", ".new")]
    names += [place.copies, place.copies / ".new", place.copies / "keys"]
    tries = [f"mv -T {place.runtime}/secrets {place.runtime}/old$$"]
    tries += [PLANTS[plant].format(name, victim=place.victim) for name in names]
    (place.source / "keys").write_text("first")
    log = place.attack_at_each_step("\n".join(tries))
    place.copy()  # the start
    assert place.copied() == {"keys": "first"}
    assert log.read_text().count("done") >= 5
    (place.source / "keys").write_text("second")
    (place.source / "more").write_text("third")
    place.copy()  # a reload
    assert place.copied() == {"keys": "second", "more": "third"}
    assert place.look_at_victim() == place.unharmed
    place.copy("remove")
    assert place.look_at_victim() == place.unharmed
    assert not place.copies.exists()


@only_root
def test_a_place_for_the_copies_that_is_not_roots_is_refused(place):
    """Only root could have made one; it is left as it is all the same."""
    (place.source / "keys").write_text("secret")

    def refused(word):
        for arguments in ([], ["remove"]):
            result = place.run(*arguments)
            assert result.returncode == 1 and word in result.stderr, result.stderr
            assert str(place.copies) in result.stderr
            assert place.look_at_victim() == place.unharmed

    place.copies.symlink_to(place.victim)
    refused("symbolic link")
    place.copies.unlink()
    place.copies.symlink_to(place.folder / "nowhere")
    refused("symbolic link")
    place.copies.unlink()
    os.mkfifo(place.copies)
    refused("fifo")
    place.copies.unlink()
    place.copies.mkdir()
    os.chown(place.copies, DAEMON, GROUP)
    refused(f"directory {DAEMON}")
    os.chown(place.copies, 0, GROUP)
    place.copies.chmod(0o770)
    refused("chmod go-w")
    assert list(place.copies.iterdir()) == []
    place.copies.chmod(0o750)  # as it says
    place.copy()
    assert place.copied() == {"keys": "secret"}


@only_root
@pytest.mark.parametrize("mode", [0o770, 0o757, 0o1777, 0o720])
@pytest.mark.parametrize("which", ["runtime's parent", "source"])
def test_a_directory_that_others_can_write_to_is_refused(place, which, mode):
    (place.source / "keys").write_text("secret")
    folder = place.source if which == "source" else place.runtime.parent
    folder.chmod(mode)
    result = place.run()
    assert result.returncode == 1 and f"chmod go-w {folder}" in result.stderr
    assert not place.copies.exists()
    subprocess.run(["chmod", "go-w", folder], check=True)
    place.copy()
    assert place.copied() == {"keys": "secret"}


@only_root
def test_a_source_of_another_user_is_refused(place):
    os.chown(place.source, STRANGER, STRANGER)
    result = place.run()
    assert result.returncode == 1 and str(place.source) in result.stderr
    assert not place.copies.exists()
