"""An engine that hangs: what the daemon says meanwhile, what it leaves in the log, how it ends."""

import concurrent.futures
import contextlib
import json
import re
import signal
import socket
import subprocess
import threading
import time

import pytest
import requests

from conftest import PATIENCE_SECONDS, PROGRAM, clean_environment, wait_until

STALLING = PROGRAM.parent / "stalling_daemon"


class StallingDaemon:
    """tests/server/daemon/stalling_daemon: SIGUSR1 makes the engine's thread hang."""

    def __init__(self, model, kind, read_log=True, pipe_bytes=-1, **options):
        if not STALLING.exists():
            pytest.skip(f"{STALLING} is not built")
        variables = {"model": str(model), "port": "0", "workers": "1", **options}
        environment = {f"LOCKSTEP_{name.upper()}": value for name, value in variables.items()}
        self.process = subprocess.Popen(
            [STALLING, kind], stderr=subprocess.PIPE, pipesize=pipe_bytes, text=True,
            env=clean_environment(**environment))
        self.log = []
        while self._url() is None:
            line = self.process.stderr.readline()
            assert line, self.log
            self.log.append(line)
        self._reader = threading.Thread(target=self._read, daemon=True)
        if read_log:
            self._reader.start()
        self.url = self._url()
        wait_until(lambda: self.status("/health/ready") == 200)

    def _read(self):
        for line in self.process.stderr:
            self.log.append(line)

    def _url(self):
        found = re.search(r'listening on (http://[^\s"]+)', "".join(self.log))
        return found and found[1]

    def status(self, path):
        return requests.get(self.url + path, timeout=PATIENCE_SECONDS).status_code

    def model_name(self):
        answer = requests.get(self.url + "/v1/models", timeout=PATIENCE_SECONDS)
        return answer.json()["data"][0]["id"]

    def text(self):
        return "".join(self.log)

    def hang(self):
        self.process.send_signal(signal.SIGUSR1)

    def wait(self):
        status = self.process.wait(PATIENCE_SECONDS)
        self._reader.join(PATIENCE_SECONDS)
        return status


def starts_daemons(model_path):
    started = []

    def start_one(kind, **options):
        started.append(StallingDaemon(model_path, kind, **options))
        return started[-1]

    yield start_one
    for one in started:
        one.process.kill()
        one.process.wait()


@pytest.fixture
def stalling(model_path):
    yield from starts_daemons(model_path)


WAITING = {}  # what such a test does, by its name


def waits(does):
    """A test that waits for a watchdog, most of its time. All of them begin with the first test of
    this file, side by side, and each has its result asked for after all other tests."""

    @pytest.mark.asked_last
    def test(begun):
        begun[does.__name__].result()

    test.__name__, test.__doc__ = does.__name__, does.__doc__
    WAITING[does.__name__] = does
    return test


@pytest.fixture(scope="session", autouse=True)
def begun(model_path, request):
    """The future of every waiting test that was chosen."""
    chosen = WAITING.keys() & {item.name for item in request.session.items}
    stalling = contextlib.contextmanager(starts_daemons)
    with (stalling(model_path) as start_one,
          concurrent.futures.ThreadPoolExecutor(len(WAITING)) as pool):
        yield {name: pool.submit(WAITING[name], start_one) for name in chosen}


PAUSE_SECONDS = 0.05  # between two questions to a daemon that hangs for seconds


def watch_hang(daemon, function):
    """Asks a daemon that hangs until it has ended; checks what it said and left."""
    daemon.hang()
    ready, live, work = [], [], []
    try:
        while True:
            answer = requests.get(daemon.url + "/health/ready", timeout=PATIENCE_SECONDS)
            ready.append((answer.status_code, answer.json().get("status")))
            live.append(daemon.status("/health/live"))
            if live[-1] == 503:
                work.append(requests.post(
                    daemon.url + "/v1/completions", json={"model": "x", "prompt": "a"},
                    timeout=PATIENCE_SECONDS))
            time.sleep(PAUSE_SECONDS)
    except requests.RequestException:
        pass  # it has ended
    assert daemon.wait() == -signal.SIGABRT
    assert (503, "stalled") in ready
    assert 503 in live
    # Not ready comes before not alive, and neither goes back.
    assert [status for status, _ in ready] == sorted(status for status, _ in ready)
    assert live == sorted(live)
    assert ready.index((503, "stalled")) < live.index(503)
    # No new work is taken then.
    assert work and all(answer.status_code == 503 for answer in work)
    assert work[0].json()["error"]["code"] == "stalled"
    assert int(work[0].headers["Retry-After"]) >= 1
    # Every line is whole JSON, the stacks' as well, and the engine's is among them.
    messages = [json.loads(line)["msg"] for line in daemon.log]
    stacks = [message for message in messages if message.startswith("stack of thread ")]
    assert any(function in stack for stack in stacks), stacks
    names = {re.match(r"stack of thread \d+ \((.*), state .\)", stack)[1] for stack in stacks}
    assert {"gate", "http", "signals", "log", "status", "reload"} <= names
    assert any("sequences" in message for message in messages)
    assert "the watchdog ends the process" in messages[-1]


