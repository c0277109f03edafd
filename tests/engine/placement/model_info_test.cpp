#include "engine/placement/model_info.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/kernels/kernel_table.h"
#include "engine/model/gguf_file.h"
#include "tests/engine/machine/sysfs_tree.h"
#include "tests/engine/placement/machine_of.h"
#include "tests/engine/placement/place_model.h"
#include "tests/paths.h"

namespace lockstep {
namespace {

class ModelInfoTest : public ::testing::Test {
 protected:
  ModelInfoTest() {
    options_.model = source_dir() + "/config/demo.gguf";
    options_.devices = "cpu";
  }

  std::string fingerprint(uint32_t ranks, const std::vector<double>& shares = {}) {
    options_.rank_count = ranks;
    options_.shares = shares;
    const auto file = GgufFile::open(options_.model);
    const auto model = build_model({.file = *file});
    const Topology topology = topology_of(two_socket_machine(), "0-15", "0-1");
    const auto layout = place_model(*model, options_, machine_of(topology));
    EXPECT_TRUE(layout.has_value()) << layout.error().message;
    return layout ? describe_model(*file, *model, options_, *layout).fingerprint : "";
  }

  EngineOptions options_;
};

TEST_F(ModelInfoTest, the_fingerprint_is_the_same_for_any_ranks_that_gather) {
  const std::string whole = fingerprint(1);
  for (const char* const format : {"f32", "bf16"}) {
    options_.exchange_format = format;
    EXPECT_EQ(fingerprint(2), whole);
    EXPECT_EQ(fingerprint(3, {3, 2, 1}), whole);
  }
  options_.strategy = "reduce";
  EXPECT_EQ(fingerprint(1), whole) << "nothing to add up";
}

TEST_F(ModelInfoTest, the_fingerprint_tells_how_sums_are_cut_and_travel) {
  const std::string whole = fingerprint(1);
  options_.strategy = "reduce";
  const std::string even = fingerprint(2, {1, 1});
  EXPECT_NE(even, whole);
  EXPECT_EQ(fingerprint(2, {8, 8}), even);
  EXPECT_NE(fingerprint(2, {3, 1}), even);
  EXPECT_NE(fingerprint(2, {1, 3}), fingerprint(2, {3, 1}));
  EXPECT_NE(fingerprint(4, {1, 1, 1, 1}), even);
  options_.exchange_format = "bf16";
  EXPECT_NE(fingerprint(2, {1, 1}), even);
}

}  // namespace
}  // namespace lockstep
