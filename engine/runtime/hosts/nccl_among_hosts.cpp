#include "engine/runtime/hosts/nccl_among_hosts.h"

#include <fmt/ranges.h>

#include <charconv>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/log.h"

namespace lockstep {
namespace {

constexpr size_t kMostTold = 100;  // bytes of what another host sends, for a message

std::string told(const Json& sent) {
  return to_text(sent).substr(0, kMostTold);
}

// The texts that every host sends, in its document.
struct Offer {
  std::string version;
  std::string refusal;
};

Result<Offer> read_offer(const HostGroup& group, size_t host, const Json& sent) {
  const bool is_object = sent.is_object() && sent.contains("nccl") && sent.contains("refusal");
  if (!is_object || !sent["nccl"].is_string() || !sent["refusal"].is_string()) {
    return machine_refused("{} sends what this version does not understand: {}", group.name(host),
                           told(sent));
  }
  return Offer{sent["nccl"].get<std::string>(), sent["refusal"].get<std::string>()};
}

// All have the same version, and none has a reason against it.
Result<void> check_offers(const HostGroup& group, std::span<const Json> all) {
  std::string first;
  for (size_t host = 0; host < all.size(); ++host) {
    const auto offer = read_offer(group, host, all[host]);
    if (!offer) return std::unexpected(offer.error());
    if (!offer->refusal.empty()) {
      return machine_refused("{}: {}", group.name(host), offer->refusal);
    }
    if (host == 0) first = offer->version;
    if (offer->version == first) continue;
    return machine_refused(
        "{} has NCCL {}, and {} has {}: GPUs of several hosts are joined by one version; install "
        "the same on all",
        group.name(0), first, group.name(host), told(offer->version));
  }
  return {};
}

// NCCL does not say whose ranks it waits for: it is some of the others'.
std::string others_text(const HostGroup& group) {
  std::vector<std::string> names;
  for (size_t host = 0; host < group.count(); ++host) {
    if (host != group.index()) names.push_back(group.name(host));
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

std::string nccl_id_text(const NcclId& id) {
  std::string text;
  for (const std::byte byte : id) text += fmt::format("{:02x}", static_cast<unsigned>(byte));
  return text;
}

Result<NcclId> read_nccl_id(const Json& sent) {
  const std::string text = sent.is_string() ? sent.get<std::string>() : "";
  if (text.size() != 2 * kNcclIdBytes) {
    return machine_refused("an id for NCCL of {} digits came, and one has {}", text.size(),
                           2 * kNcclIdBytes);
  }
  NcclId id;
  for (size_t index = 0; index < id.size(); ++index) {
    const char* const digits = text.data() + 2 * index;
    unsigned value = 0;
    const auto [end, error] = std::from_chars(digits, digits + 2, value, 16);
    if (error != std::errc() || end != digits + 2) {
      return machine_refused("an id for NCCL came with '{}' in it, which is no byte",
                             std::string_view(digits, 2));
    }
    id[index] = static_cast<std::byte>(value);
  }
  return id;
}

NcclAmongHosts::NcclAmongHosts(const GpuPlatform& platform, std::vector<int> gpus, HostRanks ranks)
    : platform_(platform), gpus_(std::move(gpus)), ranks_(std::move(ranks)) {}

Json NcclAmongHosts::offer(const HostGroup& group) const {
  Json own = {{"nccl", ""}, {"refusal", absence_among_hosts(&platform_)}, {"id", ""}};
  if (own["refusal"] != "") return own;
  own["nccl"] = platform_.nccl_version();
  if (!group.leads()) return own;
  if (const auto id = platform_.make_nccl_id()) {
    own["id"] = nccl_id_text(*id);
  } else {
    own["refusal"] = id.error().message;
  }
  return own;
}

Result<void> NcclAmongHosts::join(HostGroup& group, std::chrono::nanoseconds deadline) {
  joined_.reset();
  const auto all = group.gather(offer(group));
  if (!all) return std::unexpected(all.error());
  if (auto checked = check_offers(group, *all); !checked) return checked;
  const Json& of_leader = all->front();
  const auto id = read_nccl_id(of_leader.contains("id") ? of_leader["id"] : Json());
  if (!id) return machine_refused("{}: {}", group.name(0), id.error().message);
  // NCCL takes this from its environment alone, when it first joins GPUs.
  if (!platform_.settings.nccl_peer_access) ::setenv("NCCL_P2P_DISABLE", "1", 1);
  auto made = platform_.join_among(gpus_,
                                   {.id = *id,
                                    .first = ranks_.own().begin,
                                    .count = ranks_.of_host.back().end,
                                    .failure = [&group] { return group.failure(); }},
                                   deadline);
  if (!made) {
    if (const auto failure = group.failure()) return std::unexpected(*failure);
    const Error error = {
        ErrorKind::kMachineRefused,
        fmt::format("NCCL has not joined this host's GPUs with those of {}: {}. Hosts whose GPUs "
                    "are joined reach one another at any TCP port; NCCL_SOCKET_IFNAME names the "
                    "network where there are several",
                    others_text(group), made.error().message)};
    group.fail(error);
    return std::unexpected(error);
  }
  joined_ = std::move(*made);
  group.on_failure([joined = joined_](const Error& reason) { joined->abort(reason); });
  spdlog::info("NCCL {} has joined the GPUs of {} hosts", platform_.nccl_version(), group.count());
  return {};
}

void NcclAmongHosts::set_deadline(std::chrono::nanoseconds deadline) {
  joined_->set_deadline(deadline);
}

void NcclAmongHosts::all_reduce(size_t rank, void* stream, const float* values, float* sums,
                                size_t count) {
  joined_->all_reduce(rank, stream, values, sums, count);
}

void NcclAmongHosts::exchange(size_t rank, void* stream, std::span<const NcclTransfer> transfers) {
  joined_->exchange(rank, stream, transfers);
}

std::chrono::nanoseconds NcclAmongHosts::time_spent(size_t rank) {
  return joined_->time_spent(rank);
}

Result<void> NcclAmongHosts::check(size_t rank) {
  return joined_->check(rank);
}

void NcclAmongHosts::abort(const Error& reason) {
  if (joined_ != nullptr) joined_->abort(reason);
}

}  // namespace lockstep
