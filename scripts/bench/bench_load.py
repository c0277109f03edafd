#!/usr/bin/env python3
"""Compares the load of a model with what its disk gives, in turns, with nothing in the page cache.

    sudo scripts/bench/bench_load.py MODEL.gguf [--rounds 3] [--lockstepd build/release/lockstepd]

In each round, caches dropped before each: fio reads the file (O_DIRECT, io_uring, 4 MiB, 16 in
flight), then lockstepd loads it and generates one token. Shown: MB/s of both; the seconds of
lockstepd's load that were reading; its peak of memory beyond the weights in the file; how much the
page cache grew, of the whole machine and of this file. Needs fio and fincore, and root: only root
can empty the page cache.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time


def drop_caches():
    os.sync()
    with open("/proc/sys/vm/drop_caches", "w") as file:
        file.write("3\n")


def cached_bytes():
    with open("/proc/meminfo") as file:
        return int(re.search(r"^Cached:\s+(\d+) kB", file.read(), re.M)[1]) * 1024


def cached_bytes_of(path):
    output = subprocess.run(["fincore", "--bytes", "--noheadings", "--output", "RES", path],
                            check=True, capture_output=True, text=True).stdout
    return int(output.split()[0])


def run_fio(path):
    drop_caches()
    output = subprocess.run(
        ["fio", "--name=read", f"--filename={path}", "--readonly", "--rw=read", "--direct=1",
         "--ioengine=io_uring", "--bs=4M", "--iodepth=16", "--output-format=json"],
        check=True, capture_output=True, text=True).stdout
    return json.loads(output[output.index("{"):])["jobs"][0]["read"]["bw_bytes"] / 1e6


def run_load(lockstepd, path):
    """What one run of lockstepd says and takes, as a dictionary."""
    drop_caches()
    before = cached_bytes()
    start = time.monotonic()
    process = subprocess.Popen(
        [lockstepd, "bench", "--log-level", "info", "--model", path, "--context", "512",
         "--prompt", "0", "--generate", "1", "--repeat", "1"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        sys.exit(f"lockstepd failed:\n{output}")
    line = re.search(r"read (\d+) MiB of weights in ([\d.]+) s, (\d+) MB/s, (.*)", output)
    if not line:
        sys.exit(f"lockstepd has not said how fast it read:\n{output}")
    return {"MB/s": float(line[3]), "read s": float(line[2]), "how": line[4],
            "whole s": time.monotonic() - start,
            "peak MiB": usage.ru_maxrss / 1024 - int(line[1]),
            "cache MiB": (cached_bytes() - before) / 2**20,
            "of file MiB": cached_bytes_of(path) / 2**20}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="MODEL.gguf")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--lockstepd", default="build/release/lockstepd")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("bench-load: only root can empty the page cache; run it with sudo")
    print("| round | fio MB/s | load MB/s | load / fio | reading s | whole run s | peak memory beyond "
          "the weights MiB | page cache grew MiB | of it the file MiB |")
    print("| ---: " * 9 + "|")
    ratios = []
    for number in range(1, arguments.rounds + 1):
        fio = run_fio(arguments.model)
        load = run_load(arguments.lockstepd, arguments.model)
        ratios.append(load["MB/s"] / fio)
        print(f"| {number} | {fio:.0f} | {load['MB/s']:.0f} | {ratios[-1]:.2f} | "
              f"{load['read s']:.2f} | {load['whole s']:.2f} | {load['peak MiB']:.0f} | "
              f"{load['cache MiB']:.1f} | {load['of file MiB']:.1f} |", flush=True)
    print(f"\nload / fio, median: {statistics.median(ratios):.2f}; read {load['how']}")


if __name__ == "__main__":
    main()
