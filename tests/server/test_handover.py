"""A restart that reads no weights: the daemon under a service manager that keeps descriptors.

The manager here speaks systemd's protocol (sd_notify(3), sd_listen_fds(3));
scripts/checks/check_handover does the same with a real one.
"""

import concurrent.futures
import os
import pathlib
import shutil
import signal
import socket
import sys
import tempfile
import threading

import pytest

from conftest import DEMO, PATIENCE_SECONDS, ROOT, Daemon, free_addresses

STORY = {"model": "m", "prompt": "Once upon a time", "temperature": 1, "seed": 3,
         "max_tokens": 24, "ignore_eos": True}

# Puts the descriptors it is given to 3, 4 ... and becomes the daemon.
LAUNCHER = """
import fcntl, os, sys
given = [int(number) for number in sys.argv[1].split(",") if number]
high = [fcntl.fcntl(number, fcntl.F_DUPFD, 200) for number in given]
for index, number in enumerate(high):
    os.dup2(number, 3 + index, inheritable=True)
for number in set(given) - set(range(3, 3 + len(given))):
    os.close(number)
if given:
    os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(len(given)),
                      LISTEN_FDNAMES=sys.argv[2])
os.execv(sys.argv[3], sys.argv[3:])
"""


class ServiceManager:
    """Keeps what it is given by name, and passes it to the next daemon."""

    def __init__(self, folder, answers=True):
        self.address = str(folder / "notify")
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.address)
        self.answers = answers
        self.stored = []  # (name, descriptor), in the order in which they came
        self.names_seen = []
        self.unanswered = []
        self.lock = threading.Lock()
        self.marks = threading.Semaphore(0)
        self.thread = threading.Thread(target=self._receive, daemon=True)
        self.thread.start()

    def _receive(self):
        while True:
            data, descriptors, _, _ = socket.recv_fds(self.socket, 4096, 253)
            if data == b"END":
                return
            if data == b"MARK":
                self.marks.release()
                continue
            lines = dict(line.split("=", 1) for line in data.decode().splitlines() if "=" in line)
            name = lines.get("FDNAME", "stored")
            with self.lock:
                if lines.get("FDSTORE") == "1":
                    self.stored += [(name, descriptor) for descriptor in descriptors]
                    self.names_seen += [name] * len(descriptors)
                    descriptors = []
                if lines.get("FDSTOREREMOVE") == "1":
                    for _, descriptor in [entry for entry in self.stored if entry[0] == name]:
                        os.close(descriptor)
                    self.stored = [entry for entry in self.stored if entry[0] != name]
            if not self.answers:
                self.unanswered += descriptors
                continue
            for descriptor in descriptors:
                os.close(descriptor)

    def send(self, message):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as own:
            own.sendto(message, self.address)

    def wait_until_taken(self):
        """All that was sent to it before: a daemon waits a second for that and then serves."""
        self.send(b"MARK")
        assert self.marks.acquire(timeout=PATIENCE_SECONDS)

    def start(self, model, *options, environment=None):
        self.wait_until_taken()
        with self.lock:
            # Not in the order in which they came: no service manager promises that.
            passed = self.stored[::-1]
            numbers = [number for _, number in passed]
            launcher = [sys.executable, "-c", LAUNCHER, ",".join(map(str, numbers)),
                        ":".join(name for name, _ in passed)]
            daemon = Daemon(model, "--served-model-name", "m", "--workers", "1", *options,
                            environment={"NOTIFY_SOCKET": self.address, **(environment or {})},
                            launcher=launcher, pass_fds=numbers)
        self.daemon = daemon
        return daemon.wait_until_ready()

    def names(self):
        self.wait_until_taken()
        with self.lock:
            return sorted(name for name, _ in self.stored)

    def inodes(self):
        self.wait_until_taken()
        with self.lock:
            return {os.fstat(number).st_ino for _, number in self.stored}

    def close(self):
        if self.daemon.process.poll() is None:
            self.daemon.process.kill()
            self.daemon.process.wait()
        self.send(b"END")
        self.thread.join(PATIENCE_SECONDS)
        self.socket.close()
        for number in [number for _, number in self.stored] + self.unanswered:
            os.close(number)


@pytest.fixture
def model(tmp_path):
    return pathlib.Path(shutil.copy(DEMO, tmp_path / "model.gguf"))


@pytest.fixture
def managers():
    """Makes service managers; ends them and their daemons."""
    made = []
    # A socket's path has 107 characters at most.
    folder = pathlib.Path(tempfile.mkdtemp(prefix="lockstep-", dir="/tmp"))

    def make(**more):
        place = folder / str(len(made))
        place.mkdir()
        made.append(ServiceManager(place, **more))
        return made[-1]

    yield make
    for manager in made:
        manager.close()
    shutil.rmtree(folder)


def answer(daemon):
    reply = daemon.post("/v1/completions", STORY)
    assert reply.status_code == 200, reply.text
    return reply.json()["choices"][0]["text"]


def read_bytes(daemon):
    """What the process has read so far, through any call, from any file."""
    text = pathlib.Path(f"/proc/{daemon.process.pid}/io").read_text()
    fields = dict(line.split(": ") for line in text.splitlines())
    return max(int(fields["rchar"]), int(fields["read_bytes"]))


def kept_bytes(daemon):
    return daemon.metric("lockstep_model_load_kept_bytes")


