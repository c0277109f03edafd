// The memory that an earlier process is said to have left: memfds of weights and caches, and a
// description of them that the input changes, or makes. It is used or refused; what is used has the
// sizes that are needed, and what is refused is free.
#include <fcntl.h>
#include <fuzzer/FuzzedDataProvider.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/check.h"
#include "engine/machine/kept_memory.h"
#include "engine/placement/memory_handover.h"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;
constexpr uint64_t kPageBytes = 4096;  // of the cache

struct Kept {
  std::vector<KeptDescriptor> descriptors;
  std::vector<Descriptor> watched;  // the caches' once more
  Json described;
};

MemoryIdentity identity_of(size_t ranks) {
  MemoryIdentity identity;
  identity.weights = {{"packing_version", 1}, {"files", {{{"bytes", 7}, {"inode", 8}}}}};
  identity.kv = {{"context", 128}, {"ranks", Json::array()}};
  for (size_t rank = 0; rank < ranks; ++rank) {
    identity.kv["ranks"].push_back({{"node", 0}, {"page_bytes", kPageBytes}});
  }
  return identity;
}

Json facts_of(const Descriptor& memory) {
  const auto facts = examine_memfd(memory.number());
  return {{"inode", facts->inode}, {"bytes", facts->bytes}};
}

// As MemoryHandover::leave() leaves it, in sizes that the input gives.
Kept leave(FuzzedDataProvider& input, const MemoryIdentity& identity, size_t ranks) {
  Kept kept;
  Json weights = {{"identity", identity.weights}, {"arenas", Json::array()}};
  const auto pages = input.ConsumeIntegralInRange<uint64_t>(1, 4);
  Json kv = {{"identity", identity.kv}, {"pages", pages}, {"arenas", Json::array()}};
  for (size_t rank = 0; rank < ranks; ++rank) {
    const std::string content(input.ConsumeIntegralInRange<size_t>(1, 9000), 'w');
    Descriptor arena = std::move(*make_sealed_text("weights", content));
    weights["arenas"].push_back(facts_of(arena));
    weights["arenas"].back()["samples_sha256"] = *sample_digest(arena.number(), content.size());
    kept.descriptors.push_back({fmt::format("lockstep-weights-{}", rank), std::move(arena)});
    Descriptor cache(::memfd_create("kv", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    const bool sized = ::ftruncate(cache.number(), static_cast<off_t>(pages * kPageBytes)) == 0;
    CHECK(sized, "no memory for {} pages", pages);
    kv["arenas"].push_back(facts_of(cache));
    kept.watched.emplace_back(::fcntl(cache.number(), F_DUPFD_CLOEXEC, 0));
    kept.descriptors.push_back({fmt::format("lockstep-kv-{}", rank), std::move(cache)});
  }
  kept.described = {{"weights", std::move(weights)}, {"kv", std::move(kv)}};
  return kept;
}

Json any_value(FuzzedDataProvider& input) {
  switch (input.ConsumeIntegralInRange(0, 7)) {
    case 0:
      return nullptr;
    case 1:
      return input.ConsumeIntegral<uint64_t>();
    case 2:
      return input.ConsumeIntegral<int64_t>();
    case 3:
      return input.ConsumeRandomLengthString(20);
    case 4:
      return input.ConsumeFloatingPoint<double>();
    case 5:
      return Json::array();
    case 6:
      return Json::object();
    default:
      return input.ConsumeBool();
  }
}

void change(FuzzedDataProvider& input, Json& described) {
  std::vector<std::string> places;
  for (const auto& [place, value] : described.flatten().items()) places.push_back(place);
  if (places.empty()) return;
  const auto index = input.ConsumeIntegralInRange<size_t>(0, places.size() - 1);
  Json::json_pointer place(places[index]);
  for (int up = input.ConsumeIntegralInRange(0, 2); up > 0 && !place.empty(); --up)
    place.pop_back();
  described[place] = any_value(input);
}

// The text of the description, and whether it is still as it was left.
std::pair<std::string, bool> describe(FuzzedDataProvider& input, Json described) {
  switch (input.ConsumeIntegralInRange(0, 3)) {
    case 0:
      return {input.ConsumeRemainingBytesAsString(), false};
    case 1: {  // a value within so many others
      const auto depth = input.ConsumeIntegralInRange<size_t>(0, 100'000);
      return {
          "{\"weights\":{\"identity\":" + std::string(depth, '[') + std::string(depth, ']') + "}}",
          false};
    }
    default:
      const int changes = input.ConsumeIntegralInRange(0, 3);
      for (int count = 0; count < changes; ++count) change(input, described);
      return {described.dump(-1, ' ', true, Json::error_handler_t::replace), changes == 0};
  }
}

void check_used(const MemoryHandover& handover, const Kept& kept, size_t ranks) {
  const auto sources = handover.sources(ranks, MemoryKeeping::kAlways, false);
  for (size_t rank = 0; rank < ranks; ++rank) {
    CHECK(sources[rank].weights.has_value() == handover.has_weights(), "rank {}", rank);
    CHECK(sources[rank].kv.has_value() == handover.kv_pages().has_value(), "rank {}", rank);
    const uint64_t bytes = examine_memfd(kept.watched[rank].number())->bytes;
    if (handover.kv_pages()) {
      CHECK(*handover.kv_pages() <= bytes / kPageBytes, "{} pages", *handover.kv_pages());
    } else {
      CHECK(bytes == 0, "{} bytes are still taken", bytes);
    }
  }
}

void take_over(FuzzedDataProvider& input) {
  const auto ranks = input.ConsumeIntegralInRange<size_t>(1, 2);
  const MemoryIdentity identity = identity_of(ranks);
  Kept kept = leave(input, identity, ranks);
  const auto lost = input.ConsumeIntegralInRange<size_t>(0, 9);
  auto [text, is_whole] = describe(input, kept.described);
  if (lost < kept.descriptors.size() && !kept.descriptors[lost].name.starts_with("lockstep-kv")) {
    kept.descriptors.erase(kept.descriptors.begin() + static_cast<ptrdiff_t>(lost));
    is_whole = false;
  }
  kept.descriptors.push_back(
      {"lockstep-weights", std::move(*make_sealed_text("description", text))});
  MemoryHandover handover(std::move(kept.descriptors));
  static_cast<void>(handover.kept_rank_count());
  handover.examine(identity, std::vector<RankSizes>(ranks, {.weight_bytes = 1}));
  CHECK(!is_whole || (handover.has_weights() && handover.kv_pages()), "it was refused: {}", text);
  check_used(handover, kept, ranks);
}

}  // namespace
}  // namespace lockstep

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzedDataProvider input(data, size);
  lockstep::take_over(input);
  return 0;
}
