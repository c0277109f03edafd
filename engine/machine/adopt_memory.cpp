// How an arena is left to another process, and how it is taken over.
#include <fcntl.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "engine/base/check.h"
#include "engine/base/checked_math.h"
#include "engine/machine/arena_rules.h"
#include "engine/machine/kept_memory.h"
#include "engine/machine/memory_calls.h"
#include "engine/machine/node_memory.h"
#include "engine/machine/page_placement.h"

namespace lockstep {
namespace {

// A mapping through a descriptor that can write counts as a writer, however it is protected, and
// kernels before 6.7 refuse it of sealed memory: it is opened again, for reading.
Descriptor open_for_reading(int descriptor) {
  return Descriptor(
      ::open(fmt::format("/proc/self/fd/{}", descriptor).c_str(), O_RDONLY | O_CLOEXEC));
}

PageKind kind_of(uint64_t huge_page_bytes) {
  if (huge_page_bytes == kGigaPageBytes) return PageKind::kHuge1GiB;
  return huge_page_bytes != 0 ? PageKind::kHuge2MiB : PageKind::kSmall;
}

}  // namespace

Result<void> NodeMemory::seal(Workers* workers) {
  CHECK(descriptor_ >= 0, "anonymous memory cannot be sealed");
  if (sealed_) return {};
  const Descriptor reading = open_for_reading(descriptor_);
  if (!reading.is_open()) {
    return machine_refused(
        "/proc/self/fd/{} cannot be opened for reading: {}; see that /proc is "
        "mounted",
        descriptor_, std::strerror(errno));
  }
  constexpr int kInPlace = MAP_SHARED | MAP_FIXED;
  if (calls_->map(data_, size_bytes_, PROT_READ, kInPlace, reading.number()) == MAP_FAILED) {
    const int error = errno;
    CHECK(calls_->map(data_, size_bytes_, PROT_READ | PROT_WRITE, kInPlace, descriptor_) !=
              MAP_FAILED,
          "an arena could not be mapped again: {}", std::strerror(errno));
    return machine_refused("mapping for reading only: mmap: {}", std::strerror(error));
  }
  calls_->advise(data_, size_bytes_, MADV_DONTDUMP);
  const int populated =
      populate_filled(*calls_, {data_, size_bytes_}, page_bytes_of(page_kind_), workers);
  if (populated != 0) return machine_refused("mapping again: {}", std::strerror(populated));
  // A lock is the mapping's, and this is another one.
  if (locked_) {
    if (auto locked = lock("an arena to be sealed"); !locked) return locked;
  }
  if (::fcntl(descriptor_, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return machine_refused("sealing: {}", std::strerror(errno));
  }
  sealed_ = true;
  return {};
}

Result<NodeMemory> NodeMemory::adopt(KeptArena kept, const MemoryRequest& request) {
  const auto refused = [&](std::string_view call, int error) {
    return machine_refused("taking over the memory of {}: {}: {}", request.what, call,
                           std::strerror(error));
  };
  const auto facts = examine_memfd(kept.descriptor.number());
  if (!facts || facts->bytes != kept.bytes || facts->sealed != kept.sealed) {
    return machine_refused("taking over the memory of {}: it is not what was kept", request.what);
  }
  const Descriptor reading =
      kept.sealed ? open_for_reading(kept.descriptor.number()) : Descriptor();
  if (kept.sealed && !reading.is_open()) return refused("open", errno);
  const int descriptor = kept.sealed ? reading.number() : kept.descriptor.number();

  NodeMemory memory;
  memory.calls_ = request.calls != nullptr ? request.calls : &MemoryCalls::system();
  MemoryCalls& calls = *memory.calls_;
  memory.node_ = request.node;
  memory.page_kind_ = kind_of(facts->huge_page_bytes);
  const int protection = kept.sealed ? PROT_READ : PROT_READ | PROT_WRITE;
  void* address = nullptr;
  if (facts->huge_page_bytes == 0) {
    // As a new arena's: aligned, between pages that nobody may touch.
    memory.mapping_bytes_ = kept.bytes + kHugePageBytes + 2 * kSmallPageBytes;
    void* const reserved =
        calls.map(nullptr, memory.mapping_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    if (reserved == MAP_FAILED) return refused("mmap", errno);
    memory.mapping_ = reserved;
    address = reinterpret_cast<void*>(round_up<uintptr_t>(
        reinterpret_cast<uintptr_t>(reserved) + kSmallPageBytes, kHugePageBytes));
  }
  const int flags = address != nullptr ? MAP_SHARED | MAP_FIXED : MAP_SHARED;
  void* const mapping = calls.map(address, kept.bytes, protection, flags, descriptor);
  if (mapping == MAP_FAILED) return refused("mmap", errno);
  if (address == nullptr) {
    memory.mapping_ = mapping;
    memory.mapping_bytes_ = kept.bytes;
  }
  memory.data_ = static_cast<std::byte*>(mapping);
  memory.size_bytes_ = kept.bytes;
  calls.advise(memory.data_, memory.size_bytes_, MADV_DONTDUMP);
  // For pages that the kernel may put elsewhere from now on; those that are there stay.
  if (request.node >= 0) {
    memory.bound_ = calls.bind(memory.data_, memory.size_bytes_, request.node) == 0;
  }
  const std::span<std::byte> bytes(memory.data_, memory.size_bytes_);
  const size_t page_bytes = page_bytes_of(memory.page_kind_);
  const int populated = kept.sealed ? populate_filled(calls, bytes, page_bytes, request.workers)
                                    : populate(calls, bytes, page_bytes, request.workers);
  if (populated != 0) return refused("populating it", populated);
  if (memory.page_kind_ == PageKind::kSmall) {
    const auto sizes = read_page_sizes(bytes);
    if (sizes && sizes->huge_bytes * 2 >= sizes->resident_bytes && sizes->huge_bytes > 0) {
      memory.page_kind_ = PageKind::kTransparent;
    }
  }
  if (request.lock) {
    if (auto locked = memory.lock(request.what); !locked) return std::unexpected(locked.error());
  }
  memory.sealed_ = kept.sealed;
  memory.descriptor_ = kept.descriptor.release();
  return memory;
}

}  // namespace lockstep
