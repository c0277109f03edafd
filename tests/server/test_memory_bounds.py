"""What bodies that are made for it can cost in memory, and that nobody waits for whom he must not."""

import concurrent.futures
import json
import os
import socket
import urllib.parse

import pytest

from conftest import DEMO, ENDLESS, ROOT, wait_until
from openai_schema import check_error

MIB = 1 << 20


def memory(daemon):
    """Bytes that are resident, and the most that ever were."""
    with open(f"/proc/{daemon.process.pid}/status") as file:
        fields = dict(line.split(":", 1) for line in file)
    return [int(fields[name].split()[0]) * 1024 for name in ("VmRSS", "VmHWM")]


def test_many_empty_prompts_at_once_are_refused_for_little_memory(start):
    daemon = start("--served-model-name", "m").wait_until_ready()
    body = b'{"model":"m","max_tokens":1,"prompt":[' + b",".join([b'""'] * 1_040_000) + b"]}"
    before, _ = memory(daemon)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: daemon.post_bytes("/v1/completions", body), range(8)))
    for answer in answers:
        error = check_error(answer, 400, "prompt", None)
        assert "1040000 prompts with n = 1 make 1040000 choices" in error["message"]
    _, most = memory(daemon)
    assert most - before < 600 * MIB
    # And it is given back, but for what a few of the bodies come to.
    wait_until(lambda: memory(daemon)[0] - before < 150 * MIB)


def test_a_large_body_waits_for_no_answer_of_another(start):
    """Far more than may be parsed at once has been parsed, and all of it runs or waits."""
    daemon = start("--served-model-name", "m", "--sequences", "1", *ENDLESS).wait_until_ready()
    context = daemon.get("/v1/models").json()["data"][0]["max_model_len"]
    padding = "x" * (3 * MIB)
    body = {"model": "m", "prompt": "Once", "max_tokens": context - 32, "n": 50, "stream": True,
            "ignore_eos": True, "padding": padding}
    streams = [daemon.post("/v1/completions", body, stream=True) for _ in range(6)]
    assert [stream.status_code for stream in streams] == [200] * 6
    answer = daemon.post("/tokenize", {"model": "m", "prompt": "a", "padding": padding})
    assert answer.status_code == 200
    assert daemon.metric("lockstep_requests_total") == 0
    for stream in streams:
        stream.close()


def test_tokenizing_gives_the_same_json_with_and_without_texts(daemon):
    given = {"model": "stories", "prompt": 'A "quoted" line\n', "add_special_tokens": True}
    plain = daemon.post("/tokenize", given).json()
    texts = daemon.post("/tokenize", {**given, "return_token_strs": True}).json()
    assert plain["token_strs"] is None and plain["count"] == len(plain["tokens"]) > 3
    assert texts["tokens"] == plain["tokens"] and len(texts["token_strs"]) == texts["count"]
    back = daemon.post("/detokenize", {"tokens": plain["tokens"][1:]}).json()
    assert back["prompt"] == back["content"] == given["prompt"]
    empty = daemon.post("/tokenize", {"content": "", "return_token_strs": True}).json()
    assert (empty["tokens"], empty["token_strs"]) == ([], [])


def test_detokenize_gives_so_much_text_and_says_what_is_more(chat_daemon):
    text = "<|endoftext|>"
    given = {"model": "demo", "prompt": text, "add_special_tokens": False}
    (token,) = chat_daemon.post("/tokenize", given).json()["tokens"]
    most = 8 * MIB
    fitting = most // len(text)
    answer = chat_daemon.post("/detokenize", {"tokens": [token] * fitting})
    assert answer.json() == {"prompt": text * fitting, "content": text * fitting}
    answer = chat_daemon.post("/detokenize", {"tokens": [token] * (fitting + 1)})
    message = check_error(answer, 400, "tokens", None)["message"]
    assert f"{fitting + 1} ids come to {(fitting + 1) * len(text)} bytes" in message
    assert f"at most {most}" in message


MESSAGES = [{"role": "user", "content": "a"}]
CHAT = {"model": "m", "messages": MESSAGES, "max_tokens": 16}
# More than a MiB each, below which no memory is given back (give_back_memory()), and not much more:
# the tests' time goes with it.
MANY = "[" + ",".join(["[]"] * 400_000) + "]"  # a value of 16 bytes and more from 3 of text each
NUMBERS = "[" + ",".join(["1e15"] * 300_000) + "]"
STRINGS = "{" + ",".join(f'"{name}":""' for name in range(120_000)) + "}"


def function(nested, text):
    """A tool whose schema's annotation is this text; by the model it is never seen."""
    inner = '"name":"f","parameters":{"type":"object","default":' + text + "}"
    return '{"type":"function",' + ('"function":{' + inner + "}" if nested else inner) + "}"


