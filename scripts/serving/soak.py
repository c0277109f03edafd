#!/usr/bin/env python3
"""A daemon under mixed traffic for --minutes: every endpoint, streamed and whole, prompts that
share their beginnings, answers held to grammars and schemas, tools, clients that leave, requests that are
wrong. Prints a line per minute.

Ends with 1 if, from a third of the time on, the daemon's anonymous memory grows by
--most-memory-mib or more (the medians of a minute there and of the last minute, or of a tenth of a short run), if a
request gets no end or an answer that it should not, if anything runs at the end, if threads or
descriptors are more than before the traffic, or if the log holds errors.
"""

import asyncio
import collections
import json
import pathlib
import random
import re
import statistics
import sys
import tempfile
import time

import serving_rig
from serving_rig import Client, Daemon, ask, request_bytes

# Knows tools, and writes calls as Hermes and Qwen do; the bundled model's own template does not.
TEMPLATE = """\
{%- if tools %}<|im_start|>system
Tools:{% for tool in tools %}
{{ tool | tojson }}{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message['role'] }}
{{ message['content'] or '' }}
{%- for call in message['tool_calls'] or [] %}{% set function = call['function'] %}
<tool_call>
{"name": "{{ function['name'] }}", "arguments": {{ function['arguments'] | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
SCHEMA = {"type": "object", "additionalProperties": False, "required": ["kind", "legs"],
          "properties": {"kind": {"enum": ["cat", "dog"]}, "legs": {"enum": [3, 4]}}}
TOOL = {"name": "count_legs", "description": "Counts legs", "parameters": SCHEMA}


def with_template(model, target):
    """The model with TEMPLATE in place of its own, filled up with a comment so that what follows
    keeps its alignment (of 32 bytes)."""
    data = model.read_bytes()
    name = b"tokenizer.chat_template"
    at = data.index(name) + len(name) + 4  # behind the type: a string
    length = int.from_bytes(data[at:at + 8], "little")
    bare = TEMPLATE.encode() + b"{##}"
    text = bare[:-2] + b" " * ((length - len(bare)) % 32) + bare[-2:]
    target.write_bytes(data[:at] + len(text).to_bytes(8, "little") + text + data[at + 8 + length:])
    return target


# --- One request of each kind. Each says what came: its name, or "FAULT ..." ---


class Traffic:
    def __init__(self, port, context, seed):
        self.port, self.context = port, context
        self.chance = random.Random(seed)
        self.kinds = {
            self.completion: 20, self.chat: 20, self.response: 8, self.message: 8, self.tools: 6,
            self.schema: 6, self.choice: 4, self.leaving: 15, self.wrong: 8, self.other: 10}

    def words(self):
        """Half of all prompts begin as some others do, for a page of the cache or two."""
        chance = self.chance
        begin = ""
        if chance.random() < 0.5:
            begin = f"This is tale number {chance.randrange(20)}. " * chance.choice((10, 20))
        return f"{begin}Story {chance.randrange(10_000)}: once upon a time"

    def fields(self, name="max_tokens"):
        chance = self.chance
        sampling = chance.choice((
            {"temperature": 0}, {"temperature": 1, "seed": 7}, {"top_p": 0.9}))
        return {"model": "m", name: chance.randrange(1, 49), **sampling,
                "stream": chance.random() < 0.5}

    async def expect(self, path, body, end=b""):
        """The answer, if it is a 200 that is whole and, streamed, has the API's last event."""
        answer = await ask(self.port, path, body)
        if answer.status == 503 and answer.headers.get("retry-after"):
            return None
        if answer.status != 200 or not answer.is_whole:
            raise ValueError(f"{path}: {answer.status}, {answer.text[:200]}")
        if body is not None and body.get("stream"):
            if end not in answer.body or b'"error":{' in answer.body:
                raise ValueError(f"{path}: a stream without its end: {answer.text[-200:]}")
        elif "json" in answer.headers["content-type"]:
            answer.json()
        return answer

    async def completion(self):
        extra = self.chance.choice(({}, {"n": 2}, {"logprobs": 2}, {"echo": True}, {"stop": "."}))
        body = {**self.fields(), "prompt": self.words(), **extra}
        await self.expect("/v1/completions", body, b"data: [DONE]")

    async def chat(self):
        messages = [{"role": "user", "content": self.words()}]
        await self.expect("/v1/chat/completions", {**self.fields(), "messages": messages},
                          b"data: [DONE]")

    async def response(self):
        await self.expect("/v1/responses", {**self.fields("max_output_tokens"),
                                            "input": self.words()}, b"event: response.")

    async def message(self):
        body = {**self.fields(), "messages": [{"role": "user", "content": self.words()}]}
        await self.expect("/v1/messages", body, b"event: message_stop")

    async def tools(self):
        body = {**self.fields(), "max_tokens": 100, "tool_choice": "required",
                "messages": [{"role": "user", "content": "Legs of a cat?"}],
                "tools": [{"type": "function", "function": TOOL}]}
        answer = await self.expect("/v1/chat/completions", body, b"data: [DONE]")
        if answer and b'"count_legs"' not in answer.body:
            raise ValueError(f"no call: {answer.text[:300]}")

    async def schema(self):
        body = {**self.fields(), "max_tokens": 100, "stream": False,
                "messages": [{"role": "user", "content": "A cat."}],
                "response_format": {"type": "json_schema",
                                    "json_schema": {"name": "animal", "schema": SCHEMA}}}
        if answer := await self.expect("/v1/chat/completions", body):
            animal = json.loads(answer.json()["choices"][0]["message"]["content"])
            if animal["kind"] not in ("cat", "dog") or animal["legs"] not in (3, 4):
                raise ValueError(f"not of the schema: {animal}")

    async def choice(self):
        number = self.chance.randrange(1000)  # grammars are compiled, and forgotten
        body = {**self.fields(), "max_tokens": 50, "stream": False, "prompt": "Up or down?"}
        form = self.chance.choice(({"choice": [f"up {number}", f"down {number}"]},
                                   {"regex": f"(up|down) {number}"},
                                   {"grammar": f'root ::= ("up" | "down") " {number}"'}))
        if answer := await self.expect("/v1/completions", {**body, **form}):
            text = answer.json()["choices"][0]["text"]
            if text not in (f"up {number}", f"down {number}"):
                raise ValueError(f"not a choice: {text!r}")

    async def leaving(self):
        body = {**self.fields(), "max_tokens": self.context // 2, "ignore_eos": True,
                "prompt": self.words()}
        request = request_bytes("/v1/completions", body)
        async with Client(self.port) as client:
            whole = self.chance.random() < 0.8
            await client.send(request if whole else request[:self.chance.randrange(len(request))])
            await asyncio.sleep(self.chance.uniform(0, 0.1))
            if whole and self.chance.random() < 0.2:
                client.half_close()
                async with asyncio.timeout(serving_rig.PATIENCE_SECONDS):
                    await client.read_answer()
            client.leave(self.chance.random() < 0.5)

    async def wrong(self):
        path, body, status = self.chance.choice((
            ("/v1/completions", b'{"model": "m", "prompt": ', 400),
            ("/v1/completions", {"model": "m", "prompt": "a", "temperature": "hot"}, 400),
            ("/v1/completions", {"model": "m", "prompt": "a " * self.context * 2}, 400),
            ("/v1/completions", {"model": "m", "prompt": "a", "max_tokens": 1 << 30}, 400),
            ("/v1/completions", {"model": "m", "prompt": "a", "regex": "(a"}, 400),
            ("/v1/completions", {"model": "m", "prompt": "a", "max_tokens": self.context // 2,
                                 "ignore_eos": True, "timeout": 0.001}, 504),
            ("/v1/chat/completions", {"model": "other", "messages": []}, 404),
            ("/v1/nothing", {}, 404), ("/v1/models", {}, 405),
            ("/v1/messages", {"model": "m", "max_tokens": 1, "messages": "hi"}, 400)))
        answer = await ask(self.port, path, body)
        if answer.status not in (status, 400 if status == 404 else status, 503):
            raise ValueError(f"{path} {str(body)[:100]}: {answer.status}, {answer.text[:200]}")

    async def other(self):
        path, body = self.chance.choice((
            ("/tokenize", {"model": "m", "prompt": self.words()}),
            ("/detokenize", {"model": "m", "tokens": [300, 301, 302]}),
            ("/apply-template", {"model": "m", "messages": [{"role": "user", "content": "a"}]}),
            ("/v1/messages/count_tokens",
             {"model": "m", "messages": [{"role": "user", "content": "a"}]}),
            *((path, None) for path in (
                "/tokenizer_info", "/v1/models", "/v1/models/m", "/openapi.json", "/version",
                "/health", "/health/live", "/health/ready", "/metrics", "/", "/ui/app.js"))))
        await self.expect(path, body)

    async def ask_on(self, end, counts, faults):
        """Requests one after the other until the time is over."""
        while time.monotonic() < end:
            [kind] = self.chance.choices(list(self.kinds), self.kinds.values())
            try:
                await kind()
                counts[kind.__name__] += 1
            except TimeoutError:
                faults.append(f"{kind.__name__}: no end in {serving_rig.PATIENCE_SECONDS} s")
            except Exception as error:  # whatever an answer that is wrong makes of us is a finding
                faults.append(f"{kind.__name__}: {type(error).__name__}: {error}")


