"""scripts/checks/check_gpu.py, with simulated programs."""

import json
import os
import subprocess
import sys
import tarfile

from conftest import ROOT, clean_environment

sys.path.insert(0, str(ROOT / "scripts/checks"))
import check_gpu  # noqa: E402


def make(folder, **programs):
    folder.mkdir(exist_ok=True)
    for name, body in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)


def with_library(folder):
    """A path of folders in which what a GPU's programs load is found."""
    folder.mkdir(exist_ok=True)
    subprocess.run(["cc", "-shared", "-x", "c", os.devnull, "-o", folder / check_gpu.LOADED],
                   check=True)
    return str(folder)


def start(*options, **environment):
    return subprocess.run([sys.executable, ROOT / "scripts/checks/check_gpu.py", *options],
                          capture_output=True, text=True, timeout=60,
                          env=clean_environment(**environment))


def check(folder, **programs):
    make(folder, **programs)
    done = start("--build", folder, "--output", folder / "out", "--json", folder / "report.json")
    rows = json.loads((folder / "report.json").read_text())
    return done.returncode, {row["step"]: row for row in rows}


def test_a_step_that_fails_keeps_no_other_from_running(tmp_path):
    code, rows = check(tmp_path, cuda_device_test="exit 0", cuda_kernels_test="echo why; exit 3",
                       cuda_rank_test='test "$LOCKSTEP_GPU_LAUNCH_OVERLAP" != false')
    assert code == 1
    states = {name: row["state"] for name, row in rows.items()}
    assert (states["kernels"], states["rank"], states["rank-apart"], states["nccl"]) == (
        "FAILED", "passed", "FAILED", "skipped")
    assert rows["kernels"]["tail"] == ["why"]


def test_without_a_gpu_nothing_else_is_run(tmp_path):
    code, rows = check(tmp_path, cuda_device_test="echo no GPU: none here",
                       cuda_kernels_test="exit 0")
    assert code == 1
    assert rows["device"]["why"] == "no GPU: none here"
    assert rows["kernels"]["state"] == "skipped" and rows["kernels"]["why"] == "no GPU"


def test_what_hangs_is_killed(tmp_path):
    assert check_gpu.run(["sleep", "1000"], {}, 0.1, tmp_path / "log") is None
    assert check_gpu.judge(None, "") == ("out of time", "")


def test_tests_are_told_their_folders_and_the_daemon_is_not(tmp_path):
    code, rows = check(tmp_path, cuda_device_test='test -d "$LOCKSTEP_SOURCE_DIR/scripts"',
                       lockstepd='test -z "$LOCKSTEP_SOURCE_DIR"')
    assert code == 0, rows
    assert rows["machine"]["state"] == "passed"


def test_a_pack_has_what_a_machine_with_a_gpu_lacks(tmp_path):
    build, tools = tmp_path / "build", tmp_path / "tools"
    make(build, lockstepd="", cuda_device_test="", other_test="")
    (tmp_path / "libfmt.so.9.1").write_text("fmt")
    (tmp_path / "libfmt.so.9").symlink_to("libfmt.so.9.1")
    taken = {"libfmt.so.9": tmp_path / "libfmt.so.9"}
    left = {name: f"/nowhere/{name}" for name in [
        "libc.so.6", "libm.so.6", "libcuda.so.1", "libnvidia-ml.so.1", "libcublasLt.so.13",
        "libcudart.so.13", "libnccl.so.2"]}
    lines = "".join(f"{name} => {path} (0x0)\\n" for name, path in {**taken, **left}.items())
    make(tools, ldd=f"printf '{lines}'", strip='echo stripped > "$2"')
    done = start("--build", build, "--pack", tmp_path / "pack.tar.xz",
                 PATH=f"{tools}:{os.environ['PATH']}")
    assert done.returncode == 0, done.stderr
    with tarfile.open(tmp_path / "pack.tar.xz") as tar:
        files = {file.name: tar.extractfile(file).read() for file in tar if file.isfile()}
    assert files == {"lockstepd": b"stripped\n", "cuda_device_test": b"stripped\n",
                     "lib/libfmt.so.9": b"fmt"}
    assert all(name in done.stdout for name in [*files, "pack.tar.xz"])
    assert "stripped" not in (build / "lockstepd").read_text()


def test_a_pack_finds_its_libraries(tmp_path):
    build, wheel = tmp_path / "build", tmp_path / "site/nvidia/nccl/lib"
    make(build, cuda_device_test='echo "$LD_LIBRARY_PATH"',
         lockstepd='echo "$LD_LIBRARY_PATH"')
    wheel.mkdir(parents=True)
    options = ["--build", build, "--output", tmp_path / "out", "--only", "device,machine"]
    given = with_library(tmp_path / "given")
    environment = {"LD_LIBRARY_PATH": given, "PYTHONPATH": str(tmp_path / "site")}
    assert start(*options, **environment).returncode == 0
    assert (tmp_path / "out/device.txt").read_text().strip() == given
    (build / "lib").mkdir()
    assert start(*options, **environment).returncode == 0
    for name in ("device", "machine"):
        folders = (tmp_path / f"out/{name}.txt").read_text().strip().split(":")
        assert folders[:2] == [str(build / "lib"), given] and str(wheel) in folders[2:]


