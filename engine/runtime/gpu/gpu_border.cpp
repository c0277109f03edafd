#include "engine/runtime/gpu/gpu_border.h"

#include <string_view>
#include <thread>
#include <utility>

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;

// How one side's thread is waited for, which enqueues what the other's wants, or is a chunk behind.
// Sleeping comes where 50 us more or less are not seen.
constexpr std::chrono::microseconds kLooking{100};
constexpr std::chrono::microseconds kBetweenLooks{50};

constexpr std::string_view kHandedRows = "the rows of another GPU's layers";

}  // namespace

Result<std::unique_ptr<GpuBorder>> GpuBorder::make(const Side& giver, const Side& taker,
                                                   size_t slot_count, size_t bytes, bool reaches,
                                                   int node) {
  std::unique_ptr<GpuBorder> border(new GpuBorder(giver, taker, bytes));
  for (size_t slot = 0; slot < slot_count; ++slot) {
    auto event = giver.device->make_event();
    if (!event) return std::unexpected(event.error());
    border->given_events_.push_back(std::move(*event));
  }
  if (reaches) {
    auto memory = taker.device->allocate(slot_count * bytes, kHandedRows);
    if (!memory) return std::unexpected(memory.error());
    border->memory_ = std::move(*memory);
    return border;
  }
  auto host =
      NodeMemory::allocate({.bytes = slot_count * bytes, .what = kHandedRows, .node = node});
  if (!host) return std::unexpected(host.error());
  border->host_ = std::move(*host);
  auto pinned = taker.device->pin({border->host_.data(), border->host_.size_bytes()});
  if (!pinned) return std::unexpected(pinned.error());
  border->pinned_ = std::move(*pinned);
  return border;
}

std::byte* GpuBorder::rows_of(uint64_t chunk) const {
  std::byte* const slots = memory_.size_bytes() > 0 ? memory_.data() : host_.data();
  return slots + slot_of(chunk) * slot_bytes_;
}

template <typename Condition>
bool GpuBorder::wait_for(TimePoint deadline, const Condition& condition) const {
  const Clock::time_point begin = Clock::now();
  while (!condition()) {
    const Clock::time_point now = Clock::now();
    if (is_abandoned_.load(std::memory_order_acquire) || now > deadline) return false;
    if (now - begin > kLooking) {
      std::this_thread::sleep_for(kBetweenLooks);
    } else {
      std::this_thread::yield();
    }
  }
  return true;
}

Result<bool> GpuBorder::give(GpuStream& stream, const std::byte* rows, size_t bytes,
                             TimePoint deadline) {
  const uint64_t chunk = given_.load(std::memory_order_relaxed);
  const auto has_space = [&] {
    return chunk < taken_.load(std::memory_order_acquire) + given_events_.size();
  };
  if (!wait_for(deadline, has_space)) return false;
  if (auto copied = stream.copy(rows_of(chunk), rows, bytes); !copied) {
    return std::unexpected(copied.error());
  }
  if (auto recorded = stream.record(*given_events_[slot_of(chunk)]); !recorded) {
    return std::unexpected(recorded.error());
  }
  given_.store(chunk + 1, std::memory_order_release);
  return true;
}

Result<bool> GpuBorder::take(GpuStream& stream, std::byte* rows, size_t bytes, TimePoint deadline) {
  const uint64_t chunk = taken_.load(std::memory_order_relaxed);
  const auto is_given = [&] { return chunk < given_.load(std::memory_order_acquire); };
  if (!wait_for(deadline, is_given)) return false;
  if (auto waits = stream.wait_for(*given_events_[slot_of(chunk)]); !waits) {
    return std::unexpected(waits.error());
  }
  if (auto copied = stream.copy(rows, rows_of(chunk), bytes); !copied) {
    return std::unexpected(copied.error());
  }
  return true;
}

// A GPU that says nothing of its event is one that is waited for.
bool GpuBorder::is_awaited() const {
  const uint64_t chunk = taken_.load(std::memory_order_relaxed);
  return !given_events_[slot_of(chunk)]->has_come().value_or(false);
}

}  // namespace lockstep
