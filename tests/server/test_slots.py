"""GET /slots and POST /slots/{id}: conversations that are saved by name, and go on."""

import hashlib
import json
import shutil
import signal
import time

import pytest
from conftest import FIXTURES, Daemon, wait_until

KEYS = {"alice": "alice-secret-0123456789", "bob": "bob-secret-0123456789"}
SMALL = ("--served-model-name", "m", "--kv-pages", "24", "--context", "1024", "--sequences", "2")
PROMPT = [5 + number * 7 % 80 for number in range(200)]


def ask(daemon, prompt=PROMPT, slot=None, headers=None, **fields):
    """The answer's text, its tokens, and how many of the prompt were found."""
    body = {"model": "m", "prompt": prompt, "max_tokens": 20, "temperature": 0, "ignore_eos": True,
            "logprobs": 0, **({} if slot is None else {"id_slot": slot}), **fields}
    answer = daemon.post("/v1/completions", body, headers=headers)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    return (found["choices"][0]["text"],
            found["usage"]["prompt_tokens_details"]["cached_tokens"])


def act(daemon, slot, action, headers=None, **body):
    return daemon.post(f"/slots/{slot}?action={action}", body, headers=headers)


def slots(daemon, headers=None):
    answer = daemon.get("/slots", headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.json()


def restart(daemon, start, *options, **more):
    daemon.process.send_signal(signal.SIGTERM)
    assert daemon.process.wait() == 0
    return start(*options, **more).wait_until_ready()


@pytest.fixture
def tiers(tmp_path):
    return ("--cache-dir", str(tmp_path / "cache"), "--cache-disk", "1")


@pytest.mark.parametrize("family", ["lfm2", "qwen35", "kimi-linear", "mamba", "mamba2",
                                    "granitehybrid", "arcee"])
def test_a_saved_conversation_goes_on_with_the_same_bits(start, tiers, family):
    model = FIXTURES / f"families/{family}.gguf"
    straight = start(*SMALL, model=model).wait_until_ready()
    more = [*PROMPT, *([9] * 70)]
    expected = [ask(straight, prompt, cache_salt=str(index))[0]
                for index, prompt in enumerate([PROMPT, more])]
    straight.stop()

    daemon = start(*SMALL, *tiers, model=model).wait_until_ready()
    assert ask(daemon, slot=1) == (expected[0], 0)
    saved = act(daemon, 1, "save", filename="talk.bin")
    assert saved.status_code == 200, saved.text
    saved = saved.json()
    assert (saved["id_slot"], saved["filename"], saved["n_saved"]) == (1, "talk.bin", 220)
    assert saved["n_written"] > 4 * 220 and saved["timings"]["save_ms"] > 0

    daemon = restart(daemon, start, *SMALL, *tiers, model=model)
    assert [slot["n_tokens"] for slot in slots(daemon)] == [0, 0]
    restored = act(daemon, 0, "restore", filename="talk.bin").json()
    assert (restored["id_slot"], restored["n_restored"]) == (0, 220)
    assert restored["n_read"] == saved["n_written"] and restored["timings"]["restore_ms"] > 0
    # But for what lies behind the last page, or the last state.
    assert restored["n_computed"] == 220 - 192
    assert [slot["n_tokens"] for slot in slots(daemon)] == [220, 0]
    prompted = daemon.metric("lockstep_prompt_tokens_total")
    assert ask(daemon) == (expected[0], 192)
    assert ask(daemon, more) == (expected[1], 192)
    # Nothing of what has been restored was computed again.
    assert daemon.metric("lockstep_prompt_tokens_total") - prompted <= (200 + 270) - 2 * 192 + 1


def test_slots_are_erased_and_their_files_by_name(start, tiers):
    daemon = start(*SMALL, *tiers).wait_until_ready()
    assert [(one["id"], one["n_ctx"], one["is_processing"], one["n_tokens"])
            for one in slots(daemon)] == [(0, 1024, False, 0), (1, 1024, False, 0)]
    empty = act(daemon, 0, "save", filename="a")
    assert empty.status_code == 400 and "nothing" in empty.json()["error"]["message"]
    ask(daemon)  # names none: slot 0's
    assert slots(daemon)[0]["n_tokens"] == 220
    assert act(daemon, 0, "save", filename="a").status_code == 200
    erased = daemon.post_bytes("/slots/0?action=erase", b"", content_type=None)
    assert erased.status_code == 200, erased.text
    assert erased.json() == {"id_slot": 0, "n_erased": 220}
    assert slots(daemon)[0]["n_tokens"] == 0
    assert act(daemon, 0, "restore", filename="a").json()["n_restored"] == 220
    assert act(daemon, 0, "erase", filename="a").json()["n_erased"] == 220
    gone = act(daemon, 0, "restore", filename="a")
    assert gone.status_code == 400 and gone.json()["error"]["param"] == "filename"


@pytest.mark.parametrize("path, body, parameter", [
    ("/slots/0?action=save", {}, "filename"), ("/slots/0?action=restore", {}, "filename"),
    ("/slots/0?action=save", {"filename": "../x"}, "filename"),
    ("/slots/0?action=restore", {"filename": "/etc/passwd"}, "filename"),
    ("/slots/0?action=erase", {"filename": "a/b"}, "filename"),
    ("/slots/0?action=save", {"filename": 5}, "filename"),
    ("/slots/0", {"filename": "a"}, "action"), ("/slots/0?action=copy", {"filename": "a"}, "action"),
    ("/slots/2?action=save", {"filename": "a"}, "id"),
    ("/slots/-1?action=save", {"filename": "a"}, "id"),
    ("/slots/x?action=save", {"filename": "a"}, "id"),
])
def test_what_is_wrong_is_named(slotted, path, body, parameter):
    answer = slotted.post(path, body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == parameter


@pytest.fixture(scope="module")
def slotted(model_path, tmp_path_factory):
    daemon = Daemon(model_path, "--workers", "1", *SMALL, "--cache-dir",
                    str(tmp_path_factory.mktemp("cache"))).wait_until_ready()
    ask(daemon)
    yield daemon
    assert daemon.stop() == 0


def test_a_slot_that_is_none_is_refused(slotted):
    answer = slotted.post("/v1/completions", {"model": "m", "prompt": "a", "id_slot": 2})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "id_slot"
    assert ask(slotted, slot=-1)


def test_without_a_directory_there_are_none(start):
    daemon = start(*SMALL).wait_until_ready()
    for answer in (daemon.get("/slots"), act(daemon, 0, "save", filename="a")):
        assert answer.status_code == 501
        assert answer.json()["error"]["type"] == "not_supported_error"
    ask(daemon, slot=7)  # and the field is harmless, whatever it says


def test_while_the_model_loads_it_is_not_said_that_there_are_none(start, tiers):
    """Whichever state the daemon is in when it is asked, its answer is one of the two."""
    daemon = start(*SMALL, *tiers)
    for _ in range(1000):
        for answer in (daemon.get("/slots"), act(daemon, 0, "erase")):
            if answer.status_code != 200:
                assert answer.status_code == 503, answer.text
                assert answer.json()["error"]["code"] == "model_loading"
                assert int(answer.headers["Retry-After"]) >= 1
        if answer.status_code == 200:
            break
    daemon.wait_until_ready()
    assert [slot["n_tokens"] for slot in slots(daemon)] == [0, 0]


def test_a_directory_that_another_process_holds_is_said_to_be_unusable(start, tiers):
    first = start(*SMALL, *tiers).wait_until_ready()
    second = start(*SMALL, *tiers).wait_until_ready()
    ask(second, slot=7)
    for answer in (second.get("/slots"), act(second, 0, "save", filename="a")):
        assert answer.status_code == 501
        assert "log says why" in answer.json()["error"]["message"]
    assert slots(first)


def test_a_request_that_fails_leaves_the_slot_what_it_has(start, tiers):
    daemon = start(*SMALL, *tiers).wait_until_ready()
    ask(daemon)
    late = daemon.post("/v1/completions", {"model": "m", "prompt": PROMPT[:50], "max_tokens": 900,
                                           "ignore_eos": True, "timeout": 0.001})
    assert late.status_code == 504, late.text
    first, _ = slots(daemon)
    assert (first["n_tokens"], first["is_processing"]) == (220, False)


def test_a_client_that_leaves_has_its_answer_so_far_in_the_slot(start, tiers):
    daemon = start(*SMALL, *tiers).wait_until_ready()
    stream = daemon.post("/v1/completions", {"model": "m", "prompt": PROMPT, "max_tokens": 800,
                                             "ignore_eos": True, "stream": True, "id_slot": 1},
                         stream=True)
    assert next(stream.iter_lines())
    stream.close()
    wait_until(lambda: not slots(daemon)[1]["is_processing"])
    assert len(PROMPT) < slots(daemon)[1]["n_tokens"] <= len(PROMPT) + 800


@pytest.fixture
def keyed(start, tiers, tmp_path):
    """Starts a daemon with the keys of alice and bob; the daemon, and their headers."""
    def go(**allowance):
        path = tmp_path / "keys.json"
        path.write_text(json.dumps({"keys": [
            {"name": name, "sha256": hashlib.sha256(key.encode()).hexdigest(), **allowance}
            for name, key in KEYS.items()]}))
        path.chmod(0o600)
        daemon = start(*SMALL, *tiers, "--api-keys", str(path)).wait_until_ready()
        return daemon, *({"Authorization": f"Bearer {key}"} for key in KEYS.values())
    return go


def test_a_client_that_has_its_answer_may_ask_again(keyed):
    daemon, alice, _ = keyed(concurrent=1)
    ask(daemon, headers=alice)
    for _ in range(50):
        for action in ("save", "erase"):
            answer = act(daemon, 0, action, alice, filename="a")
            assert answer.status_code == 200, answer.text
        ask(daemon, headers=alice, prompt=[5], max_tokens=1)


def test_a_save_is_charged_by_its_tokens_unless_the_server_fails(keyed, tmp_path):
    limit = 1000
    daemon, alice, _ = keyed(tokens_per_minute=limit)
    ask(daemon, headers=alice)

    def left():
        answer = daemon.post("/tokenize", {"prompt": "a"}, headers=alice)
        return int(answer.headers["x-ratelimit-remaining-tokens"])

    begin, before = time.monotonic(), left()
    saved = act(daemon, 0, "save", alice, filename="a")
    assert saved.status_code == 200 and "x-ratelimit-remaining-tokens" in saved.headers
    assert left() <= before - 220 + (time.monotonic() - begin) * limit / 60 + 1
    shutil.rmtree(tmp_path / "cache/slots")
    (tmp_path / "cache/slots").write_text("no folder")
    before = left()
    failed = act(daemon, 0, "save", alice, filename="a")
    assert failed.status_code == 500, failed.text
    assert "x-ratelimit-remaining-tokens" in failed.headers
    assert left() > before - 220


def test_tenants_see_nothing_of_one_anothers(keyed):
    daemon, alice, bob = keyed()
    ask(daemon, headers=alice)
    assert slots(daemon, alice)[0]["n_tokens"] == 220
    assert slots(daemon, bob)[0]["n_tokens"] == 0
    assert act(daemon, 0, "save", alice, filename="a").status_code == 200
    assert act(daemon, 0, "save", bob, filename="a").status_code == 400
    assert act(daemon, 0, "restore", bob, filename="a").status_code == 400
    assert act(daemon, 0, "erase", bob, filename="a").json()["n_erased"] == 0
    assert act(daemon, 1, "restore", alice, filename="a").json()["n_restored"] == 220
    assert daemon.get("/slots").status_code == 401


def test_a_conversation_in_a_damaged_file_is_refused(start, tiers, tmp_path):
    daemon = start(*SMALL, *tiers).wait_until_ready()
    ask(daemon)
    assert act(daemon, 0, "save", filename="a").status_code == 200
    path, = (tmp_path / "cache/slots").glob("*/a")
    assert path.stat().st_mode & 0o777 == 0o600
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    damaged = act(daemon, 0, "restore", filename="a")
    assert damaged.status_code == 400 and "is damaged" in damaged.json()["error"]["message"]
    path.unlink()
    path.symlink_to("/etc/passwd")
    linked = act(daemon, 0, "restore", filename="a")
    assert linked.status_code == 400 and "there is no" in linked.json()["error"]["message"]
    wait_until(lambda: daemon.metric("lockstep_requests_running") == 0)
