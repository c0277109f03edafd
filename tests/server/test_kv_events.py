"""KV events over ZeroMQ, read by a small subscriber of its own: what they tell is what the prefix cache
holds, tenant by tenant, and nothing is told without --kv-events."""

import re
import struct

import msgpack
import pytest
import zmq

from conftest import DEMO, run_program, wait_until

PAGE = 64
SERVED = ("--served-model-name", "m", "--kv-events", "tcp://127.0.0.1:*", "--kv-events-pod", "pod-0")
STORY = "Once upon a time there was a little girl named Lily. " * 20
OTHERS = [f"{name} went to the forest to look for the big red ball. " * 20
          for name in ("Tom", "Sue", "Ben", "Ann", "Max", "Tim")]


class Subscriber:
    """A SUB socket, and the blocks that it takes the daemon to know."""

    def __init__(self, daemon, topic="kv@"):
        self.daemon = daemon
        (line,) = [line for line in daemon.log if "KV events on" in line]
        self.endpoint = re.search(r"KV events on ([^\s,]+), topic", line)[1]
        self.socket = zmq.Context.instance().socket(zmq.SUB)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt_string(zmq.SUBSCRIBE, topic)
        self.socket.connect(self.endpoint)
        self.blocks = {}  # by hash: that before it, its tokens, its salt
        self.events = []
        self.numbers = []
        self.marks = 0
        # A subscription is in effect some time after connect(): from then on marks are told.
        wait_until(lambda: self.socket.poll(50) or not self.mark())

    def mark(self):
        """A request of one page under a salt of its own, which is told after all before it."""
        self.marks += 1
        salt = f"mark {id(self)} {self.marks}"
        ask(self.daemon, [100] * (PAGE + 1), cache_salt=salt)
        return salt

    def read(self):
        """The blocks by all that was told before this call, and the mark's."""
        salt = self.mark()

        def is_told():
            self.drain()
            return any(block[2] == salt for block in self.blocks.values())

        wait_until(is_told)
        return self.blocks

    def drain(self):
        while self.socket.poll(0):
            topic, number, payload = self.socket.recv_multipart()
            assert topic == b"kv@pod-0@m"
            self.numbers.append(struct.unpack(">Q", number)[0])
            seconds, events, rank = msgpack.unpackb(payload)
            assert seconds > 1.7e9 and rank == 0
            for event in events:
                self.take(event)

    def take(self, event):
        self.events.append(event)
        if event[0] == "BlockStored":
            _, hashes, before, tokens, block_size, *rest = event
            assert block_size == PAGE == len(tokens) and len(hashes) == 1
            assert rest[:3] == [None, None, None] and len(rest) <= 4
            assert 0 < hashes[0] < 2**64 and hashes[0] not in self.blocks
            salt = rest[3][0][0] if len(rest) == 4 else ""
            assert before is None or not salt
            self.blocks[hashes[0]] = (before, tokens, salt)
        elif event[0] == "BlockRemoved":
            assert len(event) == 2
            for removed in event[1]:
                self.blocks.pop(removed, None)  # or one of before the subscription
        else:
            assert event == ["AllBlocksCleared"]
            self.blocks.clear()

    def chain(self, tokens, salt=""):
        """The blocks that hold a prompt's first tokens, as a router would follow them."""
        found, before = [], None
        for begin in range(0, len(tokens) - PAGE + 1, PAGE):
            page = tokens[begin:begin + PAGE]
            wanted = (before, page, salt if before is None else "")
            before = next((one for one, block in self.blocks.items() if block == wanted), None)
            if before is None:
                break
            found.append(before)
        return found


