// How fast records are read back from a directory: `records` of `mib` MiB are written, and then
// read by as many threads as the tiers have, in each of some rounds. Prints MB/s of each round.
// Compare with fio on files of the same sizes:
//   fio --name=read --rw=read --bs=8m --size=256m --numjobs=3 --direct=1 --ioengine=psync
//       --directory=FOLDER --group_reporting
#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "engine/tiers/file_tier.h"
#include "tests/engine/tiers/page_parts.h"

namespace lockstep {
namespace {

constexpr size_t kThreads = 3;
constexpr size_t kRounds = 5;
constexpr uint64_t kRecords = 96;
constexpr size_t kRecordBytes = size_t{8} << 20U;

// Seconds; none where a record cannot be read.
double read_all(FileTier& tier, std::vector<PageParts>& pages) {
  std::atomic<uint64_t> next = 0;
  std::atomic<bool> failed = false;
  std::vector<std::thread> threads;
  const auto begin = std::chrono::steady_clock::now();
  for (PageParts& page : pages) {
    threads.emplace_back([&] {
      for (uint64_t number = next++; number < kRecords; number = next++) {
        if (!tier.read(stored_key(number), page.parts())) failed = true;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
  return failed ? 0 : taken.count();
}

int measure(const char* directory) {
  const auto opened = FileTier::open(
      {.directory = directory, .bytes_max = 2 * kRecords * kRecordBytes, .identity = "a model"});
  if (!opened) {
    fmt::print(stderr, "{}\n", opened.error().message);
    return 1;
  }
  FileTier& tier = **opened;
  std::vector<PageParts> pages;
  for (size_t thread = 0; thread < kThreads; ++thread) {
    pages.emplace_back(std::vector<size_t>{kRecordBytes});
  }
  for (uint64_t number = 0; number < kRecords; ++number) {
    if (!tier.write(stored_key(number), pages[0].parts())) return 1;
  }
  for (size_t round = 0; round < kRounds; ++round) {
    const double seconds = read_all(tier, pages);
    if (seconds == 0) return 1;
    fmt::print("{:.0f} MB/s\n", kRecords * kRecordBytes / seconds / 1e6);
  }
  for (uint64_t number = 0; number < kRecords; ++number) tier.erase(stored_key(number));
  return 0;
}

}  // namespace
}  // namespace lockstep

int main(int argument_count, char** arguments) {
  if (argument_count != 2) {
    fmt::print(stderr, "usage: lockstep_tier_benchmark FOLDER\n");
    return 2;
  }
  return lockstep::measure(arguments[1]);
}
