#include "engine/placement/host_agreement.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/base/digest.h"
#include "engine/base/log.h"
#include "engine/base/rank_limit.h"
#include "engine/collectives/gpu_mailbox.h"
#include "engine/collectives/gpu_nccl_sum.h"
#include "engine/collectives/host_address.h"
#include "engine/collectives/host_transports.h"
#include "engine/kernels/packed_matrix.h"
#include "engine/machine/device_choice.h"
#include "engine/machine/kept_memory.h"
#include "engine/placement/memory_fit.h"
#include "engine/placement/memory_identity.h"
#include "engine/placement/rank_device.h"
#include "engine/placement/settings.h"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

// More than any host has; a number from the wire is no reason to take memory.
constexpr size_t kWorkersMost = 4096;

constexpr const char* kGpuKinds = "GPUs";

// Equal on all hosts, or they would not compute one model: the file (its size, its header, and
// samples of what lies behind: another export has other weights), what computes, its arithmetic,
// the options by which passes are made.
Result<Json> describe_common(const GgufFile& file, const Model& model, const EngineOptions& options,
                             const KernelTable& kernels, const ModelLayout& layout) {
  const bool are_gpus = layout.rules().traits.joined_by_nccl;
  const auto headers = identify_headers(file);
  if (!headers) return std::unexpected(headers.error());
  Json common = {{"devices", are_gpus ? "GPUs" : "processors"},
                 {"packing", kPackingVersion},
                 {"model", Json::array()}};
  for (size_t part = 0; part < file.readers().size(); ++part) {
    const FileReader& reader = file.readers()[part];
    auto samples = sample_digest(reader.descriptor(), reader.size_bytes());
    if (!samples) return std::unexpected(samples.error());
    common["model"].push_back({{"bytes", reader.size_bytes()},
                               {"header_sha256", headers->at(part).at("header_sha256")},
                               {"samples_sha256", std::move(*samples)}});
  }
  if (are_gpus) {
    common[kGpuKinds] = layout.gpu_kinds;
  } else {
    common["isa"] = kernels.name;
  }
  common["arithmetic"] = layout.arithmetic;
  common["kv-format"] = kv_format_name(options);
  common["context"] = options.context_tokens;
  common["kv-pages"] = options.kv_pages;
  common["sequences"] = options.sequence_count;
  common["batch-tokens"] = layout.plan_options.batch_tokens;
  common["logit-rows"] = layout.plan_options.logit_rows;
  common["measured shares"] = options.measure_shares;
  common["rows kept for the draft model"] = model.graph.kept();
  return common;
}

Json describe_places(const ModelLayout& layout) {
  Json places = Json::array();
  for (const RankPlace& place : layout.places) {
    places.push_back({{"workers", place.cpus.size()}, {"share", place.share}});
    if (layout.rules().traits.joined_by_nccl) places.back()["gpu"] = true;
  }
  return places;
}

// A value of another host, for a message.
std::string cut_text(std::string text) {
  constexpr size_t kMost = 300;
  if (text.size() > kMost) text = text.substr(0, kMost) + "...";
  return text;
}

// A refusal names the option and both values: which of the two hosts is wrong is not known here.
Result<void> compare(const HostGroup& group, size_t host, const Json& theirs, const Json& own) {
  for (const auto& [key, value] : own.items()) {
    const Json there = theirs.value(key, Json());
    if (there == value) continue;
    const std::string_view remedy =
        key == kGpuKinds
            ? "GPUs of one kind alone compute alike: --devices names those that do"
            : "Give all hosts the same file and options; --isa NAME makes processors of different "
              "kinds compute alike";
    // Another host may be the wrong one, and be mended: a service manager starts this one again.
    return machine_refused("{} cannot compute one model with {}: {} is {} there and {} here. {}",
                           group.name(host), group.name(group.index()), key, cut_text(there.dump()),
                           cut_text(value.dump()), remedy);
  }
  return {};
}

