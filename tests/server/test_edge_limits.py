"""The limits of the edge as options of the real daemon: exact statuses, cuts that are counted."""

import json
import os
import socket
import subprocess
import sys
import time

import pytest

from conftest import ENDLESS, PATIENCE_SECONDS, ROOT, wait_until


def connect(daemon, source="127.0.0.1"):
    host, port = daemon.url.removeprefix("http://").split(":")
    connection = socket.create_connection(
        (host, int(port)), timeout=PATIENCE_SECONDS, source_address=(source, 0))
    return connection


def status_of(connection):
    """The status of the next answer; 0 if the connection ends without one."""
    head = b""
    while b"\r\n" not in head:
        try:
            more = connection.recv(65536)
        except ConnectionResetError:
            return 0
        if not more:
            return 0
        head += more
    return int(head.split(b" ")[1])


def ask(daemon, request, source="127.0.0.1"):
    with connect(daemon, source) as connection:
        try:
            connection.sendall(request)
        except (BrokenPipeError, ConnectionResetError):
            pass  # it has been refused already
        return status_of(connection)


def get(path="/version", lines=b""):
    return b"GET " + path.encode() + b" HTTP/1.1\r\nHost: localhost\r\n" + lines + b"\r\n"


def post(body, path="/tokenize", lines=b""):
    return (b"POST " + path.encode() + b" HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\n" + lines
            + b"Content-Length: " + str(len(body)).encode() + b"\r\n\r\n" + body)


def around(limit):
    return limit - 1, limit, limit + 1, 10 * limit


@pytest.fixture(scope="module")
def small(model_path):
    """A daemon with every limit of size a small one."""
    from conftest import Daemon
    running = Daemon(
        model_path, "--served-model-name", "m", "--workers", "1", "--max-head-bytes", "1024",
        "--max-head-fields", "8", "--max-target-bytes", "64", "--max-body-bytes", "2048",
        "--max-json-depth", "8").wait_until_ready()
    yield running
    assert running.stop() == 0


def test_heads(small):
    for size in around(1024):
        head = get(lines=b"X: " + b"x" * (size - len(get(lines=b"X: \r\n"))) + b"\r\n")
        assert len(head) == size
        assert ask(small, head) == (200 if size <= 1024 else 431)
    for count in around(8):
        assert ask(small, get(lines=b"A: b\r\n" * (count - 1))) == (200 if count <= 8 else 431)
    for size in around(64):
        target = "/version?" + "q" * (size - 9)
        assert ask(small, get(target)) == (200 if size <= 64 else 414)


def test_bodies(small):
    for size in around(2048):
        body = json.dumps({"model": "m", "prompt": ""}).encode()
        body = body[:-2] + b"a" * (size - len(body)) + b'"}'
        assert len(body) == size
        assert ask(small, post(body)) == (200 if size <= 2048 else 413)


@pytest.mark.parametrize("path", ["/tokenize", "/v1/completions"])
def test_json_depth(small, path):
    for depth in around(8):
        nested = "[" * (depth - 1) + "]" * (depth - 1)  # the body's object is the first level
        body = f'{{"model":"m","prompt":"a","max_tokens":1,"unknown":{nested}}}'.encode()
        assert ask(small, post(body, path)) == (200 if depth <= 8 else 400), depth


def test_json_depth_is_64_by_default(daemon):
    for depth in around(64):
        nested = "[" * (depth - 1) + "]" * (depth - 1)
        body = f'{{"model":"stories","prompt":"a","x":{nested}}}'
        assert ask(daemon, post(body.encode())) == (200 if depth <= 64 else 400), depth


def test_encodings_and_lengths(small):
    body = b'{"model":"m","prompt":"a"}'
    for encoding, status in ((b"identity", 200), (b"gzip", 415), (b"br", 415)):
        request = post(body, lines=b"Content-Encoding: " + encoding + b"\r\n")
        assert ask(small, request) == status
    for lines in (b"Transfer-Encoding: chunked\r\n", b"Content-Length: 26\r\n",
                  b"Content-Length: 27\r\n"):
        with connect(small) as connection:
            connection.sendall(post(body, lines=lines) + get())
            assert status_of(connection) == 400
            # One answer, and the connection is closed: nothing after it is a request.
            while connection.recv(65536):
                pass
    for reason in ("encoding", "malformed"):
        assert small.metric("lockstep_http_rejected_total", reason=reason) >= 2


def test_slow_clients_are_cut_and_counted(start, tmp_path):
    path = tmp_path / "c.json"
    path.write_text("{}")
    daemon = start("--config", path, "--served-model-name", "m").wait_until_ready()
    head = post(b"x" * 1000).replace(b"x" * 1000, b"")
    rate = {"body-grace-seconds": 0.1, "min-body-rate": 1000}
    cases = {
        "head": (b"GET /version HT", 408, {"head-seconds": 0.1}),
        # 400 bytes earn 0.4 s at the rate, so the deadline of the body comes first.
        "body": (head + b"x" * 400, 408, {**rate, "body-seconds": 0.1}),
        "rate": (head, 408, rate),
        "idle": (b"", 0, {"idle-seconds": 0.1}),
    }
    expected = dict.fromkeys(cases, 0)
    for reason, (request, status, limits) in cases.items():
        # For this request alone: on a busy machine whoever reads the metrics is slow as well.
        daemon.reconfigure(path, **limits)
        assert ask(daemon, request) == status
        daemon.reconfigure(path)
        expected[reason] = 1
        assert expected == {reason: daemon.metric(
            "lockstep_http_connections_cut_total", reason=reason) for reason in cases}


