"""What the daemon tells systemd, heard on a socket of the test's own (sd_notify(3))."""

import signal
import socket

import pytest

from conftest import PATIENCE_SECONDS


class Manager:
    """The service manager's end of NOTIFY_SOCKET."""

    def __init__(self, address):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(address)
        self.socket.settimeout(PATIENCE_SECONDS)
        self.heard = []

    def next(self):
        lines = self.socket.recv(65536).decode().split("\n")
        self.heard.append(dict(line.split("=", 1) for line in lines if line))
        return self.heard[-1]

    def wait_for(self, key):
        while key not in (message := self.next()):
            pass
        return message


@pytest.fixture(params=["path", "abstract"])
def manager(request, tmp_path):
    name = str(tmp_path / "notify")
    one = Manager(name if request.param == "path" else "\0" + name)
    one.environment = {"NOTIFY_SOCKET": name if request.param == "path" else "@" + name}
    yield one
    one.socket.close()


def test_loading_ready_and_stopping_are_told_in_this_order(start, manager):
    daemon = start("--served-model-name", "m", "--keep-weights", "false",
                   environment=manager.environment)
    ready = manager.wait_for("READY")
    assert ready["READY"] == "1"
    assert ready["STATUS"].startswith("Serving m: 0 requests running")
    before = manager.heard[:-1]
    assert before and all("oad" in message["STATUS"] for message in before)
    assert all(int(message["EXTEND_TIMEOUT_USEC"]) > 0 for message in before)
    assert daemon.get("/health/ready").status_code == 200
    daemon.process.send_signal(signal.SIGTERM)
    stopping = manager.wait_for("STOPPING")
    assert stopping["STOPPING"] == "1"
    assert int(stopping["EXTEND_TIMEOUT_USEC"]) >= 30_000_000  # --drain-seconds
    assert daemon.process.wait(PATIENCE_SECONDS) == 0
    assert sum("READY" in message for message in manager.heard) == 1


def test_a_reload_is_told_around(start, manager):
    daemon = start(environment=manager.environment)
    manager.wait_for("READY")
    daemon.process.send_signal(signal.SIGHUP)
    assert int(manager.wait_for("RELOADING")["MONOTONIC_USEC"]) > 0
    assert manager.wait_for("READY")["READY"] == "1"


def test_the_watchdog_is_fed_while_the_daemon_serves(start, manager):
    daemon = start(environment={**manager.environment, "WATCHDOG_USEC": "2000000"})
    for _ in range(3):
        assert manager.wait_for("WATCHDOG") == {"WATCHDOG": "1"}
    assert daemon.stop() == 0


def test_nobody_is_fed_who_did_not_ask(start, manager):
    daemon = start(environment={
        **manager.environment, "WATCHDOG_USEC": "100000", "WATCHDOG_PID": "1"})
    manager.wait_for("READY")
    assert daemon.stop() == 0
    manager.wait_for("STOPPING")
    assert not any("WATCHDOG" in message for message in manager.heard)


def test_a_manager_that_is_not_there_stops_nothing(start, tmp_path):
    daemon = start(environment={"NOTIFY_SOCKET": str(tmp_path / "nobody")}).wait_until_ready()
    assert daemon.stop() == 0
