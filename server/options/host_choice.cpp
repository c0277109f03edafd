#include "server/options/host_choice.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <fstream>
#include <iterator>
#include <optional>
#include <span>
#include <string_view>

#include "engine/base/digest.h"
#include "engine/base/key_file.h"
#include "server/options/version.h"

namespace lockstep {
namespace {

constexpr size_t kSecretBytesLeast = 16;
constexpr size_t kSecretBytesMost = 4096;
constexpr size_t kGroupBytesMost = 200;  // a longer one is told from others by its digest
constexpr std::string_view kLeaderPort = ":7070";

using Environment = std::vector<std::pair<std::string, std::string>>;

std::optional<std::string> variable(const Environment& environment, std::string_view name) {
  const auto found =
      std::ranges::find_if(environment, [&](const auto& entry) { return entry.first == name; });
  return found == environment.end() ? std::nullopt : std::optional(found->second);
}

// The number of a variable that may be missing.
Result<std::optional<size_t>> number_of(const Environment& environment, std::string_view name) {
  const auto text = variable(environment, name);
  if (!text) return std::nullopt;
  size_t number = 0;
  const char* const end = text->data() + text->size();
  const auto [rest, error] = std::from_chars(text->data(), end, number);
  if (error != std::errc() || rest != end) return invalid_input("{} is no number: {}", name, *text);
  return number;
}

// By mpirun, by whatever speaks PMI, and by srun.
constexpr std::array<std::string_view, 3> kLaunchedIndices = {"OMPI_COMM_WORLD_RANK", "PMI_RANK",
                                                              "SLURM_PROCID"};
constexpr std::array<std::string_view, 3> kLaunchedCounts = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE",
                                                             "SLURM_NTASKS"};

// The first of these numbers, where a group was asked for: daemons that serve by themselves may
// have been started by the same.
Result<std::optional<size_t>> launched_number(const GivenHosts& given,
                                              const Environment& environment,
                                              std::span<const std::string_view> names) {
  if (given.leader.empty() && given.addresses.empty() && given.transport != "mpi") {
    return std::nullopt;
  }
  for (const std::string_view name : names) {
    auto number = number_of(environment, name);
    if (!number || *number) return number;
  }
  return std::nullopt;
}

// How many there are, and where.
Result<void> choose_addresses(const GivenHosts& given, const Environment& environment,
                              HostOptions& hosts) {
  if (!given.addresses.empty()) {
    if (given.count && *given.count != given.addresses.size()) {
      return invalid_input("--host-count is {}, but --hosts names {}; leave one of them out",
                           *given.count, given.addresses.size());
    }
    hosts.count = given.addresses.size();
    hosts.addresses = given.addresses;
    return {};
  }
  const auto group_size = number_of(environment, "LWS_GROUP_SIZE");
  if (!group_size) return std::unexpected(group_size.error());
  const auto launched = launched_number(given, environment, kLaunchedCounts);
  if (!launched) return std::unexpected(launched.error());
  hosts.count = given.count.value_or(group_size->value_or(launched->value_or(1)));
  if (!hosts.is_group()) return {};
  std::string leader = given.leader;
  if (leader.empty()) {
    const auto address = variable(environment, "LWS_LEADER_ADDRESS");
    if (!address) {
      return invalid_input("{} hosts, and none of them is known: give --leader NAME:PORT",
                           hosts.count);
    }
    leader = *address + std::string(kLeaderPort);
  }
  hosts.addresses = {leader};
  return {};
}

Result<void> choose_index(const GivenHosts& given, const Environment& environment,
                          HostOptions& hosts) {
  const auto worker = number_of(environment, "LWS_WORKER_INDEX");
  if (!worker) return std::unexpected(worker.error());
  const auto launched = launched_number(given, environment, kLaunchedIndices);
  if (!launched) return std::unexpected(launched.error());
  auto index = given.index ? given.index : *worker;
  if (!index) index = *launched;
  if (!index) {
    return invalid_input("which of the {} hosts is this? Give --host-index 0 (the leader) to {}",
                         hosts.count, hosts.count - 1);
  }
  if (*index >= hosts.count) {
    return invalid_input("--host-index is {}, but there are {} hosts: 0 to {}", *index, hosts.count,
                         hosts.count - 1);
  }
  hosts.index = *index;
  return {};
}

// The name by which a host of another group is refused even if it knows the secret.
std::string choose_group(const GivenHosts& given, const Environment& environment) {
  std::string group = given.group;
  if (group.empty()) group = variable(environment, "LWS_LEADER_ADDRESS").value_or("");
  if (group.empty()) group = fmt::format("{}", fmt::join(given.addresses, ","));
  std::ranges::replace_if(
      group, [](char c) { return static_cast<unsigned char>(c) < ' ' || c == '\x7f'; }, ' ');
  if (group.size() <= kGroupBytesMost) return group;
  Digest digest;
  digest.add(group);
  return fmt::format("{}... ({})", group.substr(0, kGroupBytesMost - 40),
                     digest.finish().substr(0, 16));
}

Result<SecretKey> read_secret(const std::string& path) {
  if (auto checked = check_key_file(path, "--hosts-secret"); !checked) {
    return std::unexpected(checked.error());
  }
  std::ifstream file(path, std::ios::binary);
  std::string text(kSecretBytesMost + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  // As editors and `openssl rand -hex` leave it.
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  if (text.size() < kSecretBytesLeast || text.size() > kSecretBytesMost) {
    return invalid_input(
        "--hosts-secret: {} has {} bytes; it must have {} to {}: openssl rand -hex 32 makes some",
        path, text.size(), kSecretBytesLeast, kSecretBytesMost);
  }
  return derive_key(SecretKey{}, text);
}

}  // namespace

Result<HostOptions> choose_hosts(const GivenHosts& given, const Environment& environment) {
  HostOptions hosts;
  if (auto chosen = choose_addresses(given, environment, hosts); !chosen) {
    return std::unexpected(chosen.error());
  }
  if (!hosts.is_group()) return HostOptions();
  if (auto chosen = choose_index(given, environment, hosts); !chosen) {
    return std::unexpected(chosen.error());
  }
  if (!given.secret_file.empty()) {
    auto secret = read_secret(given.secret_file);
    if (!secret) return std::unexpected(secret.error());
    hosts.secret = *secret;
  }
  hosts.group = choose_group(given, environment);
  hosts.may_be_insecure = given.insecure;
  hosts.patience = std::chrono::milliseconds(static_cast<int64_t>(given.silent_seconds * 1000));
  hosts.transport = given.transport;
  hosts.version = kVersion;
  return hosts;
}

}  // namespace lockstep
