#!/usr/bin/env python3
"""What clients that leave do to a daemon: nothing that lasts, and nothing to anybody else.

First --disconnects clients leave, in bursts of --burst: before their head has ended, within the
body, right after asking, while they wait, while they are streamed to, or by closing only their
sending side; streamed or not, by FIN or RST. Beside each burst good clients stream answers that
began before it: these are compared with what they were when nobody else was there. After each burst
the daemon's running and waiting requests must be the good ones alone within --most-seconds.

Then the ledger: --requests requests of all fates (answered, invalid, rejected, out of time, left
alone) with an id of their own. Each that arrived must have ended exactly once in the daemon's log,
with the status that its client saw, and what the daemon has counted (by finish reason, and what it
has rejected) must add up to what was submitted. Ends with 1 if any of this is not so.
"""

import asyncio
import collections
import dataclasses
import itertools
import random
import re
import sys
import time

import serving_rig
from serving_rig import Client, Daemon, Metrics, ask, percentile, print_table, request_bytes

WAYS = ("head", "body", "asked", "queued", "streaming", "half-closed")
GOOD_PROMPTS = ["Once upon a time", "The fox and the little girl", "What is two plus three?",
                "Tell me a story about a"]
FINISHES = ("stop", "length", "cancelled", "error", "deadline")
ID = re.compile(r"^.* msg=request id=(ledger-\d+) .*?path=\S+ (?:route=\S+ )?status=(\d+)"
                r"(?:.*? finish=(\w+))?.*$", re.M)


# --- Bursts ---


async def leave_somehow(port, chance, way, long_tokens):
    """One client that asks for more than it waits for, and leaves."""
    streamed = way == "streaming" or chance.random() < 0.5
    body = {"model": "m", "prompt": f"Story {chance.random()}: once", "max_tokens": long_tokens,
            "ignore_eos": True, "stream": streamed}
    request = request_bytes("/v1/completions", body)
    head = request.index(b"\r\n\r\n") + 4
    if way == "head":
        request = request[:chance.randrange(1, head)]
    elif way == "body":
        request = request[:chance.randrange(head, len(request))]
    async with Client(port) as client:
        await client.send(request)
        if way == "queued":
            await asyncio.sleep(chance.uniform(0, 0.2))
        elif way == "streaming":
            try:
                async with asyncio.timeout(0.5):  # it may be far back in the queue
                    for _ in range(chance.randrange(1, 20)):
                        if not await client.read_event():
                            break
            except TimeoutError:
                pass
        elif way == "half-closed":
            client.half_close()
            await client.read_answer()
        client.leave(chance.random() < 0.5)


class Good:
    """A client whose answer nobody may change: what it is, alone."""

    def __init__(self, port, prompt, tokens):
        self.port = port
        self.body = {"model": "m", "prompt": prompt, "max_tokens": tokens, "ignore_eos": True,
                     "temperature": 0, "logprobs": 1, "stream": True}
        self.alone = None

    async def answer(self, began=None):
        async with Client(self.port) as client:
            await client.send(request_bytes("/v1/completions", self.body))
            await client.read_event()
            if began is not None:
                began.set()
            answer = await client.read_answer()
        if answer.status != 200 or not answer.is_whole:
            return f"status {answer.status}, whole: {answer.is_whole}"
        events = answer.events()
        return [event if event == "[DONE]" else event.get("choices", event) for event in events]


async def count_open(port):
    return Metrics((await ask(port, "/metrics")).text).open_requests()


async def burst(daemon, goods, options, chance):
    """Seconds until the slots were free (None: not in time), and how many good answers differ."""
    running = set()

    async def run_good(good, began):
        running.add(good)
        try:
            return await good.answer(began)
        finally:
            running.discard(good)

    begun = [asyncio.Event() for _ in goods]
    answers = [asyncio.create_task(run_good(*pair)) for pair in zip(goods, begun)]
    await asyncio.gather(*(event.wait() for event in begun))
    ways = [chance.choice(WAYS) for _ in range(options.burst)]
    await asyncio.gather(*(leave_somehow(daemon.port, chance, way, options.long_tokens)
                           for way in ways))
    left = time.perf_counter()
    were_beside = len(running)
    free_after = None
    while (waited := time.perf_counter() - left) <= serving_rig.PATIENCE_SECONDS / 2:
        most = len(running)  # before asking: later there may be fewer, but not more
        if await count_open(daemon.port) <= most:
            free_after = waited
            break
    differing = sum(got != good.alone for good, got in zip(goods, await asyncio.gather(*answers)))
    return {"ways": collections.Counter(ways), "free_after": free_after, "differing": differing,
            "beside": were_beside}


