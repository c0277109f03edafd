"""The real daemon on a free port, with a real model.

LOCKSTEPD names the program (default: build/release/lockstepd), LOCKSTEP_TEST_MODEL another model than
the bundled one for the tests that need no particular one. LOCKSTEP_SANITIZER_REPORTS names a folder
for what sanitizers of an instrumented program report: a report fails the test that it comes in.
"""

import functools
import json
import os
import pathlib
import queue
import re
import signal
import socket
import subprocess
import threading
import time

import openai
import pytest
import requests

ROOT = pathlib.Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "tests/fixtures"
DEMO = ROOT / "config/demo.gguf"  # the bundled model
PLAIN = FIXTURES / "vocabularies/spm.gguf"  # knows SentencePiece's tokens and has no chat template
PROGRAM = pathlib.Path(os.environ.get("LOCKSTEPD", ROOT / "build/release/lockstepd"))
# Nothing here waits so long unless something hangs.
PATIENCE_SECONDS = 300
# Options with which a request for all the context outlasts every test, though its client may not
# read a word.
ENDLESS = ("--context", "65536", "--write-seconds", "3600", "--max-unsent-bytes", str(2**30))


def pytest_configure(config):
    config.addinivalue_line("markers", "asked_last: the test runs after all that have no such mark")


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: item.get_closest_marker("asked_last") is not None)


SANITIZERS = ("ASAN", "UBSAN", "TSAN")
SANITIZER_REPORTS = os.environ.get("LOCKSTEP_SANITIZER_REPORTS")
if SANITIZER_REPORTS:
    pathlib.Path(SANITIZER_REPORTS).mkdir(parents=True, exist_ok=True)
    for _name in SANITIZERS:  # the first report ends the daemon, with a code that no test expects
        os.environ[f"{_name}_OPTIONS"] = (
            f"log_path={SANITIZER_REPORTS}/{_name.lower()}:halt_on_error=1:exitcode=99:"
            "print_stacktrace=1:handle_abort=0")


def take_reports(folder):
    """What sanitizers have reported there; the next test finds none of it."""
    texts = []
    for path in sorted(pathlib.Path(folder).iterdir()):
        texts.append(path.read_text(errors="replace"))
        path.unlink()
    return texts


def clean_environment(**more):
    """The environment without options of the program's."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LOCKSTEP_")}
    return {**kept, **more}


class Daemon:
    """A running `lockstepd serve`, with its log as a list of lines."""

    def __init__(self, model, *options, environment=None, launcher=(), pass_fds=()):
        command = [*launcher, str(PROGRAM), "serve", "--model", str(model), "--port", "0", *options]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=clean_environment(**(environment or {})),
            pass_fds=pass_fds,
        )
        self.log = []
        self._lines = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.url = self.wait_for_line(
            r'listening on (https?://[^\s"]+|unix:[^\s"]+)').group(1)

    def _read(self):
        for line in self.process.stderr:
            self.log.append(line.rstrip("\n"))
            self._lines.put(line)
        self._lines.put(None)

    def wait_for_line(self, pattern):
        """The match of the next log line that has the pattern."""
        end = time.monotonic() + PATIENCE_SECONDS
        while True:
            line = self._lines.get(timeout=max(0.01, end - time.monotonic()))
            assert line is not None, f"ended before {pattern!r}: " + "\n".join(self.log)
            if found := re.search(pattern, line):
                return found

    def wait_until_logged(self, text):
        """A line has the text. The log comes by a way of its own: later than what it tells of."""
        wait_until(lambda: any(text in line for line in self.log))

    def wait_until_ready(self):
        wait_until(lambda: self.get("/health/ready").status_code == 200)
        return self

    def get(self, path, **more):
        return requests.get(self.url + path, timeout=PATIENCE_SECONDS, **more)

    def post(self, path, body, **more):
        return requests.post(self.url + path, json=body, timeout=PATIENCE_SECONDS, **more)

    def post_bytes(self, path, body, content_type="application/json"):
        headers = {"Content-Type": content_type} if content_type else {}
        return requests.post(
            self.url + path, data=body, headers=headers, timeout=PATIENCE_SECONDS
        )

    def events(self, path, body, **more):
        """The data of every event of a stream; the last one is the string "[DONE]"."""
        answer = self.post(path, {**body, "stream": True}, stream=True, **more)
        assert answer.status_code == 200, answer.text
        assert answer.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        return parse_events(answer.content)

    def model_name(self):
        return self.get("/v1/models").json()["data"][0]["id"]

    def client(self, **more):
        return openai.OpenAI(
            base_url=self.url + "/v1", api_key="none", timeout=PATIENCE_SECONDS, **more
        )

    def metric(self, name, **labels):
        """The value of the series of this name whose labels include these; their sum if several."""
        total = None
        for line in self.get("/metrics").text.splitlines():
            if not line.startswith(name):
                continue
            match = re.fullmatch(r"(\w+)(?:\{(.*)\})? (\S+)", line)
            if not match or match[1] != name:
                continue
            found = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', match[2] or ""))
            if all(found.get(key) == value for key, value in labels.items()):
                total = (total or 0) + float(match[3])
        assert total is not None, f"no series {name} {labels}"
        return total

    def reconfigure(self, path, **options):
        """Its configuration file with these, read again."""
        path.write_text(json.dumps(options))
        self.process.send_signal(signal.SIGHUP)
        self.wait_for_line("the configuration was read again")

    def stop(self):
        """SIGTERM; the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_SECONDS)


