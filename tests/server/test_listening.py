"""Where the daemon listens besides a port: Unix sockets, and sockets that are passed to it."""

import json
import os
import re
import signal
import socket
import stat
import subprocess

import pytest
import requests

from conftest import (
    PATIENCE_SECONDS, PROGRAM, check_health, clean_environment, run_program, wait_until,
)


def ask(family, address, path="/health/live", body=None):
    """The status of one request over a connection of its own, and the answer's body."""
    text = b"" if body is None else json.dumps(body).encode()
    with socket.socket(family) as client:
        client.settimeout(PATIENCE_SECONDS)
        client.connect(address)
        client.sendall(
            (f"{'GET' if body is None else 'POST'} {path} HTTP/1.1\r\nHost: localhost\r\n"
             "Content-Type: application/json\r\nConnection: close\r\n"
             f"Content-Length: {len(text)}\r\n\r\n").encode() + text)
        answer = client.makefile("rb").read()
    return int(answer.split()[1]), answer.split(b"\r\n\r\n", 1)[1]


def ask_path(path, *arguments):
    return ask(socket.AF_UNIX, str(path), *arguments)


@pytest.fixture
def place(tmp_path):
    """A path short enough for a socket."""
    path = tmp_path / "socket"
    if len(str(path)) > 107:
        pytest.skip(f"{path} is too long for a Unix socket")
    return path


def test_a_unix_socket_serves_streams_and_is_removed_at_the_end(start, place):
    daemon = start("--host", f"unix:{place}", "--served-model-name", "m", "--socket-mode", "0600")
    assert daemon.url == f"unix:{place}"
    wait_until(lambda: ask_path(place, "/health/ready")[0] == 200)
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    status, answer = ask_path(place, "/v1/completions", {
        "model": "m", "prompt": "Once", "max_tokens": 3, "stream": True})
    assert status == 200 and b"data: [DONE]" in answer
    assert daemon.stop() == 0
    assert not place.exists()


def test_a_socket_that_a_killed_daemon_left_is_taken_over(start, place):
    first = start("--host", f"unix:{place}")
    first.process.send_signal(signal.SIGKILL)
    first.process.wait()
    assert place.exists()
    start("--host", f"unix:{place}")
    assert ask_path(place)[0] == 200


def test_a_socket_in_use_and_a_file_in_its_place_are_refused(start, place, model_path):
    def try_to_start():
        return subprocess.run(
            [str(PROGRAM), "--model", str(model_path), "--host", f"unix:{place}"],
            capture_output=True, text=True, timeout=PATIENCE_SECONDS, env=clean_environment())

    daemon = start("--host", f"unix:{place}")
    refused = try_to_start()
    assert refused.returncode == 1 and str(place) in refused.stderr
    wait_until(lambda: ask_path(place, "/health/ready")[0] == 200)
    assert daemon.stop() == 0
    place.write_text("precious")
    refused = try_to_start()
    assert refused.returncode == 1 and str(place) in refused.stderr
    assert place.read_text() == "precious"


def start_with_probes(start, *options, **more):
    """A daemon with an address for probes, and that address."""
    daemon = start("--served-model-name", "m", *options, **more)
    return daemon, daemon.wait_for_line(r'health and metrics on ([^\s"]+)')[1]


def test_the_address_for_probes_answers_health_and_metrics_alone(start):
    daemon, probes = start_with_probes(start, "--probe-host", "127.0.0.1", "--probe-port", "0")
    assert probes.startswith("http://127.0.0.1:") and probes != daemon.url
    daemon.wait_until_ready()
    for path in ("/health", "/health/live", "/health/ready", "/metrics"):
        for address in (probes, daemon.url):
            assert requests.get(address + path, timeout=PATIENCE_SECONDS).status_code == 200
    for path in ("/", "/v1/models", "/version", "/openapi.json"):
        assert requests.get(probes + path, timeout=PATIENCE_SECONDS).status_code == 404
        assert daemon.get(path).status_code == 200
    completion = {"model": "m", "prompt": "a", "max_tokens": 1}
    answer = requests.post(probes + "/v1/completions", json=completion, timeout=PATIENCE_SECONDS)
    assert answer.status_code == 404
    assert daemon.post("/v1/completions", completion).status_code == 200
    # What was refused there is counted with all the rest.
    assert daemon.metric("lockstep_http_rejected_total", reason="unknown") == 5
    host, port = probes.removeprefix("http://").split(":")
    checked = check_health("--probe-host", host, "--probe-port", port, "--port", "1")
    assert checked.returncode == 0, checked.stderr
    assert daemon.stop() == 0


