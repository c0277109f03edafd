#include "engine/runtime/gpu/gpu_rank.h"

#include <utility>

#include "engine/base/check.h"
#include "engine/model/gpu_weight_sink.h"
#include "engine/operations/steps.h"
#include "engine/pass/worker_counters.h"

namespace lockstep {
namespace {

// Counts what a GPU's part of a pass takes.
template <typename Work>
Result<void> timed(WorkerCounters& counters, const Work& work) {
  const uint64_t begin = ticks_now();
  auto done = work();
  counters.gpu_ticks.add(ticks_now() - begin);
  return done;
}

}  // namespace

GpuRank::GpuRank(const RankPlace& place, Workers& workers, std::unique_ptr<GpuExecutor> executor)
    : Rank(place, workers), executor_(std::move(executor)) {}

Result<std::unique_ptr<GpuRank>> GpuRank::open(const RankPlace& place, Workers& workers,
                                               const GpuPlatform& platform) {
  CHECK(place.cpus.size() == 1, "a rank on a GPU with {} workers", place.cpus.size());
  auto executor = GpuExecutor::open(platform, std::get<GpuPlace>(place.device).index);
  if (!executor) return std::unexpected(executor.error());
  return std::unique_ptr<GpuRank>(new GpuRank(place, workers, std::move(*executor)));
}

// A GPU exchanges with processors by the host's memory.
Result<void> GpuRank::take_memory(ArenaSources sources) {
  auto taken = allocate_on_host({.exchange = host_.exchange ? plan().exchange_bytes : 0,
                                 .logits = host_.logits ? plan().logits_bytes : 0},
                                std::move(sources));
  if (!taken) return taken;
  if (auto own = executor_->allocate(plan(), place().node, host_); !own) return own;
  if (auto pinned = executor_->pin(exchange()); !pinned) return pinned;
  return executor_->pin(logits());
}

ArenaAddresses GpuRank::arenas() const {
  ArenaAddresses arenas = executor_->arenas();
  const ArenaAddresses host = host_arenas();
  for (const Arena shared : {Arena::kExchange, Arena::kLogits}) {
    if (host[shared] != 0) arenas[shared] = host[shared];
  }
  return arenas;
}

// Makes the GPU's launches, and captures them.
Result<void> GpuRank::prepare() {
  tasks_ = std::vector<TaskCounter>(plan().steps.size());
  residual_.resize(plan().hidden.columns.size());
  norm_weights_.reserve(plan().hidden.columns.size());
  if (host_.exchange) {
    job_ = [this](size_t) { run_among_processors(); };
  } else {
    job_ = [this](size_t) { run_alone(); };
  }
  return executor_->prepare(plan(), addresses(), peers());
}

std::unique_ptr<WeightSink> GpuRank::make_weight_sink() {
  return std::make_unique<GpuWeightSink>(executor_->device(), executor_->kernels().pack_rows,
                                         place().node);
}

uint64_t GpuRank::host_scratch_bytes() const {
  return (host_.logits ? plan().logits_bytes : 0) + (host_.exchange ? plan().exchange_bytes : 0);
}

RankNeeds GpuRank::needs() const {
  return {.attention_units = std::get<GpuAreas>(plan().areas).limits.attention_units,
          .deadline = executor_->settings().pass_deadline};
}

// Waking the worker and being woken by it would cost a pass of one token a few percent of its time,
// so the first rank's GPU is driven by the thread that waits for it. The others' are driven
// meanwhile, and end when it does.
bool GpuRank::is_driven_by_caller() const {
  return plan().rank == 0 && !host_.exchange;
}

void GpuRank::begin(const PassInput& input) {
  input_ = &input;
  if (executor_->is_alone()) {
    begun_ticks_ = ticks_now();
    result_ = executor_->start(*input.batch);
  } else if (!is_driven_by_caller()) {
    workers().begin(job_);
  }
}

Result<bool> GpuRank::begin_ahead(const PassInput& input) {
  if (!result_) return false;  // finish() tells
  return executor_->start_ahead(*input.batch);
}

// A pass that was begun ahead runs from the end of the one before.
Result<void> GpuRank::end_started() {
  if (!result_) return result_;
  auto ended = executor_->end();
  const uint64_t now = ticks_now();
  counters(0).gpu_ticks.add(now - std::exchange(begun_ticks_, now));
  return ended;
}

Result<void> GpuRank::finish() {
  if (executor_->is_alone()) {
    result_ = end_started();
  } else if (is_driven_by_caller()) {
    run_alone();
  } else {
    workers().finish();
  }
  return result_;
}

void GpuRank::run_alone() {
  WorkerCounters& counters = this->counters(0);
  result_ = timed(counters, [&] { return executor_->run(*input_->batch); });
  if (!result_) return;
  counters.exchange_bytes.add(executor_->exchanged().bytes);
  counters.exchange_ns.add(executor_->exchanged().nanoseconds);
}

// The GPU leaves the results of steps of all ranks in the host's memory; the worker exchanges them
// as the others do. After a failure it goes on to arrive at the barriers, so that they end.
void GpuRank::run_among_processors() {
  const std::vector<Step>& steps = plan().steps;
  const Pass pass = make_pass(*input_, 0);
  Barrier& barrier = pass.barrier;
  WorkerCounters& counters = pass.counters;
  const auto run_until = [&](Range range) {
    if (!result_ || range.empty()) return;
    result_ = timed(counters, [&] { return executor_->run_steps(range); });
  };
  result_ = timed(counters, [&] { return executor_->begin(*input_->batch); });
  size_t begin = 0;
  for (size_t step = 0; step < steps.size(); ++step) {
    if (steps[step].meet != Meet::kAllRanks) continue;
    run_until({begin, step + 1});
    exchange_step(steps[step].work, pass, tasks_[step]);
    begin = step + 1;
    const uint64_t arrived = ticks_now();
    barrier.arrive(0);
    barrier.wait_for_all_ranks(0);
    counters.wait_ticks.add(ticks_now() - arrived);
    counters.barriers.add(1);
  }
  run_until({begin, steps.size()});
}

FoundCandidates GpuRank::candidates(size_t row, const LogitDrawRequest& request) const {
  const GpuCandidateRow& found = executor_->candidates()[row];
  FoundCandidates candidates{.tokens = std::span(found.tokens, found.count),
                             .logits = std::span(found.logits, found.count),
                             .finite = found.not_finite == 0};
  const GpuDrawn& drawn = executor_->drawn()[row];
  candidates.pick = drawn.pick;
  if (request.inverse_temperature != 0.0F) {
    candidates.draw = {request, drawn.sum, drawn.token};
  }
  return candidates;
}

Result<std::span<const float>> GpuRank::fetch_logits(size_t row) {
  return executor_->fetch(executor_->logit_row(row), plan().vocabulary_size);
}

// One rank alone has columns of hidden rows where GPUs are ranks: its weights are all there are.
Result<HiddenPart> GpuRank::hidden_part(size_t token) {
  const HiddenRows& hidden = plan().hidden;
  if (norm_weights_.empty()) {
    norm_weights_.resize(hidden.columns.size());
    if (auto read = executor_->read(addresses().at(hidden.norm_weight), norm_weights_); !read) {
      return std::unexpected(read.error());
    }
  }
  const float* const residual = executor_->hidden_residual(token);
  if (auto read = executor_->read(residual, residual_); !read) return std::unexpected(read.error());
  return HiddenPart{residual_.data(), norm_weights_.data()};
}

}  // namespace lockstep
