// The two ways in which many tokens are multiplied, of which a GPU has one: by products of warp
// groups, or without them. What a GPU launches is tried by product_test.cpp.
#include <gtest/gtest.h>

#include <vector>

#include "tests/engine/kernels/cuda/format_cases.h"
#include "tests/engine/kernels/cuda/host_grid.h"
#include "tests/engine/kernels/cuda/product_inputs.h"

namespace lockstep {
namespace {

constexpr size_t kSeed = 120;

class GpuProductWaysOf : public testing::TestWithParam<Format> {
 protected:
  void TearDown() override { HostGrid::set_group_products(true); }
};

TEST_P(GpuProductWaysOf, give_the_same_bits) {
  RandomEngine random(kSeed);
  constexpr size_t kRows = 32 * 9 + 5;  // more than a block's, and an odd end
  constexpr size_t kTokens = 67;
  const size_t block = traits(GetParam()).block_elements;
  // More units than sums, and stages that are used again.
  const size_t columns = block == 256 ? 256 * 10 : 128 * 17 + 32;
  const Weights weights(GetParam(), kRows, columns, random);
  const Inputs inputs(GetParam(), kTokens, columns, random);
  struct Case {
    uint32_t count;
    size_t limit;
  };
  for (const Case& some : {Case{11, 16}, Case{32, 32}, Case{64, 64}, Case{67, 128}}) {
    std::vector<float> outputs[2][2];
    for (const bool has : {false, true}) {
      for (const bool split : {false, true}) {
        HostGrid::set_group_products(has);
        outputs[has][split] =
            multiply_all(weights.matrix(), inputs, 0, some.count, some.limit, split);
      }
    }
    EXPECT_EQ(outputs[0][0], outputs[1][0]) << "seed " << kSeed << ", " << some.count << " tokens";
    EXPECT_EQ(outputs[0][0], outputs[1][1]) << "seed " << kSeed << ", " << some.count << " tokens";
    EXPECT_EQ(outputs[0][0], outputs[0][1]) << "seed " << kSeed << ", " << some.count << " tokens";
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, GpuProductWaysOf, testing::ValuesIn(every_format()),
                         name_of_format);

}  // namespace
}  // namespace lockstep
