// The options of an engine: a model, its devices, its limits.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "engine/hosts/host_options.h"
#include "engine/interface/kept_memory.h"

namespace lockstep {

// How a model file is read.
enum class DirectIo : uint8_t {
  kNo,    // through the page cache; what that brings in is dropped again
  kYes,   // past the page cache, where the file system can
  kAuto,  // as kYes, but what lies in the page cache already is copied from there
};

struct EngineOptions {
  std::filesystem::path model;
  std::string devices = "auto";  // that get ranks: "auto", "cpu", "gpu", "all" or "gpu0,node1"
  uint32_t rank_count = 0;       // 0: one per NUMA node of these with processors and memory
  std::vector<double> shares;    // of the work, one per rank; none: as many as it has workers
  bool measure_shares = false;   // instead: by the memory bandwidth that each rank reaches
  // The last layers of a mixture on GPUs and nodes whose experts lie on the GPUs; none: as many as
  // fit.
  std::optional<uint32_t> gpu_expert_layers = {};
  std::string strategy = "auto";           // how products are split: "auto", "gather" or "reduce"
  std::string exchange_format = "f32";     // of partial sums under "reduce": "f32" or "bf16"
  uint32_t worker_count = 0;               // of each rank; 0: one per physical core of its own
  std::optional<uint32_t> reserved_cores;  // without workers; none: 1 from 8 cores up
  DirectIo direct_io = DirectIo::kAuto;
  bool lock_memory = false;  // what ranks hold on the host is never swapped out, or none is taken
  MemoryKeeping keep_memory = MemoryKeeping::kNo;
  uint32_t context_tokens = 0;  // most tokens (prompt and generated) of one sequence; 0: automatic
  uint32_t kv_pages = 0;        // of the KV cache, 64 tokens each; 0: for as many full sequences
                                // as run at once, or what fits
  uint32_t sequence_count = 8;  // sequences in the running batch at most
  uint32_t batch_tokens = 0;    // tokens of one pass at most; 0: 512, and 2048 where all ranks are
                                // GPUs that have space for it
  // The context and the sequences are what the caller's work takes: no refusal asks for less.
  bool fixed_lengths = false;
  uint32_t logit_rows = 0;  // tokens of one pass whose logits can be had; 0: what serving needs
  // Control tokens that the text of a chat's messages spells are taken for what they are.
  bool special_tokens_in_messages = false;
  uint32_t waiting_requests = 1024;  // requests that may wait; more are refused with kUnavailable
  uint32_t waiting_prompt_tokens = 262'144;  // of their prompts; one request may always wait
  // Passes are sized for these times from a request's arrival to its first token, and from a token
  // to the next one. If either is 0, prompts beside streams get a tenth of a second of each pass.
  double first_token_target_seconds = 2;
  double token_target_seconds = 0.5;
  // Pages that make way in the KV cache: in so much of the host's memory, and in files of the
  // directory, so many bytes at most. Empty: in none.
  uint64_t cache_memory_bytes = 0;
  std::filesystem::path cache_directory = {};
  uint64_t cache_disk_bytes = 0;
  std::string kv_format = "f16";    // "f16", "bf16", "f32", "q8_0", "q4_h" or "q4_0"
  std::string kv_key_format;        // of keys, and
  std::string kv_value_format;      // of values; empty: kv_format
  std::string instruction_set;      // a row of the kernel table; empty: the best this machine has
  std::string arithmetic = "auto";  // the profile: "exact", "fast", or "auto", the one for the row
  // Drafts tokens for passes to verify, which never changes what is generated: "auto", "none", or
  // names of drafters (choose_drafters()).
  std::string speculate = "auto";
  // A smaller model that drafts, or a file that drafts from the model's rows; empty: none.
  std::filesystem::path draft_model = {};
  // Drafted tokens of a sequence in a pass, at most 15; none: as many as pay by measured times.
  std::optional<uint32_t> draft_tokens = {};
  // Diagnosis: the fusion rules that are switched off, by name, or "all". No bit of an answer
  // depends on them.
  std::vector<std::string> without_fusion = {};
  HostOptions hosts = {};  // that compute the model together
  // Diagnostics of GPUs, as GpuSettings has them.
  bool gpu_launch_overlap = true;
  bool gpu_pass_ahead = true;
  bool nccl_peer_access = true;
  uint32_t gpu_deadline_seconds = 4;
};

}  // namespace lockstep
