// Weights and KV cache from one process to the next: what is left behind, and what of an earlier
// process's can be used.
//
// Kept are a memfd per rank with its packed weights, sealed after the load; one per rank with the
// KV cache's memory, whose contents mean nothing; and a small sealed one that describes them as
// JSON: their identities, sizes and inodes, and a digest of samples of the weights.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/base/result.h"
#include "engine/interface/kept_memory.h"
#include "engine/placement/memory_identity.h"
#include "engine/placement/model_layout.h"
#include "engine/runtime/ranks.h"

namespace lockstep {

class MemoryHandover {
 public:
  explicit MemoryHandover(std::vector<KeptDescriptor> kept) : kept_(std::move(kept)) {}

  bool is_empty() const { return kept_.empty(); }

  // Finds out what can be used: the weights of all ranks or none, then the KV cache of all ranks or
  // none. The rest is freed when this returns, and the log says why it is of no use.
  void examine(const MemoryIdentity& wanted, std::span<const RankSizes> sizes);

  // Frees all of it.
  void refuse(std::string_view reason);

  bool has_weights() const { return has_weights_; }
  std::optional<size_t> kv_pages() const { return kv_pages_; }

  // Ranks that the weights which were kept are of, before anything is examined; none: there are no
  // such weights, or nothing says how they lie.
  std::optional<size_t> kept_rank_count() const;

  // One per rank, with descriptors of their own. `lock`: as ArenaSources::lock.
  std::vector<ArenaSources> sources(size_t rank_count, MemoryKeeping keeping, bool lock) const;

  // The memory that the ranks, loaded, leave to the next process. Seals the weights; `description`
  // becomes the memfd that describes it all. No entries where that cannot be: the log says why.
  MemoryToKeep leave(Ranks& ranks, const MemoryIdentity& identity, size_t kv_pages,
                     MemoryKeeping keeping, Descriptor& description) const;

 private:
  struct Arena {
    const KeptDescriptor* kept = nullptr;
    uint64_t bytes = 0;
  };

  const KeptDescriptor* find(std::string_view name) const;
  Result<std::vector<Arena>> check_arenas(const nlohmann::ordered_json& described,
                                          std::string_view prefix, bool sealed,
                                          std::span<const uint64_t> bytes_least) const;
  Result<void> check_weights(const nlohmann::ordered_json& described, const MemoryIdentity& wanted,
                             std::span<const RankSizes> sizes);
  Result<void> check_kv(const nlohmann::ordered_json& described, const MemoryIdentity& wanted);
  void free_kv();

  std::vector<KeptDescriptor> kept_;
  bool has_weights_ = false;
  std::optional<size_t> kv_pages_;
  std::vector<Arena> weights_;  // by rank
  std::vector<Arena> kv_;       // by rank
};

}  // namespace lockstep
