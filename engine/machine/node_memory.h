// Memory for what stays: weights, KV pages, activations. Taken once, on one node, in the largest
// pages that can be had, and touched before use, so that no pass ever meets a page fault.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "engine/base/result.h"

namespace lockstep {

class Workers;

// What an arena's pages are, largest first; allocate() tries them in this order.
enum class PageKind : uint8_t {
  kHuge1GiB,     // of the hugetlb pool
  kHuge2MiB,     // of the hugetlb pool
  kTransparent,  // asked for by madvise, or a huge tmpfs
  kSmall,        // 4 KiB
};

struct MemoryRequest {
  size_t bytes = 0;
  std::string_view what;       // names it in messages: "weights"
  int node = -1;               // it is bound to this node; -1: wherever it is first touched
  bool shared = false;         // in a memfd, where the kernel has them: another process can map it
  Workers* workers = nullptr;  // touch it in parallel; none: the calling thread does
};

// An arena; the owner of its mapping. Zeroed.
class NodeMemory {
 public:
  // At least `bytes` of zeroed memory, 2 MiB aligned, populated. Fails with kMachineRefused, naming
  // the size, what is available and the remedy.
  static Result<NodeMemory> allocate(const MemoryRequest& request);

  NodeMemory() = default;
  NodeMemory(NodeMemory&& other) noexcept;
  NodeMemory& operator=(NodeMemory&& other) noexcept;
  ~NodeMemory();

  std::byte* data() const { return data_; }
  size_t size_bytes() const { return size_bytes_; }
  PageKind page_kind() const { return page_kind_; }

 private:
  std::byte* data_ = nullptr;
  size_t size_bytes_ = 0;
  PageKind page_kind_ = PageKind::kSmall;
};

// What this process can still take: the least of the system's available memory and what its control
// groups leave.
uint64_t available_memory_bytes();

}  // namespace lockstep
