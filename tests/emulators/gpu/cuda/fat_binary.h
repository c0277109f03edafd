// A fat binary: the code that nvcc writes into a program for one .cu file, for several GPUs, one
// after the other.
#pragma once

#include <expected>
#include <string>
#include <string_view>

namespace lockstep::ptx {

// The PTX in it. `wrapper`: what __cudaRegisterFatBinary() is given (struct __fatBinC_Wrapper_t of
// CUDA's fatbinary_section.h); what is returned lies in the program. The error says what the build
// must ask nvcc for.
std::expected<std::string_view, std::string> find_ptx(const void* wrapper);

}  // namespace lockstep::ptx