# --- What is watched ---


class Watch:
    """Samples of what the daemon holds, errors in its log, and a line per minute."""

    def __init__(self, daemon, counts, faults):
        self.daemon, self.counts, self.faults = daemon, counts, faults
        self.samples = []  # (seconds since the start, usage)
        self.log_errors = []

    def read_log(self):
        self.log_errors += re.findall(r"^.*level=(?:error|critical).*$", self.daemon.take_log(),
                                      re.M)

    async def run(self, begin, end, minute=60):
        next_line = begin + minute
        while (now := time.monotonic()) < end:
            self.samples.append((now - begin, self.daemon.usage()))
            if now >= next_line:
                next_line += minute
                self.show_line()
                self.read_log()
            await asyncio.sleep(min(1, (end - begin) / 60))
        self.show_line()

    def show_line(self):
        seconds, usage = self.samples[-1]
        print(f"minute {seconds / 60:5.1f}: {sum(self.counts.values()):7} requests, RssAnon "
              f"{usage['memory_mib']:7.2f} MiB, {usage['threads']} threads, "
              f"{usage['descriptors']} descriptors, {len(self.faults)} faults", flush=True)

    def memory(self, begin, length):
        """The median of a stretch of samples; the last one before its end, if it has none."""
        before = [(seconds, usage["memory_mib"]) for seconds, usage in self.samples
                  if seconds < begin + length]
        return statistics.median([mib for seconds, mib in before if seconds >= begin]
                                 or [before[-1][1]])


