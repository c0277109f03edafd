#include "engine/serving/host_join.h"

#include <utility>

#include "engine/base/log.h"
#include "engine/collectives/host_transports.h"
#include "engine/placement/host_agreement.h"
#include "engine/placement/memory_fit.h"

namespace lockstep {
namespace {

Result<void> wait_until_loaded(HostGroup& group) {
  auto loaded = group.gather({{"loaded", true}});
  if (!loaded) return std::unexpected(loaded.error());
  return {};
}

BatchLimits batch_limits(const Model& model, const ModelLayout& layout,
                         const HostExchange& exchange) {
  const Plan& plan = exchange.plans()[layout.first_rank()];
  return {.vocabulary_size = model.vocabulary_size,
          .batch_tokens = plan.batch_tokens,
          .logit_rows = plan.logit_rows,
          .sequence_count = plan.batch_tokens,
          .page_count = plan.kv.page_count,
          .group_count = plan.kv.group_count(),
          .state_slots = plan.states.slot_count,
          .given_columns = plan.given_columns,
          .context_tokens = layout.context_tokens};
}

Result<void> open_group(HostGroup& group, const BatchLimits& limits, const HostExchange& exchange) {
  if (auto bound = group.bound_commands(command_bytes_most(limits)); !bound) return bound;
  return group.open_links(exchange.bytes_most());
}

}  // namespace

Result<void> HostJoin::join(const HostSubject& subject, ModelLayout& layout) {
  if (auto checked = check_host_options(subject.options, layout); !checked) return checked;
  options_ = subject.options.hosts;
  options_.transport = *host_transport(subject.options.hosts, layout);
  auto formed = HostGroup::form(options_);
  if (!formed) return std::unexpected(formed.error());
  group_ = std::move(*formed);
  leader_ = group_->name(0);
  alone_ = layout;
  return agree_on_ranks(*group_, subject.file, subject.model, subject.options, subject.kernels,
                        layout);
}

Result<void> HostJoin::agree(const Model& model, const Machine& machine, Result<void> sized,
                             ModelLayout& layout) {
  // Pages that an earlier process has left are as many as they are.
  const auto fits = [&](const ModelLayout& planned) {
    return planned.kv_pages_held.value_or(planned.plan_options.kv_pages) ==
               planned.plan_options.kv_pages &&
           !first_misfit(planned, machine);
  };
  return agree_on_context(
      *group_, model,
      {.sized = std::move(sized), .slots_least = alone_.plan_options.state_slots, .fits = fits},
      layout);
}

std::chrono::seconds HostJoin::pass_deadline(const GpuSettings& given) const {
  const auto patience = std::chrono::ceil<std::chrono::seconds>(options_.patience);
  return std::max(given.pass_deadline, patience + std::chrono::seconds(1));
}

Result<void> HostJoin::open(const Model& model, const ModelLayout& layout) {
  exchange_ = std::make_unique<HostExchange>(*group_, *layout.hosts, plans_of_hosts(model, layout));
  return open_group(*group_, batch_limits(model, layout, *exchange_), *exchange_);
}

Result<std::unique_ptr<Ranks>> HostJoin::make_ranks(const Model& model, const ModelLayout& layout,
                                                    std::vector<ArenaSources> sources,
                                                    const GpuPlatform* gpus) {
  return Ranks::make_among_hosts(model.graph, layout.split, layout.plan_options,
                                 layout.places_of_hosts, std::move(sources), *exchange_, gpus);
}

Result<std::unique_ptr<HostMember>> HostJoin::begin(const HostSubject& subject,
                                                    const ModelLayout& layout, Executor& executor,
                                                    EngineLoop& loop) {
  spdlog::info("this host's weights are loaded; waiting for those of the others");
  if (auto loaded = wait_until_loaded(*group_); !loaded) return std::unexpected(loaded.error());
  if (group_->leads()) return watch_group(*group_, executor, loop);
  return follow_leader(
      group_, executor, *exchange_, batch_limits(subject.model, layout, *exchange_),
      [this, subject, &layout, &executor](const std::atomic<bool>& stop,
                                          const std::function<void(HostGroup*)>& formed) {
        return form_again(subject, layout, executor.ranks(), stop, formed);
      },
      loop);
}

// The weights and pages that this host holds are of one split and one number of pages: another
// group has to have the same, or this host starts anew. Everything else that goes wrong may be
// mended by waiting for another leader.
Result<std::unique_ptr<HostGroup>> HostJoin::form_again(
    const HostSubject& subject, const ModelLayout& layout, Ranks& ranks,
    const std::atomic<bool>& stop, const std::function<void(HostGroup*)>& formed) const {
  const auto transport = find_host_transport(options_.transport);
  if (transport && !(*transport)->outlives_group) {
    return machine_refused(
        "hosts that exchange by {} form one group, and it has ended: start all of them again",
        (*transport)->name);
  }
  if (auto recovered = ranks.recover(); !recovered) return std::unexpected(recovered.error());
  auto group = HostGroup::form(options_, stop);
  if (!group) return unavailable("{}", group.error().message);
  formed(group->get());
  ModelLayout next = alone_;
  auto agreed =
      agree_on_ranks(**group, subject.file, subject.model, subject.options, subject.kernels, next);
  if (agreed) {
    next.plan_options = layout.plan_options;
    next.context_tokens = layout.context_tokens;
    agreed = agree_on_context(**group, subject.model, {.is_held = true}, next);
  }
  const bool has_changed = !next.plans_digest.empty() && next.plans_digest != layout.plans_digest;
  if (has_changed) {
    agreed = machine_refused(
        "the hosts now cut the model otherwise, or have another context: this host has to load its "
        "weights anew (--context and --shares keep both as they are)");
  }
  // Equal plans: equal limits and bytes.
  if (agreed)
    agreed = open_group(**group, batch_limits(subject.model, next, *exchange_), *exchange_);
  if (agreed) agreed = ranks.join_again(**group);
  if (agreed) agreed = wait_until_loaded(**group);
  if (agreed) return group;
  (*group)->fail(agreed.error());
  formed(nullptr);
  if (has_changed) return std::unexpected(agreed.error());
  return unavailable("{}", agreed.error().message);
}

void HostJoin::leave(const Error& reason) const {
  if (group_ != nullptr) group_->fail(reason);
}

}  // namespace lockstep