// A host whose ranks hold no part of the states has space for any number of slots.
constexpr size_t kNoBound = size_t{1} << 40U;

bool has_states(const ModelLayout& layout) {
  return std::ranges::any_of(layout.sizes,
                             [](const RankSizes& sizes) { return sizes.state_bytes > 0; });
}

// The length of a context, and what it takes.
struct Extent {
  size_t pages = 0;
  size_t slots = 0;
  size_t context = 0;

  friend bool operator==(const Extent&, const Extent&) = default;
  static Extent least(const Extent& a, const Extent& b) {
    return {std::min(a.pages, b.pages), std::min(a.slots, b.slots), std::min(a.context, b.context)};
  }
};

Extent extent_of(const ModelLayout& layout) {
  return {.pages = layout.plan_options.kv_pages,
          .slots = has_states(layout) ? layout.plan_options.state_slots : kNoBound,
          .context = layout.context_tokens};
}

// Makes it the layout's.
void set_extent(const Model& model, const Extent& extent, ModelLayout& layout) {
  PlanOptions& options = layout.plan_options;
  if (layout.draft) set_draft_pages(*layout.draft, {.all = extent.pages}, layout.places);
  options.kv_pages = extent.pages;
  if (extent.slots != kNoBound) options.state_slots = extent.slots;
  layout.context_tokens = extent.context;
  if (options.sequence_pages > 0) options.sequence_pages = pages_for(extent.context);
  layout.sizes = layout_sizes(model, layout, options, options.kv_pages);
}

// The contexts of all hosts, as they say.
struct Extents {
  Extent least;
  // That of the hosts whose memory is taken; none: there are no such hosts, or they differ.
  std::optional<Extent> held = {};
};

Result<RankPlace> read_place(const HostGroup& group, size_t host, const Json& place) {
  RankPlace read;
  const auto workers = place.value("workers", size_t{0});
  read.share = place.value("share", 0.0);
  if (workers == 0 || workers > kWorkersMost || !std::isfinite(read.share) || read.share <= 0) {
    return invalid_input("{} has a rank of {} workers with a share of {}", group.name(host),
                         workers, read.share);
  }
  read.cpus.assign(workers, -1);
  if (place.value("gpu", false)) read.device = GpuPlace();
  return read;
}

// A document of another version may have anything in it.
template <typename Read>
Result<void> read_document(const HostGroup& group, size_t host, Read read) {
  try {
    return read();
  } catch (const nlohmann::json::exception& error) {
    return invalid_input("{} sends what this version does not understand ({})", group.name(host),
                         error.what());
  }
}

// This host's own places stand among them as they are here.
Result<void> collect_places(const HostGroup& group, const std::vector<Json>& all,
                            ModelLayout& layout) {
  HostRanks ranks{.host = group.index()};
  std::vector<RankPlace> places;
  for (size_t host = 0; host < all.size(); ++host) {
    const size_t first = places.size();
    auto read = read_document(group, host, [&]() -> Result<void> {
      for (const Json& described : all[host].at("places")) {
        auto place = read_place(group, host, described);
        if (!place) return std::unexpected(place.error());
        if (places.size() == kRanksMax) {
          return invalid_input("the hosts have more than {} ranks together", kRanksMax);
        }
        places.push_back(std::move(*place));
      }
      return {};
    });
    if (!read) return read;
    ranks.of_host.push_back({first, places.size()});
    if (ranks.of_host.back().empty()) {
      return invalid_input("{} has no ranks", group.name(host));
    }
  }
  layout.host_name = group.name(group.index());
  layout.hosts = std::move(ranks);
  layout.places_of_hosts = std::move(places);
  return {};
}

// The most that another host may say. A host computes with these before it looks for memory: times
// the bytes of one page (256 MiB) or slot (64 GiB) on each of 64 ranks they fit a number. Slots of
// a host that has no states itself are taken as another says, and each takes memory of the
// scheduler.
constexpr size_t kMostPages = size_t{1} << 28U;
constexpr size_t kMostSlots = size_t{1} << 20U;
constexpr size_t kMostContext = size_t{1} << 30U;

