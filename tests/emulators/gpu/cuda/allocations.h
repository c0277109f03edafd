// The memory of emulated GPUs, and what of the host's they reach: who may touch which address.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <map>
#include <optional>
#include <shared_mutex>
#include <string>
#include <vector>

#include "tests/emulators/gpu/memory.h"

namespace lockstep::ptx {

constexpr int kHost = -1;  // in place of a GPU

// One allocation, or one piece of the host's memory that is registered.
struct Allocation {
  enum class Kind { kDevice, kManaged, kRegistered };

  MemoryRange range;  // the very bytes that were asked for
  Kind kind = Kind::kDevice;
  int gpu = kHost;  // whose memory it is
};

// Any thread may call.
//
// The address of a GPU's memory is one that the host cannot touch: what lies there is kept
// elsewhere. Between two allocations there is nothing, and no address is given twice, so neither
// what is behind an allocation nor what has been freed is another's.
class Allocations {
 public:
  enum class Registration { kDone, kAlready, kNotThere };

  Allocations(int gpus, size_t bytes_per_gpu);

  // 256-byte aligned and no more; every bit set: no number in any format. Null: no space.
  void* allocate(int gpu, size_t bytes);
  // Memory of the host that all GPUs reach.
  void* allocate_managed(size_t bytes);
  // The same of memory that the caller has, until free(); ones that lie side by side are two.
  void add_managed(void* memory, size_t bytes);
  // False: it is not the begin of an allocation.
  bool free(void* address);

  Registration register_host(void* address, size_t bytes);
  bool unregister_host(void* address);

  size_t total_bytes() const { return bytes_per_gpu_; }
  size_t free_bytes(int gpu) const;

  // From now on `gpu` reaches the memory of `other`. False: it did so before.
  bool open_peer(int gpu, int other);

  // The allocation that contains `address`; nothing: none does.
  std::optional<Allocation> find(uint64_t address) const;
  // The same, for what may touch all of these bytes: a GPU's kernels, or a copy (kHost), which
  // goes anywhere. Nothing: they may not, and `why` says it.
  std::optional<Allocation> find(int gpu, uint64_t address, size_t bytes, std::string& why) const;

  // The host's memory behind `address`, which the interpreter may touch.
  static std::byte* place(const Allocation& allocation, uint64_t address) {
    return allocation.range.host + (address - allocation.range.begin);
  }

 private:
  // The program's operator new may tell this class of what it gives (emulated_test_memory.cpp).
  template <typename T>
  struct Malloc {
    using value_type = T;
    Malloc() = default;
    template <typename Other>
    explicit Malloc(const Malloc<Other>&) {}
    T* allocate(size_t count) { return static_cast<T*>(std::malloc(count * sizeof(T))); }
    void deallocate(T* memory, size_t) { std::free(memory); }
    bool operator==(const Malloc&) const = default;
  };

  struct Held {
    Allocation allocation;
    void* mapping = nullptr;   // what is unmapped at its end
    size_t mapping_bytes = 0;  // 0: it is not this class's
  };

  bool reaches(int gpu, int other) const;
  uint64_t give_address(int gpu, size_t bytes);
  void hold_managed(void* memory, size_t bytes, size_t mapped_bytes);

  size_t bytes_per_gpu_;
  mutable std::shared_mutex mutex_;
  std::map<uint64_t, Held, std::less<>, Malloc<std::pair<const uint64_t, Held>>> held_;  // by begin
  std::vector<uint64_t> next_address_;    // of each GPU
  std::vector<size_t> used_bytes_;        // likewise
  std::vector<std::vector<bool>> peers_;  // [gpu][other]
};

}  // namespace lockstep::ptx
