#!/usr/bin/env python3
"""What constrained sampling costs a step: streams side by side, unconstrained and constrained in
turns, many rounds, on one daemon.

A round asks for each kind of answer with all streams at once; a step takes what lies between two
tokens of a stream, by the median. What a mask costs is by how much a step of that kind takes longer
than an unconstrained one of the same round; the table has the median over the rounds. Ends with 1
if one is above --most-share.
"""

import asyncio
import itertools
import random
import statistics
import sys
import time

import serving_rig
from serving_rig import Client, Daemon, print_table, request_bytes

SCHEMA = {"type": "object", "additionalProperties": False, "required": ["name", "tags"],
          "properties": {"name": {"type": "string", "minLength": 2000},
                         "tags": {"type": "array", "items": {"type": "string"}}}}


def words(count):
    return {"regex": f"[a-z]+( [a-z]+){{{count}}}"}


# The further fields of a request of each kind; no answer ends before its last token.
KINDS = {
    "none": lambda chance: {"ignore_eos": True},
    "JSON schema": lambda chance: {"response_format": {
        "type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}},
    "regex, the same": lambda chance: words(1000),
    "regex, each its own": lambda chance: words(chance.randrange(1000, 2000)),
}


async def stream(port, body):
    """When each token came."""
    times = []
    async with Client(port) as client:
        await client.send(request_bytes("/v1/completions", {**body, "stream": True}))
        head = await client.reader.readline()
        if b" 200 " not in head:
            sys.exit((head + await client.reader.read()).decode(errors="replace"))
        while line := await client.reader.readline():
            if line.startswith(b"data: {"):
                times.append(time.perf_counter())
    return times


async def seconds_of_a_step(port, kind, options, chance):
    bodies = [{"model": "m", "prompt": "Once upon a time", "max_tokens": options.tokens,
               "temperature": 1, "seed": chance.randrange(1 << 30), **KINDS[kind](chance)}
              for _ in range(options.streams)]
    answers = await asyncio.gather(*(stream(port, body) for body in bodies))
    return statistics.median(later - earlier for times in answers
                             for earlier, later in itertools.pairwise(times))


async def measure(port, options):
    chance = random.Random(options.seed)
    rounds = []
    for _ in range(options.rounds):
        kinds = list(KINDS)
        chance.shuffle(kinds)
        rounds.append({kind: await seconds_of_a_step(port, kind, options, chance)
                       for kind in kinds})
    return {kind: {"step_ms": 1000 * statistics.median(row[kind] for row in rounds),
                   "share": statistics.median(row[kind] / row["none"] - 1 for row in rounds)}
            for kind in KINDS}


def find_faults(figures, options):
    for kind, row in figures.items():
        if row["share"] > options.most_share:
            yield f"{kind}: a step takes {100 * row['share']:.1f} % longer"


def main():
    parser = serving_rig.parser(__doc__)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64, help="of each answer")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--most-share", type=float, default=0.05, help="of a step")
    options = parser.parse_args()
    with Daemon(options.program, options.model, "--sequences", options.streams, *options.option,
                log=options.log) as daemon:
        figures = asyncio.run(measure(daemon.port, options))
        daemon.stop()
    print_table(["answers", "ms a step", "longer by"],
                [[kind, row["step_ms"], f"{100 * row['share']:.1f} %"]
                 for kind, row in figures.items()])
    return serving_rig.conclude(figures, find_faults(figures, options), options)


if __name__ == "__main__":
    sys.exit(main())
