// By what an earlier process's memory is known to be what this one would make.
#pragma once

#include <optional>
#include <string>

#include "engine/base/json.h"
#include "engine/base/result.h"
#include "engine/interface/options.h"
#include "engine/kernels/kernel_table.h"
#include "engine/model/architecture.h"
#include "engine/model/gguf_file.h"
#include "engine/placement/model_layout.h"

namespace lockstep {

// Equal identities stand for equal bytes (the weights), or for memory of one use (the KV cache,
// whose pages are cleared when a sequence gets them). The version of the program is no part of it:
// an update takes the weights over as well, unless it packs them otherwise (kPackingVersion).
struct MemoryIdentity {
  // The files (size, modification time, device, inode, a digest of the header), the packing, the
  // instruction set, and the plan: per rank its node and a digest of which slice lies where.
  nlohmann::ordered_json weights;
  // Its length follows from these: the options, and a page's bytes per rank.
  nlohmann::ordered_json kv;
};

// The size of each file and a digest of its header, which it reads. Fails with kMachineRefused.
Result<nlohmann::ordered_json> identify_headers(const GgufFile& file);

// Reads the headers of the files. Fails with kMachineRefused.
Result<MemoryIdentity> identify_memory(const GgufFile& file, const Model& model,
                                       const EngineOptions& options, const KernelTable& kernels,
                                       const ModelLayout& layout);

// The identity of pages of the KV cache whose bytes are equal and lie in the same places: the
// weights', what the fingerprint is made of, the context (by which positions may be scaled), and
// the layout of each rank's part. Fails as identify_memory().
Result<std::string> identify_pages(const GgufFile& file, const Model& model,
                                   const EngineOptions& options, const KernelTable& kernels,
                                   const ModelLayout& layout, const std::string& fingerprint);

// "files/0/inode was 12 and is 13": the first field that differs; none if all are equal.
std::optional<std::string> first_difference(const nlohmann::ordered_json& kept,
                                            const nlohmann::ordered_json& wanted);

}  // namespace lockstep
