"""GET /metrics: clean for promtool, complete from the start, and right."""

import re
import shutil
import subprocess

import pytest
import requests
from conftest import wait_until

NAMES = """
lockstep_gpu_memory_bytes lockstep_gpu_pass_seconds_total
lockstep_build_info lockstep_cache_config_info lockstep_generation_tokens_total lockstep_http_connections
lockstep_http_connections_cut_total lockstep_http_rejected_total
lockstep_config_last_reload_success lockstep_config_last_reload_timestamp_seconds
lockstep_log_messages_dropped_total lockstep_http_request_duration_seconds
lockstep_http_requests_total lockstep_inter_token_latency_seconds lockstep_kv_cache_page_tokens
lockstep_kv_cache_pages lockstep_memory_bytes lockstep_model_info lockstep_model_load_bytes
lockstep_model_load_kept_bytes lockstep_model_load_progress_ratio lockstep_model_load_seconds
lockstep_rank_barrier_wait_seconds_total lockstep_rank_collective_bytes_total
lockstep_rank_collective_seconds_total lockstep_rank_info lockstep_rank_memory_bytes
lockstep_rank_page_bytes lockstep_rank_wrong_node_bytes lockstep_prompt_tokens_total
lockstep_hosts lockstep_hosts_together
lockstep_host_exchange_bytes_total lockstep_host_exchange_seconds_total
lockstep_request_queue_seconds lockstep_requests_running lockstep_requests_total
lockstep_requests_waiting lockstep_step_duration_seconds lockstep_step_sequences
lockstep_step_tokens lockstep_steps_total lockstep_steps_ahead_total
lockstep_steps_repeated_total lockstep_time_to_first_token_seconds
lockstep_kv_cache_evictions_total lockstep_kv_cache_usage_ratio lockstep_preemptions_total
lockstep_prefix_cache_hits_total lockstep_prefix_cache_queries_total
lockstep_request_duration_seconds lockstep_request_generation_tokens
lockstep_request_prompt_tokens lockstep_requests_rejected_total
lockstep_requests_waiting_prompt_tokens lockstep_unusable_submissions
lockstep_scheduler_heartbeat_timestamp_seconds lockstep_drafts_total
lockstep_state_slots lockstep_state_hits_total lockstep_state_evictions_total
lockstep_drafted_tokens_total lockstep_accepted_draft_tokens_total
lockstep_draft_passes_seconds_total
lockstep_cache_tier_limit_bytes lockstep_cache_tier_bytes lockstep_cache_tier_hits_total
lockstep_cache_tier_saved_total lockstep_cache_tier_hit_tokens_total
lockstep_cache_tier_state_hits_total lockstep_cache_tier_states_saved_total
lockstep_cache_tier_saved_seconds_total lockstep_cache_disk_written_bytes_total
lockstep_cache_disk_read_bytes_total lockstep_cache_disk_evictions_total
lockstep_cache_disk_failures_total lockstep_kv_events_total lockstep_kv_events_dropped_total
process_cpu_seconds_total process_max_fds process_open_fds process_resident_memory_bytes
process_start_time_seconds process_virtual_memory_bytes
""".split()