struct Bound {
  const char* name;
  size_t least;
  size_t most;
};

Result<size_t> read_extent(const HostGroup& group, size_t host, const Json& theirs,
                           const Bound& bound) {
  const Json& number = theirs.at(bound.name);
  const bool counts =
      !number.is_number_integer() || number.is_number_unsigned() || number.get<int64_t>() >= 0;
  const size_t value = counts && !number.is_number_float() ? number.get<size_t>() : 0;
  const bool is_any = value == kNoBound && bound.most == kMostSlots;
  if (is_any || (value >= bound.least && value <= bound.most)) return value;
  return machine_refused("{} has no space for a context: {} {}, where {} to {} can be",
                         group.name(host), number.dump(), bound.name, bound.least, bound.most);
}

// A scheduler counts on slots for the states of the sequences that run at once, and on pages for
// one sequence of the whole context: where every host has them, the least of all has, too.
Result<Extent> read_extent(const HostGroup& group, size_t host, const Json& theirs,
                           size_t slots_least, const KvPageCount& page_count) {
  const auto slots = read_extent(group, host, theirs, {"slots", slots_least, kMostSlots});
  if (!slots) return std::unexpected(slots.error());
  const auto context = read_extent(group, host, theirs, {"context", 1, kMostContext});
  if (!context) return std::unexpected(context.error());
  const size_t pages_least = std::max<size_t>(1, page_count.of_sequence(*context));
  const auto pages = read_extent(group, host, theirs, {"pages", pages_least, kMostPages});
  if (!pages) return std::unexpected(pages.error());
  return Extent{.pages = *pages, .slots = *slots, .context = *context};
}

Result<Extents> read_extents(const HostGroup& group, const std::vector<Json>& all,
                             size_t slots_least, const KvPageCount& page_count) {
  Extents found = {.least = {kNoBound, kNoBound, kNoBound}};
  std::vector<Extent> held;
  for (size_t host = 0; host < all.size(); ++host) {
    const Json& theirs = all[host];
    auto read = read_document(group, host, [&]() -> Result<void> {
      const auto refusal = theirs.at("refusal").get<std::string>();
      if (!refusal.empty()) return machine_refused("{}: {}", group.name(host), refusal);
      const auto extent = read_extent(group, host, theirs, slots_least, page_count);
      if (!extent) return std::unexpected(extent.error());
      found.least = Extent::least(found.least, *extent);
      if (theirs.at("held").get<bool>()) held.push_back(*extent);
      return {};
    });
    if (!read) return std::unexpected(read.error());
  }
  if (held.empty()) return found;
  // One whose ranks have no part of the states holds any number of them.
  Extent common = held.front();
  for (const Extent& each : held) common.slots = std::min(common.slots, each.slots);
  const bool is_common = std::ranges::all_of(held, [&](Extent each) {
    if (each.slots == kNoBound) each.slots = common.slots;
    return each == common;
  });
  if (is_common) found.held = common;
  return found;
}