def test_a_stream_that_nobody_reads_is_cut_and_its_request_cancelled(start):
    daemon = start("--served-model-name", "m", "--write-seconds", "0.3", "--max-unsent-bytes",
                   "4096").wait_until_ready()
    context = daemon.get("/v1/models").json()["data"][0]["max_model_len"]
    body = json.dumps({"model": "m", "prompt": "Once", "max_tokens": context - 32, "stream": True,
                       "n": 8, "ignore_eos": True, "logprobs": 5}).encode()
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        host, port = daemon.url.removeprefix("http://").split(":")
        connection.connect((host, int(port)))
        connection.sendall(post(body, "/v1/completions"))
        wait_until(lambda: daemon.metric("lockstep_http_connections_cut_total", reason="unsent")
                   + daemon.metric("lockstep_http_connections_cut_total", reason="write") == 1)
    wait_until(lambda: daemon.metric("lockstep_requests_running") == 0)
    assert daemon.post("/v1/completions", {"model": "m", "prompt": "a", "max_tokens": 1}).ok


def test_connections_in_all_and_per_address(start):
    daemon = start("--max-connections", "12", "--max-connections-per-address", "4",
                   "--idle-seconds", "3600").wait_until_ready()
    # The probes that waited for the daemon have left.
    wait_until(lambda: daemon.metric("lockstep_http_connections") == 1)
    held = []

    def open_one(source):
        held.append(connect(daemon, source))
        held[-1].sendall(get())
        return status_of(held[-1])

    for source in ("127.0.0.2", "127.0.0.3"):
        assert [open_one(source) for _ in range(5)] == [200] * 4 + [503]
    assert [open_one("127.0.0.4") for _ in range(4)] == [200] * 4
    # A network with fewer is given an idle place of the one with most, until all have as many.
    assert [open_one("127.0.0.5") for _ in range(4)] == [200] * 3 + [503]
    # Whoever watches is served all the same.
    for path in ("/health/live", "/health/ready", "/health", "/metrics"):
        begin = time.monotonic()
        assert ask(daemon, get(path), "127.0.0.2") == 200
        assert time.monotonic() - begin < PATIENCE_SECONDS
    assert daemon.metric("lockstep_http_rejected_total", reason="address") == 2
    # The last of them, and those whose places were given away.
    assert daemon.metric("lockstep_http_rejected_total", reason="connections") >= 4
    for connection in held:
        connection.close()
    wait_until(lambda: ask(daemon, get(), "127.0.0.5") == 200)


def test_health_and_metrics_answer_while_scrapes_and_requests_pile_up(start):
    """One thread for requests, held; hundreds of scrapes wait: a probe is not behind them all."""
    daemon = start("--http-threads", "1", "--served-model-name", "m", "--sequences", "1",
                   *ENDLESS).wait_until_ready()
    context = daemon.get("/v1/models").json()["data"][0]["max_model_len"]
    stream = daemon.post("/v1/completions", {
        "model": "m", "prompt": "Once", "max_tokens": context - 32, "n": 100, "ignore_eos": True,
        "stream": True}, stream=True)
    scrapes = [connect(daemon, f"127.0.0.{2 + index % 4}") for index in range(400)]
    for scrape in scrapes:
        scrape.sendall(get("/metrics"))
    assert ask(daemon, get("/health/live"), "127.0.0.9") == 200
    assert all(status_of(scrape) == 200 for scrape in scrapes)
    for scrape in scrapes:
        scrape.close()
    stream.close()


def test_hostile_clients_in_small(tmp_path):
    """The rig that is run in full for BENCHMARKS.md: functions alone are asserted here."""
    report = tmp_path / "report.json"
    result = subprocess.run(
        [sys.executable, ROOT / "scripts/serving/hostile_clients.py", "--program",
         os.environ.get("LOCKSTEPD", ROOT / "build/release/lockstepd"), "--model",
         ROOT / "config/demo.gguf", "--heads", "30", "--bodies", "30", "--readers", "30",
         "--idle", "60", "--addresses", "8", "--seconds", "2", "--deadline-seconds", "3",
         "--tolerance-seconds", str(PATIENCE_SECONDS / 10), "--rate", "5", "--json", report],
        capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert result.returncode == 0, result.stdout + result.stderr
    figures = json.loads(report.read_text())
    assert figures["good"]["during"]["failures"] == 0
    assert figures["good"]["during"]["requests"] > 0
    for kind in ("heads", "bodies", "readers", "idle"):
        assert figures["hostile"][kind]["opened"] >= (60 if kind == "idle" else 30)
        assert figures["hostile"][kind]["cut"] == figures["hostile"][kind]["opened"]
