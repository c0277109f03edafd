"""Start, load, drain, cancellation and end of the real daemon."""

import concurrent.futures
import pathlib
import re
import signal
import socket
import subprocess
import threading

import pytest
import requests

from conftest import (
    ENDLESS, PATIENCE_SECONDS, PROGRAM, clean_environment, parse_events, run_program, wait_until,
)
from openai_schema import check_error

STORY = {"model": "m", "prompt": "Once upon a time", "temperature": 1, "seed": 3,
         "ignore_eos": True}


def context_of(daemon):
    return daemon.get("/v1/models").json()["data"][0]["max_model_len"]


def long_request(daemon, **fields):
    """A request that takes as many steps as the context allows: hundreds, or for ever (ENDLESS)."""
    return {**STORY, "max_tokens": context_of(daemon) - 32, **fields}


def open_stream(daemon, **fields):
    """A long stream whose first event has come; the answer and an iterator over its bytes."""
    answer = daemon.post(
        "/v1/completions", long_request(daemon, stream=True, **fields), stream=True)
    assert answer.status_code == 200
    chunks = answer.iter_content(chunk_size=None)
    return answer, next(chunks), chunks


def test_sigterm_lets_running_requests_finish(start):
    daemon = start("--served-model-name", "m", "--drain-seconds", "80000").wait_until_ready()
    _, first, rest = open_stream(daemon)
    daemon.process.send_signal(signal.SIGTERM)
    events = parse_events(first + b"".join(rest))
    assert events[-1] == "[DONE]"
    assert events[-2]["choices"][0]["finish_reason"] == "length"
    assert daemon.process.wait(PATIENCE_SECONDS) == 0


def test_a_drain_without_time_cuts_streams_off_with_an_error_and_done(start):
    daemon = start("--served-model-name", "m", "--drain-seconds", "0", "--sequences", "1",
                   *ENDLESS).wait_until_ready()
    _, first, rest = open_stream(daemon)
    waiting = daemon.post("/v1/completions", long_request(daemon, n=15, stream=True), stream=True)
    daemon.process.send_signal(signal.SIGTERM)
    for content in (first + b"".join(rest), waiting.content):
        events = parse_events(content)
        assert events[-2]["error"]["code"] == "shutting_down"
        assert set(events[-2]["error"]) == {"message", "type", "param", "code"}
    assert daemon.process.wait(PATIENCE_SECONDS) == 0


def test_a_second_signal_ends_at_once(start):
    daemon = start("--served-model-name", "m", "--drain-seconds", "80000", "--sequences", "1",
                   *ENDLESS).wait_until_ready()
    running, _, _ = open_stream(daemon)
    daemon.process.send_signal(signal.SIGTERM)
    daemon.wait_for_line("stopping: running requests")
    daemon.process.send_signal(signal.SIGINT)
    assert daemon.process.wait(PATIENCE_SECONDS) == 0
    running.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_daemon_ends_with_0(start, number):
    daemon = start().wait_until_ready()
    daemon.process.send_signal(number)
    assert daemon.process.wait(PATIENCE_SECONDS) == 0


def test_a_signal_at_any_moment_of_the_start_ends_it_with_0(model_path):
    """While it loads, while it is about to be ready, and after."""
    for pause_ms in range(0, 400, 50):
        process = subprocess.Popen(
            [PROGRAM, "serve", "--model", model_path, "--port", "0", "--workers", "1"],
            stderr=subprocess.PIPE, env=clean_environment())
        line = b""
        while b"listening on" not in line:
            line = process.stderr.readline()
            assert line
        threading.Event().wait(pause_ms / 1000)
        process.send_signal(signal.SIGTERM)
        process.stderr.read()
        assert process.wait(PATIENCE_SECONDS) == 0


def cancelled(daemon):
    return daemon.metric("lockstep_requests_total", finish_reason="cancelled")


def is_idle(daemon):
    return (daemon.metric("lockstep_requests_running") == 0
            and daemon.metric("lockstep_requests_waiting") == 0
            and daemon.metric("lockstep_kv_cache_pages", state="used") == 0)


def test_clients_that_leave_stop_their_requests_running_and_queued(start):
    """One place in the batch: the first request runs, the others wait; all leave."""
    daemon = start("--served-model-name", "m", "--sequences", "1", *ENDLESS).wait_until_ready()
    answers = [
        daemon.post("/v1/completions", long_request(daemon, n=20, stream=True), stream=True)
        for _ in range(3)
    ]
    for answer in answers:
        answer.close()
    wait_until(lambda: cancelled(daemon) == 60)
    wait_until(lambda: is_idle(daemon))
    assert daemon.metric("lockstep_requests_total") == 60


