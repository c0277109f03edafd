// A rank that computes on processors, with its memory on one node of the host: every worker walks
// the plan and meets the others after each step.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "engine/pass/pass.h"
#include "engine/runtime/rank.h"

namespace lockstep {

class NodeRank final : public Rank {
 public:
  // `workers`: the place's, which outlive the rank.
  NodeRank(const RankPlace& place, Workers& workers);

  ArenaAddresses arenas() const override { return host_arenas(); }
  std::unique_ptr<WeightSink> make_weight_sink() override { return nullptr; }
  RankNeeds needs() const override;
  void begin(const PassInput& input) override;
  Result<void> finish() override;
  Result<HiddenPart> hidden_part(size_t token) override;
  uint64_t host_scratch_bytes() const override;

 private:
  Result<void> take_memory(ArenaSources sources) override;
  Result<void> prepare() override;
  void walk(size_t worker);

  std::function<void(size_t worker)> job_;  // made once: a pass allocates nothing
  const PassInput* input_ = nullptr;        // of the pass at hand
  std::vector<TaskCounter> tasks_;          // one per step of the plan
};

}  // namespace lockstep
