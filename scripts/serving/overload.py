#!/usr/bin/env python3
"""What is left of a daemon that is asked for ten times what it can do.

First clients that ask again as soon as they have their answer find the most it gives (its peak):
tokens of whole answers per second, whose lengths are random, so that they do not end together.
Then requests come at --times the peak's rate, at fixed times, whatever has become of the others,
each on a connection of its own (or, with --keep-alive, on any that is free). The daemon has its
default limits but for --waiting-requests, which bounds how long the admitted ones wait.

Ends with 1 if what is answered is less than --least-goodput of the peak, if a rejection takes
longer than --most-rejection-ms (99th percentile) or does not say when to come again, if anything
else than an answer or such a rejection comes, or if the daemon's anonymous memory grows by more
than --most-memory-mib after the first third.

What offers the load takes its part of the processors, and rejecting costs as well: on a machine of
two, leave one of them to both (--option=--workers=1), or take a model that answers fewer per second.
"""

import itertools
import random
import re
import select
import socket
import sys
import time

import serving_rig
from serving_rig import Daemon, percentile, print_table

SOURCES = [f"127.0.0.{2 + index}" for index in range(64)]
IDLE_SECONDS = 10  # after which a free connection is not used again: the daemon closes it soon
IP_BIND_ADDRESS_NO_PORT = 24


class Exchange:
    """One request and what has come of its answer."""

    def __init__(self, payload, tokens):
        self.tokens = tokens
        self.unsent = payload
        self.answer = b""
        self.wanted_bytes = None
        self.began = time.perf_counter()

    def is_whole(self):
        if self.wanted_bytes is None and (end := self.answer.find(b"\r\n\r\n")) >= 0:
            length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", self.answer[:end])
            self.wanted_bytes = end + 4 + int(length[1])
        return self.wanted_bytes is not None and len(self.answer) >= self.wanted_bytes


