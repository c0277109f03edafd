#!/usr/bin/env python3
"""Several daemons that compute one model over a network that is cut, slow or silent.

    scripts/checks/check_hosts.py [--hosts 2,3,4] [--program build/release/lockstepd] [--case NAME]
                                  [--transport ucx]
    scripts/checks/check_hosts.py --hosts 2 --case speed --model 1b.gguf --context 1024 [--rounds 9] [--tokens 64]
                                  [--words 400] [--rates 0,10000,1000]

Each host is a network namespace with a link to a bridge. For each number of hosts: answers are those
of one host; then every fault below comes in the middle of an answer, the hosts end or wait as
deploy/hosts/README.md says, what ended is started again, and answers are the same again. Ends with 1
on any surprise. The case `speed`, which is only run by name, compares the answers of any model and
measures how fast hosts with a worker each compute prompts and generate, and one host with one worker
and with as many as all hosts have: in turns, medians of all rounds; with `--rates` on links of so many
Mbit/s each (0: as fast as the machine). Of hosts it tells what they have exchanged. UCX is not
encrypted, and takes UCX_TLS and UCX_NET_DEVICES from this script's environment. Needs root and
iproute2.
"""

import argparse
import contextlib
import ctypes
import http.client
import json
import os
import pathlib
import random
import re
import secrets
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import delay_link

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "config/demo.gguf"
PATIENCE_SECONDS = 60
NEW_NETWORK = 0x40000000  # CLONE_NEWNET
REQUESTS = [{"prompt": prompt, "max_tokens": tokens, "temperature": 0.8, "seed": seed, "logprobs": 3,
             "ignore_eos": True}
            for seed, (prompt, tokens) in enumerate([("Once upon a time", 40), ("The dog", 25),
                                                     ("word " * 150, 12)])]
# Over slow links: the second one's prompt is new, so that its rows travel while steps compute.
DELAYED = [{**REQUESTS[0], "max_tokens": 2},
           {**REQUESTS[2], "prompt": "cat " * 150, "max_tokens": 2}]


class Surprise(Exception):
    pass


def expect(right, words):
    if not right:
        raise Surprise(words)


def run(*words, check=True):
    return subprocess.run(list(map(str, words)), check=check, capture_output=True, text=True)


def eventually(question, words):
    end = time.monotonic() + PATIENCE_SECONDS
    while not question():
        expect(time.monotonic() < end, words)
        time.sleep(0.1)


