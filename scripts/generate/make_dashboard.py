#!/usr/bin/env python3
"""Writes deploy/grafana/lockstep.json, the Grafana dashboard: the panels are the table below, their
places are computed.

  scripts/generate/make_dashboard.py            writes it
  scripts/generate/make_dashboard.py --check    exit code 1 if it is not what would be written
"""

import json
import pathlib
import sys

OUTPUT = pathlib.Path(__file__).resolve().parents[2] / "deploy/grafana/lockstep.json"
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
COLUMNS = 24


def quantiles(metric, by="instance"):
    """Median, 90th and 99th percentile of a histogram."""
    return [
        (f"histogram_quantile({quantile}, sum by (le, {by}) "
         f"(rate({metric}_bucket{{@}}[$__rate_interval])))", f"p{round(quantile * 100)} {{{{{by}}}}}")
        for quantile in (0.5, 0.9, 0.99)
    ]


def mean(metric, legend):
    return (f"rate({metric}_sum{{@}}[$__rate_interval])"
            f" / clamp_min(rate({metric}_count{{@}}[$__rate_interval]), 1e-9)", legend)


def rate(metric, by, legend=None):
    labels = " ".join(f"{{{{{label}}}}}" for label in by.split(", "))
    return (f"sum by ({by}) (rate({metric}{{@}}[$__rate_interval]))", legend or labels)


