// A load on a machine that refuses, fails or changes the file meanwhile: it either loads the right
// bytes or fails with a message; it always ends.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "engine/model/weight_loader.h"
#include "tests/engine/machine/faulty_calls.h"
#include "tests/engine/model/load_case.h"
#include "tests/tried_cases.h"

namespace lockstep {
namespace {

using test::FaultyCalls;
using test::LoadCase;
using test::LoadFolder;
using testing::HasSubstr;

constexpr size_t kSmallBuffers = size_t{12} << 10U;

LoadOptions options_with(FaultyCalls& calls, bool io_uring = true) {
  return {.io_uring = io_uring, .buffer_bytes = kSmallBuffers, .calls = &calls};
}

class WeightLoaderFaults : public testing::Test {
 protected:
  LoadFolder folder_;
  LoadCase case_{folder_.path(), {.seed = 2, .ranks = 3, .workers = 2}};

  LoadReport expect_loads(const LoadOptions& options) {
    const auto report = case_.load(options);
    EXPECT_TRUE(report.has_value()) << report.error().message;
    EXPECT_TRUE(case_.loaded() == case_.expected());
    return report.value_or(LoadReport{});
  }

  std::string expect_fails(const LoadOptions& options) {
    const auto report = case_.load(options);
    if (report.has_value()) {
      ADD_FAILURE() << "it loads";
      return "";
    }
    EXPECT_EQ(report.error().kind, ErrorKind::kMachineRefused);
    return report.error().message;
  }
};

TEST(WeightLoaderErraticReads, short_and_repeated_ones_give_the_same_bytes_for_a_thousand_seeds) {
  const LoadFolder folder;
  for (uint64_t seed = 0; seed < tried_cases(1000); ++seed) {
    LoadCase load_case(
        folder.path(),
        {.seed = seed, .ranks = 1 + seed % 3, .workers = 1 + seed / 3 % 2, .tensors = 8});
    FaultyCalls calls;
    calls.make_erratic(seed);
    const auto report = load_case.load({.direct = seed % 4 < 2,
                                        .io_uring = seed % 2 == 0,
                                        .buffer_bytes = kSmallBuffers,
                                        .calls = &calls});
    ASSERT_TRUE(report.has_value()) << "seed " << seed << ": " << report.error().message;
    ASSERT_TRUE(load_case.loaded() == load_case.expected()) << "seed " << seed;
  }
}

TEST_F(WeightLoaderFaults, an_io_error_of_any_read_fails_with_file_offset_and_reason) {
  for (const bool io_uring : {true, false}) {
    size_t reads = 1;
    for (size_t read = 0; read < reads; ++read) {
      if (!is_tried_case(read)) continue;
      FaultyCalls calls;
      calls.read_to_fail = read;
      calls.read_error = EIO;
      const std::string message = expect_fails(options_with(calls, io_uring));
      EXPECT_THAT(message, HasSubstr(case_.path().string()));
      EXPECT_THAT(message, HasSubstr("at byte "));
      EXPECT_THAT(message, HasSubstr("Input/output error"));
      if (read > 0) continue;
      FaultyCalls counting;
      expect_loads(options_with(counting, io_uring));
      reads = counting.reads();
      EXPECT_GT(reads, 20U);
    }
  }
}

TEST_F(WeightLoaderFaults, without_io_uring_it_loads_by_pread) {
  for (const int error : {EPERM, ENOSYS, ENOMEM, EMFILE}) {
    FaultyCalls calls;
    calls.ring_error = error;
    const LoadReport report = expect_loads(options_with(calls));
    EXPECT_FALSE(report.io_uring);
    EXPECT_EQ(report.ring_error, error);
  }
}

TEST_F(WeightLoaderFaults, a_ring_that_takes_nothing_is_done_without) {
  for (const int error : {EPERM, EAGAIN, EBUSY, EINTR}) {
    for (const size_t times : {size_t{1}, size_t{3}, size_t{1000}, size_t{100'000'000}}) {
      FaultyCalls calls;
      calls.submit_error = error;
      calls.submit_errors = times;
      expect_loads(options_with(calls));
    }
  }
}

TEST_F(WeightLoaderFaults, refused_registrations_make_it_slower_only) {
  FaultyCalls calls;
  calls.buffers_error = ENOMEM;
  EXPECT_FALSE(expect_loads(options_with(calls)).registered);
  calls.files_error = EMFILE;
  expect_loads(options_with(calls));
  calls.buffers_error = 0;
  expect_loads(options_with(calls));
}

TEST_F(WeightLoaderFaults, without_direct_reads_it_reads_through_the_page_cache) {
  for (const bool io_uring : {true, false}) {
    FaultyCalls open_refuses;
    open_refuses.open_direct_error = EINVAL;
    EXPECT_FALSE(expect_loads(options_with(open_refuses, io_uring)).direct);
    for (const int error : {EINVAL, EOPNOTSUPP}) {
      FaultyCalls read_refuses;
      read_refuses.direct_read_error = error;
      EXPECT_FALSE(expect_loads(options_with(read_refuses, io_uring)).direct);
    }
  }
}

TEST_F(WeightLoaderFaults, a_read_that_is_never_possible_now_fails_in_the_end) {
  FaultyCalls calls;
  calls.direct_read_error = EAGAIN;
  const std::string message = expect_fails(options_with(calls));
  EXPECT_THAT(message, HasSubstr(case_.path().string()));
  EXPECT_THAT(message, HasSubstr("temporarily unavailable"));
}

TEST_F(WeightLoaderFaults, no_memory_for_buffers_is_said) {
  for (int allocation = 0; allocation < 3; ++allocation) {
    FaultyCalls calls;
    calls.allocation_to_fail = allocation;
    EXPECT_THAT(expect_fails(options_with(calls)), HasSubstr("buffers to read the model"));
  }
}

// Each change is made after some read, on every read in turn up to the tenth.
class WeightLoaderChanges : public WeightLoaderFaults, public testing::WithParamInterface<bool> {
 protected:
  void expect_change_fails(const std::function<void(const std::filesystem::path&)>& change,
                           const std::string& message) {
    for (size_t at = 0; at < 10; ++at) {
      if (!is_tried_case(at)) continue;
      const LoadFolder folder;
      LoadCase changed(folder.path(), {.seed = 2, .ranks = 3, .workers = 2});
      FaultyCalls calls;
      calls.after_read = [&](size_t read) {
        if (read == at) change(changed.path());
      };
      const auto report = changed.load(options_with(calls, GetParam()));
      ASSERT_FALSE(report.has_value());
      EXPECT_EQ(report.error().kind, ErrorKind::kMachineRefused);
      EXPECT_THAT(report.error().message, HasSubstr(changed.path().string()));
      EXPECT_THAT(report.error().message, testing::ContainsRegex(message));
    }
  }
};

TEST_P(WeightLoaderChanges, a_file_that_is_cut_off_is_refused) {
  expect_change_fails([](const auto& path) { std::filesystem::resize_file(path, 5000); },
                      "ended at byte [0-9]+ though it had [0-9]+ bytes|written to");
}

TEST_P(WeightLoaderChanges, a_file_that_grows_is_refused) {
  expect_change_fails([](const auto& path) { std::ofstream(path, std::ios::app) << "more"; },
                      "was written to while it was read");
}

TEST_P(WeightLoaderChanges, a_file_that_is_overwritten_is_refused) {
  expect_change_fails(
      [](const auto& path) {
        std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
        file.seekp(6000);
        file << "other";
      },
      "was written to while it was read");
}

TEST_P(WeightLoaderChanges, a_file_that_is_replaced_is_refused) {
  expect_change_fails(
      [](const auto& path) {
        const std::filesystem::path other = path.string() + ".new";
        std::filesystem::copy_file(path, other);
        std::filesystem::last_write_time(other, std::filesystem::last_write_time(path));
        std::filesystem::rename(other, path);
      },
      "was replaced by another file");
}

TEST_P(WeightLoaderChanges, a_file_that_is_removed_is_refused) {
  expect_change_fails([](const auto& path) { std::filesystem::remove(path); }, "was removed");
}

TEST_P(WeightLoaderChanges, a_file_that_changed_before_the_load_is_refused_without_reading) {
  std::ofstream(case_.path(), std::ios::app) << "more";
  FaultyCalls calls;
  EXPECT_THAT(expect_fails(options_with(calls, GetParam())), HasSubstr("was written to"));
  EXPECT_EQ(calls.reads(), 0U);
}

INSTANTIATE_TEST_SUITE_P(ByRingAndByPread, WeightLoaderChanges, testing::Bool());

// The page cache, where a file system can be told what to keep in it.
size_t cached_pages(const std::filesystem::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const uint64_t size = std::filesystem::file_size(path);
  size_t pages = 0;
  void* mapping = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, descriptor, 0);
  std::vector<unsigned char> is_in((size + 4095) / 4096);
  if (::mincore(mapping, size, is_in.data()) == 0) {
    for (const unsigned char page : is_in) pages += page & 1U;
  }
  ::munmap(mapping, size);
  ::close(descriptor);
  return pages;
}

// The kernel leaves what it is busy with, so this may take several tries.
void drop_from_cache(const std::filesystem::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  for (int tries = 0; tries < 1000; ++tries) {
    ::fsync(descriptor);
    ::posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED);
    if (cached_pages(path) == 0) break;
    std::this_thread::yield();
  }
  ::close(descriptor);
}