class Network:
    """Namespaces on one bridge; an address for each."""

    def __init__(self, count):
        self.name = f"lockstep{os.getpid()}"
        self.count = count
        self.switch = f"{self.name}-switch"
        self.addresses = [f"10.77.0.{index + 1}" for index in range(count)]

    def __enter__(self):
        run("ip", "netns", "add", self.switch)
        run("ip", "-n", self.switch, "link", "add", "bridge0", "type", "bridge")
        run("ip", "-n", self.switch, "link", "set", "bridge0", "up")
        for index, address in enumerate(self.addresses):
            host = self.host(index)
            run("ip", "netns", "add", host)
            run("ip", "-n", host, "link", "set", "lo", "up")
            run("ip", "link", "add", "eth0", "netns", host, "type", "veth", "peer", "name",
                f"port{index}", "netns", self.switch)
            run("ip", "-n", host, "address", "add", f"{address}/24", "dev", "eth0")
            run("ip", "-n", host, "link", "set", "eth0", "up")
            self.port(index, "master", "bridge0", "up")
        return self

    def __exit__(self, *_):
        for name in [*map(self.host, range(self.count)), self.switch]:
            run("ip", "netns", "delete", name, check=False)

    def host(self, index):
        return f"{self.name}-{index}"

    def port(self, index, *words):
        run("ip", "-n", self.switch, "link", "set", f"port{index}", *words)

    def limit(self, megabits):
        """What each host can send in a second; 0: any."""
        for index in range(self.count):
            tc = ["ip", "netns", "exec", self.host(index), "tc"]
            run(*tc, "qdisc", "delete", "dev", "eth0", "root", check=False)
            if megabits == 0:
                continue
            run(*tc, "qdisc", "add", "dev", "eth0", "root", "handle", "1:", "htb", "default", 1)
            run(*tc, "class", "add", "dev", "eth0", "parent", "1:", "classid", "1:1", "htb",
                "rate", f"{megabits}mbit", "quantum", 15000)

    @contextlib.contextmanager
    def delayed(self, milliseconds):
        """What each host sends comes so much later."""
        carriers = []
        for index in range(self.count):
            self.within(index, lambda: delay_link.without_offloads("eth0"))
        try:
            for index in range(self.count):
                ends = [f"delay{index}{side}" for side in "ab"]
                run("ip", "-n", self.switch, "link", "add", ends[0], "type", "veth", "peer", "name",
                    ends[1])
                run("ip", "-n", self.switch, "link", "set", ends[0], "up")
                carriers.append(subprocess.Popen(
                    ["ip", "netns", "exec", self.switch, sys.executable, delay_link.__file__,
                     f"port{index}", ends[0], str(milliseconds)], stdout=subprocess.PIPE, text=True))
                expect(carriers[-1].stdout.readline(), f"nothing carries host {index}'s frames")
                self.port(index, "nomaster")
                run("ip", "-n", self.switch, "link", "set", ends[1], "master", "bridge0", "up")
            yield
            expect(all(carrier.poll() is None for carrier in carriers), "a carrier has ended")
        finally:
            for carrier in carriers:
                carrier.kill()
                carrier.wait()
            for index in range(self.count):
                run("ip", "-n", self.switch, "link", "delete", f"delay{index}a", check=False)
                self.port(index, "master", "bridge0")

    def within(self, index, work):
        """What `work` returns or raises in a thread of this host's network."""
        found = {}

        def enter():
            try:
                with open(f"/run/netns/{self.host(index)}") as namespace:
                    libc = ctypes.CDLL(None, use_errno=True)
                    if libc.setns(namespace.fileno(), NEW_NETWORK) != 0:
                        raise OSError(ctypes.get_errno(), "setns")
                found["result"] = work()
            except Exception as error:  # carried to the caller's thread
                found["error"] = error
        thread = threading.Thread(target=enter)
        thread.start()
        thread.join()
        if "error" in found:
            raise found["error"]
        return found["result"]


