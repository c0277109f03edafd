// Memory for what stays: weights, KV pages, activations. Taken once, in huge pages where the kernel
// gives them, and touched before use, so that no pass ever meets a page fault.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "engine/base/result.h"

namespace lockstep {

// An arena; the owner of its mapping. Zeroed.
class NodeMemory {
 public:
  // `bytes` of zeroed memory, 2 MiB aligned, populated. `what` names it in messages ("weights").
  // Fails with kMachineRefused, naming the size, what is available and the remedy.
  static Result<NodeMemory> allocate(size_t bytes, std::string_view what);

  NodeMemory() = default;
  NodeMemory(NodeMemory&& other) noexcept;
  NodeMemory& operator=(NodeMemory&& other) noexcept;
  ~NodeMemory();

  std::byte* data() const { return data_; }
  size_t size_bytes() const { return size_bytes_; }

 private:
  std::byte* data_ = nullptr;
  size_t size_bytes_ = 0;
};

// What this process can still take: the least of the system's available memory and what its control
// groups leave.
uint64_t available_memory_bytes();

}  // namespace lockstep
