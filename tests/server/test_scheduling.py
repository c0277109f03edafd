"""Prefixes, priorities, time limits, full queues and pages that run out, as clients see them."""

import pytest
import requests
from conftest import ENDLESS, FIXTURES, parse_events, wait_until



class FromAddress(requests.adapters.HTTPAdapter):
    """Connects from this address."""

    def __init__(self, address):
        self.address = address
        super().__init__()

    def init_poolmanager(self, *args, **kwargs):
        super().init_poolmanager(*args, source_address=(self.address, 0), **kwargs)


PROMPT = "Once upon a time there was a little girl named Lily. " * 12


def ask(daemon, **fields):
    body = {"model": "m", "prompt": PROMPT, "max_tokens": 24, "temperature": 0, "ignore_eos": True,
            **fields}
    return daemon.post("/v1/completions", body, stream=body.get("stream", False))


def text_and_cached(answer):
    assert answer.status_code == 200, answer.text
    body = answer.json()
    return body["choices"][0]["text"], body["usage"]["prompt_tokens_details"]["cached_tokens"]


def check_deadline(error):
    assert error["type"] == "timeout_error"
    assert error["code"] == "deadline_exceeded"
    assert error["param"] is None


@pytest.mark.parametrize("arithmetic", ["exact", "fast"])
def test_a_cached_prompt_gives_the_same_answer_and_is_said_so(start, arithmetic):
    daemon = start("--served-model-name", "m", "--arithmetic", arithmetic).wait_until_ready()
    cold, none = text_and_cached(ask(daemon))
    assert none == 0
    warm, cached = text_and_cached(ask(daemon))
    assert warm == cold
    prompt_tokens = ask(daemon, max_tokens=1).json()["usage"]["prompt_tokens"]
    assert cached == (prompt_tokens - 1) // 64 * 64 > 0
    # Three requests; all but the first have found it.
    assert daemon.metric("lockstep_prefix_cache_queries_total") == 3 * prompt_tokens
    assert daemon.metric("lockstep_prefix_cache_hits_total") == 2 * cached
    assert daemon.metric("lockstep_prompt_tokens_total") == 3 * prompt_tokens - 2 * cached
    wait_until(lambda: daemon.metric("lockstep_kv_cache_pages", state="used") == 0)
    assert daemon.metric("lockstep_kv_cache_pages", state="cached") >= cached / 64
    assert daemon.metric("lockstep_kv_cache_usage_ratio") == 0
    # A salt of its own: as if nothing were there.
    assert text_and_cached(ask(daemon, cache_salt="salt")) == (cold, 0)
    assert text_and_cached(ask(daemon, cache_salt="salt")) == (cold, cached)
    streamed = daemon.events("/v1/completions", {
        "model": "m", "prompt": PROMPT, "max_tokens": 2, "stream_options": {"include_usage": True}})
    assert streamed[-2]["usage"]["prompt_tokens_details"]["cached_tokens"] == cached


def test_a_model_with_states_goes_on_from_a_checkpoint(start):
    model = FIXTURES / "families/lfm2.gguf"
    daemon = start("--served-model-name", "m", model=model).wait_until_ready()
    prompt = [5 + number * 7 % 80 for number in range(200)]
    cold, none = text_and_cached(ask(daemon, prompt=prompt))
    assert none == 0
    # Three whole pages of 64 tokens, and the state behind them.
    assert text_and_cached(ask(daemon, prompt=prompt)) == (cold, 192)
    assert daemon.metric("lockstep_state_hits_total") == 1
    assert daemon.metric("lockstep_state_slots", state="checkpoint") >= 1
    wait_until(lambda: daemon.metric("lockstep_state_slots", state="used") == 0)
    assert text_and_cached(ask(daemon, prompt=prompt, cache_salt="salt")) == (cold, 0)


def test_a_request_ends_at_its_timeout(start):
    daemon = start("--served-model-name", "m").wait_until_ready()
    answer = ask(daemon, timeout=0.001, n=20)
    assert answer.status_code == 504, answer.text
    check_deadline(answer.json()["error"])
    stream = ask(daemon, timeout=0.001, n=20, stream=True)
    assert stream.status_code == 200
    events = parse_events(stream.content)
    check_deadline(events[-2]["error"])
    assert daemon.metric("lockstep_requests_total", finish_reason="deadline") >= 2
    assert ask(daemon, timeout=300).status_code == 200


def test_the_servers_time_is_the_most_a_request_may_take(start):
    daemon = start("--served-model-name", "m", "--request-seconds", "0.001").wait_until_ready()
    assert ask(daemon, n=20).status_code == 504
    assert ask(daemon, n=20, timeout=300).status_code == 504