class Load:
    """Requests to one daemon, in one epoll loop."""

    def __init__(self, daemon, options):
        self.daemon, self.options = daemon, options
        self.epoll = select.epoll()
        self.by_number = {}  # descriptor -> (socket, exchange or None)
        self.free = []  # (socket, since when), the latest last
        self.sources = itertools.cycle(SOURCES)
        self.numbers = itertools.count()
        self.chance = random.Random(options.seed)
        self.ends = []  # (when, status, seconds, Retry-After, tokens)
        self.broken = 0
        self.memory = []

    def exchange(self):
        most = self.options.answer_tokens
        tokens = self.chance.randrange(most - most // 2, most + most // 2 + 1)
        body = {"model": "m", "prompt": f"Story {next(self.numbers)}: once upon a time",
                "max_tokens": tokens, "ignore_eos": True}
        return Exchange(serving_rig.request_bytes(
            "/v1/completions", body, keep_alive=self.options.keep_alive), tokens)

    def connect(self):
        connection = socket.socket()
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)
        connection.bind((next(self.sources), 0))
        connection.connect_ex(("127.0.0.1", self.daemon.port))
        self.epoll.register(connection.fileno(), select.EPOLLOUT)
        return connection

    def begin(self):
        exchange = self.exchange()
        now = time.perf_counter()
        while self.free and now - self.free[0][1] > IDLE_SECONDS:
            self.close(self.free.pop(0)[0])
        if self.free:
            connection = self.free.pop()[0]
            self.epoll.modify(connection.fileno(), select.EPOLLOUT)
        else:
            connection = self.connect()
        self.by_number[connection.fileno()] = (connection, exchange)

    def close(self, connection):
        self.by_number.pop(connection.fileno(), None)
        connection.close()

    def open_count(self):
        return sum(exchange is not None for _, exchange in self.by_number.values())

    def handle(self, number):
        """True if an exchange has ended."""
        connection, exchange = self.by_number[number]
        if exchange is None:  # a free connection: the daemon has closed it
            self.free = [entry for entry in self.free if entry[0] is not connection]
            self.close(connection)
            return False
        try:
            if exchange.unsent:
                exchange.unsent = exchange.unsent[connection.send(exchange.unsent):]
                if not exchange.unsent:
                    self.epoll.modify(number, select.EPOLLIN)
                return False
            received = connection.recv(65536)
        except BlockingIOError:
            return False
        except OSError:
            received = b""
        exchange.answer += received
        if exchange.is_whole():
            self.end(connection, exchange)
        elif received:
            return False
        else:
            self.broken += 1
            self.close(connection)
        return True

    def end(self, connection, exchange):
        now = time.perf_counter()
        again = re.search(rb"\r\nRetry-After: (\d+)\r\n", exchange.answer)
        self.ends.append((now, int(exchange.answer[9:12]), now - exchange.began,
                          int(again[1]) if again else None, exchange.tokens))
        if self.options.keep_alive and b"\r\nConnection: close" not in exchange.answer:
            self.by_number[connection.fileno()] = (connection, None)
            self.free.append((connection, now))
        else:
            self.close(connection)

    def turn(self, seconds):
        """The number of exchanges that have ended."""
        return sum(self.handle(number) for number, _ in self.epoll.poll(max(0, seconds), 256)
                   if number in self.by_number)

    def closed_loop(self, clients, seconds):
        """Tokens and answers per second, of the time after the first fifth."""
        begin = time.perf_counter()
        for _ in range(clients):
            self.begin()
        while time.perf_counter() < begin + seconds:
            for _ in range(self.turn(0.05)):
                self.begin()
        return self.finish(begin + seconds / 5, begin + seconds)

    def open_loop(self, rate, seconds):
        """The same of requests that come at a fixed rate; samples memory meanwhile."""
        begin = time.perf_counter()
        next_sample = begin
        sent = 0
        while (now := time.perf_counter()) < begin + seconds:
            while begin + sent / rate <= now:
                self.begin()
                sent += 1
            if now >= next_sample:
                self.memory.append((now - begin, self.daemon.memory_mib()))
                next_sample += min(1, seconds / 30)
            self.turn(min(begin + sent / rate, next_sample) - now)
        return sent, self.finish(begin + seconds / 5, begin + seconds)

    def finish(self, begin, end):
        """Waits for what is still open; tokens and answers per second between the two."""
        give_up = time.perf_counter() + serving_rig.PATIENCE_SECONDS
        while self.open_count() and time.perf_counter() < give_up:
            self.turn(0.05)
        tokens = [tokens for when, status, _, _, tokens in self.ends
                  if status == 200 and begin <= when < end]
        return {"tokens": sum(tokens) / (end - begin), "answers": len(tokens) / (end - begin)}


def find_peak(daemon, options):
    """The best of all numbers of clients."""
    return {clients: Load(daemon, options).closed_loop(clients, options.peak_seconds)
            for clients in options.clients}


def measure(options):
    with Daemon(options.program, options.model, "--waiting-requests", options.waiting_requests,
                *options.option, log=options.log) as daemon:
        Load(daemon, options).closed_loop(1, 0.2)  # the first answers warm up
        peaks = find_peak(daemon, options)
        peak = max(peaks.values(), key=lambda rates: rates["tokens"])
        if peak["answers"] == 0:
            sys.exit("no answer came in the closed loops: take more --peak-seconds")
        load = Load(daemon, options)
        processor_before, wall_before = time.process_time(), time.perf_counter()
        sent, goodput = load.open_loop(options.times * peak["answers"], options.seconds)
        processor = (time.process_time() - processor_before) / (time.perf_counter() - wall_before)
        idle = daemon.wait_until_idle()
        exit_code = daemon.stop()
    rejected = [end for end in load.ends if end[1] == 503]
    answered = [end for end in load.ends if end[1] == 200]
    third = options.seconds / 3
    first = load.memory[0][1]
    early = [mib for when, mib in load.memory if when <= third] or [first]
    late = [mib for when, mib in load.memory if when > third] or [first]
    return {
        "peaks": peaks, "peak": peak, "goodput": goodput, "sent": sent,
        "answered": len(answered), "rejected": len(rejected),
        "others": len(load.ends) - len(answered) - len(rejected),
        "broken": load.broken, "unanswered": sent - len(load.ends) - load.broken,
        "without_retry": sum(not again or not 1 <= again <= 60 for *_, again, _ in rejected),
        "answer_s": {name: percentile([end[2] for end in answered], share)
                     for name, share in (("p50", 0.5), ("p99", 0.99))},
        "rejection_ms": {name: 1000 * percentile([end[2] for end in rejected], share)
                         for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))},
        "memory_mib": {"first": first, "third": max(early), "most": max(late)},
        "rig_processor": processor, "idle": idle, "exit_code": exit_code,
    }


