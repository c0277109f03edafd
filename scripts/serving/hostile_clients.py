#!/usr/bin/env python3
"""What hostile clients cost a good one: starts a daemon, measures a good client alone, then beside
clients that drip the heads and bodies of their requests, that do not read their answers, and that
connect and say nothing, from many loopback addresses. A client that is cut comes again, so that
their number holds. Prints a table; --json writes the figures.

Clients that do not read ask for more than the kernel holds between both ends: most of them for a
file many times over, which costs the daemon little, a tenth, at first, for long streams.

The daemon has an address for health and metrics alone (--probe-host) beside its first one; both
are asked all the while.

With --defaults the connection limits are the daemon's own, and there are as many hostile clients as
they admit beside the good one; otherwise they are raised to 8192. The good client has an address of
its own; the crowd computes at the lowest priority, as if it were on other machines. Ends with 1 if a
client was not cut in time, a good request failed, or --most-added-ms, --most-memory-mib or
--most-probe-ms are passed.
"""

import argparse
import multiprocessing
import os
import re
import select
import socket
import sys
import time

import serving_rig
from serving_rig import Daemon, percentile, request_bytes

# A part of the 4096 connections that the daemon admits by default; the rest is for good clients.
HOSTILE_BY_DEFAULT = 4000
# The deadline of a stream that is not read begins when the kernel has taken the last byte that it
# holds, which the rig does not see: so much later than the request at most.
STREAM_SECONDS = 15.0
DRIP_SECONDS = 1.0
COMPLETION = {"model": "m", "prompt": "Once upon a time", "max_tokens": 16, "ignore_eos": True}


# --- The good client: a process of its own, so that the rig's work does not delay its clock. ---


def good_client(port, rate, seconds, results):
    """Requests at fixed times; a latency counts from when its request was due."""
    payload = request_bytes("/v1/completions", COMPLETION)
    latencies, failures = [], []
    begin = time.monotonic()
    for index in range(int(rate * seconds)):
        due = begin + index / rate
        time.sleep(max(0, due - time.monotonic()))
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
                connection.sendall(payload)
                answer = connection.makefile("rb").read()
            if not answer.startswith(b"HTTP/1.1 200 "):
                raise OSError(answer[:80].decode(errors="replace"))
            latencies.append(time.monotonic() - due)
        except OSError as error:
            failures.append(str(error))
    results.put((latencies, failures))


def measure_good(port, options):
    results = multiprocessing.Queue()
    process = multiprocessing.Process(
        target=good_client, args=(port, options.rate, options.seconds, results))
    process.start()
    latencies, failures = results.get()
    process.join()
    return {"requests": len(latencies), "failures": len(failures), "errors": failures[:3],
            **{name: 1000 * percentile(latencies, share)
               for name, share in (("p50_ms", 0.5), ("p99_ms", 0.99), ("max_ms", 1.0))}}


# --- The hostile clients: one process, one epoll loop. ---

# Their own computing is no cost of the daemon's: on a machine that all share, all others go first.
CROWD_NICENESS = 19


class Hostile:
    """One client of a kind. `phase_began` is when the deadline that it is to meet began."""

    def __init__(self, kind, source, payload, drips, buffer_bytes):
        self.kind = kind
        self.source = source
        self.payload = payload
        self.drips = drips
        self.buffer_bytes = buffer_bytes
        self.socket = None

    def connect(self, port):
        self.socket = socket.socket()
        if self.buffer_bytes:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.buffer_bytes)
        self.socket.bind((self.source, 0))
        self.socket.setblocking(False)
        self.socket.connect_ex(("127.0.0.1", port))
        self.unsent = self.payload
        self.streams = b'"stream"' in self.payload
        self.phase_began = None
        self.refused = False
        self.next_drip = None

    def push(self, now):
        """Sends what is left of the payload; True once all of it is out."""
        try:
            while self.unsent:
                self.unsent = self.unsent[self.socket.send(self.unsent):]
        except BlockingIOError:
            return False
        if self.phase_began is None:
            self.phase_began = now
            self.next_drip = now + DRIP_SECONDS
        return True


