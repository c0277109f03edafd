"""deploy/hosts: its commands are good, and the drop-in for systemd lets a host wait. scripts/checks/check_hosts.py
tries what it says of hosts that are lost."""

import json
import re
import subprocess

import pytest

from conftest import DEPLOY, server

ROOT = DEPLOY.parent
TEXT = (DEPLOY / "hosts/README.md").read_text()
EVERY_COMMAND = re.findall(r"^lockstepd (serve .*)$", TEXT.replace("\\\n", ""), re.M)
COMMANDS = [command for command in EVERY_COMMAND if "--devices" not in command]


@pytest.fixture
def secret(tmp_path):
    """By the page's own commands."""
    made = re.search(r"^openssl .*\nchmod .*$", TEXT, re.M)[0]
    subprocess.run(["bash", "-ec", made], cwd=tmp_path, check=True)
    assert (tmp_path / "hosts.secret").stat().st_mode & 0o777 == 0o600
    return tmp_path / "hosts.secret"


@pytest.mark.parametrize("index", [0, 1])
def test_the_commands_are_good_and_differ_in_the_index_alone(secret, index):
    assert len(COMMANDS) == 2
    assert COMMANDS[1] == COMMANDS[0].replace("--host-index 0", "--host-index 1")
    words = COMMANDS[index].replace("hosts.secret", str(secret)).split()
    checked = server.run_program(*words, "--check-config", cwd=ROOT)
    assert checked.returncode == 0, checked.stderr


def test_the_command_for_gpus_is_good_but_for_those_that_there_are_not(secret):
    command, = set(EVERY_COMMAND) - set(COMMANDS)
    words = command.replace("hosts.secret", str(secret)).split()
    words[words.index("--model") + 1] = "config/demo.gguf"
    words[words.index("--devices") + 1] = "gpu7"
    refused = server.run_program(*words, "--check-config", cwd=ROOT)
    assert refused.returncode == 2 and 'devices "gpu7"' in refused.stderr
    words[words.index("--devices") + 1] = "cpu"
    checked = server.run_program(*words, "--check-config", cwd=ROOT)
    assert checked.returncode == 0, checked.stderr


def test_without_the_secret_it_is_refused():
    words = COMMANDS[0].replace("--hosts-secret hosts.secret", "").split()
    refused = server.run_program(*words, "--check-config", cwd=ROOT)
    assert refused.returncode == 2 and "--insecure-hosts" in refused.stderr


def test_the_configuration_for_systemd_is_good(tmp_path):
    path = tmp_path / "lockstepd.json"
    path.write_text(re.search(r"^```json\n(.*?)^```", TEXT, re.M | re.S)[1])
    result = server.run_program("--print-config", "--config", path)
    assert result.returncode == 0, result.stderr
    options = {name: entry["value"] for name, entry in json.loads(result.stdout).items()}
    assert options["host-index"] == 0 and len(options["hosts"]) == 2
    copied = re.search(r"^install .* hosts.secret /etc/lockstep/secrets/(\S+)$", TEXT, re.M)[1]
    assert options["hosts-secret"] == f"/run/lockstepd-secrets/{copied}"


def test_words_of_the_log_are_the_daemons():
    sources = "".join(path.read_text() for folder in ("engine", "server")
                      for path in (ROOT / folder).rglob("*.cpp"))
    for word in ("hosts_lost", "follows_another_host", "the group is complete",
                 "this host's weights are loaded; waiting for those of the others"):
        assert word in TEXT and word in sources, word
    seconds = re.search(r'"host-seconds", \w+, kNumber, (\d+)\.0,',
                        (ROOT / "server/options/option_table.cpp").read_text())[1]
    assert f"`--host-seconds` ({seconds})" in TEXT
