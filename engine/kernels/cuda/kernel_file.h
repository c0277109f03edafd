// Tells the program of a .cu file's kernels. Included by every one of them, once; in an anonymous
// namespace, as the kernels are.
#pragma once

namespace lockstep {

// `kernel`: any of the file's. Before main(); always true.
bool note_kernel_file(const void* kernel);

namespace {

// Never launched: CUDA is asked by it for the file's kernels.
__global__ void file_kernel() {}
[[maybe_unused]] const bool is_noted =
    note_kernel_file(reinterpret_cast<const void*>(&file_kernel));

}  // namespace
}  // namespace lockstep
