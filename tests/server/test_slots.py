"""GET /slots and POST /slots/{id}: conversations that are saved by name, and go on."""

import hashlib
import json
import signal

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


@pytest.mark.parametrize("family", ["lfm2", "qwen35", "mamba2", "granitehybrid", "arcee"])
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
    ask(daemon, slot=1)  # and the field is harmless


def test_tenants_see_nothing_of_one_anothers(start, tiers, tmp_path):
    path = tmp_path / "keys.json"
    path.write_text(json.dumps({"keys": [
        {"name": name, "sha256": hashlib.sha256(key.encode()).hexdigest()}
        for name, key in KEYS.items()]}))
    path.chmod(0o600)
    daemon = start(*SMALL, *tiers, "--api-keys", str(path)).wait_until_ready()
    alice, bob = ({"Authorization": f"Bearer {key}"} for key in KEYS.values())
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
    assert act(daemon, 0, "restore", filename="a").status_code == 400
    path.unlink()
    path.symlink_to("/etc/passwd")
    assert act(daemon, 0, "restore", filename="a").status_code == 400
    wait_until(lambda: daemon.metric("lockstep_requests_running") == 0)
