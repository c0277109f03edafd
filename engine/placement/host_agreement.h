// How hosts come to one layout of one model. Each lays it out on its own devices; then all tell
// one another what they have, cut the model over all ranks in the same way, and take the context
// that all have space for. Whatever does not fit together is refused in words, on every host,
// before a byte of a weight is read.
#pragma once

#include <functional>
#include <vector>

#include "engine/base/result.h"
#include "engine/hosts/host_group.h"
#include "engine/interface/options.h"
#include "engine/kernels/kernel_table.h"
#include "engine/model/architecture.h"
#include "engine/model/gguf_file.h"
#include "engine/placement/model_layout.h"

namespace lockstep {

// The row of host_transports() by which the hosts' ranks exchange: of GPUs NCCL. Fails with
// kInvalidInput where another was asked for than these ranks have.
Result<std::string> host_transport(const HostOptions& hosts, const ModelLayout& layout);

// Refuses (kInvalidInput) what several hosts cannot do together: GPUs beside processors, `reduce`
// of processors, cache tiers; and hosts that talk over a network without a secret, or exchange by
// what does not encrypt, unless that was asked for.
Result<void> check_host_options(const EngineOptions& options, const ModelLayout& layout);

// `layout`: of this host by itself, without a context; then its ranks are some of all hosts'. All
// hosts call it. Fails with kInvalidInput where the hosts have different models or options, or one
// would have no work, as the group where it has failed.
Result<void> agree_on_ranks(HostGroup& group, const GgufFile& file, const Model& model,
                            const EngineOptions& options, const KernelTable& kernels,
                            ModelLayout& layout);

// Cuts the model over `layout`'s places of all hosts, its own as they are in `places`: the split,
// and the sizes of its own ranks. Fails as split_graph(), and where this host has another number of
// ranks than the others know.
Result<void> split_among_hosts(const Model& model, ModelLayout& layout);

// How this host has come to the context of its layout, after agree_on_ranks().
struct HostContext {
  Result<void> sized = {};  // how size_context() ended
  bool is_held = false;     // the memory is taken, and stays if all have the same context
  size_t slots_least = 1;   // for states: the sequences that run at once
  // Whether the arenas of such a layout find space here.
  std::function<bool(const ModelLayout&)> fits = {};
};

// Then the layout has the context that some hosts hold, where the others have space for it, else
// the shortest of all; and all hosts' plans are known to be equal. All hosts call it. Fails as
// `sized` on one host does, on all.
Result<void> agree_on_context(HostGroup& group, const Model& model, const HostContext& own,
                              ModelLayout& layout);

// The plans of all ranks of all hosts.
std::vector<Plan> plans_of_hosts(const Model& model, const ModelLayout& layout);

}  // namespace lockstep
