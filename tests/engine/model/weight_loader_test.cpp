#include "engine/model/weight_loader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <utility>
#include <vector>

#include "engine/model/load_extents.h"
#include "tests/engine/machine/faulty_calls.h"
#include "tests/engine/model/load_case.h"
#include "tests/tried_cases.h"

namespace lockstep {
namespace {

using test::FaultyCalls;
using test::LoadCase;
using test::LoadFolder;
using test::LoadShape;

// Folders of a real disk and of memory.
std::vector<std::filesystem::path> parents() {
  std::vector<std::filesystem::path> parents = {std::filesystem::temp_directory_path()};
  if (std::filesystem::is_directory("/dev/shm")) parents.emplace_back("/dev/shm");
  return parents;
}

std::vector<LoadOptions> all_ways() {
  std::vector<LoadOptions> ways;
  for (const bool direct : {true, false}) {
    for (const bool io_uring : {true, false}) {
      // Reads of a few rows, and whole tensors in one.
      for (const size_t bytes : {size_t{12} << 10U, size_t{0}}) {
        ways.push_back({.direct = direct, .io_uring = io_uring, .buffer_bytes = bytes});
      }
    }
  }
  return ways;
}

void expect_loads(LoadCase& load_case, const LoadOptions& options) {
  const auto report = load_case.load(options);
  ASSERT_TRUE(report.has_value()) << report.error().message;
  ASSERT_TRUE(load_case.loaded() == load_case.expected());
  EXPECT_EQ(report->bytes, load_case.bytes_to_load());
  EXPECT_EQ(load_case.bytes_done(), report->bytes);
}

TEST(WeightLoader, arenas_equal_the_file_for_every_split_worker_count_and_way_of_reading) {
  size_t number = 0;
  for (const auto& parent : parents()) {
    const LoadFolder folder(parent);
    for (size_t ranks = 1; ranks <= 7; ++ranks) {
      for (const size_t workers : {1U, 2U, 4U}) {
        const LoadShape shape = {.seed = 10 * ranks + workers, .ranks = ranks, .workers = workers};
        LoadCase load_case(folder.path(), shape);
        for (const LoadOptions& options : all_ways()) {
          if (!is_tried_case(number++)) continue;
          SCOPED_TRACE(testing::Message()
                       << parent << " ranks " << ranks << " workers " << workers << " direct "
                       << options.direct << " io_uring " << options.io_uring << " buffers "
                       << options.buffer_bytes);
          ASSERT_NO_FATAL_FAILURE(expect_loads(load_case, options));
        }
      }
    }
  }
}

TEST(WeightLoader, a_model_in_several_files_is_loaded_from_all) {
  const LoadFolder folder;
  LoadCase load_case(folder.path(), {.seed = 5, .ranks = 3, .workers = 2, .parts = 4});
  for (const LoadOptions& options : all_ways()) {
    ASSERT_NO_FATAL_FAILURE(expect_loads(load_case, options));
  }
}

// Blocks at the ends of a stretch aside: a block is shared with neighbours.
TEST(WeightLoader, each_byte_is_read_once) {
  const LoadFolder folder;
  for (uint64_t seed = 0; seed < tried_cases(10); ++seed) {
    for (LoadOptions options : all_ways()) {
      LoadCase load_case(folder.path(), {.seed = seed, .ranks = 1 + seed % 4, .workers = 2});
      FaultyCalls calls;
      options.calls = &calls;
      ASSERT_NO_FATAL_FAILURE(expect_loads(load_case, options));
      auto seen = calls.seen();
      std::ranges::sort(seen, {},
                        [](const auto& read) { return std::pair(read.offset, read.end); });
      constexpr uint64_t kBlockBytes = 4096;
      uint64_t end = 0;
      uint64_t bytes = 0;
      for (const FaultyCalls::Seen& read : seen) {
        EXPECT_LE(end, read.offset + kBlockBytes) << "seed " << seed;
        end = std::max(end, read.end);
        bytes += read.end - read.offset;
      }
      EXPECT_GE(bytes, load_case.bytes_to_load());
      EXPECT_LE(bytes, load_case.bytes_to_load() + 2 * kBlockBytes * seen.size());
    }
  }
}

TEST(WeightLoader, what_one_rank_holds_it_reads_itself_and_what_several_hold_one_of_them_does) {
  const LoadFolder folder;
  for (uint64_t seed = 0; seed < tried_cases(50); ++seed) {
    LoadCase load_case(folder.path(), {.seed = seed, .ranks = 4});
    const auto ranks = load_case.ranks();
    const LoadExtents extents = cut_extents(load_case.file(), load_case.graph(), ranks, 8192);
    uint64_t bytes = 0;
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      const auto& slices = ranks[rank].plan->weights;
      for (const LoadExtent& extent : extents.by_rank[rank]) {
        const auto is_own = [&](const ExtentOwner& owner) {
          return owner.rank == rank && owner.slice >= slices.data() &&
                 owner.slice < slices.data() + slices.size();
        };
        EXPECT_TRUE(std::ranges::any_of(extent.owners, is_own));
        bytes += extent.bytes;
      }
    }
    EXPECT_EQ(bytes, extents.bytes);
  }
}

TEST(WeightLoader, replicated_weights_are_read_by_all_ranks_alike) {
  const LoadFolder folder;
  LoadCase load_case(folder.path(), {.seed = 3, .tensors = 300});
  // The only rank's plan four times: everything is held by all.
  const std::vector<RankToLoad> ranks(4, load_case.ranks().front());
  const LoadExtents extents = cut_extents(load_case.file(), load_case.graph(), ranks, 8192);
  for (const auto& of_rank : extents.by_rank) {
    uint64_t bytes = 0;
    for (const LoadExtent& extent : of_rank) bytes += extent.bytes;
    EXPECT_NEAR(static_cast<double>(bytes), static_cast<double>(extents.bytes) / 4, 8192);
  }
}

TEST(WeightLoader, a_tensor_of_one_wide_row_is_loaded) {
  const LoadFolder folder;
  LoadCase load_case(folder.path(), {.seed = 8, .ranks = 2});
  // Less than a row: buffers get what rows need.
  ASSERT_NO_FATAL_FAILURE(expect_loads(load_case, {.buffer_bytes = 1}));
}

TEST(WeightLoader, ranks_that_hold_nothing_load_nothing) {
  const LoadFolder folder;
  LoadCase load_case(folder.path(), {.seed = 4, .ranks = 7, .workers = 2, .tensors = 1});
  ASSERT_NO_FATAL_FAILURE(expect_loads(load_case, {}));
}

}  // namespace
}  // namespace lockstep