class Daemon:
    """One host's lockstepd."""

    def __init__(self, network, index, command, log, port=8080):
        self.network, self.index, self.log, self.port = network, index, log, port
        with open(log, "a") as stream:
            self.process = subprocess.Popen(
                ["ip", "netns", "exec", network.host(index), *map(str, command)], stderr=stream,
                stdout=stream)

    def ask(self, method, path, body=None):
        def work():
            connection = http.client.HTTPConnection("127.0.0.1", self.port,
                                                    timeout=PATIENCE_SECONDS)
            connection.request(method, path, body and json.dumps(body),
                               {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        return self.network.within(self.index, work)

    def text(self, path):
        def work():
            connection = http.client.HTTPConnection("127.0.0.1", self.port,
                                                    timeout=PATIENCE_SECONDS)
            connection.request("GET", path)
            return connection.getresponse().read().decode()
        return self.network.within(self.index, work)

    def readiness(self):
        try:
            status, body = self.ask("GET", "/health/ready")
            return body["status"] if status != 200 else "ready"
        except OSError:
            return "unreachable"

    def wait_until_ready(self):
        def is_ready():
            expect(self.process.poll() is None, f"host {self.index} has ended: {self.last_words()}")
            return self.readiness() == "ready"
        eventually(is_ready, f"host {self.index} does not become ready: {self.last_words()}")

    def last_words(self):
        return self.log.read_text().strip().split("\n")[-1]

    def answers(self, requests=REQUESTS):
        found = []
        for request in requests:
            status, body = self.ask("POST", "/v1/completions", request)
            expect(status == 200, f"{status}: {body}")
            found.append(body["choices"])
        return found

    def break_an_answer(self, fault):
        """Lets `fault` come after the first token of a long answer; the rest of it as text."""
        def work():
            connection = http.client.HTTPConnection("127.0.0.1", 8080, timeout=PATIENCE_SECONDS)
            connection.request("POST", "/v1/completions", json.dumps(
                {**REQUESTS[0], "max_tokens": 480, "stream": True}),
                {"Content-Type": "application/json"})
            response = connection.getresponse()
            response.readline()
            fault()
            try:
                return response.read().decode()
            except (OSError, http.client.HTTPException) as error:
                return f"error: {error}"
        return self.network.within(self.index, work)

    def end(self, number=signal.SIGKILL):
        if self.process.poll() is None:
            self.process.send_signal(number)
            self.process.wait(PATIENCE_SECONDS)


class Group:
    def __init__(self, network, folder, given):
        self.network, self.folder = network, folder
        secret = folder / "secret"
        secret.write_text(secrets.token_hex(32))
        secret.chmod(0o600)
        hosts = ",".join(f"{address}:7070" for address in network.addresses)
        self.serve = [given.program, "serve", "--model", given.model, "--context", given.context,
                      "--workers"]
        self.alone = [*self.serve, 1]
        encrypted = [] if given.transport == "tcp" else ["--insecure-hosts", "true"]
        self.together = [*self.alone, "--hosts", hosts, "--hosts-secret", secret,
                         "--hosts-transport", given.transport, *encrypted]
        self.hosts = [None] * network.count

    def log(self, index):
        return self.folder / f"host{index}.log"

    def answers_of_one(self, requests):
        alone = Daemon(self.network, 0, self.alone, self.folder / "alone.log")
        try:
            alone.wait_until_ready()
            return alone.answers(requests)
        finally:
            alone.end()

    def start_what_ended(self, ports=None, cores=None):
        """`cores`: the processor of each host, whose only worker would else be the first one's."""
        for index, host in enumerate(self.hosts):
            if host is None or host.process.poll() is not None:
                port = ports[index] if ports else 8080
                pin = ["taskset", "--cpu-list", cores[index]] if cores else []
                self.hosts[index] = Daemon(
                    self.network, index,
                    [*pin, *self.together, "--host-index", index, "--port", port],
                    self.log(index), port)
        for host in self.hosts:
            host.wait_until_ready()

    def loads(self, index):
        return self.log(index).read_text().count("MiB of weights in")

    def end(self):
        for host in self.hosts:
            if host is not None:
                host.end()


def last(group):
    return group.hosts[-1]


def address_of_nobody(group, verb):
    words = ("lladdr", "02:00:00:00:00:01", "nud", "permanent") if verb == "replace" else ()
    run("ip", "-n", group.network.host(group.network.count - 1), "neighbour", verb,
        group.network.addresses[0], *words, "dev", "eth0")


# Name; what happens; how it ends (nothing: it does not); which host is lost by it: the last one, which
# follows, or the leader, 0.
FAULTS = [
    ("follower killed", lambda group: last(group).end(), None, -1),
    ("follower stopped", lambda group: last(group).process.send_signal(signal.SIGSTOP),
     lambda group: last(group).process.send_signal(signal.SIGCONT), -1),
    ("link down", lambda group: group.network.port(group.network.count - 1, "down"),
     lambda group: group.network.port(group.network.count - 1, "up"), -1),
    ("packets vanish", lambda group: group.network.port(group.network.count - 1, "nomaster"),
     lambda group: group.network.port(group.network.count - 1, "master", "bridge0"), -1),
    ("packets to the leader vanish", lambda group: address_of_nobody(group, "replace"),
     lambda group: address_of_nobody(group, "delete"), -1),
    ("leader killed", lambda group: group.hosts[0].end(), None, 0),
    ("leader stopped", lambda group: group.hosts[0].process.send_signal(signal.SIGSTOP),
     lambda group: group.hosts[0].process.send_signal(signal.SIGCONT), 0),
]


def check_fault(group, expected, name, fault, mend, lost):
    began = time.monotonic()
    stayed = [index for index in range(1, group.network.count)
              if name != "follower killed" or index != group.network.count - 1]
    loads = [group.loads(index) for index in stayed]
    if name == "leader stopped":  # whose answer nobody can wait for
        fault(group)
    else:
        rest = group.hosts[0].break_an_answer(lambda: fault(group))
        expect("error" in rest, f"the answer has ended as if nothing were: {rest[-300:]}")
    if lost != 0:
        code = group.hosts[0].process.wait(PATIENCE_SECONDS)
        expect(code == 1, f"the leader has ended with {code}, not 1")
        log = group.log(0).read_text()
        named = re.findall(r"level=critical.*host \d+ ", log)
        expect(named, "the leader does not say which host is lost")
    away = {group.network.count - 1} if name == "follower stopped" else set()
    for index in set(stayed) - away:
        eventually(lambda host=group.hosts[index]: host.readiness() == "hosts_lost",
                   f"host {index} does not notice")
    seconds = time.monotonic() - began
    if mend is not None:
        mend(group)
    if name == "leader stopped":
        code = group.hosts[0].process.wait(PATIENCE_SECONDS)
        expect(code == 1, f"the leader that went on has ended with {code}, not 1")
    group.start_what_ended()
    expect(group.hosts[0].answers() == expected, "answers are others than before")
    now = [group.loads(index) for index in stayed]
    expect(now == loads, f"followers that stayed have read their weights again: {loads}, {now}")
    print(f"  {name}: noticed by all within {seconds:.1f} s, and mended", flush=True)


def check_delay(group, expected):
    """100 ms on every link."""
    with group.network.delayed(100):
        began = time.monotonic()
        answers = group.hosts[0].answers(DELAYED)
        seconds = time.monotonic() - began
    expect(answers == expected, "answers are not those of one host")
    expect(seconds > 0.4, f"four tokens over links that are 100 ms slow took {seconds:.3f} s")
    print(f"  delay: the same answers, after {seconds:.1f} s", flush=True)


def rate(host, tokens):
    """Generated tokens per second of one stream, without the prompt's time."""
    def seconds(count):
        began = time.monotonic()
        status, body = host.ask("POST", "/v1/completions", {
            "prompt": "Once", "max_tokens": count, "temperature": 0, "ignore_eos": True,
            "speculation": False})
        expect(status == 200 and body["usage"]["completion_tokens"] == count, f"{status}: {body}")
        return time.monotonic() - began
    return tokens / (seconds(tokens + 1) - seconds(1))


def prompt_seconds(host, words, seed):
    """The time of a prompt that no cache knows, and its tokens."""
    chosen = random.Random(seed).choices(["one", "two", "red", "dog", "cat", "sun", "sea"], k=words)
    began = time.monotonic()
    status, body = host.ask("POST", "/v1/completions", {
        "prompt": " ".join(chosen), "max_tokens": 1, "temperature": 0})
    expect(status == 200, f"{status}: {body}")
    return time.monotonic() - began, body["usage"]["prompt_tokens"]


def exchanged(host):
    """Bytes and seconds of all exchanges so far; none of a host alone."""
    text = host.text("/metrics")
    found = [re.search(rf"^lockstep_host_exchange_{name}_total.* (\S+)$", text, re.M)
             for name in ("bytes", "seconds")]
    return [float(each.group(1)) if each else 0.0 for each in found]


def measure_speed(rows, rounds, tokens, words, seed):
    """In turns: what each of these hosts takes for a prompt that it has not seen, and how fast it
    generates."""
    prompts = {name: [] for name in rows}
    rates = {name: [] for name in rows}
    for turn in range(rounds):
        for name, host in rows.items():
            before = exchanged(host)
            seconds, count = prompt_seconds(host, words, seed + turn)
            moved = [after - then for after, then in zip(exchanged(host), before)]
            prompts[name].append((count / seconds, *moved, moved[1] / seconds))
            rates[name].append(rate(host, tokens))
    for name in rows:
        speed, size, seconds, part = map(statistics.median, zip(*prompts[name]))
        speeds = [each[0] for each in prompts[name]]
        print(f"  {name}: prompts {speed:.1f} tokens/s ({min(speeds):.1f} to {max(speeds):.1f}), "
              f"generates {statistics.median(rates[name]):.2f} "
              f"({min(rates[name]):.2f} to {max(rates[name]):.2f})", flush=True)
        if size > 0:
            print(f"    a prompt exchanges {size / 1e6:.2f} MB in {seconds:.3f} s, {part:.1%} of "
                  "its time", flush=True)


def check_speed(group, given):
    """One host with one worker, one with as many as all have together, and all of them, each on a
    processor of its own."""
    cores = sorted(os.sched_getaffinity(0))[:group.network.count]
    expect(len(cores) == group.network.count,
           f"{group.network.count} hosts need as many processors, and there are {len(cores)}")
    one = Daemon(group.network, 0, group.alone, group.folder / "alone.log")
    wide = None
    try:
        one.wait_until_ready()
        expected = one.answers()
        command = [*group.serve, group.network.count, "--port", 8081]
        wide = Daemon(group.network, 0, command, group.folder / "wide.log", port=8081)
        wide.wait_until_ready()
        group.start_what_ended(ports=[8082] + [8080] * (group.network.count - 1), cores=cores)
        for host in (wide, group.hosts[0]):
            expect(host.answers() == expected, "answers are not those of one host")
        print(f"{group.network.count} hosts: answers are those of one", flush=True)
        rows = {"1 host, 1 worker": one, f"1 host, {group.network.count} workers": wide,
                f"{group.network.count} hosts, 1 worker each": group.hosts[0]}
        for megabits in map(int, given.rates.split(",")):
            print(f" links of {megabits or 'unlimited'} Mbit/s:", flush=True)
            group.network.limit(megabits)
            measure_speed(rows, given.rounds, given.tokens, given.words, seed=1000 * megabits)
    finally:
        for host in (one, wide):
            if host is not None:
                host.end()


def check_faults(group, case):
    expected = group.answers_of_one(REQUESTS + DELAYED)
    expected, delayed = expected[:len(REQUESTS)], expected[len(REQUESTS):]
    group.start_what_ended()
    expect(group.hosts[0].answers() == expected, "answers are not those of one host")
    print(f"{group.network.count} hosts: answers are those of one", flush=True)
    if case in (None, "delay"):
        check_delay(group, delayed)
    for fault in FAULTS:
        if case in (None, fault[0]):
            check_fault(group, expected, *fault)


def check_hosts(count, given):
    folder = pathlib.Path(tempfile.mkdtemp(prefix="check_hosts."))
    surprises = 0
    case = given.case
    with Network(count) as network:
        group = Group(network, folder, given)
        try:
            if case == "speed":
                check_speed(group, given)
            else:
                check_faults(group, case)
        except (Surprise, OSError, subprocess.SubprocessError) as error:
            surprises = 1
            detail = getattr(error, "stderr", None) or ""
            print(f"{count} hosts: SURPRISE: {error} {detail}; logs in {folder}", flush=True)
        finally:
            group.end()
    if surprises == 0:
        shutil.rmtree(folder)
    return surprises


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--hosts", default="2,3,4", help="numbers of hosts")
    parser.add_argument("--program", type=pathlib.Path, default=ROOT / "build/release/lockstepd")
    parser.add_argument("--case", choices=["delay", "speed", *(fault[0] for fault in FAULTS)])
    parser.add_argument("--model", type=pathlib.Path, default=MODEL)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=9, help="of the case speed")
    parser.add_argument("--tokens", type=int, default=64, help="of an answer of the case speed")
    parser.add_argument("--words", type=int, default=400, help="of a prompt of the case speed")
    parser.add_argument("--transport", choices=["tcp", "ucx"], default="tcp")
    parser.add_argument("--rates", default="0", help="Mbit/s of links in the case speed")
    given = parser.parse_args()
    for missing in [*(["root"] if os.geteuid() != 0 else []),
                    *(name for name in ("ip", "tc") if shutil.which(name) is None),
                    *([str(given.program)] if not given.program.exists() else [])]:
        sys.exit(f"check_hosts needs {missing}; see --help")
    sys.exit(any([check_hosts(int(count), given) for count in given.hosts.split(",")]))


if __name__ == "__main__":
    main()
