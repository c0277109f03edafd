"""What the proofs under load share: a daemon with its log in a file, what the system and its
metrics say of it, and a client that speaks HTTP by itself, so that it can leave wherever it likes.

The daemon serves its model under the name "m"."""

import argparse
import asyncio
import dataclasses
import hashlib
import json
import os
import pathlib
import re
import resource
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Nothing takes so long unless it hangs.
PATIENCE_SECONDS = 120


def percentile(values, share):
    """NaN of nothing."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


def print_table(head, rows):
    print("| " + " | ".join(head) + " |")
    print("|" + " --- |" * len(head))
    for row in rows:
        print("| " + " | ".join(f"{cell:.4g}" if isinstance(cell, float) else str(cell)
                                for cell in row) + " |", flush=True)


def parser(description):
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--program", type=pathlib.Path, default=ROOT / "build/release/lockstepd")
    made.add_argument("--model", type=pathlib.Path, default=ROOT / "config/demo.gguf")
    made.add_argument("--option", action="append", default=[], help="of the daemon, --name=value")
    made.add_argument("--log", type=pathlib.Path, help="file for the daemon's log, to keep it")
    made.add_argument("--json", type=pathlib.Path, help="file for the figures")
    made.add_argument("--seed", type=int, default=1, help="of all that is random here")
    return made


def conclude(figures, faults, options):
    """The exit code of a proof."""
    faults = list(faults)
    if options.json:
        options.json.write_text(json.dumps({**figures, "faults": faults}, indent=1))
    for fault in faults:
        print("FAULT:", fault)
    print("proven" if not faults else f"{len(faults)} faults")
    return 1 if faults else 0


def allow_descriptors(count=16_384):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, count)), hard))


class Keys:
    """A file of API keys, one per name. `of[name]` is the header that carries the key."""

    def __init__(self, names, path):
        secrets = {name: f"sk-{name}-{os.urandom(16).hex()}" for name in names}
        self.of = {name: f"Authorization: Bearer {key}" for name, key in secrets.items()}
        rows = [{"name": name, "sha256": hashlib.sha256(key.encode()).hexdigest()}
                for name, key in secrets.items()]
        path.write_text(json.dumps({"keys": rows}))
        path.chmod(0o600)
        self.options = ["--api-keys", str(path), "--metrics-without-key", "true"]


class Daemon:
    """A running `lockstepd serve`, ready; its end is the with statement's."""

    def __init__(self, program, model, *options, log=None):
        self.folder = tempfile.TemporaryDirectory(prefix="lockstep-rig-")
        self.log_path = pathlib.Path(log or pathlib.Path(self.folder.name) / "log")
        self.keeps_log = log is not None
        self.log_taken_bytes = 0
        command = [str(program), "serve", "--model", str(model), "--port", "0",
                   "--served-model-name", "m", *map(str, options)]
        kept = {name: value for name, value in os.environ.items()
                if not name.startswith("LOCKSTEP_")}
        with open(self.log_path, "wb") as old:
            old.truncate()
        with open(self.log_path, "ab") as log_file:
            self.process = subprocess.Popen(command, stderr=log_file, env=kept)
        self.port = int(self.wait_for_line(r"listening on https?://127\.0\.0\.1:(\d+)")[1])
        self.wait_for_line("ready after")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.folder.cleanup()

    def wait_for_line(self, pattern):
        end = time.monotonic() + PATIENCE_SECONDS
        while not (found := re.search(pattern, self.log_text())):
            if self.process.poll() is not None or time.monotonic() > end:
                sys.exit(f"the daemon did not start:\n{self.log_text()}")
            time.sleep(0.02)
        return found

    def log_text(self):
        return self.log_path.read_text(errors="replace")

    def take_log(self):
        """What it has logged since the last call. Unless it is kept, it is cut off, so that it does
        not grow for hours; a line that comes at that very moment is lost."""
        with open(self.log_path, errors="replace") as file:
            file.seek(self.log_taken_bytes)
            text = file.read()
            if self.keeps_log:
                self.log_taken_bytes = file.tell()
            else:
                os.truncate(self.log_path, 0)
        return text

    def status(self, field):
        """A number of /proc/PID/status."""
        text = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(rf"^{field}:\s+(\d+)", text, re.M)[1])

    def memory_mib(self):
        """Its anonymous memory that is resident."""
        return self.status("RssAnon") / 1024

    def usage(self):
        return {"memory_mib": self.memory_mib(), "threads": self.status("Threads"),
                "descriptors": len(os.listdir(f"/proc/{self.process.pid}/fd"))}

    def probe_port(self):
        """Of --probe-host, with which it must have been started."""
        return int(self.wait_for_line(r"health and metrics on https?://127\.0\.0\.1:(\d+)")[1])

    def get(self, path, port=None):
        """The raw answer and the seconds that it took; at its first port, or at this one."""
        begin = time.monotonic()
        address = ("127.0.0.1", port or self.port)
        with socket.create_connection(address, timeout=PATIENCE_SECONDS) as connection:
            connection.sendall(request_bytes(path))
            with connection.makefile("rb") as stream:
                return stream.read(), time.monotonic() - begin

    def metrics(self):
        return Metrics(parse_answer(self.get("/metrics")[0])[2].decode())

    def wait_until_idle(self, seconds=PATIENCE_SECONDS):
        """Whether nothing runs or waits before so many seconds are over."""
        end = time.monotonic() + seconds
        while self.metrics().open_requests() > 0:
            if time.monotonic() > end:
                return False
            time.sleep(0.02)
        return True

    def stop(self):
        """SIGTERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_SECONDS)


class Metrics:
    """One scrape."""

    def __init__(self, text):
        self.series = []
        for name, labels, value in re.findall(r"^(\w+)(?:\{(.*)\})? (\S+)$", text, re.M):
            found = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels))
            self.series.append((name, found, float(value)))

    def sum(self, wanted, **labels):
        """Of all series of this name that have these labels; it is an error if there is none."""
        values = [value for name, found, value in self.series if name == wanted
                  and all(found.get(key) == text for key, text in labels.items())]
        if not values:
            raise KeyError(f"{wanted} {labels}")
        return sum(values)

    def open_requests(self):
        return int(self.sum("lockstep_requests_running") + self.sum("lockstep_requests_waiting"))


# --- The client ---


@dataclasses.dataclass
class Answer:
    status: int  # 0: the connection ended without a status line
    headers: dict  # names in lower case
    body: bytes  # without chunks' lengths
    is_whole: bool  # it came to its end
    seconds: float  # from before connecting until the end
    first_seconds: float | None = None  # until the first event of a stream

    @property
    def text(self):
        return self.body.decode(errors="replace")

    def json(self):
        return json.loads(self.body)

    def events(self):
        """The data of all events of a stream, parsed; "[DONE]" is left as it is."""
        data = [line[6:] for line in self.text.split("\n") if line.startswith("data: ")]
        return [part if part == "[DONE]" else json.loads(part) for part in data]


def request_bytes(path, body=None, headers=(), method=None, keep_alive=False):
    """A whole request. `body`: bytes as they are, or what becomes JSON."""
    method = method or ("GET" if body is None else "POST")
    content = b""
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", *headers]
    if body is not None:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        lines += ["Content-Type: application/json", f"Content-Length: {len(content)}"]
    if not keep_alive:
        lines.append("Connection: close")
    return "\r\n".join([*lines, "", ""]).encode() + content


def parse_answer(raw):
    """Status, headers, body without chunks' lengths, and whether it is whole."""
    head, mark, rest = raw.partition(b"\r\n\r\n")
    if not mark:
        return 0, {}, b"", False
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip()
               for name, _, value in (line.partition(":") for line in lines)}
    status = int(first.split(" ")[1])
    if headers.get("transfer-encoding") != "chunked":
        return status, headers, rest, len(rest) == int(headers.get("content-length", 0))
    parts, at = [], 0
    while (end := rest.find(b"\r\n", at)) >= 0:
        length = int(rest[at:end], 16)
        parts.append(rest[end + 2:end + 2 + length])
        at = end + 2 + length + 2
        if length == 0:
            return status, headers, b"".join(parts), at <= len(rest)
    return status, headers, b"".join(parts), False


