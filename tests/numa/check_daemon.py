#!/usr/bin/env python3
"""Checks a whole daemon on a machine with several NUMA nodes: which ranks it has, that every page of
the weights is on its rank's node, that the ranks hold the model once, that it answers as elsewhere,
and that no huge page is lost when it is killed.

    check_daemon.py --program LOCKSTEPD --model FILE --nodes 0,1 --expect FILE [--huge-pages]

--expect FILE holds the answer of another machine. Uses nothing but Python's own library.
"""

import argparse
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request

REQUEST = {"model": "m", "prompt": "Once upon a time", "max_tokens": 24, "temperature": 0.8,
           "seed": 11, "ignore_eos": True}
PATIENCE_SECONDS = 400


class Failure(Exception):
    pass


def expect(condition, message):
    if not condition:
        raise Failure(message)


def environment():
    # The instruction set that emulated processors have as well.
    return {**os.environ, "LOCKSTEP_ISA": "avx2"}


def fetch(url, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
        return answer.read().decode()


class Daemon:
    def __init__(self, program, model, options):
        self.process = subprocess.Popen(
            [program, "serve", "--model", model, "--port", "0", "--served-model-name", "m",
             "--context", "128", "--sequences", "2", "--batch-tokens", "32", *options],
            stderr=subprocess.PIPE, text=True, env=environment())
        self.log = []
        for line in self.process.stderr:
            self.log.append(line)
            if found := re.search(r'listening on (http://[^\s"]+)', line):
                self.url = found[1]
            if "ready after " in line:
                return
        raise Failure("it ended before it was ready:\n" + "".join(self.log))

    def metrics(self):
        """{name: [(labels, value), ...]}"""
        series = {}
        for line in fetch(self.url + "/metrics").splitlines():
            if match := re.fullmatch(r"(\w+)(?:\{(.*)\})? (\S+)", line):
                labels = dict(re.findall(r'(\w+)="([^"]*)"', match[2] or ""))
                series.setdefault(match[1], []).append((labels, float(match[3])))
        return series

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


def free_huge_pages():
    pools = pathlib.Path("/sys/kernel/mm/hugepages")
    return {pool.name: int((pool / "free_hugepages").read_text()) for pool in pools.glob("*")}


def planned(program, model, options):
    result = subprocess.run(
        [program, "plan", "--json", "--no-measure", "--model", model, "--context", "128",
         "--sequences", "2", "--batch-tokens", "32", *options],
        capture_output=True, text=True, env=environment())
    expect(result.returncode == 0, f"plan ended with {result.returncode}: {result.stderr}")
    return json.loads(result.stdout)


def check_ranks(series, plan, nodes):
    found = [int(labels["node"]) for labels, _ in series["lockstep_rank_info"]]
    expect(nodes is None or found == nodes, f"ranks are on nodes {found}; expected {nodes}")
    for labels, value in series["lockstep_rank_wrong_node_bytes"]:
        expect(value == 0, f"rank {labels['rank']} has {value:.0f} bytes on the wrong node")
    held = [value for labels, value in series["lockstep_rank_memory_bytes"]
            if labels["kind"] == "weights"]
    expect([rank["weight_bytes"] for rank in plan["ranks"]] == held,
           f"the plan said other sizes than {held}")
    # Between slices lie gaps of less than a cache line.
    once = sum(held) - sum(replica["extra_bytes"] for replica in plan["replicas"])
    expect(abs(once - plan["model_weight_bytes"]) < 64 * 200 * len(held),
           f"the ranks hold {once} bytes without replicas, the model has "
           f"{plan['model_weight_bytes']}")


def check_answer(daemon, expected):
    text = json.loads(fetch(daemon.url + "/v1/completions", REQUEST))["choices"][0]["text"]
    if not expected.exists():
        expected.write_text(text)
        print(f"wrote {expected}")
    expect(text == expected.read_text(), f"answered {text!r}, expected {expected.read_text()!r}")


def check_pages(series, huge):
    of = {}
    for labels, value in series["lockstep_rank_page_bytes"]:
        of[labels["page"]] = of.get(labels["page"], 0) + value
    pooled = of["huge_2mib"] + of["huge_1gib"]
    if huge == "all":
        expect(of["transparent"] + of["small"] == 0 and pooled > 0, f"pages are {of}")
    if huge == "some":
        expect(pooled > 0 and of["transparent"] + of["small"] > 0, f"pages are {of}")
    return of


def check(arguments):
    options = arguments.options.split()
    if arguments.nodes != "any":
        # By itself the daemon takes one rank where that is faster, as for so small a model it may be.
        options += ["--ranks", str(arguments.nodes.count(",") + 1)]
    before = free_huge_pages()
    plan = planned(arguments.program, arguments.model, options)
    daemon = Daemon(arguments.program, arguments.model, options)
    try:
        series = daemon.metrics()
        wanted = arguments.nodes
        check_ranks(series, plan,
                    None if wanted == "any" else [int(node) for node in wanted.split(",")])
        pages = check_pages(series, arguments.huge_pages)
        check_answer(daemon, pathlib.Path(arguments.expect))
        if arguments.huge_pages != "any":
            expect(free_huge_pages() != before, "no huge page was taken")
    finally:
        daemon.kill()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while free_huge_pages() != before:  # the kernel gives them back when the process has gone
        expect(time.monotonic() < deadline, f"huge pages are lost: {before}, {free_huge_pages()}")
        time.sleep(0.1)
    print(f"daemon: ranks on nodes {arguments.nodes}, pages {pages}: good")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--nodes", required=True, help="of the ranks, in their order; or any")
    parser.add_argument("--expect", required=True, help="the answer; written if it is not there")
    parser.add_argument("--huge-pages", choices=["any", "some", "all"], default="any")
    parser.add_argument("--options", default="", help="more options of the daemon")
    try:
        check(parser.parse_args())
    except (Failure, urllib.error.URLError) as failure:
        print(f"check_daemon: {failure}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
