// Loads into ranks on GPUs, beside ranks on processors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <set>

#include "engine/base/log.h"
#include "engine/kernels/gpu_tile.h"
#include "tests/engine/machine/faulty_calls.h"
#include "tests/engine/model/gpu_load_case.h"
#include "tests/tried_cases.h"

namespace lockstep {
namespace {

using test::FaultyCalls;
using test::GpuLoadCase;
using test::LoadFolder;
using testing::HasSubstr;

constexpr size_t kSmallBuffers = size_t{12} << 10U;

class GpuWeightLoader : public testing::Test {
 protected:
  GpuWeightLoader() { spdlog::set_level(spdlog::level::warn); }

  LoadFolder folder_;
};

std::vector<std::vector<bool>> places() {
  return {{true}, {true, true}, {true, false}, {false, true, true}, {true, false, true, false}};
}

void expect_loads(GpuLoadCase& load_case, const LoadOptions& options) {
  const auto report = load_case.load(options);
  ASSERT_TRUE(report.has_value()) << report.error().message;
  ASSERT_TRUE(load_case.has_the_files_values());
  ASSERT_TRUE(load_case.nothing_else_is_held());
  EXPECT_EQ(report->bytes, load_case.bytes_to_load());
  EXPECT_EQ(load_case.bytes_done(), report->bytes);
  EXPECT_EQ(report->not_pinned, "");
}

TEST_F(GpuWeightLoader, ranks_of_both_kinds_hold_the_files_values_for_every_split) {
  std::set<Format> formats;
  uint64_t seed = 0;
  for (const auto& on_gpu : places()) {
    for (const size_t workers : {1U, 3U}) {
      GpuLoadCase load_case(
          folder_.path(),
          {{.seed = ++seed, .ranks = on_gpu.size(), .workers = workers, .tensors = 30}, on_gpu});
      for (const Weight& weight : load_case.base().graph().weights()) {
        formats.insert(weight.format);
      }
      for (const bool late : {false, true}) {
        for (size_t rank = 0; rank < on_gpu.size(); ++rank) load_case.gpu(rank).run_late(late);
        for (const size_t buffer_bytes : {kSmallBuffers, size_t{0}}) {
          SCOPED_TRACE(testing::Message()
                       << "seed " << seed << ", late " << late << ", buffers " << buffer_bytes);
          ASSERT_NO_FATAL_FAILURE(expect_loads(load_case, {.buffer_bytes = buffer_bytes}));
        }
      }
    }
  }
  EXPECT_EQ(formats.size(), std::ranges::count_if(all_formats(), [](const FormatTraits& format) {
              return has_gpu_kernels(format.format);
            }));
}

TEST_F(GpuWeightLoader, a_panel_is_read_as_a_whole_however_wide_it_is) {
  GpuLoadCase load_case(folder_.path(), {{.seed = 31, .ranks = 2, .tensors = 20}, {true, false}});
  ASSERT_NO_FATAL_FAILURE(expect_loads(load_case, {.buffer_bytes = 1}));
}

// Every row of each slice is in one extent; a GPU's extents are whole panels of it.
TEST_F(GpuWeightLoader, extents_of_gpus_are_whole_panels_of_their_slices) {
  for (uint64_t seed = 100; seed < 100 + tried_cases(30); ++seed) {
    const std::vector<bool> on_gpu = places()[seed % places().size()];
    GpuLoadCase load_case(folder_.path(), {{.seed = seed, .ranks = on_gpu.size()}, on_gpu});
    const auto ranks = load_case.ranks();
    const Graph& graph = load_case.base().graph();
    for (const size_t extent_bytes : {size_t{1}, size_t{4000}, size_t{1} << 20U}) {
      std::map<const WeightSlice*, size_t> rows;
      const auto extents = cut_extents(load_case.base().file(), graph, ranks, extent_bytes);
      for (const auto& of_rank : extents.by_rank) {
        for (const LoadExtent& extent : of_rank) {
          for (const auto& [rank, slice] : extent.owners) {
            if (!graph.weights()[slice->weight].is_matrix) continue;
            rows[slice] += extent.end - extent.begin;
            ASSERT_LE(slice->row_begin, extent.begin);
            ASSERT_LE(extent.end, slice->row_end);
            if (!on_gpu[rank]) continue;
            ASSERT_EQ((extent.begin - slice->row_begin) % 16, 0U) << "seed " << seed;
            ASSERT_TRUE((extent.end - slice->row_begin) % 16 == 0 || extent.end == slice->row_end)
                << "seed " << seed;
          }
        }
      }
      for (const auto& [slice, count] : rows) {
        ASSERT_EQ(count, slice->row_end - slice->row_begin) << "seed " << seed;
      }
    }
  }
}

TEST_F(GpuWeightLoader, splits_that_fit_the_panels_are_read_once) {
  GpuLoadCase load_case(folder_.path(),
                        {{.seed = 7, .ranks = 4, .tensors = 40}, {true, true, true, false}});
  // Everything is held by all.
  auto ranks = load_case.ranks();
  for (RankToLoad& rank : ranks) rank.plan = ranks.front().plan;
  uint64_t bytes = 0;
  for (const WeightSlice& slice : ranks.front().plan->weights) {
    const Weight& weight = load_case.base().graph().weights()[slice.weight];
    if (slice.column_begin == slice.column_end) continue;
    bytes += weight.is_matrix
                 ? (slice.row_end - slice.row_begin) * row_bytes(weight.format, weight.columns)
                 : (slice.row_end - slice.row_begin) *
                       row_bytes(weight.format, slice.column_end - slice.column_begin);
  }
  const auto extents =
      cut_extents(load_case.base().file(), load_case.base().graph(), ranks, kSmallBuffers);
  EXPECT_EQ(extents.bytes, bytes);
}

TEST_F(GpuWeightLoader, without_pinned_buffers_it_copies_through_a_small_one) {
  GpuLoadCase load_case(folder_.path(),
                        {{.seed = 41, .ranks = 2, .workers = 2, .tensors = 20}, {true, false}});
  ASSERT_NO_FATAL_FAILURE(expect_loads(load_case, {}));
  EXPECT_EQ(load_case.gpu(0).counts().pinnings, 3U) << "both ranks' buffers, and the small one";
  load_case.gpu(0).set_pinnable(size_t{2} << 20U);  // enough for it alone
  const auto report = load_case.load();
  ASSERT_TRUE(report.has_value()) << report.error().message;
  EXPECT_TRUE(load_case.has_the_files_values());
  EXPECT_TRUE(load_case.nothing_else_is_held());
  EXPECT_THAT(report->not_pinned, HasSubstr("gpu0: "));
  load_case.gpu(0).set_pinnable(0);
  const auto refused = load_case.load();
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(refused.error().message, HasSubstr("gpu0: "));
  EXPECT_THAT(refused.error().message, HasSubstr("cannot be pinned"));
  EXPECT_TRUE(load_case.nothing_else_is_held());
}

TEST_F(GpuWeightLoader, a_gpu_that_is_lost_at_any_call_fails_the_load_with_its_message) {
  GpuLoadCase load_case(
      folder_.path(), {{.seed = 51, .ranks = 3, .workers = 2, .tensors = 8}, {false, true, true}});
  HostGpu& gpu = load_case.gpu(2);
  // The first takes the weights' memory, which is not the load's.
  size_t calls = 1;
  for (;; ++calls) {
    ASSERT_LT(calls, 10'000U) << "it never loads";
    gpu.lose(calls);
    const auto report = load_case.load({.buffer_bytes = kSmallBuffers});
    if (report.has_value()) break;
    ASSERT_EQ(report.error().kind, ErrorKind::kMachineRefused);
    ASSERT_THAT(report.error().message, HasSubstr("gpu2: "));
    ASSERT_THAT(report.error().message, HasSubstr("the GPU is lost"));
    ASSERT_TRUE(load_case.nothing_else_is_held()) << "after " << calls << " calls";
  }
  EXPECT_GT(calls, 20U);
  EXPECT_TRUE(load_case.has_the_files_values());
}

TEST_F(GpuWeightLoader, a_gpu_without_memory_for_the_way_there_says_so) {
  GpuLoadCase load_case(folder_.path(), {{.seed = 61, .ranks = 1, .tensors = 8}, {true}});
  ASSERT_NO_FATAL_FAILURE(expect_loads(load_case, {}));
  HostGpu& gpu = load_case.gpu(0);
  const size_t weights = gpu.counts().allocated_bytes;
  gpu.set_memory(weights + gpu_staging_bytes_max(load_case.base().graph()));
  ASSERT_NO_FATAL_FAILURE(expect_loads(load_case, {}));
  gpu.set_memory(weights + 1000);
  const auto report = load_case.load();
  ASSERT_FALSE(report.has_value());
  EXPECT_EQ(report.error().kind, ErrorKind::kMachineRefused);
  EXPECT_THAT(report.error().message, HasSubstr("gpu0: "));
  EXPECT_THAT(report.error().message, HasSubstr("weights that are to be packed"));
  EXPECT_TRUE(load_case.nothing_else_is_held());
}

TEST_F(GpuWeightLoader, an_io_error_leaves_nothing_on_the_gpu_but_the_weights_memory) {
  GpuLoadCase load_case(folder_.path(),
                        {{.seed = 71, .ranks = 2, .workers = 2, .tensors = 12}, {true, true}});
  for (const size_t read : {0U, 3U, 9U}) {
    FaultyCalls calls;
    calls.read_to_fail = read;
    calls.read_error = EIO;
    const auto report = load_case.load({.buffer_bytes = kSmallBuffers, .calls = &calls});
    ASSERT_FALSE(report.has_value());
    EXPECT_THAT(report.error().message, HasSubstr(load_case.base().path().string()));
    EXPECT_TRUE(load_case.nothing_else_is_held());
  }
  for (int allocation = 0; allocation < 2; ++allocation) {
    FaultyCalls calls;
    calls.allocation_to_fail = allocation;
    EXPECT_FALSE(load_case.load({.calls = &calls}).has_value());
    EXPECT_TRUE(load_case.nothing_else_is_held());
  }
  ASSERT_NO_FATAL_FAILURE(expect_loads(load_case, {}));
}

}  // namespace
}  // namespace lockstep
