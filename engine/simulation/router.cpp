#include "engine/simulation/router.h"

#include <algorithm>
#include <array>
#include <list>
#include <random>
#include <unordered_map>
#include <vector>

#include "engine/base/check.h"
#include "engine/scheduler/prefix_key.h"
#include "engine/simulation/simulation.h"

namespace lockstep {
namespace {

constexpr std::array<std::string_view, 4> kNames = {"round-robin", "least-waiting", "prefix",
                                                    "prefix-active"};

class RoundRobin : public Router {
 public:
  size_t choose(const SimulatedRequest& /*request*/, size_t /*number*/,
                std::span<const ReplicaState> replicas) override {
    return next_++ % replicas.size();
  }

 private:
  size_t next_ = 0;
};

// One of the replicas with the highest score, each as likely.
class BestScore {
 public:
  explicit BestScore(uint64_t seed) : random_(seed) {}

  template <typename Score>
  size_t choose(size_t count, const Score& score) {
    best_.clear();
    double most = 0;
    for (size_t replica = 0; replica < count; ++replica) {
      const double own = score(replica);
      if (best_.empty() || own > most) {
        best_ = {replica};
        most = own;
      } else if (own == most) {
        best_.push_back(replica);
      }
    }
    return best_[random_() % best_.size()];
  }

 private:
  std::mt19937_64 random_;
  std::vector<size_t> best_;
};

class LeastWaiting : public Router {
 public:
  explicit LeastWaiting(uint64_t seed) : best_(seed) {}

  size_t choose(const SimulatedRequest& /*request*/, size_t /*number*/,
                std::span<const ReplicaState> replicas) override {
    return best_.choose(replicas.size(), [&](size_t replica) {
      return -static_cast<double>(replicas[replica].waiting + replicas[replica].running);
    });
  }

 private:
  BestScore best_;
};

constexpr size_t kBlockTokens = 64;
constexpr size_t kBlocksMatched = 256;        // of a prompt at most
constexpr size_t kBlocksRemembered = 31'250;  // of each replica, the last used
constexpr double kQueueWeight = 2;
constexpr double kActiveWeight = 4;
constexpr double kPagesWeight = 2;
constexpr double kPrefixWeight = 3;

// The blocks that a replica was sent.
class SentBlocks {
 public:
  bool knows(uint64_t block) const { return places_.contains(block); }

  void add(uint64_t block) {
    if (const auto known = places_.find(block); known != places_.end()) order_.erase(known->second);
    order_.push_front(block);
    places_[block] = order_.begin();
    if (order_.size() <= kBlocksRemembered) return;
    places_.erase(order_.back());
    order_.pop_back();
  }

 private:
  std::list<uint64_t> order_;  // the last used first
  std::unordered_map<uint64_t, std::list<uint64_t>::iterator> places_;
};

class PrefixAware : public Router {
 public:
  // `counts_active`: the load is the router's own count, not the queues of its last look.
  PrefixAware(size_t replicas, uint64_t seed, bool counts_active)
      : counts_active_(counts_active), sent_(replicas), best_(seed) {}

  size_t choose(const SimulatedRequest& request, size_t number,
                std::span<const ReplicaState> replicas) override {
    const std::vector<uint64_t> blocks = blocks_of(request, number);
    const auto load = counts_active_ ? &ReplicaState::active : &ReplicaState::waiting;
    // The scorer of active requests measures against none, that of queues against the shortest.
    const size_t fewest = counts_active_ ? 0 : std::ranges::min(replicas, {}, load).waiting;
    const size_t most = std::ranges::max(replicas, {}, load).*load;
    const size_t chosen = best_.choose(replicas.size(), [&](size_t replica) {
      const ReplicaState& state = replicas[replica];
      const double idle = most == fewest ? 1
                                         : static_cast<double>(most - state.*load) /
                                               static_cast<double>(most - fewest);
      return (counts_active_ ? kActiveWeight : kQueueWeight) * idle +
             kPagesWeight * (1 - state.page_use) +
             kPrefixWeight * known_part(sent_[replica], blocks);
    });
    for (const uint64_t block : blocks) sent_[chosen].add(block);
    return chosen;
  }

 private:
  // Each stands for all tokens up to its end.
  static std::vector<uint64_t> blocks_of(const SimulatedRequest& request, size_t number) {
    std::vector<uint64_t> blocks;
    std::array<int32_t, kBlockTokens> tokens;
    PrefixKey key = root_key({}, {}, {});
    const size_t count = std::min(request.prompt_tokens / kBlockTokens, kBlocksMatched);
    for (size_t block = 0; block < count; ++block) {
      for (size_t token = 0; token < kBlockTokens; ++token) {
        tokens[token] = token_at(request, number, block * kBlockTokens + token);
      }
      key = next_key({}, key, tokens);
      blocks.push_back(key.low);
    }
    return blocks;
  }

  static double known_part(const SentBlocks& sent, std::span<const uint64_t> blocks) {
    if (blocks.empty()) return 0;
    const auto unknown =
        std::ranges::find_if(blocks, [&](uint64_t block) { return !sent.knows(block); });
    return static_cast<double>(unknown - blocks.begin()) / static_cast<double>(blocks.size());
  }

  const bool counts_active_;
  std::vector<SentBlocks> sent_;  // by replica
  BestScore best_;
};

}  // namespace

std::span<const std::string_view> router_names() {
  return kNames;
}

std::unique_ptr<Router> make_router(std::string_view name, size_t replicas, uint64_t seed) {
  if (name == "round-robin") return std::make_unique<RoundRobin>();
  if (name == "least-waiting") return std::make_unique<LeastWaiting>(seed);
  CHECK(name == "prefix" || name == "prefix-active", "router {}", name);
  return std::make_unique<PrefixAware>(replicas, seed, name == "prefix-active");
}

}  // namespace lockstep