class Crowd:
    def __init__(self, port, options, counts, stream_payload):
        self.port = port
        self.epoll = select.epoll()
        self.by_number = {}
        self.figures = {kind: {"opened": 0, "cut": 0, "turned_away": 0, "late": 0, "seconds": []}
                        for kind in counts}
        self.limits = dict(zip(("heads", "bodies", "readers", "idle"), options.deadlines))
        self.tolerance_seconds = options.tolerance_seconds
        whole = b"GET /ui/live.js HTTP/1.1\r\nHost: localhost\r\n\r\n" * options.reader_requests
        slow_body = (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json"
                     b"\r\nContent-Length: 1000000\r\n\r\n{")
        payloads = {"heads": b"POST /v1/completions HTTP/1.1\r\nX-Slow: ", "bodies": slow_body,
                    "readers": whole, "idle": b""}
        self.whole = whole
        self.clients = []
        for kind, count in counts.items():
            for index in range(count):
                payload = payloads[kind]
                if kind == "readers" and index % 10 == 0:
                    payload = stream_payload
                source = f"127.0.0.{2 + index % options.addresses}"
                self.clients.append(Hostile(kind, source, payload, kind in ("heads", "bodies"),
                                            2048 if kind == "readers" else 0))

    def open(self, client):
        client.connect(self.port)
        if client.kind == "readers":
            client.payload = self.whole  # the streams are asked for once
        self.by_number[client.socket.fileno()] = client
        events = select.EPOLLOUT | select.EPOLLRDHUP
        self.epoll.register(client.socket.fileno(), events)
        self.figures[client.kind]["opened"] += 1

    def close(self, client, now):
        figures = self.figures[client.kind]
        took = None if client.phase_began is None else now - client.phase_began
        if client.refused or took is None:
            figures["turned_away"] += 1
            figures["opened"] -= 1
        else:
            figures["cut"] += 1
            figures["seconds"].append(took)
            allowed = self.limits[client.kind] + self.tolerance_seconds
            figures["late"] += took > allowed + (STREAM_SECONDS if client.streams else 0)
        self.epoll.unregister(client.socket.fileno())
        del self.by_number[client.socket.fileno()]
        client.socket.close()
        client.socket = None

    def handle(self, client, events, now):
        """False if the daemon has closed."""
        if events & (select.EPOLLERR | select.EPOLLHUP):
            return False
        if events & select.EPOLLOUT and client.push(now):
            wanted = select.EPOLLRDHUP
            # A client that does not read is told of the end by a reset, or not at all.
            if client.kind != "readers":
                wanted |= select.EPOLLIN
            self.epoll.modify(client.socket.fileno(), wanted)
        if events & select.EPOLLIN:
            answer = client.socket.recv(4096)
            client.refused = client.refused or b" 503 " in answer[:16]
            return bool(answer)
        return not events & select.EPOLLRDHUP

    def drip(self, now):
        for client in list(self.by_number.values()):
            if client.drips and client.next_drip is not None and now >= client.next_drip:
                client.next_drip = now + DRIP_SECONDS
                try:
                    client.socket.send(b"a")
                except OSError:
                    pass  # it has been cut; the event says so

    def turn(self, seconds, again):
        """One look at all sockets. Clients that were cut come again while `again`."""
        for number, events in self.epoll.poll(seconds):
            client = self.by_number[number]
            now = time.monotonic()
            try:
                stays = self.handle(client, events, now)
            except OSError:
                stays = False
            if not stays:
                was_refused = client.refused or client.phase_began is None
                self.close(client, now)
                # A client that was refused does not open another connection at once.
                if again and not was_refused:
                    self.open(client)
        self.drip(time.monotonic())