def complete(daemon, **fields):
    answer = daemon.post(
        "/v1/completions", {"model": "stories", "prompt": "Once upon", "max_tokens": 7, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_promtool_finds_nothing_to_say(daemon):
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian's package prometheus)")
    complete(daemon)
    daemon.get("/nowhere")
    text = daemon.get("/metrics").content
    result = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout + result.stderr == b""


def test_the_content_type_is_prometheus_text_format(daemon):
    assert (daemon.get("/metrics").headers["Content-Type"]
            == "text/plain; version=0.0.4; charset=utf-8")


def test_every_family_is_there_with_help_and_type(daemon):
    text = daemon.get("/metrics").text
    assert sorted(set(re.findall(r"^# TYPE (\S+)", text, re.M))) == sorted(NAMES)
    assert sorted(set(re.findall(r"^# HELP (\S+) \S", text, re.M))) == sorted(NAMES)


def test_a_new_daemon_has_its_series_at_zero(start):
    fresh = start("--served-model-name", "fresh").wait_until_ready()
    for reason in ("stop", "length", "cancelled", "error", "deadline"):
        assert fresh.metric("lockstep_requests_total", finish_reason=reason, model="fresh") == 0
    assert fresh.metric("lockstep_generation_tokens_total") == 0
    assert fresh.metric("lockstep_time_to_first_token_seconds_count") == 0
    assert fresh.metric("lockstep_http_requests_total", route="/v1/completions", code="200") == 0
    assert fresh.metric("lockstep_model_load_progress_ratio") == 1
    for reason in ("loading", "draining", "queue_requests", "queue_tokens", "failed"):
        assert fresh.metric("lockstep_requests_rejected_total", reason=reason) == 0
    assert fresh.metric("lockstep_kv_cache_pages", state="used") == 0
    assert fresh.metric("lockstep_kv_cache_pages", state="cached") == 0
    assert fresh.metric("lockstep_kv_cache_pages", state="free") > 0
    assert fresh.metric("lockstep_memory_bytes", kind="weights") > 0


def test_counters_count_what_was_answered(daemon):
    def read():
        return {
            "prompt": daemon.metric("lockstep_prompt_tokens_total"),
            "generated": daemon.metric("lockstep_generation_tokens_total"),
            "length": daemon.metric("lockstep_requests_total", finish_reason="length"),
            "first": daemon.metric("lockstep_time_to_first_token_seconds_count"),
            "between": daemon.metric("lockstep_inter_token_latency_seconds_count"),
            "queued": daemon.metric("lockstep_request_queue_seconds_count"),
            "http": daemon.metric(
                "lockstep_http_requests_total", route="/v1/completions", method="POST", code="200"),
        }

    before = read()
    body = complete(daemon, n=2, ignore_eos=True)
    after = read()
    grown = {name: after[name] - before[name] for name in before}
    assert grown == {
        "prompt": 2 * body["usage"]["prompt_tokens"],
        "generated": 14, "length": 2, "first": 2, "between": 12, "queued": 2, "http": 1,
    }
    # An end is told a moment before its pages are let go.
    wait_until(lambda: daemon.metric("lockstep_kv_cache_pages", state="used") == 0)
    assert daemon.metric("lockstep_requests_running") == 0
    assert daemon.metric("lockstep_requests_waiting") == 0


def test_histograms_agree_with_themselves(daemon):
    complete(daemon)
    text = daemon.get("/metrics").text
    buckets = re.findall(r"^(lockstep_\w+)_bucket\{(.*?),?le=\"(.*?)\"\} (\S+)$", text, re.M)
    assert buckets
    last = {}
    for name, labels, bound, count in buckets:
        key = (name, labels)
        assert float(count) >= last.get(key, (0, 0))[1]
        last[key] = (bound, float(count))
    for (name, labels), (bound, count) in last.items():
        assert bound == "+Inf"
        total = re.search(rf"^{name}_count\{{{re.escape(labels)}\}} (\S+)$", text, re.M)
        assert float(total[1]) == count


def test_metrics_can_be_switched_off(start):
    quiet = start("--metrics", "false").wait_until_ready()
    assert requests.get(quiet.url + "/metrics", timeout=60).status_code == 404


def test_every_rank_tells_its_memory_and_its_exchanges(start):
    daemon = start("--ranks", "2", "--served-model-name", "stories").wait_until_ready()
    complete(daemon)
    for rank in ("0", "1"):
        held = daemon.metric("lockstep_rank_memory_bytes", rank=rank)
        assert daemon.metric("lockstep_rank_memory_bytes", rank=rank, kind="weights") > 0
        assert daemon.metric("lockstep_rank_page_bytes", rank=rank) >= held
        assert daemon.metric("lockstep_rank_wrong_node_bytes", rank=rank) == 0
        assert daemon.metric("lockstep_rank_collective_bytes_total", rank=rank) > 0
        assert daemon.metric("lockstep_rank_barrier_wait_seconds_total", rank=rank) > 0
    assert daemon.metric("lockstep_memory_bytes") == daemon.metric("lockstep_rank_memory_bytes")


def test_the_size_of_the_cache_is_told_as_labels(daemon):
    cache = re.search(r"^lockstep_cache_config_info\{(.*)\} 1$", daemon.get("/metrics").text, re.M)[1]
    assert f'num_gpu_blocks="{daemon.metric("lockstep_kv_cache_pages"):.0f}"' in cache
    assert f'block_size="{daemon.metric("lockstep_kv_cache_page_tokens"):.0f}"' in cache


# What dashboards and the gateway made for vLLM read, with the labels they select by.
ALIASES = """
vllm:cache_config_info vllm:e2e_request_latency_seconds vllm:generation_tokens_total
vllm:inter_token_latency_seconds vllm:iteration_tokens_total vllm:kv_cache_usage_perc
vllm:num_preemptions_total vllm:num_requests_running vllm:num_requests_waiting
vllm:prefix_cache_hits_total vllm:prefix_cache_queries_total vllm:prompt_tokens_total
vllm:request_generation_tokens vllm:request_prompt_tokens vllm:request_queue_time_seconds
vllm:request_success_total vllm:spec_decode_num_accepted_tokens_per_pos_total
vllm:spec_decode_num_accepted_tokens_total vllm:spec_decode_num_draft_tokens_total
vllm:spec_decode_num_drafts_total vllm:time_to_first_token_seconds
""".split()


def test_the_main_metrics_can_be_told_in_vllms_names(start):
    daemon = start("--metrics-aliases", "vllm", "--served-model-name", "stories").wait_until_ready()
    complete(daemon, max_tokens=5, ignore_eos=True)
    # An end is told a moment before the request is counted out.
    wait_until(lambda: daemon.metric("lockstep_requests_running") == 0)
    text = daemon.get("/metrics").text
    assert sorted(re.findall(r"^# TYPE (vllm:\S+)", text, re.M)) == ALIASES
    series = dict(re.findall(r"^(vllm:\S+?\{.*\}) (\S+)$", text, re.M))
    labels = 'model_name="stories",engine="0"'
    assert series[f"vllm:generation_tokens_total{{{labels}}}"] == "5"
    assert series[f"vllm:num_requests_running{{{labels}}}"] == "0"
    finished = 'vllm:request_success_total{model_name="stories",finished_reason="%s",engine="0"}'
    assert {reason: series[finished % reason] for reason in ("stop", "length", "abort", "error")} == {
        "stop": "0", "length": "1", "abort": "0", "error": "0"}
    assert series[f"vllm:time_to_first_token_seconds_count{{{labels}}}"] == "1"
    assert (float(series[f"vllm:time_to_first_token_seconds_sum{{{labels}}}"])
            == daemon.metric("lockstep_time_to_first_token_seconds_sum"))
    cache = re.search(r'^vllm:cache_config_info\{(.*)\} 1$', text, re.M)[1]
    assert f'num_gpu_blocks="{daemon.metric("lockstep_kv_cache_pages"):.0f}"' in cache
    assert f'block_size="{daemon.metric("lockstep_kv_cache_page_tokens"):.0f}"' in cache


def test_without_the_option_there_are_no_aliases(daemon):
    assert "vllm:" not in daemon.get("/metrics").text
