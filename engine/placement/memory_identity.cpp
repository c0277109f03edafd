#include "engine/placement/memory_identity.h"

#include <algorithm>
#include <vector>

#include "engine/base/digest.h"
#include "engine/kernels/packed_matrix.h"
#include "engine/placement/settings.h"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

Result<std::string> header_digest(const FileReader& reader, uint64_t header_bytes) {
  constexpr uint64_t kStretchBytes = 1U << 20U;
  std::vector<std::byte> stretch(std::min(header_bytes, kStretchBytes));
  Digest digest;
  for (uint64_t offset = 0; offset < header_bytes; offset += stretch.size()) {
    stretch.resize(std::min<uint64_t>(stretch.size(), header_bytes - offset));
    if (auto read = reader.read(offset, stretch); !read) return std::unexpected(read.error());
    digest.add(stretch);
  }
  return digest.finish();
}

// The slices of weights and their offsets in the arena.
std::string slices_digest(const Graph& graph, const Plan& plan) {
  Digest digest;
  for (const WeightSlice& slice : plan.weights) {
    const Weight& weight = graph.weights()[slice.weight];
    digest.add(fmt::format("{} {} {} {} {} {} {} {} {} {}\n", weight.name,
                           traits(weight.format).name, weight.is_matrix, weight.first_row,
                           slice.row_begin, slice.row_end, slice.column_begin, slice.column_end,
                           slice.offset, slice.size_bytes));
  }
  return digest.finish();
}

std::string text_of(const Json* value) {
  return value == nullptr ? "absent" : value->dump(-1, ' ', true, Json::error_handler_t::replace);
}

std::optional<std::string> difference_at(const std::string& place, const Json* kept,
                                         const Json* wanted) {
  const bool both = kept != nullptr && wanted != nullptr;
  if (both && *kept == *wanted) return std::nullopt;
  if (!both || kept->type() != wanted->type() || !wanted->is_structured()) {
    return fmt::format("{} was {} and is {}", place, text_of(kept), text_of(wanted));
  }
  if (kept->size() != wanted->size()) {
    return fmt::format("{} had {} entries and has {}", place, kept->size(), wanted->size());
  }
  const Json kept_fields = kept->flatten();
  const Json wanted_fields = wanted->flatten();
  const std::string prefix = place;
  for (const auto& [key, value] : wanted_fields.items()) {
    const auto found = kept_fields.find(key);
    const Json* const was = found == kept_fields.end() ? nullptr : &*found;
    if (was == nullptr || *was != value) {
      return fmt::format("{}{} was {} and is {}", prefix, key, text_of(was), text_of(&value));
    }
  }
  return fmt::format("{} has other fields", place);
}

}  // namespace

Result<Json> identify_headers(const GgufFile& file) {
  Json files = Json::array();
  for (size_t part = 0; part < file.readers().size(); ++part) {
    const FileReader& reader = file.readers()[part];
    auto header = header_digest(reader, file.header_bytes()[part]);
    if (!header) return std::unexpected(header.error());
    files.push_back({{"bytes", reader.size_bytes()}, {"header_sha256", std::move(*header)}});
  }
  return files;
}

Result<MemoryIdentity> identify_memory(const GgufFile& file, const Model& model,
                                       const EngineOptions& options, const KernelTable& kernels,
                                       const ModelLayout& layout) {
  MemoryIdentity identity;
  identity.weights = {{"packing_version", kPackingVersion},
                      {"instruction_set", kernels.name},
                      {"strategy", strategy_name(layout.split.strategy)},
                      {"files", Json::array()},
                      {"ranks", Json::array()}};
  const auto headers = identify_headers(file);
  if (!headers) return std::unexpected(headers.error());
  for (size_t part = 0; part < file.readers().size(); ++part) {
    const FileReader& reader = file.readers()[part];
    identity.weights["files"].push_back({{"bytes", reader.size_bytes()},
                                         {"modified_ns", reader.changed_ns()},
                                         {"device", reader.device()},
                                         {"inode", reader.inode()},
                                         {"header_sha256", (*headers)[part]["header_sha256"]}});
  }
  PlanOptions plan_options = layout.plan_options;
  plan_options.kv_pages = 1;
  identity.kv = {{"context", options.context_tokens},
                 {"sequences", options.sequence_count},
                 {"pages", options.kv_pages},
                 {"format", kv_format_name(options)},
                 {"ranks", Json::array()}};
  for (size_t rank = 0; rank < layout.places.size(); ++rank) {
    const Plan plan =
        make_plan(model.graph, layout.split, layout.first_rank() + rank, plan_options);
    const int node = layout.places[rank].node;
    identity.weights["ranks"].push_back({{"node", node},
                                         {"bytes", plan.weight_bytes},
                                         {"slices_sha256", slices_digest(model.graph, plan)}});
    identity.kv["ranks"].push_back({{"node", node}, {"page_bytes", plan.kv.size_bytes()}});
  }
  return identity;
}

Result<std::string> identify_pages(const GgufFile& file, const Model& model,
                                   const EngineOptions& options, const KernelTable& kernels,
                                   const ModelLayout& layout, const std::string& fingerprint) {
  auto memory = identify_memory(file, model, options, kernels, layout);
  if (!memory) return std::unexpected(memory.error());
  Json identity = {{"weights", std::move(memory->weights)},
                   {"fingerprint", fingerprint},
                   {"context", options.context_tokens},
                   {"page_tokens", kPageTokens},
                   {"layers", Json::array()}};
  for (size_t rank = 0; rank < layout.places.size(); ++rank) {
    const KvLayout kv = place_kv(model.graph, layout.split, layout.first_rank() + rank,
                                 layout.plan_options.kv_format, /*page_count=*/1);
    identity["layers"].push_back({kv.page_bytes(), kv.part_bytes, static_cast<int>(kv.format.keys),
                                  static_cast<int>(kv.format.values)});
    for (const KvLayer& layer : kv.layers) {
      identity["layers"].push_back({layer.group, layer.head_count, layer.key_dimension,
                                    layer.value_dimension, layer.offset, layer.head_stride_bytes});
    }
  }
  return identity.dump();
}

std::optional<std::string> first_difference(const Json& kept, const Json& wanted) {
  if (kept == wanted) return std::nullopt;
  if (!kept.is_object()) return "its description is damaged";
  for (const auto& [key, value] : wanted.items()) {
    const auto found = kept.find(key);
    if (auto difference = difference_at(key, found == kept.end() ? nullptr : &*found, &value)) {
      return difference;
    }
  }
  return "it has fields that are not known";
}

}  // namespace lockstep