def with_member(body, *members):
    """The text of a body with these members, which are texts."""
    return (json.dumps(body)[:-1] + "," + ",".join(members) + "}").encode()


ECHOED = 4  # choices of a request that wants its prompt back


def worst_bodies():
    for kind, text in (("lists", MANY), ("numbers", NUMBERS), ("names", STRINGS)):
        padding = f'"padding":{text}'
        for path, body in () if kind != "lists" else (("/v1/completions", {"model": "m", "prompt": "a", "max_tokens": 16}),
                           ("/v1/completions", {"model": "m", "prompt": "a", "max_tokens": 16,
                                                "echo": True, "n": ECHOED}),
                           ("/v1/embeddings", {"model": "m", "input": "a"}),
                           ("/v1/messages", CHAT), ("/v1/chat/completions", CHAT)):
            yield f"{kind} {path}{' echo' if 'echo' in body else ''}", path, with_member(body, padding)
        tools = '"tools":[' + function(True, text) + ']'
        yield f"{kind} chat tools", "/v1/chat/completions", with_member(
            {**CHAT, "tool_choice": "none"}, tools)
        yield f"{kind} chat variables", "/v1/chat/completions", with_member(
            CHAT, f'"chat_template_kwargs":{{"x":{text}}}')
        yield f"{kind} messages tools", "/v1/messages", with_member(
            {**CHAT, "tool_choice": {"type": "none"}},
            '"tools":[{"name":"f","input_schema":{"type":"object","default":' + text + "}}]")
        for stream in (False, True):
            yield f"{kind} responses {'streamed' if stream else 'whole'}", "/v1/responses", with_member(
                {"model": "m", "input": "a", "max_output_tokens": 16, "tool_choice": "none",
                 "stream": stream}, '"tools":[' + function(False, text) + "]")


WORST = {name: (path, body) for name, path, body in worst_bodies()}


@pytest.fixture(scope="module")
def engaged():
    """A daemon that computes one request for as long as the tests of this module take."""
    from conftest import Daemon
    running = Daemon(ROOT / "config/demo.gguf", "--workers", "1", "--served-model-name", "m",
                     "--sequences", "1", *ENDLESS).wait_until_ready()
    context = running.get("/v1/models").json()["data"][0]["max_model_len"]
    endless = running.post("/v1/completions", {
        "model": "m", "prompt": "a", "max_tokens": context - 32, "ignore_eos": True, "stream": True},
        stream=True)
    assert endless.status_code == 200
    for thread in os.listdir(f"/proc/{running.process.pid}/task"):
        with open(f"/proc/{running.process.pid}/task/{thread}/comm") as file:
            if file.read().startswith("worker-"):  # the lowest priority
                os.setpriority(os.PRIO_PROCESS, int(thread), 19)
    yield running
    endless.close()
    running.process.kill()
    running.process.wait()