def hostile_process(port, options, counts, stream_payload, orders, reports):
    os.nice(CROWD_NICENESS)
    crowd = Crowd(port, options, counts, stream_payload)
    for index, client in enumerate(crowd.clients):
        crowd.open(client)
        if index % 20 == 0:
            crowd.turn(0.01, True)
    settled = time.monotonic() + 1
    while time.monotonic() < settled:
        crowd.turn(0.05, True)
    reports.put({"open": len(crowd.by_number)})
    while orders.empty():
        crowd.turn(0.05, True)
    end = time.monotonic() + max(crowd.limits.values()) + 4 * crowd.tolerance_seconds
    while crowd.by_number and time.monotonic() < end:
        crowd.turn(0.05, False)
    for figures in crowd.figures.values():
        seconds = figures.pop("seconds")
        figures["p50_s"] = percentile(seconds, 0.5)
        figures["max_s"] = percentile(seconds, 1.0)
    reports.put(crowd.figures)


# --- The daemon ---


def start_daemon(options):
    more = [] if options.defaults else ["--max-connections", "8192"]
    if options.deadline_seconds:
        for name in ("head", "body", "write", "idle", "body-grace"):
            more += [f"--{name}-seconds", str(options.deadline_seconds)]
    more += ["--probe-host", "127.0.0.1", "--probe-port", "0"]
    return Daemon(options.program, options.model, *more, *options.option, log=options.log)


def watch(daemon, seen, stop):
    """Memory and the slowest answers of health and metrics, until told to stop."""
    ports = {"probes": daemon.probe_port(), "first": daemon.port}
    most_memory = 0.0
    most = {name: {"asked": 0, "health_ms": 0.0, "metrics_ms": 0.0, "failures": 0}
            for name in ports}
    while not stop.is_set():
        most_memory = max(most_memory, daemon.memory_mib())
        for name, port in ports.items():
            for kind, path in (("health_ms", "/health/live"), ("metrics_ms", "/metrics")):
                most[name]["asked"] += 1
                try:
                    answer, seconds = daemon.get(path, port)
                    most[name]["failures"] += not answer.startswith(b"HTTP/1.1 200 ")
                    most[name][kind] = max(most[name][kind], 1000 * seconds)
                except OSError:
                    most[name]["failures"] += 1
        stop.wait(0.2)
    seen.put((most_memory, most))


def run(options):
    with start_daemon(options) as daemon:
        return run_against(daemon, options)


