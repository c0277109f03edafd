#!/usr/bin/env python3
"""Runs what there is to check of lockstepd on this machine's GPUs, from a build for them, and says
what became of each step: passed, FAILED, skipped, out of time.

    scripts/checks/check_gpu.py --build build/cuda --output gpu-check --json gpu-check/report.json

A step that fails or hangs keeps no other from running; without a GPU all ends after the first. Each
step's output lies in --output. Ends with 0 if nothing failed.

    scripts/checks/check_gpu.py --build build/cuda --pack gpu-check.tar.xz

makes of a build what can be carried to a machine that has a GPU and this checkout, but no build. An
unpacked one is a --build as well: it finds NVIDIA's libraries in LD_LIBRARY_PATH, in the toolkit's
folders, or among the wheels of the Python that runs this.
"""

import argparse
import json
import lzma
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
APART = {"LOCKSTEP_GPU_LAUNCH_OVERLAP": "false"}
PATIENT = {"LOCKSTEP_GPU_DEADLINE": "60"}  # seconds of a pass, which a tool makes slow
# Name, program of the build with its arguments, environment, seconds until it is killed.
STEPS = [
    ("device", ["cuda_device_test"], {}, 60),
    ("weight-loader", ["cuda_weight_loader_test"], {}, 120),
    ("launch-overlap", ["cuda_launch_overlap_test"], {}, 120),
    ("kernels", ["cuda_kernels_test"], {}, 300),
    ("rank", ["cuda_rank_test"], {}, 300),
    ("rank-apart", ["cuda_rank_test"], APART, 300),
    ("nccl", ["cuda_nccl_test"], {}, 200),
    ("machine", ["lockstepd", "bench-machine"], {}, 120),
    ("collectives", ["cuda_collectives_benchmark"], {}, 120),
]
# Steps under that tool of compute-sanitizer's, which takes many times as long: small tests.
KERNELS = ("GpuPromptAttention.groups_may_lie_on_several_ranks:GpuRows.*:GpuHeads.queries*:"
           "GpuExpertSum.*:Formats/GpuProductOf.*/Q4_0")
SANITIZED = {
    "memcheck": ["cuda_rank_test", "--gtest_filter="
                 "GpuRank.a_token_has_the_same_bits_whoever_is_beside_it:"
                 "GpuRank.every_format_of_the_cache"],
    "racecheck": ["cuda_kernels_test", f"--gtest_filter={KERNELS}"],
    "synccheck": ["cuda_kernels_test", f"--gtest_filter={KERNELS}"],
}
STEPS += [(tool, command, PATIENT, 300) for tool, command in SANITIZED.items()]
PROGRAMS = ["lockstepd", "cuda_*_test", "cuda_collectives_benchmark"]
# A pack leaves to the machine: glibc, the driver, and what is NVIDIA's and large.
NOT_CARRIED = re.compile(
    r"(ld-linux.*|linux-vdso|lib(c|m|dl|pthread|rt|util|resolv|anl|mvec)"
    r"|lib(cuda|cudart|cublas.*|nccl|nvJitLink|nvrtc.*|nvidia-.*))\.so.*")
# Programs load it by themselves, where there is a GPU: ldd knows nothing of it.
LOADED = "libcublasLt.so.13"
DICTIONARY_BYTES = 64 * 2**20  # the programs hold the same kernels, tens of MB from one another


def ldd(program, environment):
    """The path of each shared library that the program needs, and the lines on those not found."""
    done = subprocess.run(["ldd", program], capture_output=True, text=True,
                          env={**os.environ, **environment})
    found = re.findall(r"^\s*(\S+) => (/\S+)", done.stdout, flags=re.MULTILINE)
    lines = (done.stdout + done.stderr).splitlines()
    return dict(found), [line.strip() for line in lines if "not found" in line]


def is_loadable(library, environment):
    """Whether a program with this environment can load it."""
    code = f"import ctypes; ctypes.CDLL({library!r})"
    return subprocess.run([sys.executable, "-c", code], capture_output=True,
                          env={**os.environ, **environment}).returncode == 0


def library_path(build):
    """Where an unpacked pack's programs find their libraries; of a build, which knows, nothing."""
    if not (build / "lib").is_dir():
        return {}
    toolkit = [*Path("/usr/local").glob("cuda*/lib64"), *Path("/usr/local").glob("cuda*/lib")]
    wheels = [folder for entry in sys.path for folder in Path(entry).glob("nvidia/*/lib")]
    given = filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":"))
    folders = [build / "lib", *given, *sorted(toolkit), *wheels]
    return {"LD_LIBRARY_PATH": ":".join(map(str, folders))}


def pack(build, archive):
    """Programs without their symbols, and the libraries that they need."""
    programs = sorted(path for pattern in PROGRAMS for path in build.glob(pattern))
    if not programs:
        sys.exit(f"{build} has no programs")
    files = {}
    with tempfile.TemporaryDirectory() as folder:
        for program in programs:
            stripped = files[program.name] = Path(folder) / program.name
            subprocess.run(["strip", "-o", stripped, program], check=True)
            for name, path in ldd(program, {})[0].items():
                if not NOT_CARRIED.fullmatch(name):
                    files[f"lib/{name}"] = Path(path).resolve()
        filters = [{"id": lzma.FILTER_LZMA2, "preset": 3, "dict_size": DICTIONARY_BYTES}]
        with lzma.open(archive, "wb", filters=filters) as stream, \
                tarfile.open(fileobj=stream, mode="w") as tar:
            # A pack is known by this folder, even where it is empty.
            entry = tarfile.TarInfo("lib")
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
            for name, path in sorted(files.items()):
                tar.add(path, name)
                print(f"{path.stat().st_size:12,}  {name}")
    print(f"{archive.stat().st_size:12,}  {archive}")