# (row title, [(kind, title, unit, width, description, [(query, legend)])]). In a query {@} is the
# selection by the page's variables, and "@, " the same before other labels.
ROWS = [
    ("At a glance", [
        ("stat", "Ready", "percentunit", 3, "Share of the model that is loaded.",
         [("lockstep_model_load_progress_ratio{@}", "{{instance}}")]),
        ("stat", "Requests", "reqps", 3, "Requests that ended, per second.",
         [("sum(rate(lockstep_requests_total{@}[$__rate_interval]))", "")]),
        ("stat", "Generated tokens", "short", 3, "Per second, all daemons together.",
         [("sum(rate(lockstep_generation_tokens_total{@}[$__rate_interval]))", "")]),
        ("stat", "First token, p99", "s", 3, "Of the requests in the window.",
         [("histogram_quantile(0.99, sum by (le) "
           "(rate(lockstep_time_to_first_token_seconds_bucket{@}[$__rate_interval])))", "")]),
        ("stat", "Waiting", "short", 3, "Requests without a place in the batch.",
         [("sum(lockstep_requests_waiting{@})", "")]),
        ("stat", "KV pages in use", "percentunit", 3, "By running requests.",
         [("max(lockstep_kv_cache_usage_ratio{@})", "")]),
        ("stat", "Heartbeat", "s", 3, "Time since the scheduler last moved.",
         [("max(time() - lockstep_scheduler_heartbeat_timestamp_seconds{@})", "")]),
        ("stat", "On the wrong node", "bytes", 3, "Weights in another node's memory.",
         [("sum(lockstep_rank_wrong_node_bytes{@})", "")]),
    ]),
    ("Traffic", [
        ("timeseries", "Requests, by how they ended", "reqps", 8, "",
         [rate("lockstep_requests_total", "finish_reason")]),
        ("timeseries", "Tokens", "short", 8, "Per second.",
         [rate("lockstep_prompt_tokens_total", "instance", "prompt {{instance}}"),
          rate("lockstep_generation_tokens_total", "instance", "generated {{instance}}")]),
        ("timeseries", "Answers, by status", "reqps", 8, "",
         [rate("lockstep_http_requests_total", "code")]),
        ("timeseries", "Answers, by route", "reqps", 8, "",
         [rate("lockstep_http_requests_total", "route")]),
        ("timeseries", "Length of prompts", "short", 8, "Tokens per request.",
         quantiles("lockstep_request_prompt_tokens")),
        ("timeseries", "Length of answers", "short", 8, "Tokens per request.",
         quantiles("lockstep_request_generation_tokens")),
    ]),
    ("Latency", [
        ("timeseries", "First token", "s", 8, "From a request's arrival.",
         quantiles("lockstep_time_to_first_token_seconds")),
        ("timeseries", "Between tokens", "s", 8, "Of one request.",
         quantiles("lockstep_inter_token_latency_seconds")),
        ("timeseries", "In the queue", "s", 8, "Before the first step.",
         quantiles("lockstep_request_queue_seconds")),
        ("timeseries", "Whole request", "s", 8, "From arrival to its last token.",
         quantiles("lockstep_request_duration_seconds")),
        ("timeseries", "Step", "s", 8, "One pass through the model.",
         quantiles("lockstep_step_duration_seconds")),
        ("timeseries", "HTTP, p99 by route", "s", 8, "To the end of the answer.",
         [("histogram_quantile(0.99, sum by (le, route) "
           "(rate(lockstep_http_request_duration_seconds_bucket{@}[$__rate_interval])))",
           "{{route}}")]),
    ]),
    ("Batch", [
        ("timeseries", "Requests", "short", 8, "",
         [("lockstep_requests_running{@}", "running {{instance}}"),
          ("lockstep_requests_waiting{@}", "waiting {{instance}}")]),
        ("timeseries", "Prompt tokens that wait", "short", 8, "",
         [("lockstep_requests_waiting_prompt_tokens{@}", "{{instance}}")]),
        ("timeseries", "Sequences of a step", "short", 8, "The batch size.",
         [mean("lockstep_step_sequences", "mean {{instance}}"),
          *quantiles("lockstep_step_sequences")[2:]]),
        ("timeseries", "Tokens of a step", "short", 8, "",
         [mean("lockstep_step_tokens", "mean {{instance}}"),
          *quantiles("lockstep_step_tokens")[2:]]),
        ("timeseries", "Steps", "ops", 8, "Per second.",
         [rate("lockstep_steps_total", "instance")]),
        ("timeseries", "Drafted tokens", "short", 8, "Per second; those that are not accepted cost.",
         [rate("lockstep_drafted_tokens_total", "instance", "drafted {{instance}}"),
          rate("lockstep_accepted_draft_tokens_total", "instance", "accepted {{instance}}")]),
        ("timeseries", "Refused before they ran", "reqps", 8, "By reason.",
         [rate("lockstep_requests_rejected_total", "reason")]),
    ]),
    ("KV cache", [
        ("timeseries", "Pages, by state", "short", 8, "",
         [("sum by (state) (lockstep_kv_cache_pages{@})", "{{state}}")]),
        ("timeseries", "In use", "percentunit", 8, "By running requests.",
         [("lockstep_kv_cache_usage_ratio{@}", "{{instance}}")]),
        ("timeseries", "Prefix hits", "percentunit", 8, "Prompt tokens that were not computed.",
         [("rate(lockstep_prefix_cache_hits_total{@}[$__rate_interval])"
           " / clamp_min(rate(lockstep_prefix_cache_queries_total{@}[$__rate_interval]), 1e-9)",
           "{{instance}}")]),
        ("timeseries", "Evictions and preemptions", "ops", 8, "Per second.",
         [rate("lockstep_kv_cache_evictions_total", "instance", "pages evicted {{instance}}"),
          rate("lockstep_preemptions_total", "instance", "preemptions {{instance}}")]),
        ("timeseries", "Room", "short", 8, "Tokens that the cache holds.",
         [("sum by (instance) (lockstep_kv_cache_pages{@})"
           " * on (instance) lockstep_kv_cache_page_tokens{@}", "{{instance}}")]),
        ("timeseries", "Memory", "bytes", 8, "",
         [("sum by (kind) (lockstep_memory_bytes{@})", "{{kind}}")]),
    ]),
    ("Ranks: placement and pages", [
        ("table", "Ranks", "short", 8, "Node -1: bound to none.",
         [("lockstep_rank_info{@}", "")]),
        ("timeseries", "Memory by rank", "bytes", 8, "",
         [("sum by (instance, rank, kind) (lockstep_rank_memory_bytes{@})",
           "{{instance}} rank {{rank}} {{kind}}")]),
        ("timeseries", "Weights on another node", "bytes", 8, "Should be 0.",
         [("lockstep_rank_wrong_node_bytes{@}", "{{instance}} rank {{rank}}")]),
        ("timeseries", "Memory by page size", "bytes", 8,
         "Huge pages of the pools, transparent ones, and 4 KiB.",
         [("sum by (page) (lockstep_rank_page_bytes{@})", "{{page}}")]),
        ("timeseries", "Share in 4 KiB pages", "percentunit", 8, "",
         [("sum by (instance, rank) (lockstep_rank_page_bytes{@, page=\"small\"})"
           " / sum by (instance, rank) (lockstep_rank_page_bytes{@})",
           "{{instance}} rank {{rank}}")]),
        ("table", "Model", "short", 8, "", [("lockstep_model_info{@}", "")]),
    ]),
    ("Ranks: collectives", [
        ("timeseries", "Exchanged", "Bps", 8, "Sent to other ranks or read from them.",
         [("rate(lockstep_rank_collective_bytes_total{@}[$__rate_interval])",
           "{{instance}} rank {{rank}}")]),
        ("timeseries", "Time in exchanges", "percentunit", 8, "Share of the workers' time.",
         [("rate(lockstep_rank_collective_seconds_total{@}[$__rate_interval])",
           "{{instance}} rank {{rank}}")]),
        ("timeseries", "Time at barriers", "percentunit", 8,
         "Share of the workers' time; a rank that waits less than the others is the slow one.",
         [("rate(lockstep_rank_barrier_wait_seconds_total{@}[$__rate_interval])",
           "{{instance}} rank {{rank}}")]),
    ]),
    ("Load and process", [
        ("timeseries", "Loaded", "percentunit", 6, "",
         [("lockstep_model_load_progress_ratio{@}", "{{instance}}")]),
        ("timeseries", "Load speed", "Bps", 6, "Of the load so far, or of the whole.",
         [("lockstep_model_load_bytes{@} / clamp_min(lockstep_model_load_seconds{@}, 1e-9)",
           "{{instance}}")]),
        ("timeseries", "Processors", "short", 6, "In use.",
         [("rate(process_cpu_seconds_total{@}[$__rate_interval])", "{{instance}}")]),
        ("timeseries", "Resident memory", "bytes", 6, "",
         [("process_resident_memory_bytes{@}", "{{instance}}")]),
        ("timeseries", "Up since", "s", 6, "",
         [("time() - process_start_time_seconds{@}", "{{instance}}")]),
        ("timeseries", "Descriptors", "short", 6, "",
         [("process_open_fds{@}", "open {{instance}}"),
          ("process_max_fds{@}", "limit {{instance}}")]),
        ("timeseries", "Connections", "short", 6, "",
         [("lockstep_http_connections{@}", "{{instance}}")]),
        ("table", "Versions", "short", 6, "", [("lockstep_build_info{@}", "")]),
    ]),
    ("Errors", [
        ("timeseries", "Requests that ended with an error", "percentunit", 8, "",
         [("sum by (instance) (rate(lockstep_requests_total"
           "{@, finish_reason=\"error\"}[$__rate_interval]))"
           " / clamp_min(sum by (instance) (rate(lockstep_requests_total{@}[$__rate_interval])),"
           " 1e-9)", "{{instance}}")]),
        ("timeseries", "Answers of 5xx", "reqps", 8, "",
         [("sum by (instance) (rate(lockstep_http_requests_total"
           "{@, code=~\"5..\"}[$__rate_interval]))", "{{instance}}")]),
        ("timeseries", "Connections cut", "ops", 8, "By reason: too slow, too large, too many.",
         [rate("lockstep_http_connections_cut_total", "reason")]),
        ("timeseries", "HTTP requests refused", "reqps", 8, "By reason.",
         [rate("lockstep_http_rejected_total", "reason")]),
        ("timeseries", "Log lines dropped", "ops", 8, "Whoever reads the log is too slow.",
         [rate("lockstep_log_messages_dropped_total", "instance")]),
        ("timeseries", "Last reload worked", "bool", 8, "",
         [("lockstep_config_last_reload_success{@}", "{{instance}}")]),
    ]),
]