def run_against(daemon, options):
    counts = {kind: getattr(options, kind) for kind in ("heads", "bodies", "readers", "idle")}
    if options.defaults:
        total = max(HOSTILE_BY_DEFAULT, sum(counts.values()))
        counts = {kind: count * HOSTILE_BY_DEFAULT // total for kind, count in counts.items()}
    stream_payload = request_bytes("/v1/completions", {
        **COMPLETION, "max_tokens": options.stream_tokens, "stream": True, "logprobs": 5})
    measure_good(daemon.port, argparse.Namespace(rate=20, seconds=1))  # to warm up
    before = measure_good(daemon.port, options)
    memory_before = daemon.memory_mib()

    orders, reports, seen = (multiprocessing.Queue() for _ in range(3))
    stop = multiprocessing.Event()
    watcher = multiprocessing.Process(target=watch, args=(daemon, seen, stop))
    watcher.start()
    crowd = multiprocessing.Process(target=hostile_process, args=(
        daemon.port, options, counts, stream_payload, orders, reports))
    crowd.start()
    held = reports.get()["open"]
    daemon.wait_until_idle()
    during = measure_good(daemon.port, options)
    orders.put("end")
    hostile = reports.get()
    stop.set()
    most_memory, probes = seen.get()
    watcher.join()
    crowd.join()
    metrics = daemon.get("/metrics")[0].decode()
    figures = {
        "good": {"before": before, "during": during}, "hostile": hostile, "held": held,
        "memory": {"before_mib": memory_before, "most_mib": most_memory,
                   "after_mib": daemon.memory_mib()},
        "probes": probes,
        "cut_by_reason": {reason: int(float(count)) for reason, count in re.findall(
            r'^lockstep_http_connections_cut_total\{reason="(\w+)"\} (\S+)', metrics, re.M)},
    }
    figures["exit_code"] = daemon.stop()
    return figures


def show(figures):
    good, memory = figures["good"], figures["memory"]
    print("| good client | requests | failed | p50 ms | p99 ms | max ms |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name in ("before", "during"):
        row = good[name]
        print(f"| {name} | {row['requests']} | {row['failures']} | {row['p50_ms']:.1f} | "
              f"{row['p99_ms']:.1f} | {row['max_ms']:.1f} |")
    print("\n| hostile clients | cut | turned away | late | until cut, p50 s | max s |")
    print("| --- | --- | --- | --- | --- | --- |")
    for kind, row in figures["hostile"].items():
        print(f"| {kind} | {row['cut']} of {row['opened']} | {row['turned_away']} | {row['late']} "
              f"| {row['p50_s']:.1f} | {row['max_s']:.1f} |")
    print(f"\nheld at once: {figures['held']}; cut by reason: {figures['cut_by_reason']}")
    print(f"memory (RssAnon): {memory['before_mib']:.1f} MiB before, {memory['most_mib']:.1f} at "
          f"most, {memory['after_mib']:.1f} after")
    print("\n| health and metrics at | asked | failed | slowest health ms | slowest metrics ms |")
    print("| --- | --- | --- | --- | --- |")
    for name, address in (("probes", "their own address"), ("first", "the first address")):
        row = figures["probes"][name]
        print(f"| {address} | {row['asked']} | {row['failures']} | {row['health_ms']:.1f} | "
              f"{row['metrics_ms']:.1f} |")


def faults(figures, options):
    good, memory = figures["good"], figures["memory"]
    for name in ("before", "during"):
        if good[name]["failures"]:
            yield f"{good[name]['failures']} good requests failed: {good[name]['errors']}"
    for kind, row in figures["hostile"].items():
        if row["cut"] != row["opened"] or row["late"]:
            yield f"{kind}: {row['opened'] - row['cut']} were not cut, {row['late']} late"
    added = good["during"]["p99_ms"] - good["before"]["p99_ms"]
    if options.most_added_ms and added > options.most_added_ms:
        yield f"the good client's p99 rose by {added:.1f} ms"
    grown = memory["most_mib"] - memory["before_mib"]
    if options.most_memory_mib and grown > options.most_memory_mib:
        yield f"memory rose by {grown:.1f} MiB"
    probes = figures["probes"]["probes"]
    if probes["failures"]:
        yield f"{probes['failures']} probes failed"
    for kind in ("health_ms", "metrics_ms"):
        if options.most_probe_ms and probes[kind] > options.most_probe_ms:
            yield f"{kind}: the slowest probe took {probes[kind]:.1f} ms"
    if figures["exit_code"] != 0:
        yield f"the daemon ended with {figures['exit_code']}"


def main():
    parser = serving_rig.parser(__doc__)
    for kind, count in (("heads", 1000), ("bodies", 1000), ("readers", 1000), ("idle", 4000)):
        parser.add_argument(f"--{kind}", type=int, default=count)
    parser.add_argument("--addresses", type=int, default=64, help="of the hostile clients")
    parser.add_argument("--seconds", type=float, default=30, help="of each measurement")
    parser.add_argument("--rate", type=float, default=5, help="good requests per second")
    parser.add_argument("--reader-requests", type=int, default=40,
                        help="of a client that reads no answer")
    parser.add_argument("--stream-tokens", type=int, default=200, help="of a stream that is not")
    parser.add_argument("--defaults", action="store_true", help="the daemon's own limits")
    parser.add_argument("--deadline-seconds", type=float, help="all deadlines; none: the daemon's")
    parser.add_argument("--tolerance-seconds", type=float, default=2.5,
                        help="after its deadline that a cut may come: the rig's own delay")
    parser.add_argument("--most-added-ms", type=float, help="to the good client's p99")
    parser.add_argument("--most-memory-mib", type=float, help="that may be added")
    parser.add_argument("--most-probe-ms", type=float,
                        help="of a probe at the address for them")
    options = parser.parse_args()
    own = options.deadline_seconds
    options.deadlines = (own,) * 4 if own else (10, 10, 10, 15)
    serving_rig.allow_descriptors()
    figures = run(options)
    show(figures)
    return serving_rig.conclude(figures, faults(figures, options), options)


if __name__ == "__main__":
    sys.exit(main())
