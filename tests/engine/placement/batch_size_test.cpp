// How many tokens a pass has where --batch-tokens says nothing.
#include <gtest/gtest.h>

#include "engine/kernels/kernel_table.h"
#include "engine/model/gguf_file.h"
#include "engine/placement/memory_fit.h"
#include "engine/placement/model_layout.h"
#include "tests/engine/placement/devices_case.h"

namespace lockstep {
namespace {

class BatchSizeTest : public DevicesTest {
 protected:
  size_t batch_on(const std::string& devices) {
    const auto layout = split(devices, topology_);
    return layout.has_value() && sized_.has_value() ? layout->plan_options.batch_tokens : 0;
  }

  size_t batch_on_both() {
    options_.shares = {1, 1, 1};
    const size_t batch = batch_on("gpu3,node0,node1");
    options_.shares.clear();
    return batch;
  }

  Topology topology_ = machine_with_one_gpu();
};

TEST_F(BatchSizeTest, passes_of_gpus_alone_are_larger) {
  EXPECT_EQ(batch_on("cpu"), 512U);
  EXPECT_EQ(batch_on_both(), 512U);
  EXPECT_EQ(batch_on("gpu3"), 2048U);
  EXPECT_EQ(batch_on("auto"), 2048U);
}

TEST_F(BatchSizeTest, larger_passes_take_nothing_of_a_contexts_space) {
  const auto large = split("gpu3", topology_);
  ASSERT_TRUE(large.has_value() && sized_.has_value());
  Gpu& gpu = topology_.gpus[0];
  const RankSizes& sizes = large->sizes[0];
  // Beside them there is no page of the cache.
  gpu.free_bytes -= usable_bytes(gpu) - (sizes.gpu_bytes() - sizes.kv_bytes);
  for (const char* devices : {"gpu3", "auto"}) {
    EXPECT_EQ(batch_on(devices), 512U);
    EXPECT_FALSE(split(devices, topology_)->gpu_places().empty());
  }
}

TEST_F(BatchSizeTest, a_number_that_is_asked_for_holds_everywhere) {
  options_.batch_tokens = 100;
  for (const char* devices : {"cpu", "gpu3", "auto"}) EXPECT_EQ(batch_on(devices), 100U);
  EXPECT_EQ(batch_on_both(), 100U);
}

TEST_F(BatchSizeTest, every_sequence_has_a_token_in_a_pass) {
  options_.sequence_count = 600;
  EXPECT_EQ(batch_on("cpu"), 600U);
  options_.batch_tokens = 599;
  expect_refusal("cpu", topology_, "sequences is 600; it must be from 1 to the 599 tokens");
}

}  // namespace
}  // namespace lockstep