def query_of(text):
    selection = 'instance=~"$instance"'
    return text.replace("{@", "{" + selection)


def panel(number, kind, title, unit, description, queries, place):
    made = {
        "id": number,
        "type": kind,
        "title": title,
        "description": description,
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": unit}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + index), "datasource": SOURCE, "expr": query_of(query),
             "legendFormat": legend,
             **({"instant": True, "format": "table"} if kind == "table" else {})}
            for index, (query, legend) in enumerate(queries)
        ],
    }
    if kind == "timeseries":
        made["fieldConfig"]["defaults"]["min"] = 0
        made["fieldConfig"]["defaults"]["custom"] = {"fillOpacity": 8, "showPoints": "never"}
        made["options"] = {"legend": {"displayMode": "list", "placement": "bottom"},
                           "tooltip": {"mode": "multi", "sort": "desc"}}
    elif kind == "stat":
        made["options"] = {"reduceOptions": {"calcs": ["lastNotNull"]}, "graphMode": "area"}
    else:
        made["transformations"] = [{"id": "organize", "options": {
            "excludeByName": {"Time": True, "Value": True, "__name__": True, "job": True}}}]
    return made


def variables():
    def of_label(name, title, query):
        return {"name": name, "label": title, "type": "query", "datasource": SOURCE,
                "query": {"query": query, "refId": name}, "definition": query, "refresh": 2,
                "includeAll": True, "multi": True, "allValue": ".*", "sort": 1,
                "current": {"text": "All", "value": "$__all"}}

    return [
        {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus",
         "current": {}},
        of_label("model", "Model", "label_values(lockstep_model_info, model)"),
        of_label("instance", "Daemon",
                 'label_values(lockstep_model_info{model=~"$model"}, instance)'),
    ]