@waits
def test_an_engine_that_hangs_is_told_dumped_and_ended(stalling):
    # Side by side, since each takes its time. From "not alive" to the end it is half of 10 s: enough
    # to be asked even on a busy machine.
    kinds = {"park": "hang_parked", "spin": "hang_spinning", "lock": "hang_at_a_lock"}
    daemons = {kind: stalling(kind, stall_seconds="10", log_format="json") for kind in kinds}
    with concurrent.futures.ThreadPoolExecutor(len(kinds)) as pool:
        watched = [pool.submit(watch_hang, daemons[kind], function)
                   for kind, function in kinds.items()]
        for one in watched:
            one.result()


@waits
def test_a_gate_that_hangs_is_told_at_the_probes_address_and_ended(stalling):
    """Whoever asks at the first address gets no answer; the second one says why."""
    daemon = stalling("gate", stall_seconds="10", probe_host="127.0.0.1", probe_port="0")
    wait_until(lambda: "health and metrics on" in daemon.text())
    probes = re.search(r"health and metrics on (http://[^\s\"]+)", daemon.text())[1]
    ask = requests.Session()
    ready, live = [], []

    def look():
        ready.append(ask.get(probes + "/health/ready", timeout=PATIENCE_SECONDS).status_code)
        live.append(ask.get(probes + "/health/live", timeout=PATIENCE_SECONDS).status_code)

    look()
    daemon.hang()
    wait_until(lambda: "the gate will hang" in daemon.text())
    client = socket.create_connection(("127.0.0.1", int(daemon.url.rsplit(":", 1)[1])))
    try:
        while True:
            look()
            time.sleep(PAUSE_SECONDS)
    except requests.RequestException:
        pass  # it has ended
    client.close()
    assert daemon.wait() == -signal.SIGABRT
    assert set(ready) == set(live) == {200, 503}
    assert ready == sorted(ready) and live == sorted(live)
    assert "the gate has not moved for" in daemon.text()
    assert "hang_parked" in daemon.text()
    assert "the gate does not move any more: the watchdog ends the process" in daemon.text()


@waits
def test_a_drain_that_hangs_ends_by_the_watchdog(stalling):
    daemon = stalling("park", stall_seconds="2", drain_seconds="80000")
    daemon.hang()
    wait_until(lambda: "the engine's thread will hang" in daemon.text())
    daemon.process.send_signal(signal.SIGTERM)
    assert daemon.wait() == -signal.SIGABRT


@waits
def test_the_watchdog_ends_a_process_whose_log_nobody_reads(stalling):
    daemon = stalling("park", stall_seconds="2", log_level="trace", read_log=False,
                      pipe_bytes=4096)
    # More than the pipe takes.
    with requests.Session() as session:
        for _ in range(50):
            assert session.get(
                daemon.url + "/version", headers={"X-Request-Id": "x" * 128},
                timeout=PATIENCE_SECONDS).status_code == 200
    daemon.hang()
    # The stacks do not fit anywhere, or only in part; it ends all the same.
    assert daemon.process.wait(PATIENCE_SECONDS) in (-signal.SIGABRT, -signal.SIGALRM)


