#!/usr/bin/env python3
"""One long conversation with lockstepd, and with llama-server beside it: the time to the first
token of every turn, beside what the turn's new tokens alone take.

    scripts/serving/compare_turns.py --model FILE [--peer PATH/llama-server] [--turns 50]
        [--new 600] [--answer 16] [--after-restart 5] [--sample 10] [--json FILE]

A turn's prompt is the conversation so far, answers included, and so many new random tokens. An
answer is one token again and again, which a logit bias enforces, so that both servers have the same
conversation. Both run at once and are asked in turn. lockstepd keeps pages and states in files:
after the last turn it is stopped and started again, and the conversation goes on; the peer starts
again with nothing, for one turn.

Of every --sample'th turn, and of those after the restart, it is measured right after them what the
new tokens take alone: by `lockstepd bench` behind as many tokens of zeros as the turn had, which is
the time without any server, cache or cut of a prompt; and as a new prompt to the server, behind
nothing. Between samples the former is interpolated over the depth.

Ends with 1 where a turn computes more than its new tokens, an answer and a page; times break no bound."""

import argparse
import dataclasses
import http.client
import json
import os
import pathlib
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE_TOKENS = 64
PATIENCE_SECONDS = 3600
QUIET_SECONDS = 0.5  # threads of a server that has answered may spin for a while (OpenMP's do)
# Answers of one token again and again are no measure of what drafts find.
PLAIN = {"speculation": False}


@dataclasses.dataclass
class Turn:
    """What one server's client saw of it."""
    number: int
    depth: int  # tokens of the conversation before the new ones
    new: int
    computed: int  # tokens of the prompt that were not found again
    first_seconds: float
    restarted: bool = False  # since the server's start
    alone_seconds: float | None = None  # by bench, at this depth
    fresh_seconds: float | None = None  # as a prompt by itself

    @property
    def ratio(self):
        return self.first_seconds / self.alone_seconds


