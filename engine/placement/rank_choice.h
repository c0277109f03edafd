// How fast the ranks of a layout on nodes can generate, by what they read and exchange, measured on
// this machine; and whether one rank alone would be faster.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/result.h"
#include "engine/model/architecture.h"
#include "engine/placement/machine.h"
#include "engine/placement/model_layout.h"
#include "engine/placement/settings.h"

namespace lockstep {

// One sequence's generation by the memory's bandwidth and the exchanges alone.
struct NodeSpeed {
  std::vector<double> bytes_per_second;   // that each rank reads of its memory
  double read_seconds = 0;                // until every rank has read its part of a token's weights
  uint32_t exchanges_per_token = 0;       // barriers of all ranks
  double seconds_per_exchange = 0;        // a push of one token's activation, and the barrier
  double one_rank_tokens_per_second = 0;  // the same model on the first node alone; 0: no space

  double tokens_per_second() const {
    return 1 / (read_seconds + exchanges_per_token * seconds_per_exchange);
  }
};

// Measures a layout whose ranks are nodes'; takes some tenths of a second. `kv_pages`: of the cache
// that one rank alone would have to find space for. Fails with kMachineRefused.
Result<NodeSpeed> measure_node_speed(const Model& model, const Settings& settings,
                                     const Machine& machine, const ModelLayout& layout,
                                     size_t kv_pages);

// Whether --ranks auto takes one rank instead: it is faster by more than what two measurements of
// one machine differ by.
bool prefers_one_rank(const NodeSpeed& speed);

// The figures in words: "one rank is 1.52 times as fast as 2: ...".
std::string compare_with_one_rank(const NodeSpeed& speed, size_t rank_count);

// Whether the number of ranks of this layout is the daemon's to choose: nothing was asked for that
// says how many there are or what each of them has.
bool may_choose_ranks(const Settings& settings, const ModelLayout& layout);

// A layout, and the settings that ask for it.
struct RankChoice {
  Settings settings;
  ModelLayout layout;
  std::string reason;                   // why so many ranks; empty: nothing was to be chosen
  std::optional<NodeSpeed> speed = {};  // of the layout that came in, where it was measured
};

// Decides for --ranks auto whether all ranks of `layout`, one per node, compute or one rank alone,
// whichever is measured to be faster; all where the number is not to be chosen, or cannot be
// measured. `kept_ranks`: those of weights that an earlier process has left, which are of
// use to as many ranks alone, so that it is done as there. Fails where one rank was chosen and
// cannot be laid out.
Result<RankChoice> choose_ranks(const Model& model, const Settings& settings,
                                const Machine& machine, ModelLayout layout,
                                std::optional<size_t> kept_ranks = {});

// Placer::place(), then choose_ranks(), and a line in the log where something was chosen.
Result<RankChoice> lay_out_ranks(const Model& model, const Settings& settings,
                                 const Machine& machine, std::optional<size_t> kept_ranks);

}  // namespace lockstep
