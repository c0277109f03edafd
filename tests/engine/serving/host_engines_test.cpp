// Engines of several hosts in one process, on machines of a test's own memory.
#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

#include "engine/engine.h"
#include "engine/placement/machine.h"
#include "tests/engine/hosts/test_hosts.h"
#include "tests/paths.h"

namespace lockstep {
namespace {

using namespace test;
using Engines = std::vector<std::unique_ptr<Engine>>;

constexpr uint64_t kMiB = 1U << 20U;

// This machine with so much memory that is free, and no pools.
Machine machine_with(uint64_t available_bytes) {
  Machine machine = Machine::read(/*with_gpus=*/false);
  machine.is_simulated = true;
  machine.memory.available_bytes = available_bytes;
  for (Node& node : machine.topology.nodes) node.pools.clear();
  return machine;
}

std::unique_ptr<Engine> start(const std::string& leader, size_t index, uint64_t available_bytes) {
  EngineOptions options;
  options.model = source_dir() + "/config/demo.gguf";
  options.devices = "cpu";
  options.rank_count = 1;
  options.worker_count = 1;
  options.sequence_count = 64;  // of 8 pages each: more than there is space for
  options.hosts = host_options(2, index, leader);
  auto opened = Engine::open(options, machine_with(available_bytes));
  EXPECT_TRUE(opened) << opened.error().message;
  if (!opened) return nullptr;
  const auto loaded = (*opened)->load();
  EXPECT_TRUE(loaded) << loaded.error().message;
  return std::move(*opened);
}

Engines start_both(const std::string& leader, uint64_t leaders_bytes, uint64_t followers_bytes) {
  Engines engines(2);
  std::thread other([&] { engines[1] = start(leader, 1, followers_bytes); });
  engines[0] = start(leader, 0, leaders_bytes);
  other.join();
  return engines;
}

TEST(HostEngines, a_leader_with_less_memory_takes_the_context_that_its_follower_holds) {
  constexpr uint64_t kMuch = 130 * kMiB;
  constexpr uint64_t kLess = 118 * kMiB;
  size_t fewer = 0;
  {
    const Engines engines = start_both(own_address(), kLess, kMuch);
    ASSERT_TRUE(engines[0] && engines[1]);
    fewer = engines[0]->statistics().kv_pages;
  }
  const std::string leader = own_address();
  Engines engines = start_both(leader, kMuch, kMuch);
  ASSERT_TRUE(engines[0] && engines[1]);
  const size_t held = engines[0]->statistics().kv_pages;
  ASSERT_LT(fewer, held);
  ASSERT_LT(held, 64U * 8);

  engines[0].reset();
  engines[0] = start(leader, 0, kLess);  // waits for its follower, whenever that has noticed
  ASSERT_TRUE(engines[0]);
  EXPECT_EQ(engines[0]->statistics().kv_pages, held);
  EXPECT_FALSE(engines[1]->failure().has_value());
}

}  // namespace
}  // namespace lockstep