class Server:
    """A process, ready once it says so."""

    def __init__(self, name, command):
        self.name = name
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.process = subprocess.Popen([*map(str, command), "--port", str(self.port)],
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while not self.is_ready():
            if self.process.poll() is not None:
                sys.exit(f"{name} has ended with {self.process.returncode}: "
                         f"{' '.join(map(str, command))}")
            time.sleep(0.1)

    def is_ready(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def ask(self, prompt, answer_tokens, token, **fields):
        """Seconds to the first token, and how many tokens of the prompt were found again."""
        body = json.dumps({
            "model": "m", "prompt": prompt, "max_tokens": answer_tokens, "temperature": 0,
            "ignore_eos": True, "logit_bias": {str(token): 100}, "stream": True,
            "stream_options": {"include_usage": True}, **fields})
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_SECONDS)
        first, usage = None, None
        time.sleep(QUIET_SECONDS)
        began = time.perf_counter()
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            sys.exit(f"{self.name} answered {answer.status}: {answer.read(2000).decode()}")
        for line in answer:
            if not line.startswith(b"data: {"):
                continue
            if first is None:
                first = time.perf_counter() - began
            usage = json.loads(line[6:]).get("usage") or usage
        connection.close()
        assert usage["prompt_tokens"] == len(prompt), usage
        return first, usage["prompt_tokens_details"]["cached_tokens"]

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait()


class Conversation:
    def __init__(self, options):
        self.options = options
        self.random = random.Random(options.seed)
        self.tokens = []

    def new_tokens(self):
        return [self.random.randrange(self.options.lowest, self.options.vocabulary)
                for _ in range(self.options.new)]

    def next_turn(self, servers, number, restarted=False):
        """The turn as each of the servers has it, by their names."""
        depth, answer = len(self.tokens), self.options.lowest + number
        prompt = self.tokens + self.new_tokens()
        turns = {}
        for server in servers:
            fields = PLAIN if server.name == "lockstepd" else {"id_slot": 0, "cache_prompt": True}
            seconds, found = server.ask(prompt, self.options.answer, answer, **fields)
            turns[server.name] = Turn(number, depth, self.options.new, len(prompt) - found,
                                      seconds, restarted)
        self.tokens = prompt + [answer] * self.options.answer
        return turns


def take_sample(options, conversation, servers, turns):
    """Adds what the new tokens of this turn take alone."""
    prompt = conversation.new_tokens()
    for server in servers:
        fields = PLAIN if server.name == "lockstepd" else {"id_slot": 1, "cache_prompt": True}
        turns[server.name].fresh_seconds = server.ask(prompt, 1, options.lowest, **fields)[0]
    ours = turns["lockstepd"]
    command = [options.program, "bench", "--model", options.model, "--prompt", options.new,
               "--generate", 0, "--depth", ours.depth, "--zero-depth", "--repeat", options.repeat,
               "--json", *options.option]
    if options.threads:
        command += ["--workers", options.threads]
    output = subprocess.run(list(map(str, command)), check=True, capture_output=True,
                            text=True).stdout
    [result] = json.loads(output)["results"]
    ours.alone_seconds = options.new / statistics.median(result["samples"])


def interpolate(turns):
    """Gives the turns between two samples what lies between them, by depth."""
    known = [(turn.depth, turn.alone_seconds) for turn in turns if turn.alone_seconds]
    for turn in turns:
        if turn.alone_seconds:
            continue
        before = max((each for each in known if each[0] <= turn.depth), default=known[0])
        after = min((each for each in known if each[0] > turn.depth), default=before)
        share = (turn.depth - before[0]) / (after[0] - before[0]) if after != before else 0
        turn.alone_seconds = before[1] + share * (after[1] - before[1])


def find_faults(turns, answer):
    """A checkpoint may lie before the last answer, and a page before that."""
    for turn in turns:
        if turn.number > 1 and turn.computed > turn.new + answer + PAGE_TOKENS:
            yield (f"turn {turn.number} computed {turn.computed} tokens, of which {turn.new} were "
                   f"new, behind {turn.depth}")


def start_ours(options, folder):
    command = [options.program, "serve", "--model", options.model, "--served-model-name", "m",
               "--context", options.context, "--sequences", 2, "--cache-dir", folder / "cache",
               "--cache-disk", options.cache_disk, *options.option]
    if options.threads:
        command += ["--workers", options.threads]
    return Server("lockstepd", command)


def start_peer(options):
    threads = options.threads or len(os.sched_getaffinity(0))
    return Server("llama-server", [
        options.peer, "-m", options.model, "--alias", "m", "-fa", "on", "-np", 2, "-c",
        2 * options.context, "-t", threads, "-tb", threads, *options.peer_option])


def converse(options, folder):
    """All turns, by server."""
    conversation, all_turns = Conversation(options), {"lockstepd": [], "llama-server": []}
    ours = start_ours(options, folder)
    peer = start_peer(options) if options.peer else None

    def take(servers, number, restarted, sampled):
        turns = conversation.next_turn(servers, number, restarted)
        if sampled:
            take_sample(options, conversation, servers, turns)
        for name, turn in turns.items():
            all_turns[name].append(turn)
            print(f"# {name} turn {turn.number}: {turn.computed} tokens behind {turn.depth}, "
                  f"{turn.first_seconds:.3f} s", file=sys.stderr, flush=True)

    try:
        for number in range(1, options.turns + 1):
            sampled = number <= 2 or number % options.sample == 0 or number == options.turns
            take([ours, peer] if peer else [ours], number, False, sampled)
        ours.stop()
        ours = start_ours(options, folder)
        if peer:
            peer.stop()
            peer = start_peer(options)
        for number in range(options.turns + 1, options.turns + options.after_restart + 1):
            with_peer = peer and number == options.turns + 1
            take([ours, peer] if with_peer else [ours], number, True, True)
    finally:
        for server in filter(None, (ours, peer)):
            server.stop()
    interpolate(all_turns["lockstepd"])
    return all_turns


def print_turns(all_turns, sample):
    peers = {turn.number: turn for turn in all_turns["llama-server"]}
    print("| turn | tokens before | new | computed | first token s | alone s | ratio | as a new "
          "prompt s | peer computed | peer's first token s | peer's new prompt s |")
    print("| --- |" + " ---: |" * 10)
    for turn in all_turns["lockstepd"]:
        if turn.fresh_seconds is None and turn.number % sample != 0:
            continue
        cells = [f"{turn.number}{', restarted' if turn.restarted else ''}", turn.depth, turn.new,
                 turn.computed, f"{turn.first_seconds:.3g}", f"{turn.alone_seconds:.3g}",
                 f"{turn.ratio:.2f}",
                 f"{turn.fresh_seconds:.3g}" if turn.fresh_seconds else ""]
        peer = peers.get(turn.number)
        cells += ([peer.computed, f"{peer.first_seconds:.3g}",
                   f"{peer.fresh_seconds:.3g}" if peer.fresh_seconds else ""] if peer
                  else ["", "", ""])
        print("| " + " | ".join(map(str, cells)) + " |")


def summarize(name, turns):
    if turns:
        ratios = sorted(turn.ratio for turn in turns)
        print(f"{name}: {len(turns)}, ratios from {ratios[0]:.2f} to {ratios[-1]:.2f}, median "
              f"{statistics.median(ratios):.2f}")


def parse(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, required=True)
    parser.add_argument("--program", type=pathlib.Path, default=ROOT / "build/release/lockstepd")
    parser.add_argument("--peer", type=pathlib.Path, help="llama-server")
    parser.add_argument("--turns", type=int, default=50)
    parser.add_argument("--new", type=int, default=600, help="tokens of a turn")
    parser.add_argument("--answer", type=int, default=16, help="tokens of each answer")
    parser.add_argument("--after-restart", type=int, default=5, help="turns")
    parser.add_argument("--sample", type=int, default=10, help="turns")
    parser.add_argument("--repeat", type=int, default=2, help="of a sample by bench")
    parser.add_argument("--context", type=int, default=0, help="0: what the turns need")
    parser.add_argument("--cache-disk", type=int, default=16, help="GiB")
    parser.add_argument("--threads", type=int, default=0, help="of each; 0: one per processor")
    parser.add_argument("--vocabulary", type=int, default=4000, help="token ids are below this")
    parser.add_argument("--lowest", type=int, default=300, help="and no less than this")
    parser.add_argument("--seed", type=int, default=1, help="of the tokens")
    parser.add_argument("--option", action="append", default=[], help="of lockstepd, --name=value")
    parser.add_argument("--peer-option", action="append", default=[], help="of llama-server")
    parser.add_argument("--json", type=pathlib.Path, help="file for all turns")
    options = parser.parse_args(arguments)
    turns = options.turns + options.after_restart
    options.context = options.context or turns * (options.new + options.answer) + PAGE_TOKENS
    return options


def main():
    options = parse()
    with tempfile.TemporaryDirectory(prefix="lockstep-turns-") as folder:
        all_turns = converse(options, pathlib.Path(folder))
    print_turns(all_turns, options.sample)
    ours = all_turns["lockstepd"]
    summarize("turns from the second on", [turn for turn in ours
                                           if turn.number > 1 and not turn.restarted])
    summarize("turns after the restart", [turn for turn in ours if turn.restarted])
    faults = list(find_faults(ours, options.answer))
    if options.json:
        options.json.write_text(json.dumps(
            {name: [dataclasses.asdict(turn) for turn in turns]
             for name, turns in all_turns.items()} | {"faults": faults}, indent=1))
    for fault in faults:
        print("FAULT:", fault)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
