// One place that computes its share of every pass: an interface with a body for processors
// (node/node_rank.h) and one for a GPU (gpu/gpu_rank.h). Each has a plan of the same steps, memory
// for its arenas, and borrows its place's workers, threads of the host that compute or drive what
// does. All ranks walk their plans in lockstep: after each step of all ranks their workers meet at
// one barrier.
//
// A pass costs a few virtual calls per rank; its steps cost none.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/base/result.h"
#include "engine/collectives/shared_memory.h"
#include "engine/kernels/kernel_table.h"
#include "engine/machine/node_memory.h"
#include "engine/machine/rank_places.h"
#include "engine/machine/workers.h"
#include "engine/model/weight_sink.h"
#include "engine/pass/batch.h"
#include "engine/pass/pass_layout.h"
#include "engine/pass/row_carrier.h"
#include "engine/pass/worker_counters.h"
#include "engine/planner/planner.h"
#include "engine/sampling/logit_row.h"

namespace lockstep {

struct Pass;  // node/pass.h

// A rank's arenas, each in memory of its own: the host's or a GPU's.
template <typename Memory>
struct RankArenas {
  const Memory& weights;
  const Memory& scratch;
  const Memory& exchange;
  const Memory& kv;
  const Memory& logits;

  // 0 for an arena that was not taken.
  ArenaAddresses addresses() const {
    const auto address = [](const Memory& arena) {
      return arena.size_bytes() == 0 ? 0 : reinterpret_cast<uintptr_t>(arena.data());
    };
    ArenaAddresses all;
    all[Arena::kWeights] = address(weights);
    all[Arena::kScratch] = address(scratch);
    all[Arena::kExchange] = address(exchange);
    all[Arena::kKv] = address(kv);
    all[Arena::kLogits] = address(logits);
    return all;
  }
};

// The arenas of a rank that outlive the process, and those of an earlier process that it gets.
struct ArenaSources {
  bool keep = false;        // weights and KV cache lie in memfds, where that costs no huge pages
  bool keep_small = false;  // even if it costs huge pages
  bool lock = false;        // all that the rank holds on the host is locked in memory
  MemoryCalls* calls = nullptr;  // as MemoryRequest::calls, for all that the rank holds on the host
  std::optional<KeptArena> weights;  // none: taken anew
  std::optional<KeptArena> kv;
};

// The input of a pass, the same for all ranks. It and all that it points to live until they have
// finished.
struct PassInput {
  const KernelTable* kernels = nullptr;
  const Batch* batch = nullptr;
  const PassLayout* layout = nullptr;  // arranged where a rank reads it (RankNeeds)
  size_t panel_streams = 1;            // as in MatmulArguments
  RowCarrier* rows = nullptr;          // null: no other host computes
};

// A rank's requirements of every pass. The default has none.
struct RankNeeds {
  bool layout = false;          // it reads PassInput::layout
  size_t attention_blocks = 0;  // it has space for partial results of so many blocks of queries
  PromptBlocks prompt_blocks = {};
  // The units (gpu_token_units()) that the generated tokens of a pass may have together before
  // attention to them becomes slow; 0: any number.
  size_t attention_units = 0;
  std::optional<std::chrono::seconds> deadline = {};  // a pass has failed by then; none: never
};

// Requirements that satisfy both.
RankNeeds together(const RankNeeds& one, const RankNeeds& other);

// The likeliest tokens of one row of logits, found where the logits lie; valid until the next pass.
struct FoundCandidates {
  std::span<const TokenId> tokens;
  std::span<const float> logits;
  bool finite = true;
  std::optional<LogitDraw> draw = {};
  // The row's token for a pass that begins ahead: the draw's where there is one, else the
  // likeliest; of a rank that can begin passes ahead.
  TokenId pick = 0;
};

// A token's residual as the last norm reads it, and the norm's weights: the rank's columns of both
// (HiddenRows), on the host; valid until the next call.
struct HiddenPart {
  const float* residual = nullptr;
  const float* weights = nullptr;
};

class Rank {
 public:
  virtual ~Rank() = default;
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  const RankPlace& place() const { return place_; }
  const Plan& plan() const { return plan_; }
  Workers& workers() { return workers_; }
  WorkerCounters& counters(size_t worker) { return counters_[worker]; }