@pytest.mark.parametrize("fields, parameter", [
    ({"priority": 1001}, "priority"), ({"priority": -1001}, "priority"),
    ({"priority": 0.5}, "priority"), ({"priority": "high"}, "priority"),
    ({"timeout": 0}, "timeout"), ({"timeout": -1}, "timeout"), ({"timeout": "1"}, "timeout"),
    ({"cache_salt": "x" * 257}, "cache_salt"), ({"cache_salt": 7}, "cache_salt"),
])
def test_what_is_out_of_range_is_named(daemon, fields, parameter):
    answer = ask(daemon, model="stories", **fields)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == parameter


def test_the_ends_of_the_ranges_are_taken(daemon):
    for fields in ({"priority": 1000}, {"priority": -1000}, {"cache_salt": "x" * 256},
                   {"cache_salt": ""}, {"timeout": 86400}):
        assert ask(daemon, model="stories", max_tokens=1, **fields).status_code == 200


def test_waiting_prompts_are_bounded_by_their_tokens(start):
    """A call whose prompts are too many is taken when nothing waits, and refused as a whole else."""
    daemon = start("--served-model-name", "m", "--sequences", "1",
                   "--waiting-prompt-tokens", "50", *ENDLESS).wait_until_ready()
    running = ask(daemon, prompt="Once upon", n=64, max_tokens=60_000, stream=True)
    assert running.status_code == 200, running.text
    wait_until(lambda: daemon.metric("lockstep_generation_tokens_total") > 0)
    answer = ask(daemon, n=2, max_tokens=1)
    running.close()
    assert answer.status_code == 503, answer.text
    error = answer.json()["error"]
    assert (error["type"], error["code"]) == ("server_error", "queue_full")
    assert 1 <= int(answer.headers["Retry-After"]) <= 60
    assert daemon.metric("lockstep_requests_rejected_total", reason="queue_tokens") == 1
    assert daemon.metric("lockstep_requests_rejected_total", reason="queue_requests") == 0


def test_without_keys_every_address_gets_places(start):
    """One that takes all places, and waits for more, gives one to another that asks."""
    daemon = start("--served-model-name", "m", "--sequences", "2", *ENDLESS).wait_until_ready()

    def ask_from(address, **fields):
        with requests.Session() as session:
            session.mount("http://", FromAddress(address))
            return session.post(daemon.url + "/v1/completions", timeout=600,
                                json={"model": "m", "prompt": "Once upon", **fields},
                                stream=fields.get("stream", False))

    flood = ask_from("127.0.0.2", n=64, max_tokens=60_000, ignore_eos=True, stream=True)
    assert flood.status_code == 200, flood.text
    wait_until(lambda: daemon.metric("lockstep_generation_tokens_total") > 0)
    answer = ask_from("127.0.0.3", max_tokens=1, timeout=30)
    flood.close()
    assert answer.status_code == 200, answer.text


def test_answers_are_the_same_where_pages_run_out(start):
    daemon = start("--served-model-name", "m", "--context", "512", "--sequences", "6",
                   "--kv-pages", "10").wait_until_ready()

    def tell(*prompts):
        answer = ask(daemon, prompt=prompts, max_tokens=300, temperature=1, seed=1)
        assert answer.status_code == 200, answer.text
        return [choice["text"] for choice in answer.json()["choices"]]

    prompts = [f"Story {number}: once" for number in range(6)]
    alone = [text for prompt in prompts for text in tell(prompt)]
    assert daemon.metric("lockstep_preemptions_total") == 0
    assert tell(*prompts) == alone  # of one call, so that they begin together
    assert daemon.metric("lockstep_preemptions_total") > 0


def test_the_heartbeat_is_a_time_that_goes_on(daemon):
    name = "lockstep_scheduler_heartbeat_timestamp_seconds"
    first = daemon.metric(name)
    assert first > 1e9
    wait_until(lambda: daemon.metric(name) > first)


def test_an_unready_daemon_counts_what_it_refuses(start):
    """Whichever state it is in when it is asked, what was refused is counted."""
    daemon = start("--served-model-name", "m")
    refused = 0
    while (answer := ask(daemon, max_tokens=1)).status_code == 503:
        refused += 1
    assert answer.status_code == 200
    assert daemon.metric("lockstep_requests_rejected_total", reason="loading") == refused
    assert requests.get(daemon.url + "/health/ready", timeout=60).status_code == 200
