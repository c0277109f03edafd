#include "tests/emulators/gpu/cuda/machine.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <cstring>

namespace lockstep::ptx {
namespace {

constexpr uint64_t kGpusMax = 16;
constexpr uint64_t kMemoryMibMax = uint64_t{64} << 10U;

// A number between the two of the environment's variable.
uint64_t setting(const char* name, uint64_t value, uint64_t least, uint64_t most) {
  const char* const text = std::getenv(name);
  if (text == nullptr) return value;
  const char* const end = text + std::strlen(text);
  const auto [read, error] = std::from_chars(text, end, value);
  if (error == std::errc() && read == end && value >= least && value <= most) return value;
  fmt::print(stderr, "emulated CUDA: {}={}: a number from {} to {} is needed\n", name, text, least,
             most);
  std::abort();
}

}  // namespace

Machine& Machine::get() {
  static Machine& machine = *new Machine;
  return machine;
}

Machine::Machine()
    : allocations_(static_cast<int>(setting("EMULATED_GPUS", 1, 1, kGpusMax)),
                   setting("EMULATED_MEMORY_MIB", 2048, 1, kMemoryMibMax) << 20U),
      launches_block_(setting("CUDA_LAUNCH_BLOCKING", 0, 0, 1) == 1),
      refuses_unwritten_(setting("EMULATED_REFUSES_UNWRITTEN", 0, 0, 1) == 1),
      refuses_races_(setting("EMULATED_REFUSES_RACES", 1, 0, 1) == 1) {
  const auto count = static_cast<int>(setting("EMULATED_GPUS", 1, 1, kGpusMax));
  for (int index = 0; index < count; ++index) {
    Gpu::Settings settings = {
        .seed = setting("EMULATED_SEED", 0, 0, UINT64_MAX) + static_cast<uint64_t>(index),
        .delay = std::chrono::microseconds(setting("EMULATED_DELAY_US", 0, 0, 1'000'000))};
    if (index == count - 1) {
      settings.failing_launch = setting("EMULATED_FAILING_LAUNCH", 0, 0, UINT64_MAX);
      settings.hanging_launch = setting("EMULATED_HANGING_LAUNCH", 0, 0, UINT64_MAX);
    }
    gpus_.push_back(new Gpu(index, allocations_, settings));
  }
}

}  // namespace lockstep::ptx
