// The options of an engine, parsed and checked once: the strings of
// EngineOptions that say how a model is placed end here.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/result.h"
#include "engine/drafting/drafter.h"
#include "engine/graph/fusion/rules.h"
#include "engine/graph/split.h"
#include "engine/interface/options.h"
#include "engine/kernels/attention.h"
#include "engine/kernels/kernel_table.h"
#include "engine/kernels/profile.h"
#include "engine/machine/device_choice.h"
#include "engine/model/model.h"
#include "engine/placement/machine.h"
#include "engine/runtime/gpu/gpu_platform.h"

namespace lockstep {

struct Settings {
  const KernelTable* kernels = nullptr;  // the processors' row
  Profile profile = Profile::kExact;     // of their arithmetic
  std::optional<DeviceChoice> devices;   // none: as the model fits ("auto")
  std::optional<Strategy> strategy;      // none: as the devices are ("auto")
  KvFormats kv_format = {};
  std::string kv_format_name;  // as kv_format_name() has it
  bool bf16_sums = false;
  FusionSet without_fusion = {};

  // How many ranks of processors, and what each of them gets; as in
  // EngineOptions.
  size_t rank_count = 0;
  size_t worker_count = 0;
  std::vector<double> shares;
  bool measure_shares = false;
  std::optional<size_t> gpu_expert_layers;
  std::optional<size_t> reserved_cores;
  GpuSettings gpus;

  // Tokens of a pass; at least as many as sequences run at once.
  size_t batch_tokens = 0;
  bool batch_is_given = false;
  size_t logit_rows = 0;
  size_t sequence_count = 0;
  size_t context_tokens = 0;  // of one sequence; 0: automatic
  size_t kv_pages = 0;        // 0: for as many full sequences as run at once, or what fits

  bool among_hosts = false;  // this host computes together with others
  bool drafts = false;       // tokens may be drafted
  DrafterChoice drafters;    // by these
  // The smaller model that drafts, at the same places; outlives the settings. Null: none does.
  const Model* draft_model = nullptr;
  // Slots beside sequences' own and checkpoints, for states from before a draft: streams that draft
  // are as a rule no more than these, since drafts do not pay beside many others.
  size_t draft_slots() const { return drafts ? std::min<size_t>(sequence_count, 8) : 0; }

  // The context that is planned for where none is given: the model's own.
  size_t context_or(size_t trained_tokens) const {
    return context_tokens != 0 ? context_tokens : trained_tokens;
  }
};

// The name of the cache's format; of keys and of values, "q8_0/q4_h", where they differ.
std::string kv_format_name(const EngineOptions& options);

// Fails with kInvalidInput for values that are not known or contradict one
// another, and as choose_devices() does for devices that are not there.
Result<Settings> parse(const EngineOptions& options, const KernelTable& kernels,
                       const Machine& machine);

// The same for this model. One whose tokens see those behind them computes a whole text in one
// pass, and a row of every token: a text is no longer than a pass. Fails with kInvalidInput for a
// context that the model or its passes have not.
Result<Settings> fit_to_model(const Model& model, Settings settings);

// The settings that ask for one rank: all processors, and memory on the first
// node.
Settings with_one_rank(Settings settings);
// The options with the ranks that these settings ask for.
EngineOptions with_ranks_of(const Settings& settings, EngineOptions options);

}  // namespace lockstep
