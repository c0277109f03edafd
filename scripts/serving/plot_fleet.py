#!/usr/bin/env python3
"""How many requests per second a fleet answers well, for each router and number of replicas.

`lockstepd simulate` serves a made load by the costs of --costs (`bench --json`). For each router and
number of replicas the highest rate is looked for at which --good of the requests are good: their
first token and the others come within the limits. Writes an SVG and prints the table: requests per
second and replica, and at that rate the part of the prompts that caches had, and how busy the least
and the most busy replica are. Simulates only: the machine may be busy."""

import argparse
import json
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "bench"))
import svg_plot  # noqa: E402

ROUTERS = ("round-robin", "least-waiting", "prefix", "prefix-active")


class Fleet:
    def __init__(self, options, router, replicas):
        self.options, self.router, self.replicas = options, router, replicas

    def simulate(self, rate):
        """At so many requests per second and replica."""
        options = self.options
        seconds = max(options.seconds, options.least / (rate * self.replicas))
        body = subprocess.run(
            [options.program, "simulate", "--costs", options.costs, "--json", "--router", self.router,
             "--replicas", str(self.replicas), "--rate", str(rate * self.replicas), "--seconds",
             str(seconds), "--skip", str(seconds / 4), "--prompt", options.prompt, "--answer",
             options.answer, "--prefix-tokens", str(options.shared), "--prefixes",
             str(options.prefixes), "--seed", str(options.seed)],
            check=True, stdout=subprocess.PIPE).stdout
        return json.loads(body)

    def best(self):
        """The highest rate that is good, and what was seen at it."""
        low, high, found = 0.0, self.options.highest, None
        while high - low > self.options.step:
            rate = (low + high) / 2
            body = self.simulate(rate)
            if body["good"] >= self.options.good * body["requests"]:
                low, found = rate, body
            else:
                high = rate
        if found and high == self.options.highest:
            raise SystemExit(f"{self.router}, {self.replicas} replicas: raise --highest")
        return low, found


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="build/release/lockstepd")
    parser.add_argument("--costs", required=True)
    parser.add_argument("--output", type=pathlib.Path, required=True, help="the SVG")
    parser.add_argument("--replicas", type=int, nargs="+", default=[1, 10, 100, 1000])
    parser.add_argument("--prompt", default="220-300")
    parser.add_argument("--answer", default="32-64")
    parser.add_argument("--shared", type=int, default=192)
    parser.add_argument("--prefixes", type=int, default=200, help="of the whole fleet, whatever its size")
    parser.add_argument("--good", type=float, default=0.95)
    parser.add_argument("--seconds", type=float, default=60, help="of arrivals at least")
    parser.add_argument("--least", type=int, default=600, help="requests")
    parser.add_argument("--highest", type=float, default=2.4, help="rate that is tried")
    parser.add_argument("--step", type=float, default=0.03)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    lines = {}
    print("| replicas | router | requests/s and replica | found in caches | busy |")
    print("| ---: | --- | ---: | ---: | --- |")
    for router in ROUTERS:
        lines[router] = []
        for replicas in options.replicas:
            rate, body = Fleet(options, router, replicas).best()
            lines[router].append((replicas, rate))
            found = "-" if body is None else f"{body['prefix_hit_part']:.2f}"
            busy = "-" if body is None else "{least:.2f} to {most:.2f}".format(**body["busy_part"])
            print(f"| {replicas:,} | {router} | {rate:.2f} | {found} | {busy} |", flush=True)
    plot = svg_plot.Plot("What a replica answers well, by the size of its fleet", "replicas",
                         "good requests per second and replica", lines, x_by_ratio=True)
    options.output.write_text(plot.svg())


if __name__ == "__main__":
    main()