  // Keeps the plan and takes the memory that it needs: on the host on the rank's node, touched by
  // its workers. A KV cache that is taken over holds anything. Once, by one thread for all ranks of
  // a node.
  Result<void> allocate(Plan plan, ArenaSources sources = {});
  // The addresses of the memory that was taken; 0 for an arena that was not.
  virtual ArenaAddresses arenas() const = 0;
  // Once, when all ranks have allocated: makes the rank ready to compute its plan. `arenas`: of all
  // ranks of this process, from rank `first` on.
  Result<void> bind(std::span<const ArenaAddresses> arenas, size_t first);
  // From bind() on: the addresses of the plan's offsets. The logits' are the first rank's.
  const ArenaAddresses& addresses() const { return addresses_; }
  // Receives the rank's weights, between bind() and the first pass; null: the workers pack them
  // into the host's memory.
  virtual std::unique_ptr<WeightSink> make_weight_sink() = 0;

  virtual RankNeeds needs() const = 0;
  // A pass in two calls, by one thread for all ranks: begin() returns at once, finish() when the
  // rank has computed its share. Neither allocates. A rank that has failed goes on to
  // arrive at the barriers, so that the others come to an end.
  virtual void begin(const PassInput& input) = 0;
  virtual Result<void> finish() = 0;
  // Begins, between the two, one more pass whose tokens are picks of the first one's rows
  // (Batch::picked_rows); for a rank that has no others. Each finish() then ends one of both, in
  // their order. False: it cannot, and nothing has happened.
  virtual Result<bool> begin_ahead(const PassInput&) { return false; }
  // Whether it ever can.
  virtual bool begins_ahead() const { return false; }
  // True after a failed pass in which it only waited for another rank, whose failure it is.
  virtual bool has_waited_in_vain() const { return false; }

  // The next three are rank 0's, between passes. True where candidates() finds any.
  virtual bool finds_candidates() const { return false; }
  // `request`: the row's in Batch::draws, or a default one.
  virtual FoundCandidates candidates(size_t row, const LogitDrawRequest& request) const;
  // A whole row where candidates() finds some; elsewhere the plan's logits are at hand. Valid until
  // the next call.
  virtual Result<std::span<const float>> fetch_logits(size_t row);
  // Between passes, by the thread that runs them; of a rank whose plan has hidden columns.
  virtual Result<HiddenPart> hidden_part(size_t token) = 0;

  // The arenas on the host; empty where the rank has them elsewhere.
  const NodeMemory& weights() const { return weights_; }
  const NodeMemory& kv() const { return kv_; }
  // Weights, scratch, exchange, KV cache and logits.
  std::vector<const NodeMemory*> all_memory() const;
  // Bytes of activations, exchange and logits among them, as the plan counts.
  virtual uint64_t host_scratch_bytes() const = 0;
  // After the load, between passes: see NodeMemory::seal().
  Result<void> seal_weights() { return weights_.seal(&workers_); }

 protected:
  // `workers`: the place's, which outlive the rank (place_workers.h).
  Rank(const RankPlace& place, Workers& workers);

  // Bytes of each arena that are taken on the host.
  struct HostBytes {
    size_t weights = 0;
    size_t scratch = 0;
    size_t exchange = 0;
    size_t kv = 0;
    size_t logits = 0;
  };
  Result<void> allocate_on_host(const HostBytes& bytes, ArenaSources sources);
  ArenaAddresses host_arenas() const;
  const Peers& peers() const { return peers_; }
  // A worker's view of a pass; valid as long as `input`.
  Pass make_pass(const PassInput& input, size_t worker);
  const NodeMemory& exchange() const { return exchange_; }
  const NodeMemory& logits() const { return logits_; }

 private:
  virtual Result<void> take_memory(ArenaSources sources) = 0;  // for plan()
  virtual Result<void> prepare() = 0;                          // with addresses() and peers()

  RankPlace place_;
  std::vector<WorkerCounters> counters_;  // by worker
  NodeMemory weights_;
  NodeMemory scratch_;
  NodeMemory exchange_;
  NodeMemory kv_;
  NodeMemory logits_;  // of rank 0
  Plan plan_;
  ArenaAddresses addresses_;
  Peers peers_;
  Workers& workers_;
};

// The outcome of a pass that the ranks have left with these results: a rank's own failure goes
// before that of one that has waited for it. `ranks`: pointers, as many.
template <typename RankPointers>
Result<void> outcome_of(std::span<const Result<void>> results, const RankPointers& ranks) {
  Result<void> outcome;
  for (size_t rank = 0; rank < results.size(); ++rank) {
    if (results[rank]) continue;
    if (!ranks[rank]->has_waited_in_vain()) return results[rank];
    if (outcome) outcome = results[rank];
  }
  return outcome;
}

}  // namespace lockstep
