#!/usr/bin/env python3
"""Whether a request ever sees another's text: --pairs of requests side by side, each with a secret
word of its own in its prompt, among few KV pages, so that some are computed again and the prefix
cache evicts, and beside clients that leave.

Each answer, with its log-probabilities, is compared bit for bit with what the same request got when
nobody else was there and nothing of it was in the cache: greedy or from a seed, streamed or whole,
of one API key or two, with prompts that begin alike or not. Tokens from the cache may be only what
both prompts of one key begin with. Ends with 1 if an answer differs, if another's secret is in an
answer, in the log or in the metrics, if more was found in the cache than there was to share, or if
nothing ever was, since then nothing would be shown.
"""

import asyncio
import collections
import dataclasses
import itertools
import pathlib
import random
import string
import sys
import tempfile

import serving_rig
from serving_rig import Client, Daemon, Keys, ask, print_table, request_bytes

KEYS = ("alice", "bob", "carol")
WORDS = "fox owl girl boy hill tree river moon song bread little old brown quick walked saw".split()


@dataclasses.dataclass
class Canary:
    """One request, what it must never be told, and what it got."""
    key: str
    body: dict
    secret: str
    foreign: list = dataclasses.field(default_factory=list)  # the secrets of those beside it
    alone: object = None
    beside: object = None
    raw: bytes = b""
    cached_tokens: int = 0


@dataclasses.dataclass
class Pair:
    kind: str
    both: tuple
    common_tokens: int = 0  # that the cache may share between them


def make_words(chance, count):
    return " ".join(chance.choice(WORDS) for _ in range(count))


def make_secret(chance):
    return "".join(chance.choice(string.ascii_lowercase) for _ in range(16))


def make_canary(chance, key, begin, sampling, options):
    secret = make_secret(chance)
    prompt = (f"{begin} The secret word is {secret}. {make_words(chance, 10)}. "
              f"Now {secret} is told. Once")
    body = {"model": "m", "prompt": prompt, "max_tokens": options.answer_tokens, "logprobs": 3,
            "ignore_eos": True, "stream": chance.random() < 0.5, **sampling}
    return Canary(key, body, secret)


