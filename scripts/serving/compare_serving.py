#!/usr/bin/env python3
"""Serves one model with lockstepd and with llama-server in turn, puts both under the same load, and
prints what clients see: answers and tokens per second, times to the first and to the next token.

    scripts/serving/compare_serving.py --peer PATH/llama-server --model FILE [--clients 1,4,16,64]
        [--prompts 32,256,1024] [--answers 16,32,64] [--seconds 10] [--rounds 3]

Each client asks again as soon as it has its answer (a closed loop), streamed. Prompts are random
token ids; they and the answers have the given numbers of tokens in turn, so that both servers
compute the same; with --shared every prompt begins with the same half, with --shared-tokens with
the same so many. No server drafts. Rounds go A B A B; medians are printed."""

import argparse
import asyncio
import json
import os
import pathlib
import random
import socket
import statistics
import subprocess
import sys
import time
import urllib.request

from serving_rig import percentile

ROOT = pathlib.Path(__file__).resolve().parents[2]


def numbers(text):
    return [int(part) for part in text.split(",")]


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", required=True, help="llama-server")
    parser.add_argument("--model", required=True)
    parser.add_argument("--lockstepd", default=str(ROOT / "build/release/lockstepd"))
    parser.add_argument("--clients", type=numbers, default=[1, 4, 16, 64])
    parser.add_argument("--prompts", type=numbers, default=[32, 256, 1024], help="tokens, in turn")
    parser.add_argument("--answers", type=numbers, default=[16, 32, 64],
                        help="tokens, in turn")
    parser.add_argument("--sequences", type=int, default=16, help="side by side, in both")
    parser.add_argument("--threads", type=int, default=0, help="of each; 0: one per processor")
    parser.add_argument("--vocabulary", type=int, default=4000, help="token ids are below this")
    parser.add_argument("--shared", action="store_true", help="prompts begin with the same half")
    parser.add_argument("--shared-tokens", type=int, default=0,
                        help="prompts begin with the same so many")
    parser.add_argument("--seconds", type=float, default=10, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """One of the two, as a process; ready when it says so."""

    def __init__(self, name, command, port):
        self.name, self.port = name, port
        self.process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while True:
            if self.process.poll() is not None:
                sys.exit(f"{name} has ended with {self.process.returncode}: {' '.join(command)}")
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1)
                break
            except OSError:
                time.sleep(0.1)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models") as answer:
            self.model = json.load(answer)["data"][0]["id"]

    def stop(self):
        self.process.kill()
        self.process.wait()


def start(name, options):
    port = free_port()
    context = max(options.prompts) + max(options.answers) + 64
    threads = options.threads or len(os.sched_getaffinity(0))
    if name == "lockstepd":
        command = [options.lockstepd, "--model", options.model, "--port", str(port),
                   "--sequences", str(options.sequences), "--context", str(context),
                   "--workers", str(threads)]
    else:
        command = [options.peer, "-m", options.model, "--port", str(port), "-fa", "on",
                   "-np", str(options.sequences), "-c", str(context * options.sequences),
                   "-t", str(threads), "-tb", str(threads)]
    return Server(name, command, port)


class Load:
    """What `clients` see of one server for some seconds."""

    def __init__(self, server, clients, options):
        self.server, self.clients, self.options = server, clients, options
        self.random = random.Random(clients)
        self.first, self.between, self.answers, self.tokens, self.failed = [], [], 0, 0, 0
        self.turn = 0

    def next_request(self):
        """The ids of a prompt, and how many tokens its answer has."""
        round_, turn = divmod(self.turn, len(self.options.prompts))
        self.turn += 1
        length = self.options.prompts[turn]
        # Every length of a prompt meets every length of an answer.
        tokens = self.options.answers[(round_ + turn) % len(self.options.answers)]
        ids = [self.random.randrange(300, self.options.vocabulary) for _ in range(length)]
        same = min(self.options.shared_tokens or (length // 2 if self.options.shared else 0), length)
        ids[:same] = [300 + index % 3000 for index in range(same)]
        return ids, tokens

    async def ask(self):
        prompt, tokens = self.next_request()
        body = json.dumps({
            "model": self.server.model, "prompt": prompt, "stream": True, "temperature": 0,
            "max_tokens": tokens, "ignore_eos": True, "speculation": False}).encode()
        began = time.perf_counter()
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
        try:
            head = ("POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
                    f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n")
            writer.write(head.encode() + body)
            if b" 200 " not in await reader.readline():
                self.failed += 1
                return
            last = None
            async for line in reader:
                if not line.startswith(b"data: {"):
                    continue
                now = time.perf_counter()
                if last is None:
                    self.first.append(now - began)
                else:
                    self.between.append(now - last)
                last = now
            self.answers += 1
            self.tokens += tokens
        finally:
            writer.close()

    async def client(self, end):
        while time.perf_counter() < end:
            await self.ask()

    async def run(self):
        began = time.perf_counter()
        end = began + self.options.seconds
        await asyncio.gather(*[self.client(end) for _ in range(self.clients)])
        seconds = time.perf_counter() - began
        return {"answers/s": self.answers / seconds,
                "tokens/s": self.tokens / seconds,
                "first p50 ms": 1000 * percentile(self.first, 0.5),
                "first p99 ms": 1000 * percentile(self.first, 0.99),
                "next p50 ms": 1000 * percentile(self.between, 0.5),
                "next p99 ms": 1000 * percentile(self.between, 0.99),
                "failed": self.failed}


def main():
    options = parse()
    results = {}
    for _ in range(options.rounds):
        for name in ("lockstepd", "llama-server"):
            server = start(name, options)
            try:
                asyncio.run(Load(server, 1, options).ask())  # the first answer warms both up
                for clients in options.clients:
                    measured = asyncio.run(Load(server, clients, options).run())
                    results.setdefault((clients, name), []).append(measured)
            finally:
                server.stop()
    columns = list(next(iter(results.values()))[0])
    print("| clients | server | " + " | ".join(columns) + " |")
    print("| --- | --- |" + " ---: |" * len(columns))
    for clients in options.clients:
        for name in ("lockstepd", "llama-server"):
            rounds = results[clients, name]
            cells = [statistics.median(entry[column] for entry in rounds) for column in columns]
            print(f"| {clients} | {name} | " + " | ".join(f"{cell:.4g}" for cell in cells) + " |")


if __name__ == "__main__":
    main()