// A host that is started again may find less memory than its group had, while the others hold
// theirs: then the question is no longer how much to take, but whether that much is there.
Result<Extent> agree_on_extent(HostGroup& group, const Model& model, const HostContext& own,
                               const ModelLayout& layout) {
  const Extent here = extent_of(layout);
  const auto all = group.gather({{"refusal", own.sized ? "" : own.sized.error().message},
                                 {"pages", here.pages},
                                 {"slots", here.slots},
                                 {"context", here.context},
                                 {"held", own.is_held}});
  if (!own.sized) {
    return std::unexpected(
        Error{own.sized.error().kind,
              fmt::format("{}: {}", group.name(group.index()), own.sized.error().message)});
  }
  if (!all) return std::unexpected(all.error());
  const auto found = read_extents(group, *all, own.slots_least,
                                  KvPageCount(model.graph, layout.plan_options.batch_tokens));
  if (!found) return std::unexpected(found.error());
  if (!found->held || *found->held == found->least) return found->least;
  ModelLayout held = layout;
  set_extent(model, *found->held, held);
  const auto answers = group.gather({{"has space", own.is_held || (own.fits && own.fits(held))}});
  if (!answers) return std::unexpected(answers.error());
  bool all_have = true;
  for (size_t host = 0; host < answers->size(); ++host) {
    auto read = read_document(group, host, [&]() -> Result<void> {
      all_have = (*answers)[host].at("has space").get<bool>() && all_have;
      return {};
    });
    if (!read) return std::unexpected(read.error());
  }
  if (!all_have) return found->least;
  spdlog::info("the cache has the {} pages that hosts hold already; this host alone would have {}",
               found->held->pages, here.pages);
  return *found->held;
}

Result<void> check_transport(const HostOptions& hosts, const ModelLayout& layout) {
  const auto name = host_transport(hosts, layout);
  if (!name) return std::unexpected(name.error());
  const auto transport =
      std::ranges::find(host_transports(), std::string_view(*name), &HostTransport::name);
  const bool encrypts = transport == host_transports().end() || transport->encrypts;
  if (encrypts || hosts.may_be_insecure || std::ranges::all_of(hosts.addresses, is_loopback_host)) {
    return {};
  }
  return invalid_input(
      "what hosts exchange by {} during a pass is not encrypted, whatever secret they have; if "
      "only "
      "these hosts are on their network, use --insecure-hosts true",
      *name);
}

}  // namespace

Result<std::string> host_transport(const HostOptions& hosts, const ModelLayout& layout) {
  const bool is_of_gpus = hosts.transport == kGpuTransport;
  if (!layout.rules().traits.joined_by_nccl) {
    if (!is_of_gpus) return hosts.transport;
    return invalid_input(
        "--hosts-transport {} joins GPUs, and processors are to compute: leave it out, or use "
        "--devices gpu",
        hosts.transport);
  }
  if (is_of_gpus || hosts.transport == "tcp" || hosts.transport == "auto") {
    return std::string(kGpuTransport);
  }
  return invalid_input(
      "GPUs of several hosts exchange by NCCL, which chooses its network itself: leave out "
      "--hosts-transport {}",
      hosts.transport);
}

Result<void> check_host_options(const EngineOptions& options, const ModelLayout& layout) {
  const HostOptions& hosts = options.hosts;
  for (const std::string& address : hosts.addresses) {
    if (auto parsed = HostAddress::parse(address); !parsed) return std::unexpected(parsed.error());
  }
  if (!hosts.secret && !hosts.may_be_insecure &&
      !std::ranges::all_of(hosts.addresses, is_loopback_host)) {
    return invalid_input(
        "hosts need a secret that they share: --hosts-secret FILE, the same on all (openssl rand "
        "-hex 32 makes one). On a private network --insecure-hosts true does without");
  }
  if (!layout.rules().traits.spans_hosts) {
    return invalid_input(
        "hosts compute together on GPUs alone or on processors alone, not on {}: use --devices gpu "
        "or --devices cpu, on all",
        device_names(layout.devices));
  }
  if (auto exchanged = check_transport(hosts, layout); !exchanged) return exchanged;
  if (!layout.rules().traits.joined_by_nccl && layout.split.strategy != Strategy::kGather) {
    return invalid_input("hosts exchange whole results: --strategy gather, not {}",
                         strategy_name(layout.split.strategy));
  }
  if (options.cache_memory_bytes > 0 || !options.cache_directory.empty()) {
    return invalid_input(
        "pages of several hosts are not kept in memory or files: leave out --cache-memory and "
        "--cache-dir");
  }
  return {};
}

