"""The log: its formats, what it never says, and that nobody waits for whoever reads it."""

import fcntl
import json
import os
import re
import signal
import socket
import subprocess

import pytest
import requests

from conftest import (
    PATIENCE_SECONDS, PROGRAM, clean_environment, parse_events, wait_until,
)

SECRET = "the-secret-of-the-prompt"


def fields(line):
    """The fields of a line in logfmt."""
    found = re.findall(r'([a-z_]+)=("(?:[^"\\]|\\.)*"|[^ "]+)(?: |$)', line)
    return {key: json.loads(value) if value[0] == '"' else value for key, value in found}


def ask(daemon, **more):
    body = {"model": "m", "prompt": SECRET, "max_tokens": 5, "ignore_eos": True, **more}
    return daemon.post("/v1/completions", body, headers={"X-Request-Id": "the-one"})


def test_a_request_is_one_line_in_logfmt(start):
    daemon = start("--served-model-name", "m").wait_until_ready()
    usage = ask(daemon).json()["usage"]
    line = fields(daemon.wait_for_line(".*id=the-one.*").group(0))
    assert line["level"] == "info" and line["msg"] == "request"
    assert line["method"] == "POST" and line["path"] == "/v1/completions"
    assert line["status"] == "200" and line["client"] == "127.0.0.1"
    assert int(line["prompt_tokens"]) == usage["prompt_tokens"]
    assert int(line["generated_tokens"]) == 5 and line["finish"] == "length"
    assert 0 <= int(line["cached_tokens"]) <= usage["prompt_tokens"]
    assert 0 <= float(line["queue_seconds"]) < float(line["first_token_seconds"])
    assert 0 < float(line["first_token_seconds"]) <= float(line["seconds"])
    assert 0 <= float(line["per_token_seconds"]) <= float(line["seconds"])
    assert sum("id=the-one" in text for text in daemon.log) == 1
    for text in daemon.log:
        assert {"time", "level", "msg"} <= set(fields(text)), text


def test_a_request_is_one_line_in_json(start):
    daemon = start("--served-model-name", "m", "--log-format", "json").wait_until_ready()
    ask(daemon, stream=True)
    line = json.loads(daemon.wait_for_line(".*the-one.*").group(0))
    assert line["msg"] == "request" and line["status"] == 200
    assert line["generated_tokens"] == 5 and line["first_token_seconds"] > 0
    for text in daemon.log:
        assert {"time", "level", "msg"} <= set(json.loads(text))


@pytest.mark.parametrize("level", ["info", "trace"])
def test_no_prompt_and_no_answer_is_logged_unless_asked(start, level):
    daemon = start("--served-model-name", "m", "--log-level", level).wait_until_ready()
    answer = ask(daemon, max_tokens=40, temperature=0).json()["choices"][0]["text"]
    daemon.post("/v1/completions", {"model": "m", "prompt": {"a": SECRET}})
    daemon.post("/tokenize", {"model": "m", "prompt": SECRET})
    daemon.post_bytes("/v1/completions", b'{"prompt": "' + SECRET.encode() + b"\xff")
    daemon.stop()
    daemon._reader.join()
    text = "\n".join(daemon.log)
    assert "the-one" in text
    assert SECRET not in text and json.dumps(answer)[1:-1] not in text


def test_prompts_are_logged_when_asked(start):
    daemon = start("--served-model-name", "m", "--log-prompts", "true").wait_until_ready()
    ask(daemon)
    line = fields(daemon.wait_for_line(".*id=the-one.*").group(0))
    assert json.loads(line["body"])["prompt"] == SECRET


def test_a_client_cannot_write_lines_or_fields_of_its_own(start):
    daemon = start().wait_until_ready()
    identity = 'i"\\status=500'
    daemon.get('/v1/models/a%22%20status=500%20msg="b%c3%a9', headers={"X-Request-Id": identity})
    line = fields(daemon.wait_for_line("msg=request.*route=/v1/models/:id.*").string)
    assert line["path"] == '/v1/models/a" status=500 msg="b\u00e9'
    assert line["id"] == identity
    assert line["status"] == "404"
    daemon.get("/a%0Atime=0%20level=critical%1b%5B31m")
    daemon.stop()
    assert all(text.isascii() and text.isprintable() for text in daemon.log)