async def run_traffic(daemon, context, options, counts, faults):
    begin = time.monotonic()
    seconds = 60 * options.minutes
    watch = Watch(daemon, counts, faults)
    clients = [Traffic(daemon.port, context, options.seed * 1000 + index)
               for index in range(options.clients)]
    await asyncio.gather(watch.run(begin, begin + seconds), *(
        client.ask_on(begin + seconds, counts, faults) for client in clients))
    return watch


def rest(daemon, before, seconds):
    """What it holds as soon as it has let go of what it took since `before`, or after so long:
    threads without work end after 5 s."""
    end = time.monotonic() + seconds
    while True:
        usage = daemon.usage()
        flat = all(usage[name] <= before[name] for name in ("threads", "descriptors"))
        if flat or time.monotonic() >= end:
            return usage
        time.sleep(0.2)


def measure(options):
    counts, faults = collections.Counter(), []
    with tempfile.TemporaryDirectory(prefix="lockstep-soak-") as folder:
        model = with_template(options.model, pathlib.Path(folder) / "model.gguf")
        with Daemon(options.program, model, *options.option, log=options.log) as daemon:
            limit = asyncio.run(ask(daemon.port, "/v1/models")).json()["data"][0]["max_model_len"]
            before = daemon.usage()
            watch = asyncio.run(run_traffic(daemon, limit, options, counts, faults))
            idle = daemon.wait_until_idle(options.most_seconds)
            after = rest(daemon, before, options.rest_seconds)
            exit_code = daemon.stop()
            watch.read_log()
    seconds = 60 * options.minutes
    stretch = min(60, seconds / 10)
    return {"counts": dict(counts), "faults": faults, "log_errors": watch.log_errors,
            "idle": idle, "exit_code": exit_code, "before": before, "after": after,
            "most": {name: max(usage[name] for _, usage in watch.samples) for name in before},
            "third_mib": watch.memory(seconds / 3, stretch),
            "end_mib": watch.memory(seconds - stretch, 2 * stretch)}


def show(figures):
    print()
    serving_rig.print_table(
        ("", "RssAnon MiB", "threads", "descriptors"),
        [(label, *figures[name].values()) for label, name in (
            ("before", "before"), ("most", "most"), ("at rest afterwards", "after"))])
    print(f"\nRssAnon under load: {figures['third_mib']:.2f} MiB after a third, "
          f"{figures['end_mib']:.2f} at the end")
    print("requests:", ", ".join(f"{count} {name}" for name, count in figures["counts"].items()))


def find_faults(figures, options):
    grown = figures["end_mib"] - figures["third_mib"]
    if grown >= options.most_memory_mib:
        yield f"memory grew by {grown:.2f} MiB"
    if figures["faults"]:
        yield f"{len(figures['faults'])} requests: {figures['faults'][:5]}"
    if figures["log_errors"]:
        yield f"{len(figures['log_errors'])} errors in the log: {figures['log_errors'][:3]}"
    if not figures["idle"]:
        yield "requests run though nobody asks any more"
    for name in ("threads", "descriptors") if options.rest_seconds else ():
        if figures["after"][name] > figures["before"][name]:
            yield f"{name}: {figures['before'][name]} before, {figures['after'][name]} afterwards"
    if figures["exit_code"] != 0:
        yield f"the daemon ended with {figures['exit_code']}"


def main():
    parser = serving_rig.parser(__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--clients", type=int, default=12,
                        help="that ask one request after another")
    parser.add_argument("--most-memory-mib", type=float, default=1,
                        help="that memory may grow by after a third of the time")
    parser.add_argument("--most-seconds", type=float, default=1,
                        help="until nothing runs any more at the end")
    parser.add_argument("--rest-seconds", type=float, default=20,
                        help="until threads and descriptors must be as before; 0: not compared")
    options = parser.parse_args()
    serving_rig.allow_descriptors()
    figures = measure(options)
    show(figures)
    return serving_rig.conclude(figures, find_faults(figures, options), options)


if __name__ == "__main__":
    sys.exit(main())