def make_pair(chance, options):
    is_shared, has_one_key = chance.random() < 0.5, chance.random() < 0.5
    greedy = chance.random() < 0.5
    lengths = range(options.begin_words // 4, options.begin_words + 1)
    begins = [f"Tale {make_secret(chance)}: {make_words(chance, chance.choice(lengths))}."
              for _ in range(2)]
    keys = chance.sample(KEYS, 2)
    kind = ", ".join(("one beginning" if is_shared else "own beginnings",
                      "one key" if has_one_key else "two keys", "greedy" if greedy else "seeded"))
    both = tuple(
        make_canary(chance, keys[0 if has_one_key else index], begins[0 if is_shared else index],
                    {"temperature": 0} if greedy else {"temperature": 1,
                                                       "seed": chance.randrange(1 << 31)}, options)
        for index in range(2))
    for canary, other in (both, both[::-1]):
        canary.foreign.append(other.secret)
    return Pair(kind, both, common_tokens=-1 if is_shared and has_one_key else 0)


def choices_of(answer, streamed):
    """All that a client is told, however it was cut into events; and the tokens from the cache."""
    if answer.status != 200 or not answer.is_whole:
        return f"status {answer.status}, whole: {answer.is_whole}", 0
    if not streamed:
        body = answer.json()
        [choice] = body["choices"]
        logprobs = {name: choice["logprobs"][name] for name in ("tokens", "token_logprobs",
                                                                "top_logprobs")}
        return ([choice["text"], logprobs, choice["finish_reason"]],
                body["usage"]["prompt_tokens_details"]["cached_tokens"])
    text, reason, cached = "", None, 0
    logprobs = {"tokens": [], "token_logprobs": [], "top_logprobs": []}
    for event in answer.events():
        if event == "[DONE]":
            continue
        if event.get("usage"):
            cached = event["usage"]["prompt_tokens_details"]["cached_tokens"]
        for choice in event.get("choices", []):
            text += choice["text"]
            reason = choice["finish_reason"] or reason
            for name, values in logprobs.items():
                values += (choice["logprobs"] or {}).get(name, [])
    return [text, logprobs, reason], cached


class Trial:
    """Pairs against one daemon with keys."""

    def __init__(self, port, keys, options):
        self.port, self.keys, self.options = port, keys, options
        self.chance = random.Random(options.seed)
        self.secrets = []
        self.salts = itertools.count()

    async def get(self, canary, **more):
        body = {**canary.body, **more}
        if body["stream"]:
            body["stream_options"] = {"include_usage": True}
        answer = await ask(self.port, "/v1/completions", body, [self.keys.of[canary.key]])
        canary.raw = answer.body
        return choices_of(answer, body["stream"])

    async def count_common(self, pair):
        """How many tokens both prompts begin with."""
        lists = []
        for canary in pair.both:
            body = {"model": "m", "prompt": canary.body["prompt"]}
            answer = await ask(self.port, "/tokenize", body, [self.keys.of[canary.key]])
            lists.append(answer.json()["tokens"])
        return next((index for index, (one, other) in enumerate(zip(*lists)) if one != other),
                    min(map(len, lists)))

    async def leave(self, foreign):
        """A third client with a secret that leaves."""
        canary = make_canary(self.chance, self.chance.choice(KEYS), make_words(self.chance, 50),
                             {"temperature": 0}, self.options)
        for one in foreign:
            one.foreign.append(canary.secret)
        async with Client(self.port) as client:
            await client.send(request_bytes("/v1/completions", canary.body,
                                            [self.keys.of[canary.key]]))
            await asyncio.sleep(self.chance.uniform(0, 0.05))
            client.leave(with_reset=True)

    async def run_pair(self, pair):
        leaving = [self.leave(pair.both)] if self.chance.random() < 0.2 else []
        results = await asyncio.gather(*map(self.get, pair.both), *leaving)
        for canary, (beside, cached) in zip(pair.both, results):
            canary.beside, canary.cached_tokens = beside, cached

    async def run(self, pairs):
        """Those that are beside one another: first each alone, under a salt that nobody has."""
        for canary in itertools.chain(*(pair.both for pair in pairs)):
            canary.alone, cached = await self.get(canary, cache_salt=f"alone-{next(self.salts)}")
            if cached:
                canary.alone = f"{cached} tokens were in the cache under a salt of its own"
            self.secrets.append(canary.secret)
        for pair in pairs:
            if pair.common_tokens < 0:
                pair.common_tokens = await self.count_common(pair)
        await asyncio.gather(*map(self.run_pair, pairs))


def judge(pairs):
    """What is wrong with these pairs, by kind of fault."""
    found = collections.Counter()
    for pair in pairs:
        for canary in pair.both:
            if not isinstance(canary.alone, list):
                found["no answer alone"] += 1
            elif canary.beside != canary.alone:
                found["differs"] += 1
            if any(secret.encode() in canary.raw for secret in canary.foreign):
                found["another's secret"] += 1
            # Tokenized alone a prompt may lack the token that begins every text.
            if canary.cached_tokens > pair.common_tokens + (pair.common_tokens > 0):
                found["more cached than shared"] += 1
    return found


async def run_pairs(daemon, keys, options):
    trial = Trial(daemon.port, keys, options)
    kinds = collections.defaultdict(collections.Counter)
    for first in range(0, options.pairs, options.at_once):
        pairs = [make_pair(trial.chance, options)
                 for _ in range(min(options.at_once, options.pairs - first))]
        await trial.run(pairs)
        for pair in pairs:
            kinds[pair.kind].update(judge([pair]))
            kinds[pair.kind]["pairs"] += 1
            kinds[pair.kind]["found in the cache"] += any(one.cached_tokens for one in pair.both)
    return {kind: dict(kinds[kind]) for kind in sorted(kinds)}, trial.secrets


def measure(options):
    with tempfile.TemporaryDirectory(prefix="lockstep-canaries-") as folder:
        keys = Keys(KEYS, pathlib.Path(folder) / "keys.json")
        with Daemon(options.program, options.model, *keys.options, "--context", options.context,
                    "--kv-pages", options.kv_pages, *options.option, log=options.log) as daemon:
            kinds, secrets = asyncio.run(run_pairs(daemon, keys, options))
            metrics = asyncio.run(ask(daemon.port, "/metrics")).text
            counters = daemon.metrics()
            exit_code = daemon.stop()
            told = daemon.log_text() + metrics
    return {"kinds": kinds, "told": sum(secret in told for secret in secrets),
            "secrets": len(secrets), "exit_code": exit_code,
            "preemptions": counters.sum("lockstep_preemptions_total"),
            "evictions": counters.sum("lockstep_kv_cache_evictions_total")}


FAULTS = ("no answer alone", "differs", "another's secret", "more cached than shared")


def show(figures):
    columns = ("pairs", "found in the cache", *FAULTS)
    print_table(("side by side", *columns), [
        (kind, *(counts.get(name, 0) for name in columns))
        for kind, counts in figures["kinds"].items()])
    print(f"\n{figures['secrets']} secrets, {figures['told']} of them in the log or the metrics; "
          f"{figures['preemptions']:.0f} sequences computed again, "
          f"{figures['evictions']:.0f} pages evicted")


def find_faults(figures):
    for kind, counts in figures["kinds"].items():
        for name in FAULTS:
            if counts.get(name):
                yield f"{kind}: {name}: {counts[name]}"
    if not any(counts["found in the cache"] for counts in figures["kinds"].values()):
        yield "nothing was ever found in the cache"
    if figures["told"]:
        yield f"{figures['told']} secrets are in the log or the metrics"
    if figures["exit_code"] != 0:
        yield f"the daemon ended with {figures['exit_code']}"


def main():
    parser = serving_rig.parser(__doc__)
    parser.add_argument("--pairs", type=int, default=10_000)
    parser.add_argument("--at-once", type=int, default=4, help="pairs")
    parser.add_argument("--begin-words", type=int, default=120,
                        help="of a prompt's beginning, at most; a quarter at least")
    parser.add_argument("--answer-tokens", type=int, default=48)
    parser.add_argument("--context", type=int, default=512, help="the daemon's option")
    parser.add_argument("--kv-pages", type=int, default=12, help="the daemon's option")
    options = parser.parse_args()
    serving_rig.allow_descriptors()
    figures = measure(options)
    show(figures)
    return serving_rig.conclude(figures, find_faults(figures), options)


if __name__ == "__main__":
    sys.exit(main())
