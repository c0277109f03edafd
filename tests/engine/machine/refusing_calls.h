// Memory calls that refuse what a test tells them to, pretend to have a huge-page pool and nodes
// that this machine lacks, and count what has not been given back.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "engine/base/checked_math.h"
#include "engine/machine/memory_calls.h"

namespace lockstep {

class RefusingCalls : public MemoryCalls {
 public:
  // The calls by name: "map", "protect", "bind", "populate", "lock", "make_memfd", "resize",
  // "query_pages".
  struct Refusal {
    std::string call;
    int error = 0;
    int first = 0;         // counted from 0, of this call's calls
    bool for_good = true;  // or this once
  };

  explicit RefusingCalls(std::filesystem::path root) : root_(std::move(root)) {}

  void refuse(Refusal refusal) { refusals_.push_back(std::move(refusal)); }

  // Mappings and descriptors that have not been given back.
  size_t open_count() const { return mapped_.size() + descriptors_.size(); }
  const std::vector<int>& bound_to() const { return bound_to_; }
  int count(const std::string& call) { return counts_[call]; }
  size_t largest_map_bytes() const { return largest_map_bytes_; }

  void* map(void* address, size_t bytes, int protection, int flags, int descriptor) override {
    if (refused("map")) return MAP_FAILED;
    largest_map_bytes_ = std::max(largest_map_bytes_, bytes);
    const bool fixed = (flags & MAP_FIXED) != 0;
    void* mapping = nullptr;
    if ((flags & MAP_HUGETLB) != 0 || hugetlb_.contains(descriptor)) {
      // Small pages stand in for those of the pool, at an address as theirs are.
      constexpr size_t kAlignment = 2U << 20U;
      const int plain = flags & (MAP_SHARED | MAP_PRIVATE | MAP_ANONYMOUS);
      mapping =
          MemoryCalls::map(nullptr, bytes + kAlignment, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
      const auto start = reinterpret_cast<uintptr_t>(mapping);
      const uintptr_t aligned = round_up<uintptr_t>(start, kAlignment);
      MemoryCalls::unmap(mapping, bytes + kAlignment);
      mapping = MemoryCalls::map(reinterpret_cast<void*>(aligned), bytes, protection,
                                 plain | MAP_FIXED, descriptor);
    } else {
      mapping = MemoryCalls::map(address, bytes, protection, flags, descriptor);
    }
    if (mapping != MAP_FAILED && !fixed) mapped_[mapping] = bytes;
    return mapping;
  }
  int unmap(void* address, size_t bytes) override {
    const auto found = mapped_.find(address);
    if (found != mapped_.end() && found->second == bytes) mapped_.erase(found);
    return MemoryCalls::unmap(address, bytes);
  }
  int protect(void* address, size_t bytes, int protection) override {
    return refused("protect") ? -1 : MemoryCalls::protect(address, bytes, protection);
  }
  int populate(void* address, size_t bytes) override {
    const std::scoped_lock lock(mutex_);
    // The question whether the kernel has this at all is not counted.
    if (bytes == 0) return has_populate ? 0 : (errno = EINVAL, -1);
    return refused("populate") ? -1 : MemoryCalls::populate(address, bytes);
  }
  int lock(void* address, size_t bytes) override {
    return refused("lock") ? -1 : MemoryCalls::lock(address, bytes);
  }
  long bind(void*, size_t, int node) override {
    if (refused("bind")) return -1;
    bound_to_.push_back(node);
    return 0;
  }
  int make_memfd(const char* name, unsigned flags) override {
    if (refused("make_memfd")) return -1;
    const int descriptor = MemoryCalls::make_memfd(name, MFD_CLOEXEC);
    descriptors_.insert(descriptor);
    if ((flags & MFD_HUGETLB) != 0) hugetlb_.insert(descriptor);
    return descriptor;
  }
  int resize(int descriptor, size_t bytes) override {
    return refused("resize") ? -1 : MemoryCalls::resize(descriptor, bytes);
  }
  int close(int descriptor) override {
    descriptors_.erase(descriptor);
    hugetlb_.erase(descriptor);
    return MemoryCalls::close(descriptor);
  }
  long query_pages(void** pages, size_t count, int* status) override {
    return refused("query_pages") ? -1 : MemoryCalls::query_pages(pages, count, status);
  }
  std::filesystem::path root() const override { return root_; }

  bool has_populate = true;

 private:
  bool refused(const std::string& call) {
    const int number = counts_[call]++;
    for (const Refusal& refusal : refusals_) {
      if (refusal.call != call) continue;
      if (refusal.for_good ? number < refusal.first : number != refusal.first) continue;
      errno = refusal.error;
      return true;
    }
    return false;
  }

  std::filesystem::path root_;
  std::vector<Refusal> refusals_;
  std::mutex mutex_;  // for what populate() touches
  std::map<std::string, int> counts_;
  std::map<void*, size_t> mapped_;
  std::set<int> descriptors_;
  std::set<int> hugetlb_;  // those of the pool
  std::vector<int> bound_to_;
  size_t largest_map_bytes_ = 0;
};

}  // namespace lockstep