def test_a_pack_says_which_library_is_not_found(tmp_path):
    build, tools = tmp_path / "build", tmp_path / "tools"
    make(build, cuda_device_test="", cuda_nccl_test="")
    (build / "lib").mkdir()
    make(tools, ldd='case "$1$LD_LIBRARY_PATH" in *nccl_test*/lib*)'
                    ' echo "libfmt.so.9 => not found";; esac')
    options = ["--build", build, "--output", tmp_path / "out"]
    libraries = tmp_path / "libraries"
    environment = {"PATH": f"{tools}:{os.environ['PATH']}",
                   "LD_LIBRARY_PATH": with_library(libraries)}
    done = start(*options, **environment)
    assert done.returncode == 1 and "cuda_nccl_test: libfmt.so.9 => not found" in done.stderr
    assert check_gpu.LOADED not in done.stderr
    assert not (tmp_path / "out/device.txt").exists()
    assert start(*options, "--only", "device", **environment).returncode == 0
    # Programs load these by themselves: a file of that name that is no library ends the search.
    (libraries / check_gpu.LOADED).write_text("none")
    done = start(*options, "--only", "device", **environment)
    assert done.returncode == 1 and f"{check_gpu.LOADED} cannot be loaded" in done.stderr


def test_some_tests_are_run_under_compute_sanitizer(tmp_path):
    build, tools = tmp_path / "build", tmp_path / "tools"
    make(build, cuda_rank_test='echo "ran $*"', cuda_kernels_test='echo "ran $*"')
    make(tools, **{"compute-sanitizer": 'echo "$*"; test "$2" != racecheck && shift 4 && "$@"'})
    steps = ",".join(check_gpu.SANITIZED)
    done = start("--build", build, "--output", tmp_path / "out", "--only", steps,
                 PATH=f"{tools}:{os.environ['PATH']}")
    assert [line.split()[:2] for line in done.stdout.splitlines() if line[0] != " "] == [
        ["memcheck", "passed"], ["racecheck", "FAILED"], ["synccheck", "passed"]]
    for tool, (program, names) in check_gpu.SANITIZED.items():
        words = (tmp_path / f"out/{tool}.txt").read_text().splitlines()
        assert words[0] == f"--tool {tool} --error-exitcode 1 {build / program} {names}"
        assert (words[1:] == [f"ran {names}"]) == (tool != "racecheck")


def test_without_compute_sanitizer_its_steps_are_skipped(tmp_path, monkeypatch, capsys):
    make(tmp_path, cuda_rank_test="")
    monkeypatch.setattr(check_gpu.shutil, "which", lambda *_, **__: None)
    monkeypatch.setattr(sys, "argv", ["check_gpu.py", "--build", str(tmp_path), "--output",
                                      str(tmp_path / "out"), "--only", "memcheck"])
    assert check_gpu.main() == 0
    assert "compute-sanitizer is not there" in capsys.readouterr().out


def test_a_name_that_no_test_has_is_a_failure():
    text = "[==========] Running 0 tests from 0 test suites.\n"
    assert check_gpu.judge(0, text) == ("FAILED", "no test has such a name")


def test_models_are_measured_with_and_without_overlap_in_turns(tmp_path):
    build = tmp_path / "build"
    model = tmp_path / "m.gguf"
    model.write_text("")
    make(build, lockstepd='echo "a warning {" >&2; speed=20\n'
         'test "$LOCKSTEP_GPU_LAUNCH_OVERLAP" = false && speed=10\n'
         'test "$*" = "bench --json --devices gpu0 --model ' + str(model) + '" || exit 2\n'
         'printf \'{\\n "results": [{"test": "tg1", "tokens_per_second": %s}]\\n}\\n\' $speed')
    options = ["--build", build, "--output", tmp_path / "out", "--json", tmp_path / "report.json",
               "--only", "nccl", "--model", model]
    assert start(*options).returncode == 0
    rows = json.loads((tmp_path / "report.json").read_text())[1:]
    assert [row["step"] for row in rows] == [
        "bench1", "bench1-apart", "bench1-again", "bench1-apart-again"]
    assert [row["bench"]["results"][0]["tokens_per_second"] for row in rows] == [20, 10, 20, 10]
    assert rows[0]["why"] == "tg1 20.0 t/s"
    make(build, lockstepd="echo nothing")
    assert start(*options).returncode == 1