def parse_events(content):
    text = content.decode()
    assert text.endswith("\n\n")
    events = [event for event in text.split("\n\n") if event and not event.startswith(":")]
    assert all(event.startswith("data: ") for event in events), text
    data = [event.removeprefix("data: ") for event in events]
    assert data[-1] == "[DONE]"
    return [json.loads(part) for part in data[:-1]] + ["[DONE]"]


def wait_until(condition, pause_seconds=0.02):
    end = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(pause_seconds)


def free_addresses(count):
    """Addresses of this machine whose ports nobody has."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    addresses = [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
    for one in sockets:
        one.close()
    return addresses


@functools.cache
def read_bundled():
    from gguf import GGUFReader
    return GGUFReader(DEMO)


def write_with_template(template, path):
    """The bundled model under another chat template: a text, or several by their names."""
    from gguf import GGUFValueType, GGUFWriter
    from gguf.scripts.gguf_new_metadata import MetadataDetails, copy_with_new_metadata

    reader = read_bundled()
    writer = GGUFWriter(path, arch=reader.fields["general.architecture"].contents())
    copy_with_new_metadata(reader, writer, {
        "tokenizer.chat_template": MetadataDetails(GGUFValueType.STRING, template)}, [])
    return path


def run_program(*arguments, environment=None, **more):
    return subprocess.run(
        [str(PROGRAM), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        env=clean_environment(**(environment or {})),
        **more,
    )


def check_health(*arguments, **more):
    return run_program("check-health", "--timeout", PATIENCE_SECONDS, *arguments, **more)


@pytest.fixture(scope="session", autouse=True)
def program():
    if not PROGRAM.exists():
        pytest.skip(f"{PROGRAM} is not built (LOCKSTEPD names another)")
    return PROGRAM


@pytest.fixture(autouse=True)
def no_sanitizer_reports():
    yield
    if SANITIZER_REPORTS:
        reports = take_reports(SANITIZER_REPORTS)
        assert not reports, "\n".join(reports)


@pytest.fixture(scope="session")
def model_path():
    return pathlib.Path(os.environ.get("LOCKSTEP_TEST_MODEL", DEMO))


@pytest.fixture(scope="session")
def daemon(model_path):
    """One daemon for all tests that only ask it things."""
    running = Daemon(model_path, "--served-model-name", "stories,alias,org/model", "--sequences", "8")
    running.wait_until_ready()
    yield running
    assert running.stop() == 0


@pytest.fixture(scope="session")
def chat_daemon():
    """A daemon whose model has a chat template: the bundled one."""
    running = Daemon(DEMO, "--served-model-name", "demo").wait_until_ready()
    yield running
    assert running.stop() == 0


@pytest.fixture
def start(model_path):
    """Starts daemons of a test's own; ends what is left of them. One worker each: the model is tiny,
    and other tests want the machine as well."""
    running = []

    def start_one(*options, model=model_path, **more):
        running.append(Daemon(model, "--workers", "1", *options, **more))
        return running[-1]

    yield start_one
    for one in running:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait()