async def run_bursts(daemon, options, chance):
    goods = [Good(daemon.port, prompt, options.good_tokens)
             for prompt in GOOD_PROMPTS[:options.goods]]
    for good in goods:
        good.alone = await good.answer()
    bursts = []
    for _ in range(-(-options.disconnects // options.burst)):
        async with asyncio.timeout(serving_rig.PATIENCE_SECONDS):  # or somebody was left hanging
            bursts.append(await burst(daemon, goods, options, chance))
    return {
        "disconnects": dict(sum((one["ways"] for one in bursts), collections.Counter())),
        "bursts": len(bursts), "good": len(goods) * len(bursts),
        "beside": sum(one["beside"] for one in bursts),
        "differing": sum(one["differing"] for one in bursts),
        "never_free": sum(one["free_after"] is None for one in bursts),
        "free_s": [one["free_after"] for one in bursts if one["free_after"] is not None],
        "usable": all(isinstance(good.alone, list) for good in goods),
    }


# --- The ledger ---


@dataclasses.dataclass
class Entry:
    """What the client knows of a request: which fate it was to have, how many choices, what it saw
    (None: it left before), whether the daemon must have got it."""
    fate: str
    choices: int = 1
    status: int | None = None
    arrived: bool = True


FATES = {"answered": 70, "invalid": 5, "late": 5, "left": 12, "left by reset": 5, "half-closed": 3}


async def make_entry(port, chance, identity, options):
    [fate] = chance.choices(list(FATES), FATES.values())
    entry = Entry(fate, choices=chance.choice((1, 1, 1, 2)))
    stays = fate in ("answered", "invalid", "late")
    body = {"model": "m", "max_tokens": chance.randrange(1, 9) if stays else options.long_tokens,
            "ignore_eos": chance.random() < 0.8, "stream": chance.random() < 0.5,
            "n": entry.choices}
    path = chance.choice(("/v1/completions", "/v1/chat/completions"))
    words = f"Story {chance.randrange(100)}: once"
    body |= {"prompt": words} if path == "/v1/completions" else {
        "messages": [{"role": "user", "content": words}]}
    if fate == "invalid":
        body["temperature"] = "hot"
    elif fate == "late":
        body |= {"timeout": 0.001, "max_tokens": options.long_tokens, "ignore_eos": True}
    request = request_bytes(path, body, [f"X-Request-Id: {identity}"])
    async with asyncio.timeout(serving_rig.PATIENCE_SECONDS), Client(port) as client:
        await client.send(request)
        if stays:
            entry.status = (await client.read_answer()).status
            if entry.status == 503:  # sooner than it is told to, but the others have a chance
                await asyncio.sleep(chance.uniform(0, 0.4))
        elif fate == "half-closed":
            client.half_close()
            await client.read_answer()
        else:
            await asyncio.sleep(chance.choice((0, chance.uniform(0, 0.05))))
            # A reset takes back what has not been read: such a request may never have arrived.
            entry.arrived = fate == "left"
            client.leave(fate == "left by reset")
    return entry


async def keep_ledger(port, options, chance):
    ledger = {}
    numbers = itertools.count()

    async def client():
        while (number := next(numbers)) < options.requests:
            identity = f"ledger-{number}"
            ledger[identity] = await make_entry(port, chance, identity, options)

    await asyncio.gather(*(client() for _ in range(options.clients)))
    return ledger


def counted(metrics):
    """What the daemon says has ended, by finish reason, and what it has rejected."""
    counts = {reason: int(metrics.sum("lockstep_requests_total", finish_reason=reason))
              for reason in FINISHES}
    return {**counts, "rejected": int(metrics.sum("lockstep_requests_rejected_total"))}


def balance(ledger, log, counts):
    """Compares what clients know, what the log says and what was counted; the figures, with lists
    of what does not agree."""
    lines = collections.defaultdict(list)
    for identity, status, finish in ID.findall(log):
        lines[identity].append((int(status), finish))
    wrong = {"missing": [], "repeated": [], "unknown": [], "other_status": []}
    wrong["unknown"] = [identity for identity in lines if identity not in ledger]
    sums = collections.Counter()
    for identity, entry in ledger.items():
        ends = lines.get(identity, [])
        if not ends:
            if entry.arrived:
                wrong["missing"].append(identity)
            else:
                sums["never arrived"] += 1
            continue
        if len(ends) > 1:
            wrong["repeated"].append(identity)
        status, finish = ends[0]
        if entry.status is not None and status != entry.status:
            wrong["other_status"].append(f"{identity}: {entry.status}, in the log {status}")
        if finish:
            sums["ended"] += entry.choices
        else:
            # 503: rejected; 400: invalid; 499: its client had left before it was looked at.
            sums[{503: "rejected", 400: "invalid", 499: "never begun"}.get(status, "others")] += 1
    finished = sum(counts[reason] for reason in FINISHES)
    return {"requests": len(ledger), "sums": dict(sums), "counts": counts, "finished": finished,
            "wrong": wrong,
            "balanced": finished == sums["ended"] and counts["rejected"] == sums["rejected"]
            and not sums["others"]}


def settle(daemon, ledger, before):
    """The last metrics, and what has been counted since `before`: when no connection is left but
    that of who asks, since what left by reset as the last may still be on its way, and the log has
    been written and all of it counted, unless that is in vain."""
    end = time.monotonic() + serving_rig.PATIENCE_SECONDS / 2
    while True:
        metrics = daemon.metrics()
        counts = {name: count - before[name] for name, count in counted(metrics).items()}
        if metrics.sum("lockstep_http_connections") == 1 and (
                balance(ledger, daemon.log_text(), counts)["balanced"]):
            return metrics, counts
        if time.monotonic() > end:
            return metrics, counts
        time.sleep(0.05)


def run_ledger(daemon, options, chance):
    before = counted(daemon.metrics())
    ledger = asyncio.run(keep_ledger(daemon.port, options, chance))
    free = daemon.wait_until_idle(options.most_seconds)
    metrics, counts = settle(daemon, ledger, before)
    dropped = int(metrics.sum("lockstep_log_messages_dropped_total"))
    exit_code = daemon.stop()  # with its last line written
    figures = balance(ledger, daemon.log_text(), counts)
    fates = collections.Counter(entry.fate for entry in ledger.values())
    return {**figures, "fates": dict(fates), "free": free, "dropped": dropped,
            "exit_code": exit_code}


def measure(options):
    chance = random.Random(options.seed)
    figures = {"bursts": None, "ledger": None}
    if options.disconnects:
        with Daemon(options.program, options.model, *options.option) as daemon:
            figures["bursts"] = asyncio.run(run_bursts(daemon, options, chance))
            figures["bursts"]["idle"] = daemon.wait_until_idle(options.most_seconds)
            figures["bursts"]["exit_code"] = daemon.stop()
    if options.requests:
        with Daemon(options.program, options.model, "--waiting-requests", options.waiting_requests,
                    *options.option, log=options.log) as daemon:
            figures["ledger"] = run_ledger(daemon, options, chance)
    return figures


def show(figures):
    if bursts := figures["bursts"]:
        print_table(("clients left", "how many"), bursts["disconnects"].items())
        print()
        print_table(
            ("bursts", "slots free after p50 s", "max s", "good answers", "of them open to the end",
             "other than alone"),
            [(bursts["bursts"], percentile(bursts["free_s"], 0.5), percentile(bursts["free_s"], 1),
              bursts["good"], bursts["beside"], bursts["differing"])])
        print()
    if ledger := figures["ledger"]:
        print_table(("requests with an id", "how many"), [
            *ledger["fates"].items(),
            *((f"in the log: {name}", count) for name, count in ledger["sums"].items()),
            *((f"counted: {name}", count) for name, count in ledger["counts"].items())])


def burst_faults(bursts, options):
    if not bursts["usable"]:
        yield "the good clients got no answers even alone"
    if bursts["differing"]:
        yield f"{bursts['differing']} good answers were not what they are alone"
    if not bursts["beside"]:
        yield "no good client was left when a burst was over: nothing could have touched it"
    slow = sum(seconds > options.most_seconds for seconds in bursts["free_s"])
    if slow or bursts["never_free"]:
        yield f"slots were not free in time after {slow + bursts['never_free']} bursts"
    if not bursts["idle"]:
        yield "requests are left after the bursts"
    if bursts["exit_code"] != 0:
        yield f"the daemon ended with {bursts['exit_code']}"


def ledger_faults(ledger):
    for name, found in ledger["wrong"].items():
        if found:
            yield f"ledger: {name}: {len(found)}, the first: {found[:3]}"
    if not ledger["balanced"]:
        yield f"ledger: the log says {ledger['sums']}, counted were {ledger['counts']}"
    if ledger["dropped"]:
        yield f"the log has lost {ledger['dropped']} lines"
    if not ledger["free"]:
        yield "requests are left after the ledger's"
    if ledger["exit_code"] != 0:
        yield f"the daemon ended with {ledger['exit_code']}"


def find_faults(figures, options):
    if figures["bursts"]:
        yield from burst_faults(figures["bursts"], options)
    if figures["ledger"]:
        yield from ledger_faults(figures["ledger"])


def main():
    parser = serving_rig.parser(__doc__)
    parser.add_argument("--disconnects", type=int, default=10_000, help="in bursts; 0: none")
    parser.add_argument("--burst", type=int, default=100, help="clients that leave at once")
    parser.add_argument("--goods", type=int, default=2, help="good clients beside each burst, <= 4")
    parser.add_argument("--good-tokens", type=int, default=480, help="of a good client's answer")
    parser.add_argument("--long-tokens", type=int, default=450,
                        help="that those who leave ask for")
    parser.add_argument("--most-seconds", type=float, default=1, help="until slots are free")
    parser.add_argument("--requests", type=int, default=100_000, help="in the ledger; 0: none")
    parser.add_argument("--clients", type=int, default=64, help="at once, of the ledger")
    parser.add_argument("--waiting-requests", type=int, default=40,
                        help="the daemon's option for the ledger: so few that some are rejected")
    options = parser.parse_args()
    serving_rig.allow_descriptors()
    figures = measure(options)
    show(figures)
    return serving_rig.conclude(figures, find_faults(figures, options), options)


if __name__ == "__main__":
    sys.exit(main())
