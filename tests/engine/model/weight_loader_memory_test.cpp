// A load for which one allocation, whichever, finds no memory: it fails with a message, or loads.
// A program of its own, for it replaces operator new.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "engine/base/log.h"
#include "engine/model/weight_loader.h"
#include "tests/engine/model/load_case.h"

namespace {

// Allocations until they fail; negative: none does.
std::atomic<long> allocations_left = -1;
std::atomic<bool> fails_from_then_on = false;

bool may_allocate() {
  if (allocations_left.load(std::memory_order_relaxed) < 0) return true;
  const long left = allocations_left.fetch_sub(1);
  if (left > 0) return true;
  if (fails_from_then_on) allocations_left = 0;
  return false;
}

void* allocate(size_t bytes) {
  void* memory = may_allocate() ? std::malloc(bytes == 0 ? 1 : bytes) : nullptr;
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(size_t bytes) {
  return allocate(bytes);
}
void* operator new[](size_t bytes) {
  return allocate(bytes);
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete[](void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, size_t) noexcept {
  std::free(memory);
}

namespace lockstep {
namespace {

// Loads again and again, with the first, the second ... allocation failing, until none does.
// Returns how many there were.
long fail_each_allocation(const LoadOptions& options, bool from_then_on) {
  const test::LoadFolder folder;
  test::LoadCase load_case(folder.path(), {.seed = 9, .ranks = 2, .workers = 2, .tensors = 12});
  fails_from_then_on = from_then_on;
  for (long allocation = 0; allocation < 100'000; ++allocation) {
    allocations_left = allocation;
    const auto report = load_case.load(options);
    const bool all_allocated = allocations_left.exchange(-1) > 0;
    if (report.has_value()) {
      EXPECT_TRUE(load_case.loaded() == load_case.expected());
      if (all_allocated) return allocation;
    } else {
      EXPECT_EQ(report.error().kind, ErrorKind::kMachineRefused);
      EXPECT_NE(report.error().message.find("memory"), std::string::npos) << report.error().message;
    }
  }
  ADD_FAILURE() << "it never loads";
  return 0;
}

TEST(WeightLoaderMemory, no_memory_for_any_one_allocation_is_an_error_or_goes_without) {
  spdlog::set_level(spdlog::level::off);
  for (const bool io_uring : {true, false}) {
    const LoadOptions options = {.io_uring = io_uring, .buffer_bytes = size_t{12} << 10U};
    EXPECT_GT(fail_each_allocation(options, false), 20);
    EXPECT_GT(fail_each_allocation(options, true), 20);
  }
}

}  // namespace
}  // namespace lockstep
