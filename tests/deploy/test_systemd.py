"""deploy/systemd: the units are well-formed and hardened, and their scripts do what they say.
scripts/checks/test_systemd runs them in a real systemd."""

import os
import re
import subprocess

import pytest

from conftest import DEPLOY, find_program, server

FOLDER = DEPLOY / "systemd"
UNITS = ["lockstepd.service", "lockstepd.socket", "lockstepd-hugepages.service"]
EXPOSURE_MAX = 15  # tenths


def analyze(*arguments, **more):
    program = find_program("systemd-analyze", "systemd")
    return subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, **more)


@pytest.fixture
def installed(tmp_path):
    """A root with the units and what they start, since verify looks for both."""
    for name in ("lockstepd-secrets", "lockstepd-hugepages"):
        place = tmp_path / "usr/local/lib/lockstep" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes((FOLDER / name).read_bytes())
        place.chmod(0o755)
    for program in ("usr/local/bin/lockstepd", "bin/kill", "usr/bin/kill"):
        place = tmp_path / program
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("#!/bin/sh\n")
        place.chmod(0o755)
    units = tmp_path / "etc/systemd/system"
    units.mkdir(parents=True)
    for name in UNITS:
        (units / name).write_bytes((FOLDER / name).read_bytes())
    return tmp_path


def exposure(root, unit):
    result = analyze("security", "--offline=yes", f"--threshold={EXPOSURE_MAX}", "--no-pager",
                     f"--root={root}", unit)
    found = re.search(r"Overall exposure level for \S+: (\S+)", result.stdout)
    assert found, result.stdout + result.stderr
    return result.returncode, float(found[1])


def test_systemd_has_nothing_to_say_about_the_units(installed):
    # It ends with 0 for words it does not know, so what counts is that it is silent. Units of the
    # machine itself are not under test.
    result = analyze("verify", "--man=no", f"--root={installed}", "--recursive-errors=no", *UNITS)
    assert result.stdout + result.stderr == ""
    assert result.returncode == 0


def test_a_wrong_word_would_be_noticed(installed):
    unit = installed / "etc/systemd/system/lockstepd.service"
    unit.write_text(unit.read_text().replace("[Service]", "[Service]\nWatchdogSeconds=3"))
    result = analyze("verify", "--man=no", f"--root={installed}", "--recursive-errors=no", *UNITS)
    assert "WatchdogSeconds" in result.stderr


def test_a_host_may_wait_for_the_others(installed):
    folder = installed / "etc/systemd/system/lockstepd.service.d"
    folder.mkdir()
    (folder / "hosts.conf").write_bytes((FOLDER / "lockstepd-hosts.conf").read_bytes())
    assert "TimeoutStartSec=infinity" in (folder / "hosts.conf").read_text()
    result = analyze("verify", "--man=no", f"--root={installed}", "--recursive-errors=no", *UNITS)
    assert result.stdout + result.stderr == ""


def test_the_daemon_is_exposed_to_little(installed):
    code, level = exposure(installed, "lockstepd.service")
    print(f"exposure {level}")
    assert code == 0 and level <= EXPOSURE_MAX / 10


def test_and_to_little_with_gpus(installed):
    folder = installed / "etc/systemd/system/lockstepd.service.d"
    folder.mkdir()
    (folder / "gpu.conf").write_bytes((FOLDER / "lockstepd-gpu.conf").read_bytes())
    code, level = exposure(installed, "lockstepd.service")
    print(f"exposure with GPUs {level}")
    assert code == 0 and level <= EXPOSURE_MAX / 10


def test_so_is_what_sets_huge_pages_aside_as_root(installed):
    code, level = exposure(installed, "lockstepd-hugepages.service")
    print(f"exposure of huge pages {level}")
    assert code == 0 and level <= EXPOSURE_MAX / 10


def test_a_gpu_that_is_gone_for_a_while_is_waited_for():
    """Its absence is exit code 1. The unit gives up after so many tries; they must not be over
    before a driver is loaded anew."""
    unit = (FOLDER / "lockstepd.service").read_text()
    drop_in = (FOLDER / "lockstepd-gpu.conf").read_text()
    tries = int(re.search(r"^StartLimitBurst=(\d+)$", unit, re.MULTILINE)[1])
    pause_seconds = int(re.search(r"^RestartSec=(\d+)$", drop_in, re.MULTILINE)[1])
    assert re.search(r"^RestartPreventExitStatus=2$", unit, re.MULTILINE)
    assert tries * pause_seconds >= 180


def test_the_example_configuration_is_good():
    result = server.run_program("--print-config", "--config", FOLDER / "lockstepd.json")
    assert result.returncode == 0, result.stderr


# The scripts.

def hugepages(tmp_path, action, **pools):
    environment = {"PATH": os.environ["PATH"], "SYSFS": str(tmp_path), **pools}
    return subprocess.run([FOLDER / "lockstepd-hugepages", action], capture_output=True, text=True,
                          env=environment)


@pytest.fixture
def pools(tmp_path):
    made = {}
    for node in range(2):
        for size in (2048, 1048576):
            pool = (tmp_path / f"devices/system/node/node{node}/hugepages/hugepages-{size}kB"
                    / "nr_hugepages")
            pool.parent.mkdir(parents=True)
            pool.write_text("0\n")
            made[node, size] = pool
    return made


def test_pages_are_set_aside_on_each_node_and_given_back(tmp_path, pools):
    result = hugepages(tmp_path, "set", HUGEPAGES_2MIB="0=40 1=50", HUGEPAGES_1GIB="1=2")
    assert result.returncode == 0, result.stderr
    assert {key: int(pool.read_text()) for key, pool in pools.items()} == {
        (0, 2048): 40, (1, 2048): 50, (0, 1048576): 0, (1, 1048576): 2}
    assert hugepages(tmp_path, "release", HUGEPAGES_2MIB="0=40 1=50").returncode == 0
    assert int(pools[0, 2048].read_text()) == int(pools[1, 2048].read_text()) == 0
    assert int(pools[1, 1048576].read_text()) == 2


def test_a_node_that_gives_fewer_is_told(tmp_path, pools):
    # a pool that takes what is written and keeps less, as the kernel's does
    pools[1, 2048].unlink()
    pools[1, 2048].symlink_to("/dev/null")
    result = hugepages(tmp_path, "set", HUGEPAGES_2MIB="0=40 1=50")
    assert result.returncode == 1
    assert "node 1: 0 of 50 huge pages" in result.stderr
    assert int(pools[0, 2048].read_text()) == 40


@pytest.mark.parametrize("entry", ["0", "=4", "0=", "x=4", "0=4x", "0=-4", "9=1", "../0=4", "*=4"])
def test_a_bad_entry_is_refused(tmp_path, pools, entry, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "1=4").touch()  # an entry is no pattern of file names
    result = hugepages(tmp_path, "set", HUGEPAGES_2MIB=entry)
    assert result.returncode == 2 and result.stderr
    assert all(pool.read_text() == "0\n" for pool in pools.values())


def test_without_pools_nothing_is_done(tmp_path, pools):
    assert hugepages(tmp_path, "set").returncode == 0