// A kernel that has much to do leaves a page here and takes one there: most of them are looked at.
TEST_F(WeightLoaderFaults, the_page_cache_is_left_as_it_was) {
  drop_from_cache(case_.path());
  if (cached_pages(case_.path()) * 4096 > std::filesystem::file_size(case_.path()) / 4) {
    GTEST_SKIP() << "this file system keeps all of a file in memory";
  }
  for (const bool direct : {true, false}) {
    for (const bool io_uring : {true, false}) {
      drop_from_cache(case_.path());
      const size_t pages = std::filesystem::file_size(case_.path()) / 4096;
      ASSERT_GT(pages, 20U);
      ASSERT_LT(cached_pages(case_.path()), pages / 4);
      expect_loads({.direct = direct, .io_uring = io_uring, .buffer_bytes = kSmallBuffers});
      EXPECT_LT(cached_pages(case_.path()), pages / 2)
          << "direct " << direct << " io_uring " << io_uring;
    }
  }
  std::ifstream file(case_.path(), std::ios::binary);
  const std::string content((std::istreambuf_iterator<char>(file)), {});
  const size_t pages = cached_pages(case_.path());
  EXPECT_GT(pages, 20U);
  for (const bool direct : {true, false}) {
    const LoadReport report = expect_loads({.direct = direct, .buffer_bytes = kSmallBuffers});
    EXPECT_GT(cached_pages(case_.path()), pages / 2) << "direct " << direct;
    EXPECT_EQ(report.dropped_bytes, 0U);
  }
}

// Bytes that lie in the page cache are copied from there where that is asked for, and the rest is
// read past it; the weights are the same.
TEST_F(WeightLoaderFaults, what_is_in_the_page_cache_is_copied_from_there) {
  for (const bool io_uring : {true, false}) {
    SCOPED_TRACE(io_uring);
    drop_from_cache(case_.path());
    if (cached_pages(case_.path()) > 0) {
      GTEST_SKIP() << "this file system keeps all of a file in memory";
    }
    const LoadOptions options = {
        .from_cache = true, .io_uring = io_uring, .buffer_bytes = kSmallBuffers};
    EXPECT_LT(expect_loads(options).cached_bytes, std::filesystem::file_size(case_.path()) / 2);
    std::ifstream file(case_.path(), std::ios::binary);
    const std::string content((std::istreambuf_iterator<char>(file)), {});
    const LoadReport report = expect_loads(options);
    EXPECT_GT(report.cached_bytes, report.bytes / 2);
    EXPECT_EQ(report.dropped_bytes, 0U);
    EXPECT_EQ(expect_loads({.io_uring = io_uring, .buffer_bytes = kSmallBuffers}).cached_bytes, 0U);
  }
}

}  // namespace
}  // namespace lockstep
