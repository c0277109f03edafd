#include "tests/emulators/gpu/cuda/allocations.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <mutex>

namespace lockstep::ptx {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kAlignment = 256;
// Size of the range of addresses that each GPU has. No address is used again.
constexpr uint64_t kWindow = uint64_t{1} << 40U;
constexpr int kNobodysNumber = 0xFF;

uint64_t round_up(uint64_t value, uint64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

void* map(size_t bytes, int protection) {
  void* const memory =
      mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory != MAP_FAILED) return memory;
  fmt::print(stderr, "emulated CUDA: no {} MiB of the host's memory\n", bytes >> 20U);
  std::abort();
}

// The windows of all GPUs, for the handler.
uint64_t windows_begin = 0;
uint64_t windows_end = 0;
struct sigaction handler_before;

// Says what it was, and ends the process as it would have ended.
void say_what_was_touched(int signal, siginfo_t* info, void*) {
  const auto address = reinterpret_cast<uint64_t>(info->si_addr);
  if (address >= windows_begin && address < windows_end) {
    char words[128];
    const auto written = fmt::format_to_n(
        words, sizeof(words), "emulated CUDA: the host touched memory of gpu{}: {:#x}\n",
        (address - windows_begin) / kWindow, address);
    [[maybe_unused]] const auto told = write(STDERR_FILENO, words, written.size);
  }
  sigaction(signal, &handler_before, nullptr);
}

bool is_part(const Allocation& allocation, uint64_t address, size_t bytes) {
  const MemoryRange& range = allocation.range;
  return address >= range.begin && address < range.end && bytes <= range.end - address;
}

}  // namespace

Allocations::Allocations(int gpus, size_t bytes_per_gpu)
    : bytes_per_gpu_(bytes_per_gpu),
      used_bytes_(static_cast<size_t>(gpus)),
      peers_(static_cast<size_t>(gpus), std::vector<bool>(static_cast<size_t>(gpus))) {
  windows_begin = reinterpret_cast<uint64_t>(
      map(kWindow * static_cast<uint64_t>(std::max(gpus, 1)), PROT_NONE));
  windows_end = windows_begin + kWindow * static_cast<uint64_t>(gpus);
  for (int gpu = 0; gpu < gpus; ++gpu) {
    next_address_.push_back(windows_begin + kWindow * static_cast<uint64_t>(gpu));
  }
  struct sigaction action = {};
  action.sa_sigaction = &say_what_was_touched;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGSEGV, &action, &handler_before);
}

// Odd multiples of the alignment, with at least a page of nothing before each.
uint64_t Allocations::give_address(int gpu, size_t bytes) {
  uint64_t& next = next_address_[static_cast<size_t>(gpu)];
  const uint64_t address = next + kPage + kAlignment;
  const uint64_t end = windows_begin + kWindow * static_cast<uint64_t>(gpu + 1);
  if (address + bytes > end) return 0;
  next = round_up(address + bytes, kPage);
  return address;
}

void* Allocations::allocate(int gpu, size_t bytes) {
  const std::unique_lock lock(mutex_);
  size_t& used = used_bytes_[static_cast<size_t>(gpu)];
  if (bytes > bytes_per_gpu_ - used) return nullptr;
  const uint64_t address = give_address(gpu, bytes);
  if (address == 0) return nullptr;
  const size_t mapped = round_up(bytes + kAlignment, kPage);
  void* const memory = map(mapped, PROT_READ | PROT_WRITE);
  auto* const host = static_cast<std::byte*>(memory) + kAlignment;
  std::memset(host, kNobodysNumber, bytes);
  used += bytes;
  held_[address] = {
      {{address, address + bytes, host}, Allocation::Kind::kDevice, gpu}, memory, mapped};
  return reinterpret_cast<void*>(address);
}

void* Allocations::allocate_managed(size_t bytes) {
  const size_t mapped = round_up(bytes, kPage);
  void* const memory = map(mapped, PROT_READ | PROT_WRITE);
  const std::unique_lock lock(mutex_);
  hold_managed(memory, bytes, mapped);
  return memory;
}

void Allocations::add_managed(void* memory, size_t bytes) {
  const std::unique_lock lock(mutex_);
  hold_managed(memory, bytes, 0);
}

