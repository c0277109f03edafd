"""What the workers ask of the kernel while they compute: to sleep, and nothing else."""

import os
import pathlib
import re
import shutil
import signal
import subprocess

import pytest

from conftest import wait_until


def worker_threads(daemon):
    tasks = pathlib.Path(f"/proc/{daemon.process.pid}/task")
    return [task.name for task in tasks.iterdir()
            if (task / "comm").read_text().startswith("worker")]


@pytest.fixture
def strace():
    program = shutil.which("strace")
    if program is None:
        pytest.skip("strace is not installed")
    probe = subprocess.run([program, "-qq", "-o", os.devnull, "true"], capture_output=True)
    if probe.returncode != 0:
        pytest.skip(f"strace may not trace here: {probe.stderr.decode().strip()}")
    return program


@pytest.mark.parametrize("ranks", ["1", "2"])
def test_workers_make_no_system_call_but_futex(start, strace, tmp_path, ranks):
    if len(os.sched_getaffinity(0)) < int(ranks):
        pytest.skip("workers that share a processor yield it to one another")
    daemon = start("--ranks", ranks, "--served-model-name", "stories").wait_until_ready()
    threads = worker_threads(daemon)
    assert len(threads) == int(ranks)
    trace = tmp_path / "trace"
    tracer = subprocess.Popen(
        [strace, "-o", str(trace), *(part for thread in threads for part in ("-p", thread))],
        stderr=subprocess.PIPE, text=True)
    attached = 0
    for line in tracer.stderr:
        attached += "attached" in line
        if attached == len(threads):
            break
    else:
        pytest.skip("strace may not attach to another process here")
    answer = daemon.post("/v1/completions", {
        "model": "stories", "prompt": "Once upon a time", "max_tokens": 200, "ignore_eos": True})
    assert answer.json()["usage"]["completion_tokens"] == 200
    # They compute a while longer for nobody before they sleep.
    wait_until(lambda: trace.exists() and "futex" in trace.read_text())
    tracer.send_signal(signal.SIGINT)
    tracer.wait()
    calls = set(re.findall(r"^(?:\d+ +)?(?:<\.\.\. )?(\w+)", trace.read_text(), re.M))
    assert calls == {"futex"}, calls
