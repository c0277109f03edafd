// The step of attention: queries and keys are treated, keys and values appended, queries answered.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "engine/graph/step_buffers.h"
#include "engine/kernels/profile.h"
#include "engine/kernels/rotary.h"

namespace lockstep {

struct Pass;
struct TaskCounter;

// The treatment of each head of the queries and keys before attention: norm (if any) and
// rotary positions (if any), in this order unless `norm_is_last`. Then keys and values go into the
// cache.
struct PrepareHeads {
  ArenaOffset<const float> keys = {};  // none: an earlier layer has stored them
  ArenaOffset<const float> values = {};
  size_t key_stride = 0;
  size_t value_stride = 0;
  ArenaOffset<const float> query_norm = {};
  ArenaOffset<const float> key_norm = {};
  float epsilon = 0;
  bool norm_is_last = false;
  RotaryPairs pairs = RotaryPairs::kInterleaved;
  RotaryTable rotary = {};

  friend bool operator==(const PrepareHeads&, const PrepareHeads&) = default;
};

// The rank's query heads, in groups that share a KV head. The first group may be without its first
// `group_offset` heads, the last without its last: other ranks have them, and the KV head as well.
struct AttendStep {
  size_t layer = 0;
  PrepareHeads prepare;
  // Processors prepare copies; a GPU prepares them in place, except where its attention does it.
  ArenaOffset<float> queries = {};
  size_t query_stride = 0;
  size_t head_count = 0;
  size_t kv_head_count = 0;
  size_t group = 0;  // query heads of one KV head
  size_t group_offset = 0;
  size_t head_dimension = 0;   // of queries and keys
  size_t value_dimension = 0;  // of values and outputs
  size_t window = 0;           // most keys that a token sees; 0: all before it
  float scale = 0;
  size_t section = 0;                                    // AttentionTraits'
  size_t ahead = 0;                                      // likewise
  float score_cap = 0;                                   // likewise
  std::vector<float> slopes = {};                        // of the rank's query heads; or none
  ArenaOffset<const float> sinks = {};                   // likewise
  AttentionForm prompt_attention = AttentionForm::kF32;  // on processors
  ArenaOffset<float> output = {};
  size_t output_stride = 0;
  bool leaves_output = true;  // false: forms alone are read, and a GPU leaves nothing else
  // Set where a group's outputs are whole blocks of the forms; else a FormStep follows.
  std::optional<FormsOutput> forms = {};

  friend bool operator==(const AttendStep&, const AttendStep&) = default;
};

std::string text_of(const AttendStep& step);

// If every sequence has one token, no worker waits: the one that takes the block with a token's own
// position appends its key and value, and the one that computes a sequence's last chunk merges the
// chunks. Otherwise the workers meet once in between.
void run(const AttendStep& step, const Pass& pass, TaskCounter& tasks);

}  // namespace lockstep
