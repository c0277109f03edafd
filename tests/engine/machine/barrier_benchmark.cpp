// One round of each barrier, in nanoseconds, with as many threads as processors, with four times as
// many, and with 16, 32 and 64:
//   barrier_benchmark --benchmark_repetitions=9 --benchmark_enable_random_interleaving=true
//     --benchmark_report_aggregates_only=true
// takes them in turn; compare the medians. OpenMP waits actively, as in the programs that set it up
// for speed.
#include <benchmark/benchmark.h>
#include <omp.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "engine/machine/topology.h"
#include "engine/machine/workers.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;
constexpr uint32_t kWarmUpRounds = 100;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// The worker with number 0 takes the time.
template <typename Meet>
void run_rounds(size_t worker, uint32_t rounds, double& seconds, Meet meet) {
  for (uint32_t round = 0; round < kWarmUpRounds; ++round) meet();
  const Clock::time_point start = Clock::now();
  for (uint32_t round = 0; round < rounds; ++round) meet();
  if (worker == 0) seconds = seconds_since(start);
}

std::vector<int> pinned_cpus(size_t thread_count) {
  const std::vector<int> all = one_cpu_per_core(read_topology());
  std::vector<int> cpus;
  for (size_t thread = 0; thread < thread_count; ++thread) cpus.push_back(all[thread % all.size()]);
  return cpus;
}

double time_workers(const std::vector<int>& cpus, uint32_t rounds) {
  auto workers = Workers::start(cpus);
  double seconds = 0;
  (*workers)->run([&](size_t worker) {
    Barrier& barrier = (*workers)->barrier();
    run_rounds(worker, rounds, seconds, [&] { barrier.arrive_and_wait(worker); });
  });
  return seconds;
}

double time_lockstep(size_t thread_count, uint32_t rounds) {
  return time_workers(std::vector<int>(thread_count, -1), rounds);
}

double time_lockstep_pinned(size_t thread_count, uint32_t rounds) {
  return time_workers(pinned_cpus(thread_count), rounds);
}

// One or two levels, whatever the number of threads; pinned, each to a core of its own.
double time_levels(size_t thread_count, uint32_t rounds, bool two) {
  const std::vector<int> cpus = pinned_cpus(thread_count);
  auto workers = Workers::start(cpus);
  WorkerGroups groups;
  if (two) groups = group_workers(thread_count, caches_of(read_topology(), cpus));
  Barrier barrier(thread_count, (*workers)->spins(), -1, groups);
  double seconds = 0;
  (*workers)->run([&](size_t worker) {
    run_rounds(worker, rounds, seconds, [&] { barrier.arrive_and_wait(worker); });
  });
  return seconds;
}

double time_one_level(size_t thread_count, uint32_t rounds) {
  return time_levels(thread_count, rounds, false);
}

double time_two_levels(size_t thread_count, uint32_t rounds) {
  return time_levels(thread_count, rounds, true);
}

// As many ranks of one worker each, which share the processors.
double time_lockstep_ranks(size_t thread_count, uint32_t rounds) {
  const std::vector<int> cpus = pinned_cpus(thread_count);
  const bool crowded = thread_count > std::thread::hardware_concurrency();
  std::vector<std::unique_ptr<Workers>> ranks;
  for (const int cpu : cpus) {
    ranks.push_back(std::move(*Workers::start(std::vector<int>{cpu}, crowded)));
  }
  RankLinks links(thread_count, ranks[0]->spins());
  std::vector<std::function<void(size_t)>> jobs;
  double seconds = 0;
  for (size_t rank = 0; rank < thread_count; ++rank) {
    Barrier& barrier = ranks[rank]->barrier();
    barrier.join(links, rank);
    jobs.emplace_back([&, rank](size_t worker) {
      run_rounds(rank, rounds, seconds, [&] {
        barrier.arrive(worker);
        barrier.wait_for_all_ranks(worker);
      });
    });
  }
  for (size_t rank = 0; rank < thread_count; ++rank) ranks[rank]->begin(jobs[rank]);
  for (size_t rank = 0; rank < thread_count; ++rank) ranks[rank]->finish();
  return seconds;
}