def test_the_address_for_probes_may_be_a_path_and_is_removed_at_the_end(start, place):
    daemon, probes = start_with_probes(start, "--probe-host", f"unix:{place}")
    assert probes == f"unix:{place}"
    wait_until(lambda: ask_path(place, "/health/ready")[0] == 200)
    assert ask_path(place, "/health/live")[0] == 200
    assert ask_path(place, "/v1/models")[0] == 404
    checked = check_health("--probe-host", probes)
    assert checked.returncode == 0, checked.stderr
    assert daemon.stop() == 0
    assert not place.exists()


def test_a_crowd_at_the_first_address_leaves_the_probes_alone(start):
    """Not even a place in the queue of those that wait to be accepted is shared."""
    daemon, probes = start_with_probes(
        start, "--probe-host", "127.0.0.1", "--probe-port", "0", "--max-connections", "2")
    daemon.wait_until_ready()
    address = ("127.0.0.1", int(daemon.url.rsplit(":", 1)[1]))
    crowd = [socket.create_connection(address, timeout=PATIENCE_SECONDS) for _ in range(200)]
    wait_until(lambda: 'rejected_total{reason="connections"} 0' not in requests.get(
        probes + "/metrics", timeout=PATIENCE_SECONDS).text)
    for path in ("/health/ready", "/metrics"):
        assert requests.get(probes + path, timeout=PATIENCE_SECONDS).status_code == 200
    for client in crowd:
        client.close()
    assert daemon.stop() == 0


def test_where_few_files_may_be_open_every_gate_has_its_share(start):
    """The crowd is told that it is one; probes are answered at both addresses."""
    daemon, probes = start_with_probes(
        start, "--probe-host", "127.0.0.1", "--probe-port", "0", "--idle-seconds", "3600",
        launcher=("sh", "-c", 'ulimit -n 64; exec "$@"', "sh"))
    daemon.wait_until_ready().wait_until_logged("ready after")  # which comes after what is counted
    said = [re.search(r"--max-connections is 4096, but (\d+) connections are admitted: this process "
                      r"may have (\d+) files open", line) for line in daemon.log]
    admitted, limit = [match.groups() for match in said if match][-1]
    assert int(limit) == 64 and 8 <= int(admitted) < 64

    def health(address):
        return requests.get(address + "/health", timeout=PATIENCE_SECONDS).status_code

    for crowded in (daemon.url, probes):
        address = ("127.0.0.1", int(crowded.rsplit(":", 1)[1]))
        crowd = [socket.create_connection(address, timeout=PATIENCE_SECONDS) for _ in range(100)]
        # Once the last is turned away, the gate has seen them all.
        crowd[-1].sendall(b"GET /version HTTP/1.1\r\nHost: a\r\n\r\n")
        assert crowd[-1].recv(12).endswith(b" 503")
        assert [health(probes), health(daemon.url)] == [200, 200]
        assert requests.get(probes + "/metrics", timeout=PATIENCE_SECONDS).status_code == 200
        for client in crowd:
            client.close()
        wait_until(lambda: daemon.get("/version").status_code == 200)
    assert not any("Cannot accept" in line for line in daemon.log)
    assert daemon.stop() == 0


def test_an_address_for_probes_that_cannot_be_had_is_named(start, model_path):
    daemon = start()
    port = daemon.url.rsplit(":", 1)[1]

    def refused(*options):
        return run_program(
            "serve", "--model", str(model_path), "--port", "0", "--probe-host", *options)

    taken = refused("127.0.0.1", "--probe-port", port)
    assert taken.returncode == 1 and f"--probe-host: cannot listen on 127.0.0.1 port {port}" in taken.stderr
    passed = refused("systemd")
    assert passed.returncode == 2 and "unix:PATH" in passed.stderr