def ask(daemon, prompt, **fields):
    answer = daemon.post("/v1/completions", {"prompt": prompt, "max_tokens": 1, "temperature": 0,
                                             **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


def ids_of(daemon, prompt):
    return daemon.post("/v1/completions/render", {"prompt": prompt}).json()[0]["token_ids"]


@pytest.fixture(scope="module")
def supported():
    shown = run_program("serve", "--model", DEMO, "--kv-events", "ipc:///nowhere/at/all")
    if "without ZeroMQ" in shown.stderr or "cannot open shared object" in shown.stderr:
        pytest.skip("without ZeroMQ: " + shown.stderr.strip().splitlines()[-1])


def test_a_prompt_is_told_page_by_page(start, supported):
    daemon = start(*SERVED).wait_until_ready()
    subscriber = Subscriber(daemon)
    subscriber.read()
    ids = ids_of(daemon, STORY)
    assert len(ids) > 3 * PAGE
    assert subscriber.chain(ids) == []
    assert ask(daemon, STORY) == 0
    subscriber.read()
    chain = subscriber.chain(ids)
    assert len(chain) == len(ids) // PAGE
    assert ask(daemon, STORY) == (len(ids) - 1) // PAGE * PAGE
    subscriber.read()
    assert subscriber.chain(ids) == chain
    numbers = subscriber.numbers
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert daemon.metric("lockstep_kv_events_dropped_total") == 0
    assert daemon.stop() == 0


def test_what_is_told_is_what_the_cache_holds_while_pages_make_way(start, supported):
    daemon = start(*SERVED, "--kv-pages", "24", "--context", "1024").wait_until_ready()
    subscriber = Subscriber(daemon)
    prompts = [STORY, *OTHERS, STORY, OTHERS[5], OTHERS[0], STORY[: len(STORY) // 2] + OTHERS[1],
               OTHERS[3], STORY]
    ids = {prompt: ids_of(daemon, prompt) for prompt in prompts}
    hits = 0
    for prompt in prompts * 2:
        subscriber.read()
        expected = min(len(subscriber.chain(ids[prompt])), (len(ids[prompt]) - 1) // PAGE) * PAGE
        assert ask(daemon, prompt) == expected
        hits += expected
    assert hits > 0
    assert daemon.metric("lockstep_kv_cache_evictions_total") > 0
    assert any(event[0] == "BlockRemoved" for event in subscriber.events)
    assert len(subscriber.read()) <= 24
    assert daemon.stop() == 0


def test_tenants_have_hashes_of_their_own_and_only_a_salt_is_told(start, supported):
    daemon = start(*SERVED).wait_until_ready()
    subscriber = Subscriber(daemon)
    subscriber.read()
    ids = ids_of(daemon, OTHERS[0])
    for fields in ({}, {"cache_salt": "a"}, {"cache_salt": "b"}):
        assert ask(daemon, OTHERS[0], **fields) == 0
    subscriber.read()
    chains = [subscriber.chain(ids, salt) for salt in ("", "a", "b")]
    assert {len(chain) for chain in chains} == {len(ids) // PAGE}
    assert len({block for chain in chains for block in chain}) == 3 * len(chains[0])
    salted = [event for event in subscriber.events if event[0] == "BlockStored" and len(event) == 9]
    assert salted and all(event[2] is None and event[8] == [[event[8][0][0]]] for event in salted)
    assert daemon.stop() == 0


def test_a_subscriber_that_does_not_read_delays_no_request(start, supported):
    daemon = start(*SERVED).wait_until_ready()
    idle = Subscriber(daemon)
    for round_ in range(3):
        for prompt in OTHERS:
            ask(daemon, prompt, cache_salt=str(round_))
    reader = Subscriber(daemon)
    assert ask(daemon, STORY) == 0
    reader.read()
    assert len(reader.chain(ids_of(daemon, STORY))) == len(ids_of(daemon, STORY)) // PAGE
    idle.socket.close()
    assert daemon.stop() == 0


def test_a_path_that_others_have_is_left_to_them(start, supported, tmp_path):
    file = tmp_path / "model.gguf"
    file.write_text("weights")
    refused = run_program("serve", "--model", DEMO, "--port", "0", "--kv-events", f"ipc://{file}")
    assert refused.returncode == 1 and "a file of another kind" in refused.stderr
    assert file.read_text() == "weights"
    taken = f"ipc://{tmp_path / 'events'}"
    daemon = start(*SERVED[:2], "--kv-events", taken).wait_until_ready()
    refused = run_program("serve", "--model", DEMO, "--port", "0", "--kv-events", taken)
    assert refused.returncode == 1 and "another process" in refused.stderr
    assert daemon.stop() == 0


def test_without_the_option_there_are_no_events(daemon):
    ask(daemon, STORY)
    assert not any("KV events" in line for line in daemon.log)
    assert daemon.metric("lockstep_kv_events_total") == 0
    maps = open(f"/proc/{daemon.process.pid}/maps").read()
    assert "libzmq" not in maps


@pytest.mark.parametrize("endpoint, code, words", [
    *((endpoint, 2, "must be tcp://ADDRESS:PORT") for endpoint in (
        "5557", "pgm://eth0;239.1.1.1:5555", "tcp://127.0.0.1:none", "tcp://*:70000", "tcp://*:5557x",
        "tcp://*:-1", "tcp://*", "tcp://eth0:5557", "ipc://@name", "ipc://*", "ipc://" + "/a" * 60)),
    ("tcp://192.0.2.1:5557", 1, "cannot be published at tcp://192.0.2.1:5557"),
    ("ipc:///nowhere/at/all", 1, "cannot be published"),
])
def test_an_endpoint_that_cannot_be_had_is_refused(supported, endpoint, code, words):
    refused = run_program("serve", "--model", DEMO, "--port", "0", "--kv-events", endpoint)
    assert refused.returncode == code
    assert words in refused.stderr and "--kv-events" in refused.stderr


def test_an_open_endpoint_is_warned_of(start, supported):
    daemon = start(*SERVED[:2], "--kv-events", "tcp://*:*").wait_until_ready()
    daemon.wait_until_logged("gives all prompts and answers as token ids")
    assert daemon.stop() == 0
