// Ten thousand random lives of the scheduler. A failing one is named; LOCKSTEP_SIMULATION_SEED=N
// lives that one alone again.
#include "tests/engine/scheduler/simulation.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "tests/tried_cases.h"

namespace lockstep {
namespace {

TEST(SchedulerSimulation, no_promise_is_broken_in_ten_thousand_random_lives) {
  uint64_t first = 1;
  uint64_t last = tried_cases(10'000);
  if (const char* seed = std::getenv("LOCKSTEP_SIMULATION_SEED")) {
    first = last = std::stoull(seed);
  }
  uint64_t hits = 0;
  uint64_t preemptions = 0;
  uint64_t evictions = 0;
  uint64_t overdue = 0;
  uint64_t discarded = 0;
  uint64_t state_hits = 0;
  uint64_t new_checkpoints = 0;
  uint64_t checkpoint_evictions = 0;
  uint64_t accepted = 0;
  uint64_t rejected = 0;
  uint64_t rejected_with_states = 0;
  uint64_t stored_tokens = 0;
  uint64_t waits = 0;
  uint64_t loaded_states = 0;
  uint64_t promises_kept = 0;
  uint64_t promises_broken = 0;
  uint64_t promises_withdrawn = 0;
  for (uint64_t seed = first; seed <= last; ++seed) {
    SCOPED_TRACE("LOCKSTEP_SIMULATION_SEED=" + std::to_string(seed));
    Simulation life(seed);
    life.run();
    if (HasFailure()) return;
    hits += life.hit_tokens();
    preemptions += life.preemptions();
    evictions += life.evictions();
    overdue += life.overdue();
    discarded += life.discarded();
    state_hits += life.state_hits();
    new_checkpoints += life.new_checkpoints();
    checkpoint_evictions += life.checkpoint_evictions();
    accepted += life.accepted();
    rejected += life.rejected();
    rejected_with_states += life.rejected_with_states();
    stored_tokens += life.stored_tokens();
    waits += life.waits();
    loaded_states += life.loaded_states();
    promises_kept += life.promises_kept();
    promises_broken += life.promises_broken();
    promises_withdrawn += life.promises_withdrawn();
  }
  if (first == last) return;
  // Each of these must have happened often, or it was not tested.
  EXPECT_GT(hits, tried_cases(20'000U));
  EXPECT_GT(preemptions, tried_cases(8'000U));
  EXPECT_GT(evictions, tried_cases(10'000U));
  EXPECT_GT(overdue, tried_cases(1'000U));
  EXPECT_GT(discarded, tried_cases(1'000U));
  EXPECT_GT(state_hits, tried_cases(500U));
  EXPECT_GT(new_checkpoints, tried_cases(2'000U));
  EXPECT_GT(checkpoint_evictions, tried_cases(1'000U));
  EXPECT_GT(accepted, tried_cases(10'000U));
  EXPECT_GT(rejected, tried_cases(10'000U));
  EXPECT_GT(rejected_with_states, tried_cases(1'000U));
  EXPECT_GT(stored_tokens, tried_cases(2'000U));
  EXPECT_GT(waits, tried_cases(200U));
  EXPECT_GT(loaded_states, tried_cases(500U));
  EXPECT_GT(promises_kept, tried_cases(2'000U));
  EXPECT_GT(promises_broken, tried_cases(50U));
  EXPECT_GT(promises_withdrawn, tried_cases(200U));
}

}  // namespace
}  // namespace lockstep