def show(figures):
    print_table(("clients in a closed loop", "tokens/s", "answers/s"),
                [(clients, *rates.values()) for clients, rates in figures["peaks"].items()])
    print()
    answer, rejection = figures["answer_s"], figures["rejection_ms"]
    print_table(
        ("offered", "answered", "rejected", "tokens/s", "of the peak", "answers/s",
         "answers p50 s", "p99 s", "rejections p50 ms", "p99 ms", "max ms"),
        [(figures["sent"], figures["answered"], figures["rejected"], figures["goodput"]["tokens"],
          f"{100 * figures['goodput']['tokens'] / figures['peak']['tokens']:.1f} %",
          figures["goodput"]["answers"], answer["p50"], answer["p99"], rejection["p50"],
          rejection["p99"], rejection["max"])])
    memory = figures["memory_mib"]
    print(f"\nmemory (RssAnon): {memory['first']:.1f} MiB at first, {memory['third']:.1f} at most "
          f"in the first third, {memory['most']:.1f} later; "
          f"the rig took {figures['rig_processor']:.2f} of a processor")


def find_faults(figures, options):
    goodput, peak = figures["goodput"]["tokens"], figures["peak"]["tokens"]
    if goodput < options.least_goodput * peak:
        yield f"goodput {goodput:.1f} tokens/s of a peak of {peak:.1f}"
    if not figures["rejected"]:
        yield "nothing was rejected: this was no overload"
    elif not figures["rejection_ms"]["p99"] <= options.most_rejection_ms:
        yield f"rejections took {figures['rejection_ms']['p99']:.1f} ms (p99)"
    for name in ("others", "broken", "unanswered", "without_retry"):
        if figures[name]:
            yield f"{name}: {figures[name]}"
    grown = figures["memory_mib"]["most"] - figures["memory_mib"]["third"]
    if grown > options.most_memory_mib:
        yield f"memory grew by {grown:.2f} MiB"
    if not figures["idle"]:
        yield "requests are left though nobody asks any more"
    if figures["exit_code"] != 0:
        yield f"the daemon ended with {figures['exit_code']}"


def main():
    parser = serving_rig.parser(__doc__)
    parser.add_argument("--seconds", type=float, default=300, help="of overload")
    parser.add_argument("--times", type=float, default=10, help="the peak is offered")
    parser.add_argument("--clients", type=lambda text: [int(part) for part in text.split(",")],
                        default=[8, 16, 32], help="of the closed loops that look for the peak")
    parser.add_argument("--peak-seconds", type=float, default=20, help="of each of them")
    parser.add_argument("--answer-tokens", type=int, default=64,
                        help="on average; half more or less at most")
    parser.add_argument("--waiting-requests", type=int, default=64, help="the daemon's option")
    parser.add_argument("--keep-alive", action="store_true", help="use connections again")
    parser.add_argument("--least-goodput", type=float, default=0.9, help="of the peak")
    parser.add_argument("--most-rejection-ms", type=float, default=50, help="99th percentile")
    parser.add_argument("--most-memory-mib", type=float, default=4, help="after the first third")
    options = parser.parse_args()
    serving_rig.allow_descriptors()
    figures = measure(options)
    show(figures)
    return serving_rig.conclude(figures, find_faults(figures, options), options)


if __name__ == "__main__":
    sys.exit(main())
