#!/usr/bin/env python3
"""Serves one model with lockstepd and with llama-server, each without drafts, with n-grams and with
a draft model or the model's own block that predicts, and prints how many tokens per second clients
get while all of them are answered.

    scripts/serving/compare_speculation.py --peer PATH/llama-server --model FILE [--draft FILE]
        [--clients 1,4,16] [--tokens 96] [--draft-tokens auto] [--rounds 3] [--json FILE]

The files are a pair of scripts/models/make_draft_pair.py, or its one file with such a block. The
model goes on by the last token alone, so an answer is foreseen: each prompt is a text with one line
changed, and the answer is that text. A measurement is one answer for each client, all at once;
tokens count from the last client's first token to the first client's end. No server finds a prompt
or an answer again. All answers are compared with the text: the script ends with 1 where one differs.
Rounds go through all servers in turn; medians, and the medians of the ratios to the same server
without drafts in the same round, are printed. With --json a file keeps the rounds, and another call
adds its own to them."""

import argparse
import asyncio
import json
import os
import pathlib
import random
import statistics
import sys
import time

from compare_serving import ROOT, Server, free_port, numbers

FIRST_WORD = 259  # behind control tokens and bytes
LINE_TOKENS = 8
PLAIN, NGRAMS, DRAFT, BLOCK = "no drafts", "n-grams", "draft model", "own block"


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", help="llama-server; without it lockstepd is measured alone")
    parser.add_argument("--model", required=True)
    parser.add_argument("--draft", help="the smaller model of the pair")
    parser.add_argument("--lockstepd", default=str(ROOT / "build/release/lockstepd"))
    parser.add_argument("--clients", type=numbers, default=[1, 4, 16])
    parser.add_argument("--tokens", type=int, default=96, help="of each answer")
    parser.add_argument("--draft-tokens", default="auto", help="of lockstepd")
    parser.add_argument("--peer-ngram", default="ngram-simple", help="--spec-type of the peer")
    parser.add_argument("--peer-draft", default="draft-simple", help="--spec-type of the peer")
    parser.add_argument("--peer-block", default="draft-mtp", help="--spec-type of the peer")
    parser.add_argument("--peer-option", action="append", default=[], help="for all of its kinds")
    parser.add_argument("--words", type=int, default=31_000, help="of the vocabulary, to begin with")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=pathlib.Path)
    return parser.parse_args()


def servers(options):
    return ("lockstepd", "llama-server") if options.peer else ("lockstepd",)


def kinds(options):
    return PLAIN, NGRAMS, DRAFT if options.draft else BLOCK


def start(name, kind, options):
    port, sequences = free_port(), max(options.clients)
    context, threads = 2 * options.tokens + 64, len(os.sched_getaffinity(0))
    if name == "lockstepd":
        drafters = {PLAIN: ["--speculate", "none"], NGRAMS: ["--speculate", "ngram"],
                    DRAFT: ["--speculate", "draft", "--draft-model", options.draft],
                    BLOCK: ["--speculate", "mtp"]}
        return Server(name, [
            options.lockstepd, "--model", options.model, "--port", str(port), "--sequences",
            str(sequences), "--context", str(context), "--workers", str(threads),
            "--draft-tokens", options.draft_tokens, *drafters[kind]], port)
    drafters = {PLAIN: [], NGRAMS: ["--spec-type", options.peer_ngram],
                DRAFT: ["--spec-type", options.peer_draft, "-md", options.draft],
                BLOCK: ["--spec-type", options.peer_block]}
    return Server(name, [
        options.peer, "-m", options.model, "--port", str(port), "-fa", "on", "-np", str(sequences),
        "-c", str(context * sequences), "-t", str(threads), "-tb", str(threads), *drafters[kind],
        *options.peer_option], port)


class Answer:
    """One client's stream, as its words come."""

    def __init__(self):
        self.text, self.times = "", []  # a time for each word

    def hear(self, text):
        now = time.perf_counter()
        self.text += text
        self.times += [now] * (self.text.count("w") - len(self.times))

    def words(self):
        """None: it is not of words."""
        try:
            return [int(word[1:]) for word in self.text.split()]
        except ValueError:
            return None


