"""API keys and their limits, against the real daemon."""

import concurrent.futures
import hashlib
import json
import re
import secrets
import signal
import socket
import subprocess
import time
from urllib.parse import unquote

import openai
import pytest
import requests

from conftest import (
    DEMO, ENDLESS, PATIENCE_SECONDS, PROGRAM, ROOT, clean_environment, run_program, wait_until,
)
from openai_schema import check_error

ALICE = "sk-alice-" + secrets.token_hex(16)
BOB = "sk-bob-" + secrets.token_hex(16)


def row(name, key, **limits):
    return {"name": name, "sha256": hashlib.sha256(key.encode()).hexdigest(), **limits}


def write(path, *rows):
    path.write_text(json.dumps({"keys": rows}))
    path.chmod(0o600)


def bearer(key):
    return {"headers": {"Authorization": f"Bearer {key}"}}


@pytest.fixture
def keyed(start, tmp_path):
    """Starts a daemon with these rows; its file of keys is daemon.keys."""

    def start_one(*rows, options=(), **more):
        path = tmp_path / "keys.json"
        write(path, *rows)
        daemon = start("--api-keys", path, "--served-model-name", "m", *options, **more)
        daemon.keys = path
        return daemon.wait_until_ready()

    return start_one


def complete(daemon, key, **fields):
    body = {"model": "m", "prompt": "Once", "max_tokens": 2, "ignore_eos": True, **fields}
    return daemon.post("/v1/completions", body, **bearer(key))


GENERATING = ["/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/v1/responses",
              "/v1/messages"]


def post_no_json(daemon, path, key):
    headers = {"Content-Type": "application/json", **bearer(key)["headers"]}
    return requests.post(
        daemon.url + path, data=b"no json", headers=headers, timeout=PATIENCE_SECONDS)


def test_without_a_key_everything_but_health_and_the_page_is_401(keyed):
    daemon = keyed(row("alice", ALICE))
    for path in ("/health", "/health/live", "/health/ready"):
        assert daemon.get(path).status_code == 200
    for path in ("/", "/ui/app.js"):
        assert daemon.get(path).status_code == 200
        check_error(daemon.post(path, {}), 401, None, "invalid_api_key")
    for path in ("/ui", "/ui/", "/ui/x/app.js", "//"):
        check_error(daemon.get(path), 401, None, "invalid_api_key")
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": ALICE},
                    {"Authorization": f"Basic {ALICE}"}, {"x-api-key": ALICE[:-1]}):
        for answer in (daemon.get("/v1/models", headers=headers),
                       daemon.get("/metrics", headers=headers),
                       daemon.get("/nowhere", headers=headers),
                       daemon.post("/v1/completions", {}, headers=headers)):
            error = check_error(answer, 401, None, "invalid_api_key")
            assert error["type"] == "authentication_error"
            assert answer.headers["WWW-Authenticate"] == "Bearer"
    for headers in ({"Authorization": f"Bearer {ALICE}"}, {"x-api-key": ALICE}):
        assert daemon.get("/v1/models", headers=headers).status_code == 200
        assert daemon.get("/metrics", headers=headers).status_code == 200
        assert daemon.get("/nowhere", headers=headers).status_code == 404


def registered_routes():
    """Every path in the program's tables of routes."""
    text = "".join(path.read_text() for path in sorted((ROOT / "server").rglob("*.cpp")))
    found = set(re.findall(r'"(?:GET|POST|DELETE|PUT)",\s*"(/[^"]*)"', text))
    assert {"/v1/completions", "/health", "/metrics", "/v1/models/:id*"} <= found
    return sorted(found)


def variants(path):
    """Spellings that a careless comparison could take for something open."""
    yield path
    yield "/" + path
    yield path + "/"
    yield path + "/."
    yield path + "//"
    yield path + "?key=1"
    yield path + ";a=b"
    yield path + "."
    yield path + "%20"
    yield path.upper()
    yield path.replace("/", "/%2e/", 1)
    yield path.replace("/", "//")
    yield "/health" + path
    yield "/health/.." + path
    yield "/health/%2e%2e" + path
    yield "/health%2f.." + path
    yield "/./" + path[1:]
    for index in range(1, len(path)):
        yield path[:index] + f"%{ord(path[index]):02x}" + path[index + 1:]
        yield path[:index] + f"%{ord(path[index]):02X}" + path[index + 1:]
        yield path[:index] + "/" + path[index:]
        yield path[:index] + "%00" + path[index:]
        yield path[:index] + "%25" + f"{ord(path[index]):02x}" + path[index + 1:]


