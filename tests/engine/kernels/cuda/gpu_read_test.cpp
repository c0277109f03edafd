// Reading a GPU's memory, for the time it takes.
#include <gtest/gtest.h>

#include <vector>

#include "engine/kernels/gpu_rows.h"

namespace lockstep {
namespace {

constexpr uint32_t kUntouched = 0x1234;
constexpr size_t kWords = kGpuReadStretch / sizeof(uint32_t);

// No load is left out, and none is made twice: each word has bits of its own in its stretch's sum.
TEST(GpuRead, every_word_of_every_stretch_is_in_its_sum_once) {
  for (const size_t stretches : {size_t{1}, size_t{8}, size_t{19}}) {
    std::vector<uint32_t> memory(stretches * kWords);
    for (size_t word = 0; word < memory.size(); ++word) {
      memory[word] = static_cast<uint32_t>(word * 0x9E3779B9U + word * word);
    }
    std::vector<uint32_t> sums(stretches + 1, kUntouched);
    gpu_read_memory(nullptr, {.memory = reinterpret_cast<const std::byte*>(memory.data()),
                              .bytes = stretches * kGpuReadStretch,
                              .sums = sums.data()});
    for (size_t stretch = 0; stretch < stretches; ++stretch) {
      uint32_t sum = 0;
      for (size_t word = 0; word < kWords; ++word) sum += memory[stretch * kWords + word];
      EXPECT_EQ(sums[stretch], sum) << stretch << " of " << stretches;
    }
    EXPECT_EQ(sums[stretches], kUntouched);
  }
}

TEST(GpuRead, of_no_bytes_nothing_is_written) {
  std::vector<uint32_t> sums(1, kUntouched);
  gpu_read_memory(nullptr, {.memory = nullptr, .bytes = 0, .sums = sums.data()});
  EXPECT_EQ(sums[0], kUntouched);
}

}  // namespace
}  // namespace lockstep
