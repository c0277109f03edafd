#!/usr/bin/env python3
"""Whether the time to the first token tells one API key that another has sent the same long prompt.

In each trial a victim sends a prompt that nobody has sent before, or another one of the same
length, by the toss of a coin; then an attacker sends the prompt and has to say which it was. The attacker
knows half of the tosses and learns the best threshold from them; the other half is guessed. With a
key of its own it must do no better than chance: ends with 1 if so many right guesses or more would
be luck with a probability below --alpha. With the victim's own key it must be right nearly always,
or the experiment shows nothing: that is a fault, too.
"""

import asyncio
import math
import pathlib
import random
import statistics
import sys
import tempfile

import serving_rig
from serving_rig import Daemon, Keys, ask, print_table

ATTACKERS = {"own key": "mallory", "victim's key": "victim"}


def learn(trials):
    """The (threshold, whether below it means "sent") that is right most often."""
    best = (-1, 0.0, True)
    for threshold in sorted({seconds for _, seconds in trials}):
        right = sum(sent == (seconds <= threshold) for sent, seconds in trials)
        for count, below_means_sent in ((right, True), (len(trials) - right, False)):
            best = max(best, (count, threshold, below_means_sent))
    return best[1:]


def guess_right(trials, rule):
    threshold, below_means_sent = rule
    return sum(sent == ((seconds <= threshold) == below_means_sent) for sent, seconds in trials)


def probability_of_luck(right, count):
    """Of `right` or more heads among `count` tosses."""
    return sum(math.comb(count, heads) for heads in range(right, count + 1)) / 2**count


def judge(trials):
    """The first half is known, the other is guessed."""
    known, guessed = trials[:len(trials) // 2], trials[len(trials) // 2:]
    rule = learn(known)
    right = guess_right(guessed, rule)

    def median(label):
        return 1000 * statistics.median([seconds for sent, seconds in trials if sent == label]
                                        or [math.nan])

    return {"trials": len(trials), "guessed": len(guessed), "right": right,
            "accuracy": right / len(guessed), "luck": probability_of_luck(right, len(guessed)),
            "sent_ms": median(True), "not_sent_ms": median(False)}


class Oracle:
    def __init__(self, port, keys, options):
        self.port, self.keys, self.options = port, keys, options
        self.chance = random.Random(options.seed)
        self.cached_tokens = {name: 0 for name in ATTACKERS}

    def prompt(self):
        return [self.chance.randrange(300, self.options.vocabulary)
                for _ in range(self.options.prompt_tokens)]

    async def send(self, prompt, key):
        body = {"model": "m", "prompt": prompt, "max_tokens": 1, "temperature": 0, "stream": True,
                "ignore_eos": True, "stream_options": {"include_usage": True}}
        answer = await ask(self.port, "/v1/completions", body, [self.keys.of[key]])
        if answer.status != 200 or answer.first_seconds is None:
            sys.exit(f"{answer.status}: {answer.text[:300]}")
        return answer

    async def trial(self, attacker):
        sent = self.chance.random() < 0.5
        prompt = self.prompt()
        other = self.prompt()
        await self.send(prompt if sent else other, "victim")
        answer = await self.send(prompt, ATTACKERS[attacker])
        for event in answer.events():
            if event != "[DONE]" and event.get("usage"):
                self.cached_tokens[attacker] += (
                    event["usage"]["prompt_tokens_details"]["cached_tokens"])
        return sent, answer.first_seconds

    async def run(self):
        """Trials of both attackers in turn, so that what the machine does else meets both."""
        trials = {name: [] for name in ATTACKERS}
        await self.trial("own key")  # warms up
        self.cached_tokens["own key"] = 0
        for _ in range(self.options.trials):
            for name, found in trials.items():
                found.append(await self.trial(name))
        return {name: {**judge(found), "cached_tokens": self.cached_tokens[name]}
                for name, found in trials.items()}


def measure(options):
    with tempfile.TemporaryDirectory(prefix="lockstep-oracle-") as folder:
        keys = Keys(sorted(set(ATTACKERS.values())), pathlib.Path(folder) / "keys.json")
        with Daemon(options.program, options.model, *keys.options, *options.option,
                    log=options.log) as daemon:
            figures = asyncio.run(Oracle(daemon.port, keys, options).run())
            figures["exit_code"] = daemon.stop()
    return figures


def show(figures):
    print_table(
        ("attacker", "trials", "first token ms, sent before", "not sent", "guessed", "right",
         "accuracy", "luck has p", "cached tokens"),
        [(name, row["trials"], row["sent_ms"], row["not_sent_ms"], row["guessed"], row["right"],
          row["accuracy"], row["luck"], row["cached_tokens"])
         for name, row in ((name, figures[name]) for name in ATTACKERS)])


def find_faults(figures, options):
    own, victims = (figures[name] for name in ATTACKERS)
    if own["luck"] < options.alpha:
        yield (f"another key is right {own['right']} times of {own['guessed']}: that is luck with "
               f"p = {own['luck']:.2g} only")
    if own["cached_tokens"]:
        yield f"{own['cached_tokens']} cached tokens were told to another key"
    if victims["accuracy"] < options.least_control:
        yield (f"within one key only {100 * victims['accuracy']:.0f} % are right: the experiment "
               "shows nothing; take longer prompts")
    if figures["exit_code"] != 0:
        yield f"the daemon ended with {figures['exit_code']}"


def main():
    parser = serving_rig.parser(__doc__)
    parser.add_argument("--trials", type=int, default=1000, help="of each attacker")
    parser.add_argument("--prompt-tokens", type=int, default=400)
    parser.add_argument("--vocabulary", type=int, default=2000, help="token ids are below this")
    parser.add_argument("--alpha", type=float, default=0.001,
                        help="probability at which right guesses are no luck any more")
    parser.add_argument("--least-control", type=float, default=0.95,
                        help="share of right guesses within one key")
    options = parser.parse_args()
    if options.trials < 2:
        parser.error("--trials must be 2 at least: one to learn from, one to guess")
    figures = measure(options)
    show(figures)
    return serving_rig.conclude(figures, find_faults(figures, options), options)


if __name__ == "__main__":
    sys.exit(main())
