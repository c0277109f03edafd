"""Pages that make way go to memory and files, and come back: also for the next daemon."""

import os
import pathlib
import signal
import subprocess
import time

import pytest
from conftest import FIXTURES, wait_until

PROMPT = "Once upon a time there was a little girl named Lily. " * 30
OTHERS = [f"{name} went to the forest to look for the big red ball. " * 30
          for name in ("Tom", "Sue", "Ben", "Ann", "Max", "Tim")]
# Few pages: what one prompt leaves in the cache makes way for the next.
SMALL = ("--served-model-name", "m", "--kv-pages", "24", "--context", "1024")


def ask(daemon, prompt=PROMPT, **fields):
    body = {"model": "m", "prompt": prompt, "max_tokens": 24, "temperature": 0,
            "ignore_eos": True, **fields}
    answer = daemon.post("/v1/completions", body)
    assert answer.status_code == 200, answer.text
    text = answer.json()
    return (text["choices"][0]["text"],
            text["usage"]["prompt_tokens_details"]["cached_tokens"])


def records(folder, kind="page"):
    return sorted(pathlib.Path(folder).glob(f"*.{kind}"))


def straight(start, prompts):
    """The answers of a daemon that keeps nothing outside of its cache."""
    daemon = start(*SMALL).wait_until_ready()
    return {prompt: ask(daemon, prompt, cache_salt=str(index))[0]
            for index, prompt in enumerate(prompts)}


def test_pages_come_back_from_memory(start):
    expected = straight(start, [PROMPT, *OTHERS])
    daemon = start(*SMALL, "--cache-memory", "64").wait_until_ready()
    for _ in range(2):
        for prompt, text in expected.items():
            assert ask(daemon, prompt)[0] == text
    assert daemon.metric("lockstep_kv_cache_evictions_total") > 0
    assert daemon.metric("lockstep_cache_tier_hits_total", tier="memory") > 0
    assert daemon.metric("lockstep_cache_tier_hits_total", tier="disk") == 0
    assert daemon.metric("lockstep_cache_tier_hit_tokens_total") > 0


def test_a_conversation_goes_on_after_a_restart(start, tmp_path):
    tiers = ("--cache-dir", str(tmp_path / "cache"), "--cache-disk", "1")
    expected = straight(start, [PROMPT, *OTHERS[:1]])
    daemon = start(*SMALL, *tiers).wait_until_ready()
    first, cached = ask(daemon)
    assert (first, cached) == (expected[PROMPT], 0)
    _, cached_in_cache = ask(daemon)
    assert cached_in_cache > 0
    daemon.process.send_signal(signal.SIGTERM)
    assert daemon.process.wait() == 0
    assert records(tmp_path / "cache")
    daemon = start(*SMALL, *tiers).wait_until_ready()
    assert daemon.metric("lockstep_cache_tier_bytes", tier="disk") > 0
    again, cached = ask(daemon)
    assert again == first and cached > 0  # how much depends on how soon it is read
    assert daemon.metric("lockstep_cache_tier_hits_total", tier="disk") > 0
    assert daemon.metric("lockstep_cache_disk_read_bytes_total") > 0
    # Another tenant's, or under a salt: as if nothing were there.
    assert ask(daemon, cache_salt="salt") == (first, 0)
    # Longer than what was kept: it is found up to where the two part.
    assert ask(daemon, PROMPT + OTHERS[0])[1] > 0
    # A request waits for files while others go on.
    assert ask(daemon, OTHERS[0])[0] == expected[OTHERS[0]]