Result<void> agree_on_ranks(HostGroup& group, const GgufFile& file, const Model& model,
                            const EngineOptions& options, const KernelTable& kernels,
                            ModelLayout& layout) {
  auto common = describe_common(file, model, options, kernels, layout);
  if (!common) return std::unexpected(common.error());
  const auto all = group.gather({{"common", *common}, {"places", describe_places(layout)}});
  if (!all) return std::unexpected(all.error());
  for (size_t host = 0; host < all->size(); ++host) {
    auto compared = read_document(
        group, host, [&] { return compare(group, host, (*all)[host].at("common"), *common); });
    if (!compared) return compared;
  }
  if (auto collected = collect_places(group, *all, layout); !collected) return collected;
  if (auto split = split_among_hosts(model, layout); !split) return split;
  for (size_t host = 0; host < group.count(); ++host) {
    const Range ranks = layout.hosts->of_host[host];
    spdlog::info("{} has ranks {} to {} of {}", group.name(host), ranks.begin, ranks.end - 1,
                 layout.places_of_hosts.size());
  }
  return {};
}

Result<void> split_among_hosts(const Model& model, ModelLayout& layout) {
  const Range own = layout.hosts->own();
  if (layout.places.size() != own.size()) {
    return invalid_input("this host has {} ranks, and the others know of {}", layout.places.size(),
                         own.size());
  }
  std::ranges::copy(layout.places,
                    layout.places_of_hosts.begin() + static_cast<std::ptrdiff_t>(own.begin));
  const bool are_gpus = layout.rules().traits.joined_by_nccl;
  const size_t rank_count = layout.places_of_hosts.size();
  const bool are_alike = std::ranges::all_of(layout.places_of_hosts, [&](const RankPlace& place) {
    return place.device.index() == layout.places.front().device.index();
  });
  if (!are_alike) {
    return invalid_input(
        "some ranks of the hosts are GPUs and others processors: give all hosts the same "
        "--devices, gpu or cpu");
  }
  if (are_gpus && rank_count > kGpuRanksMax) {
    return invalid_input(
        "the hosts have {} GPUs together, and at most {} can be ranks of one split: name fewer in "
        "--devices",
        rank_count, kGpuRanksMax);
  }
  auto split = split_graph(model.graph, shares_of(layout.places_of_hosts),
                           are_gpus ? Strategy::kReduce : Strategy::kGather);
  if (!split) return std::unexpected(split.error());
  layout.split = std::move(*split);
  layout.gpus_linked = false;
  layout.host_buffer_bytes = host_buffer_bytes(plans_of_hosts(model, layout), *layout.hosts);
  layout.sizes = layout_sizes(model, layout, layout.plan_options, 0);
  if (are_gpus) {
    const uint64_t floats = layout.sizes.front().message_floats;
    layout.nccl_bytes = kNcclBytes + gpu_nccl_received_floats(rank_count, floats) * sizeof(float);
  }
  return {};
}

Result<void> agree_on_context(HostGroup& group, const Model& model, const HostContext& own,
                              ModelLayout& layout) {
  auto extent = agree_on_extent(group, model, own, layout);
  if (!extent) return std::unexpected(extent.error());
  set_extent(model, *extent, layout);
  Digest digest;
  for (const Plan& plan : plans_of_hosts(model, layout)) digest.add(plan_text(plan));
  layout.plans_digest = digest.finish();
  const auto digests = group.gather({{"plans", layout.plans_digest}});
  if (!digests) return std::unexpected(digests.error());
  for (size_t host = 0; host < digests->size(); ++host) {
    auto compared = read_document(group, host, [&] {
      return compare(group, host, (*digests)[host], (*digests)[group.index()]);
    });
    if (!compared) return compared;
  }
  return {};
}

std::vector<Plan> plans_of_hosts(const Model& model, const ModelLayout& layout) {
  std::vector<Plan> plans;
  for (const RankPlace& place : layout.places_of_hosts) {
    plans.push_back(
        make_plan(model.graph, layout.split, plans.size(), options_on(place, layout.plan_options)));
  }
  return plans;
}

}  // namespace lockstep
