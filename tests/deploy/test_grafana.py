"""deploy/grafana: the dashboard is whole, and each of its queries gives numbers when a real
Prometheus scrapes a real daemon that has work to do."""

import concurrent.futures
import json
import math
import re
import subprocess
import sys

from conftest import DEPLOY, ROOT, server

DASHBOARD = DEPLOY / "grafana/lockstep.json"
SUBJECTS = ("time_to_first_token", "inter_token", "generation_tokens", "step_sequences",
            "kv_cache_pages", "prefix_cache_hits", "rank_memory", "collective_bytes",
            "rank_page_bytes", "model_load", "http_requests_total")


def panels():
    return json.loads(DASHBOARD.read_text())["panels"]


def queries():
    """(where, query) of panels, variables and annotations, as Grafana would send them."""
    dashboard = json.loads(DASHBOARD.read_text())
    found = [(panel["title"], target["expr"])
             for panel in dashboard["panels"] for target in panel.get("targets", [])]
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            selector, label = re.fullmatch(
                r"label_values\((.*), (\w+)\)", variable["query"]["query"]).groups()
            found.append((variable["label"], f"count by ({label}) ({selector})"))
    return [(where, re.sub(r"\$(model|instance)\b", ".*", query).replace("$__rate_interval", "10s"))
            for where, query in found]


def test_the_dashboard_is_what_its_script_writes():
    subprocess.run([sys.executable, ROOT / "scripts/generate/make_dashboard.py", "--check"],
                   check=True)


def test_panels_lie_side_by_side_and_have_names_of_their_own():
    assert len({panel["id"] for panel in panels()}) == len(panels())
    taken = set()
    for panel in panels():
        place = panel["gridPos"]
        cells = {(place["x"] + column, place["y"] + row)
                 for column in range(place["w"]) for row in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24, panel["title"]
        taken |= cells


def test_it_shows_every_subject():
    everything = " ".join(query for _, query in queries())
    assert all(subject in everything for subject in SUBJECTS)


PAUSE_SECONDS = 0.05  # a fraction of what passes between two scrapes


def keep_busy(daemon, until):
    """Requests that stream and ones that do not, with a prefix in common, one of them wrong."""
    def one(number):
        body = {"model": "m", "prompt": f"Once upon a time there was a fox number {number}",
                "max_tokens": 24, "ignore_eos": True}
        while not until.done():
            daemon.post("/v1/completions", body)
            daemon.get("/nowhere")
            concurrent.futures.wait([until], PAUSE_SECONDS)

    with concurrent.futures.ThreadPoolExecutor() as pool:
        for future in [pool.submit(one, number) for number in range(3)]:
            future.result()


def test_every_query_gives_numbers(start, prometheus):
    daemon = start("--served-model-name", "m", "--ranks", "2").wait_until_ready()
    rules = sorted((DEPLOY / "prometheus").glob("*.rules.yaml"))
    watching = prometheus([daemon.url.removeprefix("http://")], rules=rules)
    done = concurrent.futures.Future()
    with concurrent.futures.ThreadPoolExecutor() as pool:
        busy = pool.submit(keep_busy, daemon, done)
        missing = dict.fromkeys(queries())

        def all_are_there():
            for where, query in list(missing):
                if any(math.isfinite(value) for value in watching.values(query)):
                    del missing[(where, query)]
            return not missing

        try:
            server.wait_until(all_are_there, 4 * PAUSE_SECONDS)
        finally:
            print(f"missing: {list(missing)}")
            done.set_result(None)
        busy.result()
    loaded = watching.get("rules")["groups"]
    bad = [(rule["name"], rule.get("lastError")) for group in loaded for rule in group["rules"]
           if rule["health"] == "err"]
    assert not bad
    firing = [alert["labels"]["alertname"] for alert in watching.get("alerts")["alerts"]
              if alert["state"] == "firing"]
    assert not [name for name in firing if name != "LockstepSmallPages"]
