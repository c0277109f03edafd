// How an engine becomes one host of several: it forms the group, agrees in it on the ranks and the
// context, and, loaded, leads or follows. A follower does so again when the group has failed.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/base/result.h"
#include "engine/hosts/host_group.h"
#include "engine/interface/options.h"
#include "engine/interface/statistics.h"
#include "engine/kernels/kernel_table.h"
#include "engine/model/architecture.h"
#include "engine/model/gguf_file.h"
#include "engine/placement/host_agreement.h"
#include "engine/placement/model_layout.h"
#include "engine/runtime/executor.h"
#include "engine/runtime/hosts/host_exchange.h"
#include "engine/runtime/ranks.h"
#include "engine/serving/engine_loop.h"
#include "engine/serving/host_member.h"

namespace lockstep {

// The things that stay the same however often a group is formed. All of it outlives the group.
struct HostSubject {
  const GgufFile& file;
  const Model& model;
  const EngineOptions& options;
  const KernelTable& kernels;
};

// One thread; in the order of the calls below. Each fails with what another host refuses, too.
class HostJoin {
 public:
  bool is_joined() const { return group_ != nullptr; }
  // The leader's name, for messages.
  std::string leader() const { return leader_; }

  // Forms the group, waiting for its hosts, and makes `layout`'s ranks some of all hosts'
  // (agree_on_ranks()).
  Result<void> join(const HostSubject& subject, ModelLayout& layout);
  // `sized`: how size_context() ended on this machine. The layout gets the context that all have.
  Result<void> agree(const Model& model, const Machine& machine, Result<void> sized,
                     ModelLayout& layout);
  // The longest that a pass of GPUs may take: the group notices a silent host before, and says
  // which it is.
  std::chrono::seconds pass_deadline(const GpuSettings& given) const;
  // Opens the links to the other hosts.
  Result<void> open(const Model& model, const ModelLayout& layout);
  // Takes the memory of this host's ranks. Again, where the first try failed. `gpus`: the platform
  // of ranks on GPUs, which are joined with those of the other hosts.
  Result<std::unique_ptr<Ranks>> make_ranks(const Model& model, const ModelLayout& layout,
                                            std::vector<ArenaSources> sources,
                                            const GpuPlatform* gpus);
  // Waits until all hosts have loaded their weights, and begins to lead or to follow. All that is
  // given must outlive the result.
  Result<std::unique_ptr<HostMember>> begin(const HostSubject& subject, const ModelLayout& layout,
                                            Executor& executor, EngineLoop& loop);
  // From open() on.
  HostStatistics statistics() const {
    return {.count = exchange_->ranks().of_host.size(),
            .exchanged_bytes = exchange_->moved_bytes(),
            .exchange_seconds = std::chrono::duration<double>(exchange_->exchange_time()).count()};
  }
  // Tells the others why this host does not go on.
  void leave(const Error& reason) const;

 private:
  Result<std::unique_ptr<HostGroup>> form_again(
      const HostSubject& subject, const ModelLayout& layout, Ranks& ranks,
      const std::atomic<bool>& stop, const std::function<void(HostGroup*)>& formed) const;

  HostOptions options_;  // the group's, with the transport that its ranks have
  ModelLayout alone_;    // this host's, as it was before it joined
  std::string leader_;
  std::unique_ptr<HostGroup> group_;
  std::unique_ptr<HostExchange> exchange_;
};

}  // namespace lockstep