template <typename Meet>
double time_threads(size_t thread_count, uint32_t rounds, Meet meet) {
  std::vector<std::thread> threads;
  double seconds = 0;
  for (size_t worker = 0; worker < thread_count; ++worker) {
    threads.emplace_back([&, worker] { run_rounds(worker, rounds, seconds, meet); });
  }
  for (std::thread& thread : threads) thread.join();
  return seconds;
}

double time_standard(size_t thread_count, uint32_t rounds) {
  std::barrier barrier(static_cast<std::ptrdiff_t>(thread_count));
  return time_threads(thread_count, rounds, [&] { barrier.arrive_and_wait(); });
}

double time_counter(size_t thread_count, uint32_t rounds) {
  std::atomic<size_t> arrived = 0;
  std::atomic<uint32_t> round = 0;
  return time_threads(thread_count, rounds, [&] {
    const uint32_t mine = round.load(std::memory_order_acquire);
    if (arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == thread_count) {
      arrived.store(0, std::memory_order_relaxed);
      round.store(mine + 1, std::memory_order_release);
    } else {
      while (round.load(std::memory_order_acquire) == mine) __builtin_ia32_pause();
    }
  });
}

double time_openmp(size_t thread_count, uint32_t rounds) {
  double seconds = 0;
#pragma omp parallel num_threads(static_cast <int>(thread_count))
  {
    run_rounds(static_cast<size_t>(omp_get_thread_num()), rounds, seconds, [] {
#pragma omp barrier
    });
  }
  // Its threads would go on spinning and take the processors from the next one.
  omp_pause_resource_all(omp_pause_hard);
  return seconds;
}

using Time = double (*)(size_t thread_count, uint32_t rounds);

void measure(benchmark::State& state, Time time, size_t thread_count, uint32_t rounds) {
  for (auto _ : state) state.SetIterationTime(time(thread_count, rounds) / rounds);
}

void add_one(const char* name, Time time, size_t thread_count, uint32_t rounds) {
  benchmark::RegisterBenchmark(
      (std::string(name) + "/threads:" + std::to_string(thread_count)).c_str(), measure, time,
      thread_count, rounds)
      ->UseManualTime()
      ->Iterations(1);  // of `rounds` rounds each
}

constexpr uint32_t kRounds = 100000;
constexpr uint32_t kCrowdedRounds = 10000;  // with four times as many threads as processors

void add(const char* name, Time time) {
  const size_t processors = std::thread::hardware_concurrency();
  for (const size_t thread_count : std::set<size_t>{processors, 4 * processors, 16, 32, 64}) {
    const bool crowded = thread_count > processors;
    const size_t crowded_rounds = kCrowdedRounds * 4 * processors / thread_count;
    add_one(name, time, thread_count,
            crowded ? static_cast<uint32_t>(std::max<size_t>(crowded_rounds, 1)) : kRounds);
  }
}

// One level beside two, where every thread has a core to spin on.
void add_levels() {
  const size_t cores = one_cpu_per_core(read_topology()).size();
  for (const size_t thread_count : std::set<size_t>{cores, 32, 64}) {
    if (thread_count > cores || group_workers(thread_count).empty()) continue;
    add_one("lockstep_one_level", time_one_level, thread_count, kRounds);
    add_one("lockstep_two_levels", time_two_levels, thread_count, kRounds);
  }
}

int run(int count, char** values) {
  if (std::getenv("OMP_WAIT_POLICY") == nullptr) {  // read when the program starts
    setenv("OMP_WAIT_POLICY", "active", 1);
    execv("/proc/self/exe", values);
  }
  add("lockstep", time_lockstep);
  add("lockstep_pinned", time_lockstep_pinned);
  add("lockstep_ranks", time_lockstep_ranks);
  add("openmp", time_openmp);
  add("std_barrier", time_standard);
  const size_t processors = std::thread::hardware_concurrency();
  add_one("central_counter", time_counter, processors, kRounds);
  add_one("central_counter", time_counter, 4 * processors,
          20);  // scheduling slices of milliseconds
  add_levels();
  benchmark::Initialize(&count, values);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}

}  // namespace
}  // namespace lockstep

int main(int count, char** values) {
  return lockstep::run(count, values);
}
