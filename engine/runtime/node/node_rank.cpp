#include "engine/runtime/node/node_rank.h"

#include <algorithm>
#include <utility>

#include "engine/operations/steps.h"
#include "engine/pass/form_writer.h"
#include "engine/pass/worker_counters.h"

namespace lockstep {
namespace {

// With as many blocks, each for every KV head, the workers end within a third of a block's time.
constexpr size_t kBlocksPerWorker = 3;

PromptBlocks prompt_blocks(const Plan& plan, size_t workers) {
  PromptBlocks blocks;
  for (const Step& step : plan.steps) {
    const auto* attend = std::get_if<AttendStep>(&step.work);
    if (attend == nullptr || attend->prompt_attention != AttentionForm::kBf16) continue;
    const size_t heads = std::max<size_t>(1, attend->kv_head_count);
    const size_t tasks = kBlocksPerWorker * workers;
    const size_t most = kBf16AttentionRows / attend->group;
    blocks.tokens_most = blocks.tokens_most == 0 ? most : std::min(blocks.tokens_most, most);
    blocks.wanted = std::max(blocks.wanted, (tasks + heads - 1) / heads);
  }
  return blocks;
}

}  // namespace

NodeRank::NodeRank(const RankPlace& place, Workers& workers)
    : Rank(place, workers), job_([this](size_t worker) { walk(worker); }) {}

Result<void> NodeRank::take_memory(ArenaSources sources) {
  return allocate_on_host({.weights = plan().weight_bytes,
                           .scratch = plan().scratch_bytes,
                           .exchange = plan().exchange_bytes,
                           .kv = plan().kv.size_bytes(),
                           .logits = plan().logits_bytes},
                          std::move(sources));
}

Result<void> NodeRank::prepare() {
  tasks_ = std::vector<TaskCounter>(plan().steps.size());
  return {};
}

uint64_t NodeRank::host_scratch_bytes() const {
  return plan().scratch_bytes + plan().exchange_bytes + plan().logits_bytes;
}

RankNeeds NodeRank::needs() const {
  return {.layout = true,
          .attention_blocks = std::get<NodeAreas>(plan().areas).partials.block_count,
          .prompt_blocks = prompt_blocks(plan(), place().cpus.size())};
}

void NodeRank::begin(const PassInput& input) {
  input_ = &input;
  workers().begin(job_);
}

Result<void> NodeRank::finish() {
  workers().finish();
  return {};
}

void NodeRank::walk(size_t worker) {
  Pass pass = make_pass(*input_, worker);
  pass.read_rows = input_->rows;
  Barrier& barrier = pass.barrier;
  WorkerCounters& counters = pass.counters;
  const std::vector<Step>& steps = plan().steps;
  for (size_t index = 0; index < steps.size(); ++index) {
    const Step& step = steps[index];
    // Everyone has left the step before, and nobody comes to it again before the next pass.
    if (worker == 0) {
      const size_t before = (index + tasks_.size() - 1) % tasks_.size();
      tasks_[before].next.store(0, std::memory_order_relaxed);
    }
    pass.written_rows = step.meet == Meet::kAllRanks ? input_->rows : nullptr;
    run_step(step.work, pass, tasks_[index]);
    await_all_rows(pass);
    const uint64_t arrived = ticks_now();
    barrier.arrive(worker);
    if (step.meet == Meet::kRank || !has_peers(pass)) {
      barrier.wait(worker);
    } else {
      barrier.wait_for_all_ranks(worker);
    }
    counters.wait_ticks.add(ticks_now() - arrived);
    counters.barriers.add(1);
  }
}

// The workers have left the pass, and nobody writes to the residual before the next one.
Result<HiddenPart> NodeRank::hidden_part(size_t token) {
  const HiddenRows& hidden = plan().hidden;
  return HiddenPart{addresses().at(hidden.residual) + token * hidden.residual_stride,
                    addresses().at(hidden.norm_weight)};
}

}  // namespace lockstep
