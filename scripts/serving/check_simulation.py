#!/usr/bin/env python3
"""How near `lockstepd simulate` comes to the daemon: both get the same trace, at parts of what the
daemon can do at most.

First `bench` measures what passes cost. The rate at which the simulated daemon computes all the time
is its capacity; at --parts of it requests come as a Poisson process does, each on a connection of
its own. Printed for each part are tokens per second, the times to the first token and between
tokens, and their ratios. Ends with 1 if tokens per second, the median first token or the median
of the mean times between tokens is further off than --most.

The machine has to be quiet, and what asks takes some of it. Prompts are ids of tokens, so that they
are as long, and shared as far, as the simulation has them."""

import asyncio
import json
import pathlib
import random
import statistics
import subprocess
import tempfile
import time

import serving_rig
from serving_rig import Daemon, percentile, print_table

FIGURES = ("tokens/s", "first p50", "first p90", "between p50")
HELD = ("tokens/s", "first p50", "between p50")


def run_json(command):
    return json.loads(subprocess.run([str(part) for part in command], check=True,
                                     stdout=subprocess.PIPE).stdout)


def make_trace(options, rate, seconds):
    chance = random.Random(options.seed)
    now, trace = 0.0, []
    while (now := now + chance.expovariate(rate)) < seconds:
        trace.append({"arrival": now, "prompt": options.prompt, "answer": options.answer,
                      "prefix": "system", "prefix_tokens": options.shared})
    return trace


class Simulation:
    def __init__(self, options, folder):
        self.options, self.folder = options, folder
        self.costs = folder / "bench.json"
        body = self.bench("--prompt", "64,512", "--generate", "0")
        body["results"] += self.bench("--prompt", "0", "--generate", "16", "--sequences",
                                      "1,2,4,6,8")["results"]
        self.costs.write_text(json.dumps(body))

    def bench(self, *tests):
        return run_json([self.options.program, "bench", "--model", self.options.model, *tests,
                         "--depth", "0,512", "--repeat", "3", "--no-limits", "--json",
                         *self.options.bench_option])

    def run(self, *more):
        return run_json([self.options.program, "simulate", "--costs", self.costs, "--json", *more])

    def figures(self, trace):
        path = self.folder / "trace.jsonl"
        path.write_text("".join(json.dumps(request) + "\n" for request in trace))
        body = self.run("--trace", path)
        return {"tokens/s": body["answer_tokens_per_second"],
                "first p50": body["first_token_seconds"]["p50"],
                "first p90": body["first_token_seconds"]["p90"],
                "between p50": body["mean_gap_seconds"]["p50"]}

    def capacity(self):
        """Requests per second of a daemon that always has some to do."""
        options = self.options
        body = self.run("--rate", "1000", "--seconds", "0.3", "--prompt", options.prompt, "--answer",
                        options.answer, "--prefix-tokens", options.shared)
        return body["requests_per_second"]


def prompt_of(number, options, vocabulary):
    """The same ids for what is shared, and others for what is not."""
    chance = random.Random(f"{options.seed} {number}")
    return [5 + index % (vocabulary - 10) for index in range(options.shared)] + [
        chance.randrange(5, vocabulary - 5) for _ in range(options.prompt - options.shared)]


async def ask_one(daemon, body, arrival, began):
    await asyncio.sleep(max(0, began + arrival - time.perf_counter()))
    times = []
    async with serving_rig.Client(daemon.port) as client:
        await client.send(serving_rig.request_bytes("/v1/completions", body))
        while await client.read_event():
            times.append(time.perf_counter())
    return began + arrival, times


async def ask_all(daemon, trace, options):
    vocabulary = options.vocabulary
    began = time.perf_counter() + 0.5
    bodies = [{"model": "m", "prompt": prompt_of(number, options, vocabulary),
               "max_tokens": request["answer"], "ignore_eos": True, "stream": True,
               "speculation": False}
              for number, request in enumerate(trace)]
    seen = await asyncio.gather(*(ask_one(daemon, body, request["arrival"], began)
                                  for body, request in zip(bodies, trace, strict=True)))
    return [one for one in seen if one[1]]


def daemon_figures(trace, options):
    with Daemon(options.program, options.model, *options.option) as daemon:
        seen = asyncio.run(ask_all(daemon, trace, options))
    first = [times[0] - arrival for arrival, times in seen]
    between = [(times[-1] - times[0]) / (options.answer - 1) for _, times in seen]
    seconds = max(times[-1] for _, times in seen) - min(arrival for arrival, _ in seen)
    return {"tokens/s": len(seen) * options.answer / seconds,
            "first p50": percentile(first, 0.5), "first p90": percentile(first, 0.9),
            "between p50": statistics.median(between)}


def main():
    parser = serving_rig.parser(__doc__)
    parser.add_argument("--parts", type=float, nargs="+", default=[0.5, 0.9])
    parser.add_argument("--seconds", type=float, default=120, help="of each part's arrivals")
    parser.add_argument("--prompt", type=int, default=260)
    parser.add_argument("--shared", type=int, default=190)
    parser.add_argument("--answer", type=int, default=48)
    parser.add_argument("--vocabulary", type=int, default=500, help="ids below this are used")
    parser.add_argument("--most", type=float, default=0.15, help="relative deviation")
    parser.add_argument("--bench-option", action="append", default=[], help="of bench")
    options = parser.parse_args()
    faults, figures = [], {}
    with tempfile.TemporaryDirectory(prefix="lockstep-simulation-") as folder:
        simulation = Simulation(options, pathlib.Path(folder))
        capacity = simulation.capacity()
        print(f"capacity {capacity:.3g} requests per second")
        rows = []
        for part in options.parts:
            trace = make_trace(options, part * capacity, options.seconds)
            simulated = simulation.figures(trace)
            real = daemon_figures(trace, options)
            figures[str(part)] = {"requests": len(trace), "simulated": simulated, "daemon": real}
            for name in FIGURES:
                ratio = simulated[name] / real[name]
                rows.append([part, name, simulated[name], real[name], ratio])
                if name in HELD and abs(ratio - 1) > options.most:
                    faults.append(f"{name} at {part} of the capacity: {ratio:.2f} of the daemon's")
        print_table(["part", "figure", "simulated", "daemon", "ratio"], rows)
    raise SystemExit(serving_rig.conclude(figures, faults, options))


if __name__ == "__main__":
    main()