@pytest.mark.parametrize("ranks", ["1", "2"])
def test_a_restart_reads_no_weights_and_answers_the_same(managers, model, ranks):
    manager = managers()
    options = ["--keep-weights", "true", "--ranks", ranks, "--context", "512"]
    first = manager.start(model, *options)
    text = answer(first)
    weights = first.metric("lockstep_memory_bytes", kind="weights")
    assert kept_bytes(first) == 0
    assert first.metric("lockstep_model_load_bytes") > 0
    names = manager.names()
    assert names == sorted(["lockstep-weights"] + [
        f"lockstep-{kind}-{rank}" for kind in ("weights", "kv") for rank in range(int(ranks))])
    assert first.stop() == 0

    inodes = manager.inodes()
    second = manager.start(model, *options)
    second.wait_until_logged("nothing is read")
    assert second.metric("lockstep_model_load_bytes") == 0
    assert kept_bytes(second) == weights
    assert second.metric("lockstep_model_load_progress_ratio") == 1
    assert second.metric("lockstep_memory_bytes", kind="weights") == weights
    assert read_bytes(second) < model.stat().st_size - weights / 2
    assert answer(second) == text

    # It never comes to an orderly end; what it was given is still there.
    second.process.send_signal(signal.SIGKILL)
    second.process.wait(PATIENCE_SECONDS)
    third = manager.start(model, *options)
    assert kept_bytes(third) == weights
    assert answer(third) == text
    assert manager.names() == names and manager.inodes() == inodes
    assert len(manager.names_seen) == len(names), "stored again, though it was there"


def test_another_model_is_loaded_and_replaces_what_was_kept(managers, model):
    manager = managers()
    options = ["--keep-weights", "true", "--context", "512"]
    first = manager.start(model, *options)
    names, inodes = manager.names(), manager.inodes()
    assert first.stop() == 0
    other = model.with_name("other.gguf")
    shutil.copy(model, other)
    other.replace(model)
    second = manager.start(model, *options)
    second.wait_until_logged("files/0/")
    assert kept_bytes(second) == 0
    assert second.metric("lockstep_model_load_bytes") > 0
    assert manager.names() == names
    assert not manager.inodes() & inodes
    assert second.stop() == 0
    third = manager.start(model, *options)
    assert kept_bytes(third) > 0


def test_what_is_not_to_be_kept_is_removed(managers, model):
    manager = managers()
    assert manager.start(model, "--keep-weights", "true").stop() == 0
    assert manager.names()
    second = manager.start(model, "--keep-weights", "false")
    assert kept_bytes(second) == 0
    assert manager.names() == []
    assert second.stop() == 0


def test_a_manager_that_does_not_answer_holds_nobody_up(managers, model):
    manager = managers(answers=False)
    first = manager.start(model, "--keep-weights", "true", "--context", "512")
    first.wait_until_logged("did not say that it keeps the weights")
    assert answer(first)
    assert first.stop() == 0


def test_a_store_that_is_too_small_is_left_alone(managers, model):
    manager = managers()
    first = manager.start(model, "--keep-weights", "true", environment={"FDSTORE": "2"})
    first.wait_until_logged("FileDescriptorStoreMax")
    assert manager.names() == manager.names_seen == []
    assert first.stop() == 0


def has_shared_huge_pages(daemon):
    """Whether the kernel gives them, or the daemon has got some of a pool."""
    chosen = pathlib.Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
    if chosen.exists() and "[never]" not in chosen.read_text():
        return True
    return any(daemon.metric("lockstep_rank_page_bytes", page=page) > 0
               for page in ("huge_2mib", "huge_1gib"))


def test_by_itself_it_keeps_what_costs_no_huge_pages(managers, model):
    manager = managers()
    first = manager.start(model, "--context", "512")
    assert bool(manager.names()) == has_shared_huge_pages(first)
    assert first.stop() == 0


def test_without_a_service_manager_nothing_is_kept(start, model):
    daemon = start("--keep-weights", "true", model=model).wait_until_ready()
    daemon.wait_until_logged("NOTIFY_SOCKET")
    assert daemon.stop() == 0


def test_partial_stores_are_of_no_use_and_do_no_harm(managers, model):
    manager = managers()
    first = manager.start(model, "--keep-weights", "true", "--context", "512")
    text = answer(first)
    assert first.stop() == 0
    for name in manager.names():
        with manager.lock:
            [(_, number)] = [entry for entry in manager.stored if entry[0] == name]
            manager.stored.remove((name, number))
        os.close(number)
        again = manager.start(model, "--keep-weights", "true", "--context", "512")
        # Without the cache's memory the weights are still good.
        assert (kept_bytes(again) > 0) == name.startswith("lockstep-kv")
        assert answer(again) == text
        assert len(manager.names()) == 3
        assert again.stop() == 0


def test_a_leader_of_hosts_takes_its_weights_over_and_its_follower_keeps_its_own(managers, model):
    hosts = ("--hosts", ",".join(free_addresses(2)), "--host-seconds", "60", "--context", "512")
    leading = (*hosts, "--host-index", "0", "--keep-weights", "true")
    manager = managers()
    with concurrent.futures.ThreadPoolExecutor(1) as starter:
        following = starter.submit(Daemon, model, *hosts, "--host-index", "1", "--workers", "1")
        first = manager.start(model, *leading)
        follower = following.result()
    try:
        text = answer(first)
        weights = first.metric("lockstep_memory_bytes", kind="weights")
        first.process.kill()
        first.process.wait()
        second = manager.start(model, *leading)
        assert kept_bytes(second) == weights
        assert second.metric("lockstep_model_load_bytes") == 0
        assert answer(second) == text
        assert sum("MiB of weights in" in line for line in follower.log) == 1
    finally:
        follower.process.kill()
        follower.process.wait()