class Client:
    """One connection, for one request."""

    def __init__(self, port, source=None):
        self.port, self.source = port, source
        self.raw = bytearray()
        self.first_seconds = None

    async def __aenter__(self):
        self.began = time.perf_counter()
        local = (self.source, 0) if self.source else None
        self.reader, self.writer = await asyncio.open_connection(
            "127.0.0.1", self.port, local_addr=local)
        return self

    async def __aexit__(self, *_):
        self.writer.close()

    async def send(self, data):
        self.writer.write(data)
        await self.writer.drain()

    async def read_event(self):
        """Reads until something more of a stream has come; False at the end."""
        while data := await self.reader.read(65536):
            self.raw += data
            if b"data: {" in data:
                if self.first_seconds is None:
                    self.first_seconds = time.perf_counter() - self.began
                return True
        return False

    async def read_answer(self):
        """All that comes until the daemon closes."""
        try:
            while await self.read_event():
                pass
        except ConnectionError:
            pass  # what has come is what there is
        seconds = time.perf_counter() - self.began
        return Answer(*parse_answer(bytes(self.raw)), seconds, self.first_seconds)

    def half_close(self):
        self.writer.write_eof()

    def leave(self, with_reset):
        """At once: by FIN, or by RST, which also takes back what the daemon has not read."""
        if with_reset:
            self.writer.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.writer.transport.abort()
        else:
            self.writer.close()


async def ask(port, path, body=None, headers=(), method=None, source=None):
    """The answer to one request on a connection of its own. TimeoutError if it never ends."""
    async with asyncio.timeout(PATIENCE_SECONDS), Client(port, source) as client:
        try:
            await client.send(request_bytes(path, body, headers, method))
        except ConnectionError:
            pass  # refused before all was sent; the answer says why
        return await client.read_answer()
