// Sums that travel by NCCL: a fake one, a thread per rank.
#include "engine/collectives/gpu_nccl_sum.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <thread>
#include <vector>

#include "engine/tensor/format.h"
#include "tests/engine/collectives/cuda/host_collectives.h"
#include "tests/engine/collectives/cuda/host_nccl.h"
#include "tests/engine/collectives/random_partials.h"

namespace lockstep {
namespace {

constexpr size_t kRankCounts[] = {2, 3, 4, 7};
// Fewer elements than ranks; parts cut short; rows that are not aligned; several blocks.
struct Shape {
  size_t rows = 0;
  size_t columns = 0;
  size_t padding = 0;
};
constexpr Shape kShapes[] = {{1, 1, 0}, {1, 5, 0}, {3, 33, 3}, {5, 64, 16}, {3, 401, 6}};

class Ranks {
 public:
  Ranks(size_t count, size_t floats) : count_(count) {
    const std::vector<int> gpus(count, 0);
    nccl_ = join_host_gpus(gpus, std::chrono::seconds(3600)).value();
    received_.assign(count, std::vector<float>(gpu_nccl_received_floats(count, floats)));
  }

  void run(const std::function<void(const GpuNcclLink& link)>& job) {
    std::vector<std::jthread> threads;
    for (size_t rank = 0; rank < count_; ++rank) {
      threads.emplace_back([&, rank] {
        job({.ranks = nccl_.get(),
             .rank = rank,
             .rank_count = count_,
             .received = received_[rank].data()});
      });
    }
  }

  NcclRanks& nccl() { return *nccl_; }

 private:
  size_t count_;
  std::unique_ptr<NcclRanks> nccl_;
  std::vector<std::vector<float>> received_;
};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

std::vector<float> expected_sum(const std::vector<std::vector<float>>& partials, bool bf16,
                                std::vector<float> output) {
  const auto travelled = [bf16](float value) {
    return bf16 ? bf16_to_float(float_to_bf16(value)) : value;
  };
  for (size_t index = 0; index < output.size(); ++index) {
    float sum = travelled(partials[0][index]);
    for (size_t rank = 1; rank < partials.size(); ++rank) sum += travelled(partials[rank][index]);
    output[index] += sum;
  }
  return output;
}

void expect_sum(size_t ranks, const Shape& shape, bool bf16) {
  SCOPED_TRACE(::testing::Message()
               << ranks << " ranks, " << shape.rows << " x " << shape.columns << ", bf16 " << bf16);
  const size_t stride = shape.columns + shape.padding;
  const size_t floats = shape.rows * stride;
  std::vector<std::vector<float>> partials;
  std::vector<size_t> all;
  for (size_t rank = 0; rank < ranks; ++rank) {
    partials.push_back(random_values(floats, static_cast<uint32_t>(rank) + 1));
    all.push_back(rank);
  }
  const std::vector<std::vector<float>> before = partials;
  const std::vector<float> begin = random_values(floats, 99);
  std::vector<std::vector<float>> outputs(ranks, begin);
  Ranks simulated(ranks, floats);
  simulated.run([&](const GpuNcclLink& link) {
    nccl_all_reduce(nullptr,
                    {.partial = partials[link.rank].data(),
                     .partial_stride = stride,
                     .output = outputs[link.rank].data(),
                     .output_stride = stride,
                     .row_count = shape.rows,
                     .column_count = shape.columns,
                     .contributors = all,
                     .bf16 = bf16},
                    link, host_collectives());
  });
  const std::vector<float> expected = expected_sum(before, bf16, begin);
  for (size_t rank = 0; rank < ranks; ++rank) {
    EXPECT_TRUE(same_bits(outputs[rank], expected)) << "rank " << rank;
    EXPECT_TRUE(simulated.nccl().check(rank).has_value());
  }
}

// As over one another's memory (gpu_all_reduce_test.cpp), where an element has one order as well.
TEST(GpuNcclSum, has_the_bits_of_the_sum_in_order_of_rank) {
  for (const size_t ranks : kRankCounts) {
    for (const Shape& shape : kShapes) {
      for (const bool bf16 : {false, true}) expect_sum(ranks, shape, bf16);
    }
  }
}

TEST(GpuNcclSum, of_two_ranks_is_an_all_reduce_of_nccl_and_of_more_is_none) {
  for (const size_t ranks : {2U, 3U}) {
    host_nccl().reset();
    expect_sum(ranks, {2, 64, 0}, false);
    EXPECT_EQ(host_nccl().counts().all_reduces, ranks == 2 ? 2U : 0U);
    EXPECT_EQ(host_nccl().counts().exchanges, ranks == 2 ? 0U : 6U);
  }
}

TEST(GpuNcclSum, joins_what_each_rank_has_a_part_of_bit_for_bit) {
  for (const size_t ranks : kRankCounts) {
    SCOPED_TRACE(ranks);
    std::vector<float> whole = random_values(1003, 5);
    // Numbers that a sum could change: zeros of both signs, the least numbers, infinities.
    const float odd[] = {0.0F, -0.0F, std::bit_cast<float>(1U), -std::bit_cast<float>(1U),
                         INFINITY};
    for (size_t index = 0; index < 50; ++index) whole[index * 20] = odd[index % std::size(odd)];
    std::vector<std::vector<float>> parts(ranks, std::vector<float>(whole.size(), -0.0F));
    for (size_t index = 0; index < whole.size(); ++index) {
      parts[index * 7 % ranks][index] = whole[index];
    }
    Ranks simulated(ranks, whole.size());
    simulated.run([&](const GpuNcclLink& link) {
      nccl_join(nullptr, parts[link.rank].data(), whole.size(), link, host_collectives());
    });
    for (const auto& part : parts) EXPECT_TRUE(same_bits(part, whole));
  }
}

TEST(GpuNcclSum, sends_what_a_ring_would) {
  EXPECT_EQ(nccl_sent_bytes({.rank_count = 2}, 1000), 4000U);
  EXPECT_EQ(nccl_sent_bytes({.rank_count = 4}, 1000), 6000U);
}

}  // namespace
}  // namespace lockstep