async def ask(server, prompt, tokens, salt):
    fields = ({"cache_salt": salt} if server.name == "lockstepd" else {"cache_prompt": False})
    body = json.dumps({"model": server.model, "prompt": prompt, "stream": True, "temperature": 0,
                       "max_tokens": tokens, "ignore_eos": True, **fields}).encode()
    answer = Answer()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        writer.write(("POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
                      "Content-Type: application/json\r\n"
                      f"Content-Length: {len(body)}\r\n\r\n").encode() + body)
        status = await reader.readline()
        if b" 200 " not in status:
            sys.exit(f"{server.name} answered {status.decode()}")
        async for line in reader:
            if line.startswith(b"data: {"):
                choices = json.loads(line[6:])["choices"]
                answer.hear(choices[0]["text"] if choices else "")
    finally:
        writer.close()
    return answer


def ids_of(words):
    return [FIRST_WORD + word for word in words]


class Texts:
    """What each client asks for: a text of the model's, of which a prompt has all but one line."""

    def __init__(self, options):
        self.options, self.random, self.asked = options, random.Random(options.seed), 0
        self.starts = self.random.sample(range(options.words), max(options.clients))
        self.texts = None

    def salt(self):
        self.asked += 1
        return f"{self.options.seed}-{self.asked}"

    async def learn(self, server):
        """Once, of any server: one word is enough of a prompt."""
        if self.texts is None:
            answers = await asyncio.gather(*[
                ask(server, ids_of([start]), self.options.tokens, self.salt())
                for start in self.starts])
            self.texts = [answer.words() for answer in answers]
            if None in self.texts:
                sys.exit(f"{server.name} answered with what is no word: is this a model of "
                         "make_draft_pair.py?")

    def prompt(self, client):
        changed = list(self.texts[client])
        middle = len(changed) // 2
        changed[middle:middle + LINE_TOKENS] = self.random.sample(
            range(self.options.words), LINE_TOKENS)
        return ids_of([*changed, self.starts[client]])

    async def measure(self, server, clients):
        """Tokens per second of all clients together."""
        answers = await asyncio.gather(*[
            ask(server, self.prompt(client), self.options.tokens, self.salt())
            for client in range(clients)])
        for answer, text in zip(answers, self.texts):
            if answer.words() != text:
                sys.exit(f"{server.name} answered {clients} clients another text: {answer.text!r}")
        begin = max(answer.times[0] for answer in answers)
        end = min(answer.times[-1] for answer in answers)
        counted = sum(begin < moment <= end for answer in answers for moment in answer.times)
        return counted / (end - begin)


async def run_round(options, texts):
    speeds = {}
    for name in servers(options):
        for kind in kinds(options):
            server = start(name, kind, options)
            try:
                await texts.learn(server)
                await texts.measure(server, 1)  # warms it up
                for clients in options.clients:
                    key = f"{clients} {name} {kind}"
                    speeds[key] = await texts.measure(server, clients)
                    print(f"{key}: {speeds[key]:.1f}", file=sys.stderr, flush=True)
            finally:
                server.stop()
    return speeds


def print_results(options, rounds):
    print(f"medians of {len(rounds)} rounds, tokens/s, and x of the same without drafts")
    print("| clients | server | " + " | ".join(kinds(options)) + " |")
    print("| ---: | --- |" + " ---: |" * len(kinds(options)))
    for clients in options.clients:
        for name in servers(options):
            cells = []
            for kind in kinds(options):
                speeds = [each[f"{clients} {name} {kind}"] for each in rounds]
                ratios = [each[f"{clients} {name} {kind}"] / each[f"{clients} {name} {PLAIN}"]
                          for each in rounds]
                ratio = f" ({statistics.median(ratios):.2f} x)" if kind != PLAIN else ""
                cells.append(f"{statistics.median(speeds):.1f}{ratio}")
            print(f"| {clients} | {name} | " + " | ".join(cells) + " |")


def main():
    options = parse()
    rounds = json.loads(options.json.read_text()) if options.json and options.json.exists() else []
    wanted = {f"{clients} {name} {kind}" for clients in options.clients
              for name in servers(options) for kind in kinds(options)}
    if any(not wanted <= each.keys() for each in rounds):
        sys.exit(f"{options.json} has rounds of other servers, clients or drafters")
    texts = Texts(options)
    for _ in range(options.rounds):
        rounds.append(asyncio.run(run_round(options, texts)))
        if options.json:
            options.json.write_text(json.dumps(rounds))
    print_results(options, rounds)


if __name__ == "__main__":
    main()
