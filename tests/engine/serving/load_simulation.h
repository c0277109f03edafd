// Simulates load from a seed: clients that ask again as soon as they have their answer, the
// scheduler as the loop uses it, a machine whose passes take as long as a formula says, and a
// virtual clock.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "engine/scheduler/scheduler.h"
#include "engine/serving/throughput.h"
#include "engine/simulation/simulation.h"

namespace lockstep {

// Passes that take this many seconds, more with any prompt, and more for each token.
inline PassCosts linear_costs(double pass, double prompts, double prompt_token,
                              double generated_token) {
  return {.generation = {{1, pass + generated_token}, {2, pass + 2 * generated_token}},
          .prompts = prompts,
          .prompt_token = prompt_token,
          .prompt_key = prompt_token / kKeysPerToken};
}

// These are two cores of a Zen 4 with a model of a billion parameters.
struct SimulatedMachine {
  PassCosts costs = linear_costs(0.03, 0.01, 0.0036, 0.0035);
  double noise = 0.1;  // passes take up to so much longer, as it happens
};

// Clients that ask for the same.
struct SimulatedClients {
  size_t count = 1;
  std::string tenant = {};
  size_t prompt = 260;
  size_t shared = 190;  // of its tokens; the others are of each request alone
  size_t generated = 48;
  double begin = 0;  // they ask for the first time within a few seconds after that
};

// The times that clients of one kind have seen, in seconds.
struct Felt {
  std::vector<double> first_tokens;
  std::vector<double> gaps;  // between the tokens of a stream
  double tokens = 0;

  double first(double part) const { return percentile(first_tokens, part); }
  double gap(double part) const { return percentile(gaps, part); }
};

struct FeltLoad {
  std::vector<Felt> by_kind;
  double tokens_per_second = 0;
};

class LoadSimulation {
 public:
  LoadSimulation(const LatencyTargets& targets, std::vector<SimulatedClients> kinds, uint64_t seed,
                 const SimulatedMachine& machine = {})
      : machine_(machine),
        kinds_(std::move(kinds)),
        felt_(kinds_.size()),
        random_(seed),
        scheduler_(limits(targets, kinds_)) {
    scheduler_.limit_prompt_tokens(throughput_.prompts_most());
    for (size_t kind = 0; kind < kinds_.size(); ++kind) {
      for (size_t client = 0; client < kinds_[kind].count; ++client) {
        idle_.emplace(kinds_[kind].begin + 5 * part(), kind);
      }
    }
  }

  // Runs for so long by the virtual clock, of which the first fifth is not counted: there all begin
  // together.
  FeltLoad run(double seconds) {
    count_from_ = seconds / 5;
    while (now_ < seconds) {
      while (!idle_.empty() && idle_.begin()->first <= now_) ask();
      if (scheduler_.idle()) {
        now_ = idle_.begin()->first;
      } else {
        pass();
      }
    }
    FeltLoad load = {std::move(felt_), 0};
    for (const Felt& felt : load.by_kind) load.tokens_per_second += felt.tokens;
    load.tokens_per_second /= now_ - count_from_;
    return load;
  }

 private:
  struct Asked {
    size_t kind = 0;
    double at = 0;
    double last_token = 0;
    size_t generated = 0;
  };

  static SchedulerLimits limits(const LatencyTargets& targets,
                                const std::vector<SimulatedClients>& kinds) {
    SchedulerLimits limits;
    limits.sequence_count = 0;
    limits.page_count = 64;
    for (const SimulatedClients& kind : kinds) {
      limits.sequence_count += kind.count;
      const size_t tokens = kind.prompt + kind.generated;
      limits.page_count += kind.count * (tokens / limits.page_tokens + 2);
    }
    limits.logit_rows = limits.sequence_count;
    limits.targets = targets;
    return limits;
  }

  double part() { return std::uniform_real_distribution<double>(0, 1)(random_); }

  void ask() {
    const size_t number = idle_.begin()->second;
    const SimulatedClients& kind = kinds_[number];
    NewSequence sequence;
    for (size_t token = 0; token < kind.prompt; ++token) {
      const bool shared = token < kind.shared;
      sequence.prompt.push_back(shared ? static_cast<int32_t>(token) : next_token_++);
    }
    sequence.most_tokens = kind.prompt + kind.generated;
    sequence.tenant = kind.tenant;
    const double at = idle_.begin()->first;
    asked_[scheduler_.add(std::move(sequence), at)] = {.kind = number, .at = at};
    idle_.erase(idle_.begin());
  }

  void pass() {
    const Schedule& schedule = scheduler_.next_batch(now_);
    const double seconds = pass_seconds(machine_.costs, schedule) * (1 + machine_.noise * part());
    now_ += seconds;
    scheduler_.computed();
    throughput_.add_pass(pass_tokens(schedule), seconds);
    scheduler_.limit_prompt_tokens(throughput_.prompts_most());
    for (const Chunk& chunk : schedule.chunks) {
      if (chunk.sample) add_token(chunk.sequence);
    }
    scheduler_.add_pass_seconds(seconds);
  }

  void add_token(SequenceId id) {
    Asked& asked = asked_.at(id);
    if (now_ >= count_from_) {
      Felt& felt = felt_[asked.kind];
      ++felt.tokens;
      if (asked.generated == 0) {
        felt.first_tokens.push_back(now_ - asked.at);
      } else {
        felt.gaps.push_back(now_ - asked.last_token);
      }
    }
    asked.last_token = now_;
    if (++asked.generated < kinds_[asked.kind].generated) {
      scheduler_.append_token(id, next_token_++);
      return;
    }
    scheduler_.finish(id);
    idle_.emplace(now_ + 0.004 * part(), asked.kind);
    asked_.erase(id);
  }

  const SimulatedMachine machine_;
  const std::vector<SimulatedClients> kinds_;
  std::vector<Felt> felt_;
  std::mt19937_64 random_;
  Scheduler scheduler_;
  Throughput throughput_;
  std::multimap<double, size_t> idle_;  // kinds of clients, by when they ask
  std::map<SequenceId, Asked> asked_;
  int32_t next_token_ = 1'000;
  double now_ = 0;
  double count_from_ = 0;
};

}  // namespace lockstep