def dashboard():
    panels = []
    y = 0
    for title, row in ROWS:
        panels.append({"id": len(panels) + 1, "type": "row", "title": title, "collapsed": False,
                       "gridPos": {"x": 0, "y": y, "w": COLUMNS, "h": 1}, "panels": []})
        y += 1
        x = 0
        height = 4 if row[0][0] == "stat" else 8
        for kind, name, unit, width, description, queries in row:
            if x + width > COLUMNS:
                x = 0
                y += height
            place = {"x": x, "y": y, "w": width, "h": height}
            panels.append(panel(len(panels) + 1, kind, name, unit, description, queries, place))
            x += width
        y += height
    return {
        "id": None, "uid": "lockstep", "title": "Lockstep", "tags": ["lockstep"],
        "schemaVersion": 39, "version": 1, "editable": True, "graphTooltip": 1,
        "refresh": "10s", "time": {"from": "now-1h", "to": "now"}, "timezone": "",
        "templating": {"list": variables()}, "annotations": {"list": [{
            "name": "Restarts", "enable": True, "iconColor": "red", "datasource": SOURCE,
            "expr": 'changes(process_start_time_seconds{instance=~"$instance"}[1m]) > 0',
            "titleFormat": "restart of {{instance}}"}]},
        "panels": panels,
    }


def main():
    text = json.dumps(dashboard(), indent=1) + "\n"
    if "--check" in sys.argv[1:]:
        if OUTPUT.read_text() != text:
            sys.exit(f"{OUTPUT} is not what this script writes: run it")
        return
    OUTPUT.write_text(text)


if __name__ == "__main__":
    main()