void Allocations::hold_managed(void* memory, size_t bytes, size_t mapped_bytes) {
  const auto address = reinterpret_cast<uint64_t>(memory);
  const MemoryRange range = {address, address + bytes, static_cast<std::byte*>(memory)};
  held_[address] = {{range, Allocation::Kind::kManaged, kHost}, memory, mapped_bytes};
}

bool Allocations::free(void* address) {
  const std::unique_lock lock(mutex_);
  const auto found = held_.find(reinterpret_cast<uint64_t>(address));
  if (found == held_.end()) return false;
  const Held& held = found->second;
  const Allocation& allocation = held.allocation;
  if (allocation.kind == Allocation::Kind::kRegistered) return false;
  if (allocation.gpu != kHost) {
    used_bytes_[static_cast<size_t>(allocation.gpu)] -=
        allocation.range.end - allocation.range.begin;
  }
  if (held.mapping_bytes > 0) munmap(held.mapping, held.mapping_bytes);
  held_.erase(found);
  return true;
}

// CUDA pins whole pages, so that two pieces share none.
Allocations::Registration Allocations::register_host(void* address, size_t bytes) {
  const auto begin = reinterpret_cast<uint64_t>(address);
  const uint64_t first = begin / kPage * kPage;
  const uint64_t last = round_up(begin + bytes, kPage);
  // Only mapped pages can be pinned.
  if (msync(reinterpret_cast<void*>(first), last - first, MS_ASYNC) != 0) {
    return Registration::kNotThere;
  }
  const std::unique_lock lock(mutex_);
  auto next = held_.lower_bound(last);
  if (next != held_.begin() && (--next)->second.allocation.range.end > first) {
    return Registration::kAlready;
  }
  held_[begin] = {
      {{begin, begin + bytes, static_cast<std::byte*>(address)}, Allocation::Kind::kRegistered},
      nullptr,
      0};
  return Registration::kDone;
}

bool Allocations::unregister_host(void* address) {
  const std::unique_lock lock(mutex_);
  const auto found = held_.find(reinterpret_cast<uint64_t>(address));
  if (found == held_.end() || found->second.allocation.kind != Allocation::Kind::kRegistered) {
    return false;
  }
  held_.erase(found);
  return true;
}

size_t Allocations::free_bytes(int gpu) const {
  const std::shared_lock lock(mutex_);
  return bytes_per_gpu_ - used_bytes_[static_cast<size_t>(gpu)];
}

bool Allocations::open_peer(int gpu, int other) {
  const std::unique_lock lock(mutex_);
  auto peer = peers_[static_cast<size_t>(gpu)][static_cast<size_t>(other)];
  if (peer) return false;
  peer = true;
  return true;
}

std::optional<Allocation> Allocations::find(uint64_t address) const {
  const std::shared_lock lock(mutex_);
  auto next = held_.upper_bound(address);
  if (next == held_.begin()) return std::nullopt;
  const Allocation& allocation = (--next)->second.allocation;
  return address < allocation.range.end ? std::optional(allocation) : std::nullopt;
}

bool Allocations::reaches(int gpu, int other) const {
  if (gpu == kHost || other == kHost || gpu == other) return true;
  const std::shared_lock lock(mutex_);
  return peers_[static_cast<size_t>(gpu)][static_cast<size_t>(other)];
}

std::optional<Allocation> Allocations::find(int gpu, uint64_t address, size_t bytes,
                                            std::string& why) const {
  const std::optional<Allocation> found = find(address);
  if (!found) {
    why =
        fmt::format("{:#x} is neither memory of a GPU nor registered memory of the host", address);
    return std::nullopt;
  }
  if (!is_part(*found, address, bytes)) {
    why = fmt::format("{} bytes at {:#x} go over the end of an allocation, {:#x} of {} bytes",
                      bytes, address, found->range.begin, found->range.end - found->range.begin);
    return std::nullopt;
  }
  if (!reaches(gpu, found->gpu)) {
    why = fmt::format("{:#x} is memory of gpu{}, to which gpu{} has no peer access", address,
                      found->gpu, gpu);
    return std::nullopt;
  }
  return found;
}

}  // namespace lockstep::ptx
