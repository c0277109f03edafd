#include "engine/placement/memory_handover.h"

#include <fcntl.h>

#include <algorithm>

#include "engine/base/checked_math.h"
#include "engine/base/json.h"
#include "engine/base/log.h"
#include "engine/machine/kept_memory.h"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kDescriptionName = "lockstep-weights";
constexpr std::string_view kWeightsPrefix = "lockstep-weights-";
constexpr std::string_view kKvPrefix = "lockstep-kv-";

// A rank takes below 200 bytes of it, a file of a split set as well.
constexpr uint64_t kDescriptionBytesMax = 1U << 20U;
// Reading, comparing and destroying a description recurse as deep as it is. A sound one takes 5.
constexpr size_t kDescriptionDepthMax = 16;

std::string arena_name(std::string_view prefix, size_t rank) {
  return fmt::format("{}{}", prefix, rank);
}

std::optional<uint64_t> number_at(const Json& object, const char* key) {
  if (!object.is_object()) return std::nullopt;
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number_unsigned()) return std::nullopt;
  return found->get<uint64_t>();
}

// Null where there is none.
Json part_of(const Json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(key);
  return found == object.end() ? Json(nullptr) : *found;
}

Result<Json> read_description(const KeptDescriptor* kept) {
  if (kept == nullptr) return machine_refused("nothing describes it: it was not kept as a whole");
  auto text = read_sealed_text(kept->descriptor.number(), kDescriptionBytesMax);
  if (!text) return machine_refused("its description: {}", text.error().message);
  auto described = parse_json(*text, {.depth = kDescriptionDepthMax});
  if (!described || !described->is_object()) {
    return machine_refused("its description is damaged");
  }
  return described;
}

}  // namespace

const KeptDescriptor* MemoryHandover::find(std::string_view name) const {
  const auto found = std::ranges::find(kept_, name, &KeptDescriptor::name);
  return found == kept_.end() ? nullptr : &*found;
}

Result<std::vector<MemoryHandover::Arena>> MemoryHandover::check_arenas(
    const Json& described, std::string_view prefix, bool sealed,
    std::span<const uint64_t> bytes_least) const {
  const Json arenas = part_of(described, "arenas");
  if (!arenas.is_array() || arenas.size() != bytes_least.size()) {
    return machine_refused("it is not of {} ranks", bytes_least.size());
  }
  std::vector<Arena> found;
  for (size_t rank = 0; rank < arenas.size(); ++rank) {
    const std::string name = arena_name(prefix, rank);
    const KeptDescriptor* const kept = find(name);
    if (kept == nullptr) return machine_refused("{} is missing", name);
    const auto facts = examine_memfd(kept->descriptor.number());
    if (!facts || facts->inode != number_at(arenas[rank], "inode")) {
      return machine_refused("{} is another file than the one that was kept", name);
    }
    if (facts->bytes != number_at(arenas[rank], "bytes") || facts->bytes < bytes_least[rank]) {
      return machine_refused("{} has {} bytes, which is not what was kept", name, facts->bytes);
    }
    if (sealed != facts->sealed) {
      return machine_refused("{} is {}sealed", name, sealed ? "not " : "");
    }
    found.push_back({kept, facts->bytes});
  }
  return found;
}

Result<void> MemoryHandover::check_weights(const Json& described, const MemoryIdentity& wanted,
                                           std::span<const RankSizes> sizes) {
  if (auto difference = first_difference(part_of(described, "identity"), wanted.weights)) {
    return machine_refused("{}", *difference);
  }
  std::vector<uint64_t> bytes;
  for (const RankSizes& rank : sizes) bytes.push_back(rank.weight_bytes);
  auto arenas = check_arenas(described, kWeightsPrefix, true, bytes);
  if (!arenas) return std::unexpected(arenas.error());
  for (size_t rank = 0; rank < arenas->size(); ++rank) {
    const auto& [kept, arena_bytes] = (*arenas)[rank];
    const auto digest = sample_digest(kept->descriptor.number(), arena_bytes);
    if (!digest) return std::unexpected(digest.error());
    if (part_of(described["arenas"][rank], "samples_sha256") != *digest) {
      return machine_refused("samples of {} differ from what was kept", kept->name);
    }
  }
  weights_ = std::move(*arenas);
  return {};
}

Result<void> MemoryHandover::check_kv(const Json& described, const MemoryIdentity& wanted) {
  if (described.is_null()) return machine_refused("it was not kept");
  if (auto difference = first_difference(part_of(described, "identity"), wanted.kv)) {
    return machine_refused("{}", *difference);
  }
  const auto pages = number_at(described, "pages");
  if (!pages || *pages == 0) return machine_refused("it has no pages");
  std::vector<uint64_t> bytes;
  for (const Json& rank : wanted.kv["ranks"]) {
    const auto of_rank = checked_multiply(rank["page_bytes"].get<uint64_t>(), *pages);
    if (!of_rank) return machine_refused("{} pages are beyond all reason", *pages);
    bytes.push_back(*of_rank);
  }
  auto arenas = check_arenas(described, kKvPrefix, false, bytes);
  if (!arenas) return std::unexpected(arenas.error());
  kv_ = std::move(*arenas);
  kv_pages_ = *pages;
  return {};
}

