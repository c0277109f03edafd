// Memory for what stays: weights, KV pages, activations. Taken once, on one node, in the largest
// pages that can be had, and touched before use, so that no pass ever has a page fault.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

#include "engine/base/descriptor.h"
#include "engine/base/result.h"
#include "engine/machine/arena_rules.h"

namespace lockstep {

class MemoryCalls;
class Workers;

// The kinds of an arena's pages, largest first; allocate() tries them in this order.
enum class PageKind : uint8_t {
  kHuge1GiB,     // of the hugetlb pool
  kHuge2MiB,     // of the hugetlb pool
  kTransparent,  // asked for by madvise, or a huge tmpfs
  kSmall,        // 4 KiB
};

// As messages and metrics name it: "hugetlb 1 GiB", "hugetlb 2 MiB", "transparent 2 MiB", "4 KiB".
std::string_view page_kind_name(PageKind kind);

constexpr size_t page_bytes_of(PageKind kind) {
  if (kind == PageKind::kHuge1GiB) return kGigaPageBytes;
  return kind == PageKind::kSmall ? kSmallPageBytes : kHugePageBytes;
}

struct MemoryRequest {
  size_t bytes = 0;
  std::string_view what;  // names it in messages: "weights"
  int node = -1;          // it is bound to this node; -1: wherever it is first touched
  bool shared = false;    // in a memfd, where that costs no huge pages: another process can map it
  bool small_shared = false;     // shared even if it costs huge pages
  bool lock = false;             // never swapped out, or refused
  Workers* workers = nullptr;    // touch it in parallel; none: the calling thread does
  MemoryCalls* calls = nullptr;  // the system's if null; must outlive the arena
};

// An arena of a process before, as NodeMemory::adopt() takes it over.
struct KeptArena {
  Descriptor descriptor;  // of its memfd
  size_t bytes = 0;       // of the memfd, which is whole pages
  bool sealed = false;    // it can only be read
};

// An arena; the owner of its mapping. Zeroed. Where the mapping is not of a huge-page pool, what
// lies before and after it is a page that nobody may touch. Not part of core dumps.
class NodeMemory {
 public:
  // At least `bytes` of zeroed memory, 2 MiB aligned, populated. Fails with kMachineRefused, naming
  // the size, what is available and the remedy. Where the kernel or a container does not let memory
  // be bound, it lies where the workers that touch it run, and a warning says what to change.
  static Result<NodeMemory> allocate(const MemoryRequest& request);

  // An arena that is there already, in its memfd, with what it holds; `request` says where it
  // should lie and which workers map it. Fails with kMachineRefused.
  static Result<NodeMemory> adopt(KeptArena kept, const MemoryRequest& request);

  // Makes the memfd's contents unchangeable: it is mapped for reading only, at the same address,
  // and sealed against writing and growing. Not against shrinking: a process that has the
  // descriptor and no use for its contents can free the memory at once, though others still have
  // it. The arena may not be used meanwhile. Fails with kMachineRefused; it can still be used then,
  // perhaps not written to.
  Result<void> seal(Workers* workers);
  bool is_sealed() const { return sealed_; }

  // Locked in memory: it is never swapped out.
  bool is_locked() const { return locked_; }

  NodeMemory() = default;
  NodeMemory(NodeMemory&& other) noexcept;
  NodeMemory& operator=(NodeMemory&& other) noexcept;
  ~NodeMemory();

  std::byte* data() const { return data_; }
  size_t size_bytes() const { return size_bytes_; }

  // The kind of the pages as they are, not as requested: transparent only if at least half of the
  // bytes are in huge pages.
  PageKind page_kind() const { return page_kind_; }
  int node() const { return node_; }              // as requested
  bool is_bound() const { return bound_; }        // the kernel takes its pages from node() only
  int descriptor() const { return descriptor_; }  // of its memfd; -1: anonymous memory

 private:
  class Maker;

  // Fails with kMachineRefused, naming the limit and the remedy.
  Result<void> lock(std::string_view what);

  // The argument of munmap: the guard pages included.
  void* mapping_ = nullptr;
  size_t mapping_bytes_ = 0;
  std::byte* data_ = nullptr;
  size_t size_bytes_ = 0;
  PageKind page_kind_ = PageKind::kSmall;
  int node_ = -1;
  bool bound_ = false;
  bool sealed_ = false;
  bool locked_ = false;
  int descriptor_ = -1;
  MemoryCalls* calls_ = nullptr;
};

}  // namespace lockstep
