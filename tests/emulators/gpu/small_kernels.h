// Kernels written in tests: what they need around their bodies, memory that they may reach, and a
// way to run them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tests/emulators/gpu/block.h"
#include "tests/emulators/gpu/memory.h"
#include "tests/emulators/gpu/module.h"

namespace lockstep::ptx {

// Memory at addresses that are the host's nowhere. Beside each lies nothing.
class TestMemory final : public Memory {
 public:
  // The bytes are 0. The address is a multiple of 256.
  uint64_t add(size_t bytes);
  MemoryRange find(uint64_t address) override;

  template <typename T>
  T* at(uint64_t address) {
    const MemoryRange range = find(address);
    return reinterpret_cast<T*>(range.host + (address - range.begin));
  }
  template <typename T>
  uint64_t add(const std::vector<T>& values) {
    const uint64_t address = add(values.size() * sizeof(T));
    std::memcpy(at<T>(address), values.data(), values.size() * sizeof(T));
    return address;
  }

 private:
  std::map<uint64_t, std::vector<uint64_t>> allocations_;
  uint64_t next_ = uint64_t{1} << 40;
};

// A module of one kernel "k" with the parameters p0, p1, .. (of 8 bytes), the body, and registers
// %p0-%p31, %rs0-%rs31, %r0-%r63, %rd0-%rd31, %f0-%f31, %fd0-%fd31.
std::string kernel_text(std::string_view body, size_t parameters = 1);

// Parses; a text that is wrong fails the test.
Module parsed(std::string_view text);

// The launch of such a kernel.
Launch small_launch(const Module& module, const std::vector<uint64_t>& parameters,
                    Size3 block = {32, 1, 1}, uint32_t dynamic_shared_bytes = 0);

// Runs a block to its end, with the launch before done; what is wrong with it, or "".
std::string run_block(const Launch& launch, Memory& memory, Size3 index = {}, uint64_t seed = 1);

// Runs `body` by one block and returns what is wrong, or "". Parameter 0 is the address of `bytes`
// bytes that are 0; they are left in `result` if it is not null.
std::string run_body(std::string_view body, size_t bytes, std::vector<uint32_t>* result = nullptr,
                     Size3 block = {32, 1, 1}, uint32_t dynamic_shared_bytes = 0,
                     uint64_t seed = 1);

// The bits that `instruction` ("add.s32") gives in as many threads as operands have values. Widths
// are in bytes: of the result, then of each operand; 1 is a predicate (0 or 1).
std::vector<uint64_t> evaluate(std::string_view instruction, std::vector<uint32_t> widths,
                               const std::vector<std::vector<uint64_t>>& operands);

}  // namespace lockstep::ptx