def test_what_is_refused_at_the_gate_is_one_line_too_but_no_flood(start):
    daemon = start().wait_until_ready()
    host, port = daemon.url.removeprefix("http://").split(":")
    kinds = {b"PUT /x HTTP/1.1\r\nHost: localhost\r\n\r\n": 404, b"GET / HTTP/3.0\r\n\r\n": 505,
             b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999\r\n\r\n": 413}
    for head, status in kinds.items():
        with socket.create_connection((host, int(port)), timeout=PATIENCE_SECONDS) as connection:
            connection.sendall(head)
            identity = re.search(rb"X-Request-Id: (\S+)", connection.recv(65536))[1].decode()
        line = fields(daemon.wait_for_line(f".*id={identity}.*").group(0))
        assert line["msg"] == "request" and line["status"] == str(status)
        assert line["client"] == "127.0.0.1" and float(line["seconds"]) >= 0
    with requests.Session() as session:
        for _ in range(500):
            assert session.get(daemon.url + "/nowhere").status_code == 404
    told = daemon.wait_for_line(r"(\d+) requests that were refused at the gate have no line")
    daemon.stop()
    daemon._reader.join()
    lines = sum("path=/nowhere" in text for text in daemon.log)
    assert 50 < lines < 500 and int(told[1]) > 0
    assert lines + sum(int(match[1]) for text in daemon.log if (match := re.search(
        r"(\d+) requests that were refused at the gate", text))) == 500


class UnreadDaemon:
    """A daemon whose standard error is whatever is given, so that its log does not name its port."""

    def __init__(self, model, stderr, *options, **more):
        self.process = subprocess.Popen(
            [PROGRAM, "serve", "--model", str(model), "--port", "0", "--workers", "1",
             "--served-model-name", "m", "--log-level", "trace", *options],
            stderr=stderr, env=clean_environment(), **more)
        self.url = None
        wait_until(lambda: self.process.poll() is not None or self.find_port())
        wait_until(lambda: self.get("/health/ready").status_code == 200)

    def find_port(self):
        """Of its listening socket: the one in /proc/net/tcp whose inode it holds open."""
        inodes = set()
        for name in os.listdir(f"/proc/{self.process.pid}/fd"):
            try:
                target = os.readlink(f"/proc/{self.process.pid}/fd/{name}")
            except OSError:
                continue
            inodes.update(re.findall(r"socket:\[(\d+)\]", target))
        with open("/proc/net/tcp") as table:
            for line in table.read().splitlines()[1:]:
                parts = line.split()
                if parts[3] == "0A" and parts[9] in inodes:
                    self.url = f"http://127.0.0.1:{int(parts[1].split(':')[1], 16)}"
        return self.url is not None

    def get(self, path, **more):
        return requests.get(self.url + path, timeout=PATIENCE_SECONDS, **more)

    def dropped(self):
        text = self.get("/metrics").text
        return float(re.search(r"^lockstep_log_messages_dropped_total (\S+)", text, re.M)[1])

    def works(self):
        body = {"model": "m", "prompt": "a", "max_tokens": 4, "stream": True}
        answer = requests.post(self.url + "/v1/completions", json=body, timeout=PATIENCE_SECONDS)
        return answer.status_code == 200 and parse_events(answer.content)[-1] == "[DONE]"

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_SECONDS)


def test_a_pipe_that_nobody_reads_stops_nothing(model_path):
    read_end, write_end = os.pipe()
    try:
        fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, 4096)
        daemon = UnreadDaemon(model_path, write_end, "--log-prompts", "true")
        # More than the pipe, the queue (4 MiB) and the writer's hand take together.
        body = {"model": "m", "prompt": "a", "max_tokens": 1, "user": "x" * 900_000}
        for _ in range(8):
            assert requests.post(
                daemon.url + "/v1/completions", json=body, timeout=PATIENCE_SECONDS
            ).status_code == 200
        assert daemon.works()
        wait_until(lambda: daemon.dropped() > 0)  # a request's line comes after its answer
        assert daemon.stop() == 0  # though nobody reads what is left
    finally:
        os.close(read_end)
        os.close(write_end)


def test_a_full_disk_stops_nothing_and_is_counted(model_path):
    with open("/dev/full", "w") as full:
        daemon = UnreadDaemon(model_path, full)
    assert daemon.works()
    wait_until(lambda: daemon.dropped() > 0)
    assert daemon.stop() == 0


def test_a_reader_that_leaves_stops_nothing(model_path):
    read_end, write_end = os.pipe()
    daemon = UnreadDaemon(model_path, write_end)
    os.close(write_end)
    os.close(read_end)
    assert daemon.works()
    wait_until(lambda: daemon.dropped() > 0)
    assert daemon.stop() == 0


def test_closed_standard_descriptors_are_not_given_to_files(model_path):
    """Else the log would go to whatever is opened first, into a client's connection, say."""
    daemon = UnreadDaemon(
        model_path, None, preexec_fn=lambda: [os.close(number) for number in (0, 1, 2)])
    assert daemon.works()
    for number in (0, 1, 2):
        assert os.readlink(f"/proc/{daemon.process.pid}/fd/{number}") == "/dev/null"
    assert daemon.stop() == 0
