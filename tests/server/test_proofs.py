"""The proofs under load (scripts/serving: overload, disconnects, soak, ...) in small, with no
bound on times, and that each finds what it is to find."""

import argparse
import copy
import importlib
import json
import random
import subprocess
import sys

import pytest

from conftest import PATIENCE_SECONDS, PROGRAM, ROOT

SCRIPTS = ROOT / "scripts/serving"
sys.path.insert(0, str(SCRIPTS))
import serving_rig  # noqa: E402

MODEL = ROOT / "config/demo.gguf"


def run(tmp_path, name, *arguments, model=MODEL):
    """The figures of a run without a fault."""
    report = tmp_path / "report.json"
    result = subprocess.run(
        [sys.executable, str(SCRIPTS / f"{name}.py"), "--program", PROGRAM, "--model", model,
         "--option=--workers=1", "--json", report, *map(str, arguments)],
        capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.startswith(("| ", "minute")) and result.stdout.endswith("proven\n")
    return json.loads(report.read_text())


def change(figures, path, value):
    """The figures with another value there."""
    changed = copy.deepcopy(figures)
    place = changed
    *folders, last = path.split(".")
    for name in folders:
        place = place[name]
    assert last in place
    place[last] = value
    return changed


def check_finds(find_faults, figures, path, value, word):
    """This change, and nothing before it, is a fault in which the word is."""
    assert list(find_faults(figures)) == []
    [fault] = find_faults(change(figures, path, value))
    assert word in fault


# --- Overload ---


def test_overload_in_small(tmp_path):
    figures = run(tmp_path, "overload", "--seconds", 3, "--peak-seconds", 2, "--clients", 4,
                  "--answer-tokens", 16, "--waiting-requests", 4, "--keep-alive",
                  "--least-goodput", 0, "--most-rejection-ms", 1e9, "--most-memory-mib", 1e9)
    assert figures["answered"] > 0 and figures["rejected"] > 0
    assert figures["sent"] == figures["answered"] + figures["rejected"]
    overload = importlib.import_module("overload")

    def find(figures):
        return overload.find_faults(figures, argparse.Namespace(
            least_goodput=0.9, most_rejection_ms=50, most_memory_mib=8))

    good = {**figures, "peak": {"tokens": 10}, "goodput": {"tokens": 9.5}, "memory_mib": {"third": 10, "most": 12},
            "rejection_ms": {"p50": 1, "p99": 40, "max": 60}}
    for path, value, word in (
            ("goodput.tokens", 8.9, "goodput"), ("rejected", 0, "no overload"),
            ("rejection_ms.p99", 51, "51.0 ms"), ("memory_mib.most", 20, "memory"),
            ("others", 1, "others"), ("broken", 1, "broken"), ("unanswered", 1, "unanswered"),
            ("without_retry", 1, "without_retry"), ("idle", False, "left"),
            ("exit_code", 1, "ended with 1")):
        check_finds(find, good, path, value, word)


# --- Disconnects ---


def test_disconnects_in_small(tmp_path):
    figures = run(tmp_path, "disconnects", "--disconnects", 60, "--burst", 30, "--good-tokens", 400,
                  "--requests", 300, "--clients", 32, "--waiting-requests", 16,
                  "--most-seconds", PATIENCE_SECONDS)
    bursts, ledger = figures["bursts"], figures["ledger"]
    assert sum(bursts["disconnects"].values()) == 60 and bursts["bursts"] == 2
    assert ledger["requests"] == 300 and ledger["sums"]["ended"] > 0
    assert ledger["finished"] == ledger["sums"]["ended"]
    disconnects = importlib.import_module("disconnects")

    def find(figures):
        return disconnects.find_faults(figures, argparse.Namespace(most_seconds=1))

    figures["bursts"]["free_s"] = [0.1, 0.9]
    figures["bursts"]["beside"] = 2
    for path, value, word in (
            ("bursts.usable", False, "even alone"), ("bursts.differing", 1, "1 good answers"),
            ("bursts.beside", 0, "no good client"), ("bursts.free_s", [0.1, 1.1], "1 bursts"),
            ("bursts.never_free", 1, "1 bursts"), ("bursts.idle", False, "left"),
            ("bursts.exit_code", 1, "ended"), ("ledger.wrong.missing", ["a"], "missing"),
            ("ledger.balanced", False, "counted"), ("ledger.dropped", 1, "lost 1"),
            ("ledger.free", False, "left"), ("ledger.exit_code", 1, "ended")):
        check_finds(find, figures, path, value, word)


def line(identity, status, finish=None):
    end = f" prompt_tokens=1 cached_tokens=0 generated_tokens=1 finish={finish}" if finish else ""
    return (f"time=2026-01-01T00:00:00.000Z level=info msg=request id={identity} client=127.0.0.1 "
            f"method=POST path=/v1/completions status={status}{end} sent_bytes=1 seconds=0.1\n")


def test_the_ledger_finds_what_is_missing_repeated_or_not_as_it_was_seen():
    disconnects = importlib.import_module("disconnects")
    Entry = disconnects.Entry
    ledger = {"ledger-1": Entry("answered", 2, 200), "ledger-2": Entry("answered", 1, 503),
              "ledger-3": Entry("left"), "ledger-4": Entry("invalid", 1, 400),
              "ledger-5": Entry("left by reset", arrived=False), "ledger-6": Entry("left")}
    lines = [line("ledger-1", 200, "stop"), line("ledger-2", 503), line("ledger-3", 200, "cancelled"),
             line("ledger-4", 400), line("ledger-6", 499)]
    counts = {**dict.fromkeys(disconnects.FINISHES, 0), "stop": 2, "cancelled": 1, "rejected": 1}

    def judge(ledger, lines, counts):
        found = disconnects.balance(ledger, "".join(lines), counts)
        return found["balanced"], {name for name, ids in found["wrong"].items() if ids}

    assert judge(ledger, lines, counts) == (True, set())
    assert judge(ledger, lines[:4], counts) == (True, {"missing"})
    assert judge(ledger, lines + lines[3:4], counts) == (True, {"repeated"})
    assert judge(ledger, [*lines, line("ledger-7", 400)], counts) == (True, {"unknown"})
    assert judge(ledger, [*lines[:3], line("ledger-4", 200, "stop"), lines[4]],
                 {**counts, "stop": 3}) == (True, {"other_status"})
    for name in ("stop", "error", "rejected"):
        assert judge(ledger, lines, {**counts, name: counts[name] + 1}) == (False, set())
    assert judge(ledger, [*lines[:4], line("ledger-6", 500)], counts) == (False, set())


# --- Soak ---


def test_a_soak_in_small(tmp_path):
    figures = run(tmp_path, "soak", "--minutes", 0.05, "--clients", 6, "--most-memory-mib", 1e9,
                  "--rest-seconds", 0, "--most-seconds", PATIENCE_SECONDS)
    assert sum(figures["counts"].values()) >= 6  # one of each client, however busy the machine is
    soak = importlib.import_module("soak")

    def find(figures):
        return soak.find_faults(figures, argparse.Namespace(most_memory_mib=1, rest_seconds=20))

    figures |= {"third_mib": 10, "end_mib": 10.9, "after": dict(figures["before"])}
    for path, value, word in (
            ("end_mib", 11.1, "memory"), ("faults", ["x"], "1 requests"),
            ("log_errors", ["x"], "log"), ("idle", False, "run"),
            ("after.threads", figures["after"]["threads"] + 1, "threads"),
            ("after.descriptors", 10_000, "descriptors"), ("exit_code", 1, "ended")):
        check_finds(find, figures, path, value, word)


def test_the_soaks_model_knows_tools(start, tmp_path):
    model = importlib.import_module("soak").with_template(MODEL, tmp_path / "model.gguf")
    daemon = start("--served-model-name", "m", model=model).wait_until_ready()
    tool = {"type": "function", "function": importlib.import_module("soak").TOOL}
    answer = daemon.post("/v1/chat/completions", {
        "model": "m", "messages": [{"role": "user", "content": "A cat?"}], "tools": [tool],
        "tool_choice": "required", "parallel_tool_calls": False, "temperature": 0,
        "max_tokens": 100})
    assert answer.status_code == 200, answer.text
    [call] = answer.json()["choices"][0]["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]).keys() == {"kind", "legs"}


# --- Canaries ---


def test_canaries_in_small(tmp_path):
    # Pages for all of them, so that what is shared is found; among few it may be evicted first.
    figures = run(tmp_path, "canaries", "--pairs", 8, "--at-once", 8, "--answer-tokens", 32,
                  "--begin-words", 200, "--kv-pages", 128)
    assert sum(counts["pairs"] for counts in figures["kinds"].values()) == 8
    canaries = importlib.import_module("canaries")
    for path, value, word in (("told", 1, "log"), ("exit_code", 1, "ended")):
        check_finds(canaries.find_faults, figures, path, value, word)
    kind = next(iter(figures["kinds"]))
    for name in canaries.FAULTS:
        [fault] = canaries.find_faults({**figures, "kinds": {
            **figures["kinds"], kind: {**figures["kinds"][kind], name: 1}}})
        assert name in fault and kind in fault
    none = {kind: {**counts, "found in the cache": 0} for kind, counts in figures["kinds"].items()}
    assert list(canaries.find_faults({**figures, "kinds": none})) == [
        "nothing was ever found in the cache"]


def test_a_canary_that_is_heard_is_found():
    canaries = importlib.import_module("canaries")

    def pair(common=0):
        both = tuple(canaries.Canary("alice", {}, secret, [foreign], ["text"], ["text"], b"text")
                     for secret, foreign in (("one", "two"), ("two", "one")))
        return canaries.Pair("kind", both, common)

    assert not canaries.judge([pair()])
    for fault, name, value in (("differs", "beside", ["other"]), ("differs", "beside", "status 500"),
                               ("no answer alone", "alone", "status 500"),
                               ("another's secret", "raw", b"this is two"),
                               ("more cached than shared", "cached_tokens", 64)):
        wrong = pair()
        setattr(wrong.both[0], name, value)
        assert canaries.judge([wrong]) == {fault: 1}
    shared = pair(common=100)
    shared.both[0].cached_tokens = 64
    assert not canaries.judge([shared])


# --- Timing oracle ---


def test_the_timing_oracle_in_small(tmp_path):
    figures = run(tmp_path, "timing_oracle", "--trials", 4, "--alpha", 0, "--least-control", 0)
    assert figures["own key"]["cached_tokens"] == 0
    assert figures["victim's key"]["cached_tokens"] > 0
    oracle = importlib.import_module("timing_oracle")

    def find(figures):
        return oracle.find_faults(figures, argparse.Namespace(alpha=0.001, least_control=0.95))

    figures["own key"] |= {"right": 270, "guessed": 500, "luck": 0.04}
    figures["victim's key"]["accuracy"] = 1.0
    for path, value, word in (
            ("own key.luck", 0.0005, "270 times"), ("own key.cached_tokens", 64, "64 cached"),
            ("victim's key.accuracy", 0.9, "shows nothing"), ("exit_code", 1, "ended")):
        check_finds(find, figures, path, value, word)


def test_an_attacker_learns_what_there_is_to_learn():
    oracle = importlib.import_module("timing_oracle")
    chance = random.Random(5)
    tosses = [chance.random() < 0.5 for _ in range(1000)]
    noise = [(sent, chance.gauss(10, 1)) for sent in tosses]
    told = [(sent, chance.gauss(9 if sent else 10, 1)) for sent in tosses]
    backwards = [(not sent, seconds) for sent, seconds in told]
    assert 0.01 < oracle.judge(noise)["luck"] < 0.99
    for trials in (told, backwards):
        judged = oracle.judge(trials)
        assert 0.6 < judged["accuracy"] < 0.8 and judged["luck"] < 0.001
    assert oracle.probability_of_luck(0, 10) == 1
    assert oracle.probability_of_luck(9, 10) == 11 / 1024


# --- What masks cost ---


def test_mask_cost_in_small(tmp_path):
    figures = run(tmp_path, "mask_cost", "--streams", 2, "--tokens", 24, "--rounds", 2,
                  "--most-share", 1e9)
    assert figures["none"]["share"] == 0
    assert all(row["step_ms"] > 0 for name, row in figures.items() if name != "faults")
    mask_cost = importlib.import_module("mask_cost")
    good = {kind: {"step_ms": 1, "share": 0.04} for kind in mask_cost.KINDS}

    def find(figures):
        return mask_cost.find_faults(figures, argparse.Namespace(most_share=0.05))

    check_finds(find, good, "JSON schema.share", 0.06, "6.0 % longer")


# --- What they share ---


def test_percentiles():
    assert serving_rig.percentile([3, 1, 2], 0.5) == 2
    assert serving_rig.percentile(range(100), 0.99) == 99
    assert serving_rig.percentile([1], 1.0) == 1
    assert str(serving_rig.percentile([], 0.5)) == "nan"


@pytest.mark.parametrize("cut", range(0, 60, 7))
def test_answers_that_are_cut_are_not_whole(cut):
    plain = b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n" + b"x" * 20
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    assert serving_rig.parse_answer(plain)[2:] == (b"x" * 20, True)
    assert serving_rig.parse_answer(chunked)[2:] == (b"abcde", True)
    for raw in (plain, chunked):
        assert not serving_rig.parse_answer(raw[:-1 - cut])[3]