def is_page_file(path):
    """Whether it is "/" or one segment below /ui; a %2f is part of its segment."""
    path = path.split("?")[0]
    segments = [unquote(segment) for segment in path.split("/")]
    return path == "/" or (len(segments) == 3 and segments[:2] == ["", "ui"] and segments[2] != "")


def test_no_spelling_of_any_route_gets_past_the_keys(keyed):
    daemon = keyed(row("alice", ALICE))
    host, port = daemon.url.removeprefix("http://").split(":")
    health = ("/health", "/health/live", "/health/ready")
    connection = socket.create_connection((host, int(port)), timeout=PATIENCE_SECONDS)
    reader = connection.makefile("rb")
    tried = 0
    for route in registered_routes():
        for path in variants(route.replace(":id*", "m")):
            for method in ("GET", "POST", "HEAD", "OPTIONS"):
                connection.sendall(f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
                status = int(reader.readline().split()[1])
                length, closes = 0, False
                while (line := reader.readline().lower()) != b"\r\n":
                    if line.startswith(b"content-length:"):
                        length = int(line.split(b":")[1])
                    closes = closes or line.startswith(b"connection: close")
                if method != "HEAD":
                    reader.read(length)
                if closes:
                    connection.close()
                    connection = socket.create_connection((host, int(port)),
                                                          timeout=PATIENCE_SECONDS)
                    reader = connection.makefile("rb")
                tried += 1
                if status == 200 or (status == 404 and is_page_file(path)):
                    # Only another spelling of a path under /health, or of one of the page's files.
                    assert method in ("GET", "HEAD"), (method, path)
                    assert unquote(path.split("?")[0]) in health or is_page_file(path), (
                        method, path)
                else:
                    assert status in (400, 401), (method, path, status)
    connection.close()
    assert tried > 2000


def test_earlier_answers_are_drafted_from_for_their_own_owner_alone(keyed):
    daemon = keyed(row("alice", ALICE), row("bob", BOB), model=DEMO,
                   options=("--draft-tokens", "7"))  # always, not where it pays

    def text_of(key, **fields):
        body = {"model": "m", "prompt": "Once upon a time", "max_tokens": 40, "temperature": 0,
                **fields}
        answer = daemon.post("/v1/completions", body, **bearer(key))
        assert answer.status_code == 200, answer.text
        return answer.json()["choices"][0]["text"]

    def accepted():
        page = daemon.get("/metrics", **bearer(ALICE)).text
        return float(re.search(r"^lockstep_accepted_draft_tokens_total{[^}]*answers[^}]*"
                               r'position="0"} (.*)$', page, re.MULTILINE)[1])

    text = text_of(ALICE)
    assert accepted() == 0
    assert text_of(ALICE) == text
    of_alice = accepted()
    assert of_alice > 3
    assert text_of(BOB) == text
    assert text_of(ALICE, cache_salt="another") == text
    assert accepted() == of_alice
    assert text_of(BOB) == text
    assert accepted() > of_alice


def test_a_removed_key_is_refused_and_a_bad_file_changes_nothing(keyed):
    daemon = keyed(row("alice", ALICE), row("bob", BOB))
    assert complete(daemon, ALICE).status_code == 200
    daemon.keys.write_text("no json")
    daemon.process.send_signal(signal.SIGHUP)
    daemon.wait_for_line("keys.json")
    assert complete(daemon, ALICE).status_code == 200
    write(daemon.keys, row("bob", BOB))
    daemon.process.send_signal(signal.SIGHUP)
    wait_until(lambda: complete(daemon, ALICE).status_code == 401)
    assert complete(daemon, BOB).status_code == 200


def test_too_many_requests_per_minute_are_429(keyed):
    daemon = keyed(row("alice", ALICE, requests_per_minute=3), row("bob", BOB))
    begin = time.monotonic()
    answers = []
    while (refused := complete(daemon, ALICE)).status_code == 200:
        answers.append(refused)
    back = (time.monotonic() - begin) * 3 / 60
    assert 3 <= len(answers) <= 3 + back
    assert answers[0].headers["x-ratelimit-limit-requests"] == "3"
    assert int(answers[2].headers["x-ratelimit-remaining-requests"]) <= back
    error = check_error(refused, 429, None, "rate_limit_exceeded")
    assert error["type"] == "rate_limit_error"
    assert 1 <= int(refused.headers["Retry-After"]) <= 20
    assert complete(daemon, BOB).status_code == 200
    assert daemon.get("/health").status_code == 200
    metrics = daemon.get("/metrics", **bearer(BOB)).text
    assert re.search(r'^lockstep_http_rejected_total\{reason="limit"\} 1$', metrics, re.M)


def test_tokens_per_minute_are_reserved_and_settled(keyed):
    daemon = keyed(row("alice", ALICE, tokens_per_minute=200))
    begin = time.monotonic()
    first = complete(daemon, ALICE, max_tokens=10)
    used = first.json()["usage"]["total_tokens"]
    # What was reserved and not used is there again, and what was used is not, but for what has
    # come back meanwhile.
    missing = 200 - int(complete(daemon, ALICE, max_tokens=0, echo=True, prompt=[1])
                        .headers["x-ratelimit-remaining-tokens"])
    assert used - (time.monotonic() - begin) * 200 / 60 <= missing <= used + 3
    answer = complete(daemon, ALICE, max_tokens=199, prompt=[1, 1])
    check_error(answer, 429, None, "rate_limit_exceeded")
    assert "max_tokens" in answer.json()["error"]["message"]
    assert answer.headers["x-ratelimit-limit-tokens"] == "200"
    assert complete(daemon, ALICE, max_tokens=50).status_code == 200


def chat(daemon, key, **fields):
    body = {"model": "m", "messages": [{"role": "user", "content": "What is 1+1?"}],
            "temperature": 0, **fields}
    return daemon.post("/v1/chat/completions", body, **bearer(key), stream="stream" in fields)


def test_chats_without_max_tokens_come_in_a_row_and_at_once_and_who_overdrew_waits(keyed):
    """The context is larger than the minute: nobody has to wait until a whole minute is there."""
    daemon = keyed(row("alice", ALICE, tokens_per_minute=400),
                   row("bob", BOB, tokens_per_minute=700), model=DEMO)
    models = daemon.get("/v1/models", **bearer(BOB)).json()
    context = models["data"][0]["max_model_len"]
    assert 400 < context < 700
    answers = [chat(daemon, ALICE) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200] * 4, answers[-1].text
    # All come to the whole context, whichever ends first: they overdraw by more than a minute's.
    several = [chat(daemon, BOB, stream=True, ignore_eos=True) for _ in range(4)]
    assert [answer.status_code for answer in several] == [200] * 4
    assert all(answer.content.endswith(b"[DONE]\n\n") for answer in several)
    error = check_error(chat(daemon, BOB), 429, None, "rate_limit_exceeded")
    assert "none is left" in error["message"]
    refused = chat(daemon, BOB)
    assert refused.headers["x-ratelimit-remaining-tokens"] == "0"
    # 2048 or so of 700 were used; what is missing comes back at 700 a minute.
    assert 1 < int(refused.headers["Retry-After"]) <= (4 * context - 700) * 60 // 700 + 1


def test_so_many_requests_at_once(keyed):
    daemon = keyed(row("alice", ALICE, concurrent=1), row("bob", BOB),
                   options=("--sequences", "2", *ENDLESS))
    context = daemon.get("/v1/models", **bearer(BOB)).json()["data"][0]["max_model_len"]
    body = {"model": "m", "prompt": "Once", "max_tokens": context - 32, "stream": True,
            "ignore_eos": True}
    stream = daemon.post("/v1/completions", body, stream=True, **bearer(ALICE))
    assert stream.status_code == 200, stream.text
    check_error(complete(daemon, ALICE), 429, None, "rate_limit_exceeded")
    assert complete(daemon, BOB).status_code == 200
    # Before anything of it is read: what is no JSON is refused for its key, too.
    for path in GENERATING:
        assert post_no_json(daemon, path, ALICE).status_code == 429
        assert post_no_json(daemon, path, BOB).status_code == 400
    stream.close()
    wait_until(lambda: complete(daemon, ALICE).status_code == 200)
    # What is refused gives its place back.
    for path in GENERATING * 3:
        assert post_no_json(daemon, path, ALICE).status_code == 400
    assert complete(daemon, ALICE).status_code == 200
    # So does what is answered, before the client has the end of it and asks again.
    for _ in range(40):
        assert complete(daemon, ALICE).status_code == 200
        assert b"[DONE]" in complete(daemon, ALICE, stream=True).content
        assert daemon.post("/tokenize", {"prompt": "Once"}, **bearer(ALICE)).status_code == 200


PREPARED = {"/tokenize": "prompt", "/detokenize": "tokens", "/apply-template": "messages",
            "/v1/messages/count_tokens": "messages", "/v1/completions/render": "prompt",
            "/v1/chat/completions/render": "messages"}


def tokens_left(answer):
    return int(answer.headers["x-ratelimit-remaining-tokens"])


@pytest.mark.parametrize("path", [*PREPARED, *GENERATING])
def test_a_request_that_is_only_prepared_is_charged_a_token_for_four_bytes(keyed, path):
    limit = 20
    daemon = keyed(row("alice", ALICE, tokens_per_minute=limit), row("bob", BOB), model=DEMO)
    given = {"prompt": "a", "tokens": [1], "messages": [{"role": "user", "content": "a"}]}
    name = PREPARED.get(path)
    body = {name: given[name]} if name else {"model": 1}
    status = 200 if name else 400
    text = json.dumps(body).encode()
    assert len(text) // 4 < limit
    begin = time.monotonic()
    answer = daemon.post(path, body, **bearer(ALICE))
    assert answer.status_code == status
    most = limit - (len(text) + 3) // 4
    if name:
        assert most <= tokens_left(answer) <= most + (time.monotonic() - begin) * limit / 60
    # A dear one takes all that there is, and more, whatever becomes of it.
    dear = {**body, "padding": "x" * 1000}
    answers = (daemon.post(path, dear, **bearer(ALICE)) for _ in range(50))  # the second, mostly
    refused = next(answer for answer in answers if answer.status_code == 429)
    assert "none is left" in refused.text and tokens_left(refused) == 0
    assert daemon.post(path, dear, **bearer(BOB)).status_code == status


def test_a_small_body_with_a_dear_grammar_is_charged_for_it(keyed):
    """A grammar that is dear to make costs more than the key has, one that is not costs nothing."""
    daemon = keyed(row("alice", ALICE, tokens_per_minute=6), row("bob", BOB, tokens_per_minute=6))
    plain = complete(daemon, ALICE, regex="(a|b)*a")
    assert plain.status_code == 200, plain.text
    dear = complete(daemon, BOB, regex="(a|b)*a(a|b){9}")
    assert dear.status_code == 429 and "0 are left" in dear.text
    assert tokens_left(dear) == 0


def test_openais_client_brings_its_key_and_sees_the_limit(keyed):
    daemon = keyed(row("alice", ALICE, requests_per_minute=1))
    client = openai.OpenAI(base_url=daemon.url + "/v1", api_key=ALICE, max_retries=0)
    client.completions.create(model="m", prompt="Once", max_tokens=1)
    with pytest.raises(openai.RateLimitError) as error:
        client.completions.create(model="m", prompt="Once", max_tokens=1)
    assert error.value.code == "rate_limit_exceeded"
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").models.list()


def test_keys_are_seen_nowhere(keyed):
    daemon = keyed(row("alice", ALICE), {"name": "bob", "key": BOB},
                   options=("--log-level", "trace"))
    for key in (ALICE, BOB, "sk-wrong-0123456789"):
        complete(daemon, key)
    process = f"/proc/{daemon.process.pid}"
    seen = "\n".join(daemon.log) + daemon.get("/metrics", **bearer(BOB)).text
    for name in ("cmdline", "environ"):
        with open(f"{process}/{name}", "rb") as file:
            seen += file.read().decode(errors="replace")
    for key in (ALICE, BOB, "sk-wrong-0123456789"):
        assert key not in seen


def test_metrics_can_be_open_though_there_are_keys(keyed):
    daemon = keyed(row("alice", ALICE), options=("--metrics-without-key", "true"))
    assert daemon.get("/metrics").status_code == 200
    assert daemon.get("/v1/models").status_code == 401


def test_metrics_that_need_no_key_are_those_of_the_socket_for_probes(keyed):
    daemon = keyed(row("alice", ALICE), options=(
        "--metrics-without-key", "true", "--probe-host", "127.0.0.1", "--probe-port", "0"))
    probes = daemon.wait_for_line(r'health and metrics on ([^\s"]+)')[1]
    assert requests.get(f"{probes}/metrics", timeout=PATIENCE_SECONDS).status_code == 200
    assert daemon.get("/metrics").status_code == 401
    assert daemon.get("/metrics", **bearer(ALICE)).status_code == 200
    for closed in ("/v1/models", "/nowhere"):
        assert requests.get(probes + closed, timeout=PATIENCE_SECONDS).status_code in (401, 404)


def test_the_socket_for_probes_asks_for_keys_like_the_other(keyed):
    daemon = keyed(row("alice", ALICE), options=("--probe-host", "127.0.0.1", "--probe-port", "0"))
    probes = daemon.wait_for_line(r'health and metrics on ([^\s"]+)')[1]
    assert requests.get(f"{probes}/metrics", timeout=PATIENCE_SECONDS).status_code == 401
    assert requests.get(f"{probes}/metrics", timeout=PATIENCE_SECONDS,
                        **bearer(ALICE)).status_code == 200


def test_many_clients_at_once_are_told_apart(keyed):
    daemon = keyed(row("alice", ALICE), row("bob", BOB))

    def status(index):
        key = (ALICE, BOB, "wrong")[index % 3]
        return complete(daemon, key).status_code

    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        statuses = list(pool.map(status, range(60)))
    assert statuses == [200, 200, 401] * 20


@pytest.mark.parametrize("content", ["", "[]", '{"keys":[{"name":"a"}]}'])
def test_a_bad_file_at_start_is_exit_2_that_names_it(model_path, tmp_path, content):
    path = tmp_path / "keys.json"
    path.write_text(content)
    result = run_program("--model", model_path, "--port", "0", "--api-keys", path)
    assert result.returncode == 2
    assert str(path) in result.stderr


def hash_key(*arguments, key=""):
    return subprocess.run(
        [str(PROGRAM), "hash-key", *arguments], input=key, capture_output=True, text=True,
        timeout=PATIENCE_SECONDS, env=clean_environment())


def test_hash_key_makes_rows_that_fit(keyed):
    given = hash_key("--name", "alice", key=ALICE + "\n")
    assert json.loads(given.stdout) == row("alice", ALICE)
    made = hash_key("--name", "bob", "--new")
    new = made.stderr.strip()
    assert json.loads(made.stdout) == row("bob", new)
    daemon = keyed(json.loads(given.stdout), json.loads(made.stdout))
    assert complete(daemon, ALICE).status_code == complete(daemon, new).status_code == 200
    assert hash_key(key="short\n").returncode == 2


def test_a_file_that_others_may_write_is_refused_at_start_and_at_reload(
        keyed, model_path, tmp_path):
    loose = tmp_path / "loose.json"
    write(loose, row("alice", ALICE))
    loose.chmod(0o620)
    ended = run_program("--model", model_path, "--port", "0", "--api-keys", loose)
    assert ended.returncode == 2
    assert f"chmod go-w {loose}" in ended.stderr
    daemon = keyed(row("alice", ALICE))
    write(daemon.keys, row("bob", BOB))
    daemon.keys.chmod(0o666)
    daemon.process.send_signal(signal.SIGHUP)
    daemon.wait_for_line(f"chmod go-w {daemon.keys}")
    assert complete(daemon, BOB).status_code == 401
    assert complete(daemon, ALICE).status_code == 200