def test_a_client_that_leaves_before_a_whole_answer_stops_its_request(start):
    daemon = start("--served-model-name", "m", "--sequences", "1", *ENDLESS).wait_until_ready()
    host, port = daemon.url.removeprefix("http://").split(":")
    body = requests.Request(
        "POST", daemon.url + "/v1/completions", json=long_request(daemon)).prepare()
    with socket.create_connection((host, int(port))) as connection:
        head = "".join(f"{name}: {value}\r\n" for name, value in body.headers.items())
        connection.sendall(
            f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n{head}\r\n".encode() + body.body)
        wait_until(lambda: daemon.metric("lockstep_requests_running") == 1)
    wait_until(lambda: is_idle(daemon))
    assert cancelled(daemon) == 1
    assert "status=499" in daemon.wait_for_line(
        ".*path=/v1/completions .*client_left=true.*").group(0)
    assert daemon.metric("lockstep_http_requests_total", code="499") == 1
    route = {"route": "/v1/completions"}
    assert daemon.metric("lockstep_http_requests_total", code="503", **route) == 0


def test_a_full_queue_is_503_with_retry_after(start):
    daemon = start(
        "--served-model-name", "m", "--sequences", "1", "--waiting-requests", "2", *ENDLESS,
    ).wait_until_ready()
    running = daemon.post(
        "/v1/completions", long_request(daemon, n=3, stream=True), stream=True)
    assert running.status_code == 200
    answer = daemon.post("/v1/completions", {**STORY, "max_tokens": 1})
    running.close()
    check_error(answer, 503, None, "queue_full")
    assert int(answer.headers["Retry-After"]) >= 1


def test_more_choices_than_fit_ever_are_400(start):
    daemon = start(
        "--served-model-name", "m", "--sequences", "1", "--waiting-requests", "2",
    ).wait_until_ready()
    check_error(daemon.post("/v1/completions", {**STORY, "n": 4, "max_tokens": 1}), 400)


def test_before_the_model_is_loaded_only_its_endpoints_say_503(start, model_path):
    """Whichever state a daemon is in when it is asked, its answer is one of the two."""
    daemon = start("--served-model-name", "m")
    states = set()
    for _ in range(200):
        answer = daemon.get("/health/ready")
        states.add(answer.status_code)
        if answer.status_code == 503:
            error = answer.json()["error"]
            assert error["code"] == "model_loading"
            assert answer.json()["bytes_done"] <= answer.json()["bytes_total"]
            assert int(answer.headers["Retry-After"]) >= 1
        assert daemon.get("/health/live").status_code == 200
        assert daemon.get("/v1/models").status_code == 200
        assert daemon.get("/version").status_code == 200
        assert 0 <= daemon.metric("lockstep_model_load_progress_ratio") <= 1
        if answer.status_code == 200:
            break
    assert states <= {200, 503}
    daemon.wait_until_ready()
    assert daemon.post("/v1/completions", {**STORY, "max_tokens": 1}).status_code == 200


def test_a_port_that_is_taken_is_the_machines_refusal(model_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = run_program("serve", "--model", model_path, "--port", port)
    assert result.returncode == 1
    assert str(port) in result.stderr.splitlines()[-1]


def test_requests_at_once_beyond_the_batch_all_get_their_answer(start):
    daemon = start("--served-model-name", "m", "--sequences", "4").wait_until_ready()
    body = {**STORY, "max_tokens": 24}
    alone = daemon.post("/v1/completions", body).json()["choices"][0]["text"]
    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        answers = list(pool.map(lambda _: daemon.post("/v1/completions", body), range(32)))
    assert [answer.status_code for answer in answers] == [200] * 32
    assert {answer.json()["choices"][0]["text"] for answer in answers} == {alone}


BAD_FILES = {
    "empty": b"",
    "short": b"GGU",
    "text": b"this is not a model\n" * 100,
    "head only": b"GGUF\x03\x00\x00\x00",
    "another version": b"GGUF\x63\x00\x00\x00" + bytes(64),
    "counts beyond the file": b"GGUF\x03\x00\x00\x00" + b"\xff" * 16,
}


@pytest.mark.parametrize("name", BAD_FILES)
@pytest.mark.parametrize("command", [["serve", "--port", "0"], ["generate", "--prompt", "a"],
                                     ["bench"], ["inspect"]])
def test_a_bad_model_file_is_exit_2_and_says_why(tmp_path, command, name):
    path = tmp_path / "bad.gguf"
    path.write_bytes(BAD_FILES[name])
    result = run_program(*command, "--model", path)
    assert result.returncode == 2, result.stderr
    assert result.stderr.startswith("lockstepd: ") and "bad.gguf" in result.stderr


def test_a_model_that_is_not_there_is_exit_2():
    result = run_program("serve", "--port", "0", "--model", "/nowhere/x.gguf")
    assert result.returncode == 2
    assert "/nowhere/x.gguf" in result.stderr


def arenas_of_threads(process):
    """The allocator's arenas beside the first: 64 MiB of addresses each, of which a part is in use."""
    arena = 64 << 20
    found = re.findall(r"^(\w+)-(\w+) (\S+) \w+ \S+ 0 *$",
                       pathlib.Path(f"/proc/{process.pid}/maps").read_text(), re.M)
    places = [(int(begin, 16), int(end, 16), access) for begin, end, access in found]
    return sum(used == "rw-p" and rest == "---p" and begin % arena == 0 and middle == start
               and end == begin + arena
               for (begin, middle, used), (start, end, rest) in zip(places, places[1:]))


def test_threads_that_serve_share_a_few_arenas(start):
    daemon = start("--served-model-name", "m", "--sequences", "16").wait_until_ready()
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda seed: daemon.post("/v1/completions", long_request(
            daemon, seed=seed, logprobs=5)).status_code, range(16)))
    assert answers == [200] * 16
    assert arenas_of_threads(daemon.process) <= 3