def test_an_idle_daemon_writes_and_one_that_is_killed_has_written(start, tmp_path):
    tiers = ("--cache-dir", str(tmp_path / "cache"), "--cache-disk", "1")
    daemon = start(*SMALL, *tiers).wait_until_ready()
    first, _ = ask(daemon)
    _, cached = ask(daemon)
    wait_until(lambda: daemon.metric("lockstep_cache_tier_bytes", tier="disk") > 0)
    wait_until(lambda: len(records(tmp_path / "cache")) >= cached // 64)
    daemon.process.kill()
    daemon.process.wait()
    daemon = start(*SMALL, *tiers).wait_until_ready()
    again, cached = ask(daemon)
    assert again == first and cached > 0


def test_files_that_are_damaged_or_foreign_cost_time_alone(start, tmp_path):
    tiers = ("--cache-dir", str(tmp_path / "cache"), "--cache-disk", "1")
    daemon = start(*SMALL, *tiers).wait_until_ready()
    first, _ = ask(daemon)
    daemon.process.send_signal(signal.SIGTERM)
    daemon.process.wait()
    found = records(tmp_path / "cache")
    assert len(found) > 2
    for index, path in enumerate(found):
        content = bytearray(path.read_bytes())
        if index % 3 == 0:
            content[len(content) // 2] ^= 1
        elif index % 3 == 1:
            del content[len(content) // 2:]
        else:
            path.chmod(0o644)
        path.write_bytes(content)
    daemon = start(*SMALL, *tiers).wait_until_ready()
    assert ask(daemon)[0] == first
    assert daemon.metric("lockstep_cache_disk_failures_total", reason="unusable") > 0
    daemon.wait_until_logged("is not used, and is removed")
    daemon.process.send_signal(signal.SIGTERM)
    daemon.process.wait()
    # A directory that cannot be used is a line in the log.
    (tmp_path / "file").write_text("not a directory")
    daemon = start(*SMALL, "--cache-dir", str(tmp_path / "file")).wait_until_ready()
    daemon.wait_until_logged("are not kept outside")
    assert ask(daemon)[0] == first


def test_another_model_or_format_finds_nothing(start, tmp_path):
    tiers = ("--cache-dir", str(tmp_path / "cache"), "--cache-disk", "1")
    daemon = start(*SMALL, *tiers).wait_until_ready()
    ask(daemon)
    daemon.process.send_signal(signal.SIGTERM)
    daemon.process.wait()
    for options in (("--kv-format", "f32"), ("--kv-value-format", "bf16"),
                    ("--kv-key-format", "bf16")):
        daemon = start(*SMALL, *tiers, *options).wait_until_ready()
        assert ask(daemon)[1] == 0, options
        assert daemon.metric("lockstep_cache_tier_hits_total", tier="disk") == 0, options
        daemon.process.send_signal(signal.SIGTERM)
        daemon.process.wait()


@pytest.mark.parametrize("options", [("--kv-format", "q4_h"),
                                     ("--kv-key-format", "q8_0", "--kv-value-format", "q4_h")])
def test_formats_of_less_than_16_bits_go_on_after_a_restart(start, tmp_path, model_path, options):
    arguments = (*SMALL, *options, "--cache-dir", str(tmp_path / "cache"), "--cache-disk", "1")
    daemon = start(*arguments, model=model_path).wait_until_ready()
    first, _ = ask(daemon)
    daemon.process.send_signal(signal.SIGTERM)
    daemon.process.wait()
    daemon = start(*arguments, model=model_path).wait_until_ready()
    again, found = ask(daemon)
    assert again == first and found > 0
    assert daemon.metric("lockstep_cache_tier_hits_total", tier="disk") > 0


def test_a_second_daemon_goes_on_without_the_files(start, tmp_path):
    tiers = ("--cache-dir", str(tmp_path / "cache"))
    start(*SMALL, *tiers).wait_until_ready()
    second = start(*SMALL, *tiers).wait_until_ready()
    second.wait_until_logged("another process uses it")
    ask(second)
    mode = os.stat(tmp_path / "cache").st_mode & 0o7777
    assert mode == 0o700


# Models whose layers keep states: short convolutions, gated delta nets, and scans with and without
# attention beside them.
HYBRIDS = ("lfm2", "qwen35", "kimi-linear", "mamba", "mamba2", "granitehybrid")
TURN = [5 + number * 7 % 80 for number in range(200)]  # three pages, and the state behind them
FEW_SLOTS = (*SMALL, "--sequences", "2")  # so that checkpoints make way, too


def hybrid(family):
    return FIXTURES / f"families/{family}.gguf"


def edits():
    """Prompts that are the turn's up to a token, wherever that lies in a page, and go on."""
    return [TURN[:same] + [9 + number * 11 % 70 for number in range(210 - same)]
            for same in (0, 1, 63, 64, 65, 127, 128, 129, 191, 192, 193, 200)]


def straight_answers(start, family, prompts):
    """Of a daemon that finds nothing again, not even in its cache."""
    daemon = start(*SMALL, model=hybrid(family)).wait_until_ready()
    return [ask(daemon, prompt, cache_salt=str(index))[0] for index, prompt in enumerate(prompts)]


def is_written(daemon, folder):
    """Nothing more is to be saved: what one looks at has not changed for some passes of the loop."""
    before = None
    for _ in range(1000):
        now = (daemon.metric("lockstep_cache_tier_saved_total"),
               daemon.metric("lockstep_cache_tier_states_saved_total"),
               len(records(folder)), len(records(folder, "state")))
        if now == before:
            return True
        before = now
        time.sleep(0.2)
    return False


@pytest.mark.parametrize("family", HYBRIDS)
def test_states_come_back_from_memory(start, family):
    strangers = [[20 + index] * 4 + TURN for index in range(7)]  # more pages than there are
    prompts = [TURN, *edits(), *strangers]
    expected = straight_answers(start, family, prompts)
    daemon = start(*FEW_SLOTS, "--cache-memory", "64", model=hybrid(family)).wait_until_ready()
    for _ in range(2):
        assert [ask(daemon, prompt)[0] for prompt in prompts] == expected
    # A checkpoint makes way for others, or with its pages.
    assert (daemon.metric("lockstep_state_evictions_total")
            + daemon.metric("lockstep_kv_cache_evictions_total")) > 0
    assert daemon.metric("lockstep_cache_tier_state_hits_total", tier="memory") > 0
    assert daemon.metric("lockstep_cache_tier_state_hits_total", tier="disk") == 0
    assert not any("not kept outside" in line for line in daemon.log)


@pytest.mark.parametrize("family", HYBRIDS)
def test_a_hybrids_conversation_goes_on_after_a_restart(start, tmp_path, family):
    folder = tmp_path / "cache"
    tiers = ("--cache-dir", str(folder), "--cache-disk", "1")
    prompts = edits()
    expected = straight_answers(start, family, [TURN, *prompts])
    daemon = start(*FEW_SLOTS, *tiers, model=hybrid(family)).wait_until_ready()
    assert ask(daemon, TURN) == (expected[0], 0)
    daemon.process.send_signal(signal.SIGTERM)
    assert daemon.process.wait() == 0
    assert records(folder, "state")

    daemon = start(*FEW_SLOTS, *tiers, model=hybrid(family)).wait_until_ready()
    assert ask(daemon, TURN) == (expected[0], 192)
    assert daemon.metric("lockstep_cache_tier_state_hits_total", tier="disk") == 1
    assert daemon.metric("lockstep_state_hits_total") == 1
    assert ask(daemon, TURN, cache_salt="salt") == (expected[0], 0)
    for prompt, text in zip(prompts, expected[1:], strict=True):
        assert ask(daemon, prompt)[0] == text
    assert is_written(daemon, folder)
    daemon.process.kill()
    daemon.process.wait()

    # One that was killed has left whole files, and each is found or computed again.
    daemon = start(*FEW_SLOTS, *tiers, model=hybrid(family)).wait_until_ready()
    for prompt, text in zip(prompts, expected[1:], strict=True):
        assert ask(daemon, prompt)[0] == text
    assert daemon.metric("lockstep_cache_tier_state_hits_total", tier="disk") > 0


def test_a_damaged_state_costs_time_alone(start, tmp_path):
    folder = tmp_path / "cache"
    tiers = ("--cache-dir", str(folder), "--cache-disk", "1")
    daemon = start(*FEW_SLOTS, *tiers, model=hybrid("qwen35")).wait_until_ready()
    first, _ = ask(daemon, TURN)
    daemon.process.send_signal(signal.SIGTERM)
    daemon.process.wait()
    states = records(folder, "state")
    for path in states:
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    daemon = start(*FEW_SLOTS, *tiers, model=hybrid("qwen35")).wait_until_ready()
    assert ask(daemon, TURN) == (first, 0)
    daemon.wait_until_logged("is not used, and is removed")
    assert daemon.metric("lockstep_cache_disk_failures_total", reason="unusable") == len(states)
    assert daemon.metric("lockstep_cache_tier_state_hits_total", tier="disk") == 0


@pytest.fixture
def disk(tmp_path):
    """A file system of one MiB; what is done with it as mount does."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def mount(*options):
        return subprocess.run(["mount", *options, str(folder)], capture_output=True, check=False)

    made = mount("-t", "tmpfs", "-o", "size=1m,mode=700", "tmpfs")
    if made.returncode != 0:
        pytest.skip("no file system can be mounted here")
    yield folder, mount
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_full_disk_is_a_line_in_the_log(start, disk):
    folder, _ = disk
    expected = straight(start, [PROMPT, *OTHERS])
    tiers = ("--cache-dir", str(folder), "--cache-disk", "1")
    daemon = start(*SMALL, *tiers).wait_until_ready()
    for prompt, text in expected.items():
        assert ask(daemon, prompt)[0] == text
    daemon.wait_until_logged("the disk is full")
    assert daemon.metric("lockstep_cache_disk_failures_total", reason="write") > 0
    for prompt, text in expected.items():
        assert ask(daemon, prompt)[0] == text
    assert daemon.stop() == 0
    assert not list(folder.glob("new-*"))


def test_a_disk_that_becomes_read_only_is_a_line_in_the_log(start, disk):
    folder, mount = disk
    expected = straight(start, [PROMPT, *OTHERS[:2]])
    tiers = ("--cache-dir", str(folder), "--cache-disk", "1")
    daemon = start(*SMALL, *tiers).wait_until_ready()
    assert ask(daemon)[0] == expected[PROMPT]
    assert daemon.stop() == 0
    assert mount("-o", "remount,ro").returncode == 0
    # At the start the key cannot be locked for writing: no files.
    daemon = start(*SMALL, *tiers).wait_until_ready()
    daemon.wait_until_logged("Read-only file system")
    assert ask(daemon)[0] == expected[PROMPT]
    assert daemon.get("/slots").status_code == 501
    assert daemon.stop() == 0