def anonymous(daemon):
    with open(f"/proc/{daemon.process.pid}/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("RssAnon"))


def sent(daemon, path, body, held_back=0):
    """A request, but for its last bytes, on a connection of its own, whose answer is not read."""
    address = urllib.parse.urlsplit(daemon.url)
    client = socket.create_connection((address.hostname, address.port))
    client.sendall(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                   f"Content-Length: {len(body)}\r\n\r\n".encode()
                   + body[:len(body) - held_back])
    return client


def read_what_came(clients):
    """A client that does not read its stream's opening leaves it with the server."""
    for client in clients:
        try:
            while client.recv(1 << 20, socket.MSG_DONTWAIT):
                pass
        except BlockingIOError:
            pass


def check_waiting(daemon, name, count, kept=0):
    path, body = WORST[name]
    choices = count * (ECHOED if name.endswith(" echo") else 1)
    waiting = lambda: daemon.metric("lockstep_requests_waiting")
    wait_until(lambda: waiting() == 0)
    before = anonymous(daemon)
    clients = [sent(daemon, path, body) for _ in range(count)]

    def held():
        read_what_came(clients)
        return anonymous(daemon) - before

    try:
        wait_until(lambda: waiting() >= choices)
        wait_until(lambda: held() < 2 * count * len(body) + kept)
        assert waiting() >= choices
    finally:
        for client in clients:
            client.close()
    wait_until(lambda: waiting() == 0)


@pytest.mark.parametrize("name", WORST)
def test_requests_that_wait_hold_less_than_twice_their_bytes(engaged, name):
    check_waiting(engaged, name, 16)


# What preparation leaves with the allocator, however many requests there are (give_back_memory()).
KEPT = MIB


@pytest.mark.parametrize("name", [name for name in WORST if name.startswith("lists")]
                         + ["names responses whole"])
def test_few_requests_that_wait_hold_less_than_twice_their_bytes(engaged, name):
    for count in (1, 2, 4, 8):
        check_waiting(engaged, name, count, KEPT)


PREPARED = {"/tokenize": {"model": "m", "prompt": "a"}, "/apply-template": CHAT,
            "/v1/messages/count_tokens": {"model": "m", "messages": MESSAGES},
            "/v1/completions/render": {"model": "m", "prompt": "a"},
            "/v1/chat/completions/render": CHAT}


def test_a_long_text_that_was_sent_leaves_no_memory_behind(engaged):
    """Its buffers lie in what the values of a large body have left with the allocator."""
    path, body = WORST["lists responses streamed"]
    waiting = lambda: engaged.metric("lockstep_requests_waiting")
    for _ in range(4):
        prepared = with_member(PREPARED["/tokenize"], f'"padding":{MANY}')
        assert engaged.post_bytes("/tokenize", prepared).status_code == 200
        wait_until(lambda: waiting() == 0)
        before = anonymous(engaged)
        client = sent(engaged, path, body)

        def held():
            read_what_came([client])
            return anonymous(engaged) - before

        try:
            wait_until(lambda: waiting() == 1 and held() < 2 * len(body) + KEPT)
        finally:
            client.close()


@pytest.mark.parametrize("path", PREPARED)
def test_requests_that_are_only_prepared_hold_less_than_twice_their_bytes_at_any_time(
        start, path):
    """They wait for one another, not for the engine. All become whole at once; the most memory
    that ever was is looked at, whenever that was."""
    daemon = start("--served-model-name", "m", "--body-seconds", "3600",
                   "--body-grace-seconds", "3600", model=DEMO).wait_until_ready()
    body = with_member(PREPARED[path], f'"padding":{MANY}')
    count = 64
    before = anonymous(daemon)
    clients = [sent(daemon, path, body, held_back=1) for _ in range(count)]
    try:
        with open(f"/proc/{daemon.process.pid}/clear_refs", "w") as file:
            file.write("5")  # the most becomes what it is now
        others = memory(daemon)[1] - anonymous(daemon)  # the program, the model
        for client in clients:
            client.sendall(body[-1:])
        for client in clients:
            assert client.makefile("rb").readline().split()[1] == b"200"
        assert memory(daemon)[1] - others - before < 2 * count * len(body)
    finally:
        for client in clients:
            client.close()


# An empty list takes three bytes of text, 16 of its array's and 32 of the heap: 16 times its text.
# An endpoint has at most three such values of a body, and the array that grows is there twice.
TIMES_TEXT = 56
PREPARED_AT_ONCE = 8 * MIB  # PreparationLimits::room_bytes


@pytest.mark.parametrize("path", PREPARED)
def test_few_requests_that_are_prepared_hold_their_values_beside_twice_their_bytes_at_any_time(
        start, path):
    daemon = start("--served-model-name", "m", "--body-seconds", "3600",
                   "--body-grace-seconds", "3600", model=DEMO).wait_until_ready()
    body = with_member(PREPARED[path], f'"padding":{MANY}')
    for count in (1, 2, 4, 8):
        before = anonymous(daemon)
        clients = [sent(daemon, path, body, held_back=1) for _ in range(count)]
        try:
            with open(f"/proc/{daemon.process.pid}/clear_refs", "w") as file:
                file.write("5")
            others = memory(daemon)[1] - anonymous(daemon)
            for client in clients:
                client.sendall(body[-1:])
            for client in clients:
                assert client.makefile("rb").readline().split()[1] == b"200"
            values = TIMES_TEXT * min(count * len(body), PREPARED_AT_ONCE)
            assert memory(daemon)[1] - others - before < 2 * count * len(body) + values
        finally:
            for client in clients:
                client.close()


@pytest.mark.parametrize("name", ["lists responses whole", "lists chat variables"])
def test_few_requests_that_generate_hold_their_values_beside_twice_their_bytes_at_any_time(
        engaged, name):
    path, body = WORST[name]
    waiting = lambda: engaged.metric("lockstep_requests_waiting")
    for count in (1, 2, 4, 8):
        wait_until(lambda: waiting() == 0)
        before = anonymous(engaged)
        with open(f"/proc/{engaged.process.pid}/clear_refs", "w") as file:
            file.write("5")
        others = memory(engaged)[1] - anonymous(engaged)
        clients = [sent(engaged, path, body) for _ in range(count)]
        try:
            wait_until(lambda: waiting() >= count)
            values = TIMES_TEXT * min(count * len(body), PREPARED_AT_ONCE)
            assert memory(engaged)[1] - others - before < 2 * count * len(body) + values
        finally:
            for client in clients:
                client.close()
