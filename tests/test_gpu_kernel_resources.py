"""No registers are wanting in the kernels that one or few tokens take, in the build of the preset
cuda. What is wanting is read off its objects (gpu_kernel_resources.py)."""

import pathlib
import re
import shutil
import subprocess

import pytest
from gpu_kernel_resources import kernels_below

ROOT = pathlib.Path(__file__).resolve().parents[1]
BUILT = ROOT / "build/cuda/engine"

# Of prompts: their tiles fill the registers, and are computed with for long.
PROMPT_KERNELS = {"attend_tiles", "attend_tiles_by_ring", "finish_panel", "unpack_rows"}
# The last argument of attend_units and attend_walking: variants of their own for capped and sloped scores,
# heads with sinks and tokens in sections (1), and for values of other dimensions than keys (2).
ATTENTION_KINDS = {"1": " shaped", "2": " unlike"}
# Variants that have a stack frame in sm_90a as CUDA 13.0 compiles them, by kernel and the last number
# among its template's arguments (queries of a head; groups of eight tokens): how many, and the most
# bytes of one. These may only shrink; engine/docs/unmeasured.md says what is open.
MOST_FRAMES = {
    ("attend_units", 4): (1, 8),
    ("attend_units", 8): (3, 24),
    ("attend_walking", 2): (1, 8),
    ("attend_walking", 4): (2, 8),
    ("attend_walking", 8): (4, 24),
    ("attend_units shaped", 2): (1, 8),
    ("attend_units shaped", 8): (4, 8),
    ("attend_walking shaped", 8): (4, 24),
    ("attend_units unlike", 4): (1, 16),
    ("attend_units unlike", 8): (4, 8),
    ("attend_walking unlike", 8): (4, 16),
    ("multiply_expert_rows", 2): (3, 32),
    ("multiply_expert_rows", 8): (12, 96),
    ("multiply_many", 8): (5, 64),
    ("multiply_wide", 8): (4, 32),
    # Where sine and cosine reduce a large angle.
    ("rotary_table", None): (1, 40),
}


def frames_of(kernels):
    """How many variants of each kernel have a frame, and the most bytes of one."""
    found = {}
    for kernel in kernels:
        if kernel.frame_bytes and kernel.template not in PROMPT_KERNELS:
            last = re.search(r"(\d+)u(, (true|false|\(AttentionKind\)(\d)))?>$", kernel.name)
            kind = ATTENTION_KINDS.get(last.group(4), "") if last else ""
            key = (kernel.template + kind, int(last.group(1)) if last else None)
            count, most = found.get(key, (0, 0))
            found[key] = (count + 1, max(most, kernel.frame_bytes))
    return found


def test_kernels_of_few_tokens_keep_their_values_in_registers():
    if not BUILT.exists():
        pytest.skip(f"{BUILT} is not built: there is no nvcc")
    kernels = [kernel for kernel in kernels_below(BUILT) if kernel.architecture == 90]
    if not kernels:
        pytest.skip("this build has no machine code for compute capability 9.0")
    templates = {kernel.template for kernel in kernels}
    listed = {name.partition(" ")[0] for name, _ in MOST_FRAMES}
    assert templates >= PROMPT_KERNELS | listed | {"norm_rows"}
    found = frames_of(kernels)
    wrong = {key: frames for key, frames in found.items()
             if any(is_ > most for is_, most in zip(frames, MOST_FRAMES.get(key, (0, 0))))}
    assert not wrong, f"kernels with more of a stack frame than listed: {wrong}"
    stale = {key for key in MOST_FRAMES if key not in found}
    assert not stale, f"listed, but without a stack frame: {stale}"


SPILLING = """
__global__ void plain(float* a) { a[threadIdx.x] += 1; }
template <unsigned kCount>
__global__ void __launch_bounds__(1024, 2) spilled(float* a) {
  float x[kCount];
#pragma unroll
  for (unsigned i = 0; i < kCount; i++) x[i] = a[i * threadIdx.x];
  __syncthreads();
#pragma unroll
  for (unsigned i = 0; i < kCount; i++) a[i * blockIdx.x + threadIdx.x] = x[i] * x[kCount - 1 - i];
}
template __global__ void spilled<64>(float* a);
"""


def test_the_numbers_are_those_that_ptxas_prints(tmp_path):
    nvcc = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if nvcc is None:
        pytest.skip("there is no nvcc")
    source = tmp_path / "spilling.cu"
    source.write_text(SPILLING)
    said = subprocess.run(
        [nvcc, "-c", "-gencode=arch=compute_90a,code=[compute_90a,sm_90a]",
         "-gencode=arch=compute_80,code=sm_80", "-Xptxas=-v", source, "-o", f"{source}.o"],
        capture_output=True, text=True, check=True).stderr
    printed = re.findall(r"function '(\w+)' for 'sm_(\d+)a?'.*?(\d+) bytes stack frame.*?"
                         r"Used (\d+) registers", said, re.DOTALL)
    kernels = kernels_below(tmp_path)
    assert [kernel.name for kernel in kernels] == ["plain", "plain", "spilled<64u>", "spilled<64u>"]
    assert kernels[3].frame_bytes > 0 and kernels[0].frame_bytes == 0
    assert sorted((kernel.architecture, kernel.frame_bytes, kernel.registers)
                  for kernel in kernels) == sorted(
                      (int(architecture), int(frame), int(registers))
                      for _, architecture, frame, registers in printed)