def run(command, environment, seconds, log):
    """The exit status; None: it was killed, with all that it had started."""
    inherited = {name: value for name, value in os.environ.items()
                 if not name.startswith("LOCKSTEP_")}
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT,
                                   stdin=subprocess.DEVNULL, start_new_session=True,
                                   env={**inherited, **environment})
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return None


def benches(models):
    """Each model with and without overlapping launches, in turns: A B A B."""
    return [(f"bench{number}{way}{turn}",
             ["lockstepd", "bench", "--json", "--devices", "gpu0", "--model", str(model.resolve())],
             environment, 300)
            for number, model in enumerate(models, 1) for turn in ["", "-again"]
            for way, environment in [("", {}), ("-apart", APART)]]


def find_figures(text):
    """What bench printed as JSON among its log; None if it did not."""
    try:
        return json.loads(re.search(r"^\{$.*^\}$", text, flags=re.MULTILINE | re.DOTALL)[0])
    except (TypeError, ValueError):
        return None


def find_sanitizer():
    toolkit = sorted(map(str, Path("/usr/local").glob("cuda*/bin")))
    return shutil.which("compute-sanitizer", path=":".join([os.environ["PATH"], *toolkit]))


def judge(status, text):
    """What became of it, and why in a few words."""
    if absence := re.search(r"no GPU: .*", text):
        return "FAILED", absence[0]
    if status is None:
        return "out of time", ""
    if status != 0:
        return "FAILED", f"exit status {status}"
    if "[==========] Running 0 tests" in text:
        return "FAILED", "no test has such a name"
    skipped = set(re.findall(r"^\[  SKIPPED \] (\S+\.\S+)$", text, flags=re.MULTILINE))
    if skipped and "[       OK ]" not in text:
        return "skipped", "every test"
    return "passed", f"{len(skipped)} tests skipped" if skipped else ""


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build/cuda")
    parser.add_argument("--output", type=Path, default=Path("gpu-check"))
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--only", metavar="NAME,...")
    parser.add_argument("--model", type=Path, metavar="FILE", action="append", default=[],
                        help="measure it on gpu0 as well, whatever --only says; repeatable")
    parser.add_argument("--pack", type=Path, metavar="FILE.tar.xz")
    arguments = parser.parse_args()
    if arguments.pack:
        pack(arguments.build, arguments.pack)
        return 0
    wanted = arguments.only.split(",") if arguments.only else [step[0] for step in STEPS]
    if unknown := set(wanted) - {step[0] for step in STEPS}:
        parser.error(f"--only: there is no step {', '.join(sorted(unknown))}")
    measured = benches(arguments.model)
    steps = STEPS + measured
    wanted += [step[0] for step in measured]
    arguments.output.mkdir(parents=True, exist_ok=True)
    build = arguments.build.resolve()
    libraries = library_path(build)
    if libraries:
        programs = {build / step[1][0] for step in steps if step[0] in wanted}
        missing = {f"{program.name}: {line}" for program in programs if program.is_file()
                   for line in ldd(program, libraries)[1]}
        if not is_loadable(LOADED, libraries):
            missing.add(f"{LOADED} cannot be loaded")
        if missing:
            sys.exit("\n".join([*sorted(missing), "looked in " + libraries["LD_LIBRARY_PATH"]]))
    folders = {"LOCKSTEP_SOURCE_DIR": str(ROOT)}
    sanitizer = find_sanitizer()
    rows, absent = [], False
    for name, command, environment, seconds in steps:
        if name not in wanted:
            continue
        program = build / command[0]
        start, tail, figures = time.monotonic(), [], None
        if absent or not program.is_file():
            state, why = "skipped", "no GPU" if absent else f"{program} is not built"
        elif name in SANITIZED and not sanitizer:
            state, why = "skipped", "compute-sanitizer is not there"
        else:
            environment = {**environment, **libraries}
            if command[0].startswith("cuda_"):
                environment.update(folders)
            log = arguments.output / f"{name}.txt"
            words = [program, *command[1:]]
            if name in SANITIZED:
                words = [sanitizer, "--tool", name, "--error-exitcode", "1", *words]
            status = run(words, environment, seconds, log)
            text = log.read_text(errors="replace")
            state, why = judge(status, text)
            if state == "passed" and "bench" in command:
                if figures := find_figures(text):
                    why = ", ".join(f"{result['test']} {result['tokens_per_second']:.1f} t/s"
                                    for result in figures["results"])
                else:
                    state, why = "FAILED", "no figures"
            absent = why.startswith("no GPU: ")
            tail = text.splitlines()[-20:] if state in ("FAILED", "out of time") else []
        took = time.monotonic() - start
        rows.append({"step": name, "state": state, "why": why, "seconds": took, "tail": tail})
        if figures:
            rows[-1]["bench"] = figures
        print(f"{name:16} {state:12} {took:7.1f} s  {why}", flush=True)
        for line in tail:
            print(f"    {line}")
        if arguments.json:
            arguments.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 1 if any(row["state"] in ("FAILED", "out of time") for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