void MemoryHandover::examine(const MemoryIdentity& wanted, std::span<const RankSizes> sizes) {
  if (kept_.empty()) return;
  const auto described = read_description(find(kDescriptionName));
  if (!described) return refuse(described.error().message);
  if (auto checked = check_weights(part_of(*described, "weights"), wanted, sizes); !checked) {
    return refuse(checked.error().message);
  }
  has_weights_ = true;
  if (auto checked = check_kv(part_of(*described, "kv"), wanted); !checked) {
    spdlog::info("the memory of the earlier process's KV cache is not used: {}",
                 checked.error().message);
    free_kv();
  }
}

void MemoryHandover::free_kv() {
  for (const KeptDescriptor& kept : kept_) {
    if (kept.name.starts_with(kKvPrefix)) free_memfd(kept.descriptor.number());
  }
  kv_.clear();
  kv_pages_.reset();
}

void MemoryHandover::refuse(std::string_view reason) {
  if (kept_.empty()) return;
  spdlog::info("the weights that an earlier process left are not used: {}", reason);
  for (const KeptDescriptor& kept : kept_) free_memfd(kept.descriptor.number());
  has_weights_ = false;
  kv_pages_.reset();
  weights_.clear();
  kv_.clear();
  kept_.clear();
}

std::optional<size_t> MemoryHandover::kept_rank_count() const {
  const auto described = read_description(find(kDescriptionName));
  if (!described) return std::nullopt;
  const Json arenas = part_of(part_of(*described, "weights"), "arenas");
  return arenas.is_array() ? std::optional(arenas.size()) : std::nullopt;
}

std::vector<ArenaSources> MemoryHandover::sources(size_t rank_count, MemoryKeeping keeping,
                                                  bool lock) const {
  const auto arena_of = [](const std::vector<Arena>& arenas, size_t rank, bool sealed) {
    std::optional<KeptArena> arena;
    if (rank < arenas.size()) {
      const int number = arenas[rank].kept->descriptor.number();
      arena = {Descriptor(::fcntl(number, F_DUPFD_CLOEXEC, 0)), arenas[rank].bytes, sealed};
    }
    return arena;
  };
  std::vector<ArenaSources> sources(rank_count);
  for (size_t rank = 0; rank < rank_count; ++rank) {
    sources[rank].keep = keeping != MemoryKeeping::kNo;
    sources[rank].keep_small = keeping == MemoryKeeping::kAlways;
    sources[rank].lock = lock;
    sources[rank].weights = arena_of(weights_, rank, true);
    sources[rank].kv = arena_of(kv_, rank, false);
  }
  return sources;
}

MemoryToKeep MemoryHandover::leave(Ranks& ranks, const MemoryIdentity& identity, size_t kv_pages,
                                   MemoryKeeping keeping, Descriptor& description) const {
  if (keeping == MemoryKeeping::kNo) return {};
  // Nothing is wrong where it was only to be done if there are huge pages for it.
  const auto level = keeping == MemoryKeeping::kAlways ? spdlog::level::warn : spdlog::level::info;
  const auto not_kept = [level](size_t rank, std::string_view reason) {
    spdlog::log(level, "the weights cannot be kept for the next start: rank {}: {}", rank, reason);
    return MemoryToKeep();
  };
  Json weights = {{"identity", identity.weights}, {"arenas", Json::array()}};
  Json kv = {{"identity", identity.kv}, {"pages", kv_pages}, {"arenas", Json::array()}};
  MemoryToKeep left;
  bool keeps_kv = true;
  for (size_t rank = 0; rank < ranks.count(); ++rank) {
    const NodeMemory& arena = ranks[rank].weights();
    const auto facts = examine_memfd(arena.descriptor());
    if (!facts) {
      return not_kept(rank,
                      "memfds are given no huge pages here. Set pages aside (vm.nr_hugepages), "
                      "allow them (echo advise > /sys/kernel/mm/transparent_hugepage/"
                      "shmem_enabled), or keep them in small pages with --keep-weights true");
    }
    if (auto sealed = ranks[rank].seal_weights(); !sealed) {
      return not_kept(rank, sealed.error().message);
    }
    const auto digest = sample_digest(arena.descriptor(), arena.size_bytes());
    if (!digest) return not_kept(rank, digest.error().message);
    weights["arenas"].push_back(
        {{"inode", facts->inode}, {"bytes", facts->bytes}, {"samples_sha256", *digest}});
    left.entries.push_back({arena_name(kWeightsPrefix, rank), arena.descriptor()});
    const auto kv_facts = examine_memfd(ranks[rank].kv().descriptor());
    keeps_kv = keeps_kv && kv_facts.has_value();
    if (kv_facts) {
      kv["arenas"].push_back({{"inode", kv_facts->inode}, {"bytes", kv_facts->bytes}});
    }
  }
  for (size_t rank = 0; keeps_kv && rank < ranks.count(); ++rank) {
    left.entries.push_back({arena_name(kKvPrefix, rank), ranks[rank].kv().descriptor()});
  }
  const Json described = {{"weights", std::move(weights)},
                          {"kv", keeps_kv ? std::move(kv) : Json(nullptr)}};
  auto made = make_sealed_text("lockstep description", described.dump());
  if (!made) return not_kept(0, made.error().message);
  description = std::move(*made);
  // The last: what is not described was not kept as a whole.
  left.entries.push_back({std::string(kDescriptionName), description.number()});
  left.is_kept_already = has_weights_ && (kv_pages_.has_value() || !keeps_kv);
  return left;
}

}  // namespace lockstep