def test_while_draining_who_asks_is_told(stalling):
    """The drain goes on for as long as the engine hangs."""
    daemon = stalling("park", stall_seconds="80000", drain_seconds="80000")
    model = daemon.model_name()
    body = {"model": model, "prompt": "a", "max_tokens": 1}
    daemon.hang()
    # Before it does, a drain would find nothing that runs, and be over at once.
    wait_until(lambda: "the engine's thread will hang" in daemon.text())
    kept = requests.Session()
    assert kept.get(daemon.url + "/health/ready", timeout=PATIENCE_SECONDS).status_code == 200
    daemon.process.send_signal(signal.SIGTERM)
    wait_until(lambda: "stopping: running requests" in daemon.text())

    def ready():
        return requests.get(daemon.url + "/health/ready", timeout=PATIENCE_SECONDS)

    # It says so as soon as the signal comes, and closes connections once the drain has begun.
    wait_until(lambda: ready().headers.get("Connection") == "close")
    assert ready().status_code == 503
    assert ready().json()["status"] == "shutting_down"
    assert daemon.status("/health/live") == 200
    refused = requests.post(daemon.url + "/v1/completions", json=body, timeout=PATIENCE_SECONDS)
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "shutting_down"
    assert int(refused.headers["Retry-After"]) >= 1
    assert refused.headers["Connection"] == "close"
    # A connection that was kept open is not kept any longer; its next request is told as well.
    assert kept.get(daemon.url + "/health/ready", timeout=PATIENCE_SECONDS).status_code == 503
    assert daemon.process.poll() is None
    daemon.process.send_signal(signal.SIGTERM)  # the second one: now
    assert daemon.wait() == 0


@waits
def test_a_daemon_that_was_stopped_for_long_goes_on(stalling):
    """SIGSTOP in the middle of requests for longer than the watchdog's patience."""
    daemon = stalling("park", stall_seconds="4")
    model = daemon.model_name()
    body = {"model": model, "prompt": "a", "max_tokens": 200, "n": 16, "ignore_eos": True}
    asked = threading.Thread(
        target=lambda: requests.post(daemon.url + "/v1/completions", json=body, timeout=300))
    asked.start()
    daemon.process.send_signal(signal.SIGSTOP)
    time.sleep(7)  # longer than 1.5 times 4 s
    daemon.process.send_signal(signal.SIGCONT)
    asked.join()
    assert daemon.status("/health/live") == 200
    daemon.process.send_signal(signal.SIGTERM)
    assert daemon.wait() == 0


def test_an_engine_that_fails_tells_its_clients_and_ends_the_process(stalling):
    """A pass fails, as with a GPU that is lost: exit code 1, so that it is started again."""
    daemon = stalling("fail")
    model = daemon.model_name()
    body = {"model": model, "prompt": "a", "max_tokens": 50, "ignore_eos": True, "stream": True,
            "n": 2, "temperature": 0}
    daemon.hang()
    wait_until(lambda: "four more passes" in daemon.text())
    answer = requests.post(daemon.url + "/v1/completions", json=body, timeout=PATIENCE_SECONDS)
    # What there is of the text, then the error.
    assert answer.status_code == 200
    assert '"text"' in answer.text and "gpu0 is lost" in answer.text
    assert answer.text.index('"text"') < answer.text.index("gpu0 is lost")
    assert daemon.wait() == 1
    assert "the engine has failed, and the daemon ends: gpu0 is lost" in daemon.text()


def test_a_daemon_on_a_simulated_gpu_answers_and_ends_when_it_is_lost(stalling):
    daemon = stalling("gpu", devices="auto")
    wait_until(lambda: "rank 0: gpu0 Simulated GPU" in daemon.text())
    assert "the model fits on all GPUs" in daemon.text()
    model = daemon.model_name()
    body = {"model": model, "prompt": "Once upon", "max_tokens": 4, "seed": 1}
    texts = {requests.post(daemon.url + "/v1/completions", json=body, timeout=PATIENCE_SECONDS)
             .json()["choices"][0]["text"] for _ in range(2)}
    assert len(texts) == 1 and texts != {""}
    metrics = requests.get(daemon.url + "/metrics", timeout=PATIENCE_SECONDS).text
    for kind in ("weights", "kv", "activations"):
        value = re.search(rf'lockstep_gpu_memory_bytes{{.*gpu="0",kind="{kind}"}} (\S+)', metrics)
        assert float(value[1]) > 0, kind
    assert float(re.search(r'lockstep_gpu_pass_seconds_total{.*gpu="0"} (\S+)', metrics)[1]) > 0
    daemon.hang()
    wait_until(lambda: "the GPU is lost" in daemon.text())
    answer = requests.post(daemon.url + "/v1/completions", json=body, timeout=PATIENCE_SECONDS)
    assert answer.status_code == 500
    assert "gpu0" in answer.json()["error"]["message"]
    assert daemon.wait() == 1