def start_with_passed(model_path, *passed, names=""):
    """The daemon as a service manager starts it: descriptors from 3 on, and variables about them."""
    numbers = [os.dup(one.fileno()) for one in passed]

    def place_descriptors():
        # Away from 3 and what follows first, so that none is overwritten before it has moved.
        high = [os.dup2(number, 100 + index) for index, number in enumerate(numbers)]
        for index, number in enumerate(high):
            os.dup2(number, 3 + index)
            os.close(number)

    kept = range(3, 3 + len(numbers))
    return subprocess.Popen(
        ["sh", "-c", 'LISTEN_PID=$$ exec "$@"', "sh", str(PROGRAM), "--model", str(model_path),
         "--workers", "1", "--served-model-name", "m"],
        preexec_fn=place_descriptors, pass_fds=kept, stderr=subprocess.PIPE, text=True,
        env=clean_environment(LISTEN_FDS=str(len(numbers)), LISTEN_FDNAMES=names))


def listening(process, count):
    """The addresses that the log names."""
    found = []
    for line in process.stderr:
        if "listening on " in line:
            found.append(line.split("listening on ")[1].strip().strip('"'))
        if len(found) == count:
            return found
    raise AssertionError("ended early")


def test_passed_sockets_are_served_and_what_else_is_passed_is_left_alone(model_path, place):
    over_ip, by_path = socket.socket(), socket.socket(socket.AF_UNIX)
    over_ip.bind(("127.0.0.1", 0))
    over_ip.listen()
    by_path.bind(str(place))
    by_path.listen()
    memory = open(os.memfd_create("weights"), "w+b")
    memory.write(b"not a socket")
    memory.flush()
    process = start_with_passed(model_path, memory, over_ip, by_path, names="weights:api:local")
    try:
        port = over_ip.getsockname()[1]
        assert listening(process, 2) == [f"http://127.0.0.1:{port}", f"unix:{place}"]
        assert ask(socket.AF_INET, ("127.0.0.1", port))[0] == 200
        assert ask_path(place)[0] == 200
        process.send_signal(signal.SIGTERM)
        process.stderr.read()
        assert process.wait(PATIENCE_SECONDS) == 0
        assert memory.seek(0) == 0 and memory.read() == b"not a socket"
    finally:
        process.kill()
        process.wait()


def test_a_restart_behind_passed_sockets_refuses_nobody(model_path):
    """The socket is the service manager's: while no daemon runs, clients wait in it."""
    passed = socket.socket()
    passed.bind(("127.0.0.1", 0))
    passed.listen()
    address = passed.getsockname()
    for _ in range(2):
        waiting = socket.create_connection(address, timeout=PATIENCE_SECONDS)
        waiting.sendall(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        process = start_with_passed(model_path, passed)
        try:
            assert waiting.makefile("rb").read().startswith(b"HTTP/1.1 200 ")
            process.send_signal(signal.SIGTERM)
            process.stderr.read()
            assert process.wait(PATIENCE_SECONDS) == 0
        finally:
            process.kill()
            process.wait()
            waiting.close()


def warnings_of(daemon):
    daemon.wait_until_ready()
    return [line for line in daemon.log if "level=warn" in line and "loopback" in line]


def test_an_open_address_without_keys_or_tls_is_warned_of_by_its_options(start, place):
    options = "--host", "0.0.0.0", "--probe-host", "0.0.0.0", "--probe-port", "0"
    daemon = start(*options)
    keys, tls = warnings_of(daemon)
    assert "--api-keys" in keys and "http://0.0.0.0:" in keys
    assert "--tls-certificate" in tls and "--tls-key" in tls
    assert any("(--probe-host) tells health and metrics" in line for line in daemon.log)
    for closed in (("--host", "127.0.0.1"), ("--host", f"unix:{place}")):
        daemon = start(*closed)
        daemon.wait_for_line("ready after")
        assert not [line for line in daemon.log if "without a key" in line or "no TLS" in line]
