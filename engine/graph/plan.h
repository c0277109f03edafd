// One rank's share of a graph: a flat list of steps in which every address is fixed. All workers of
// the rank walk it; after each step they meet at the barrier, those of all ranks where one has
// written what another reads. All ranks' plans have the same steps in the same order. What varies
// from pass to pass (tokens, positions, pages, which rows want logits) is not in here: the steps'
// runner reads it from a Batch.
//
// A step that bears `gather` pushes what it has computed into every other rank's copy of the same
// buffer; such buffers lie in the exchange arenas, at the same offset on every rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <variant>
#include <vector>

#include "engine/collectives/peers.h"
#include "engine/graph/graph.h"
#include "engine/kernels/kernel_table.h"

namespace lockstep {

// Over which rows of a pass a step runs.
enum class Rows : uint8_t {
  kTokens,  // every token of the batch
  kLogits,  // those whose logits are asked for, in the batch's order
};

// An activation in the forms in which products consume it: f32, kQ8 (with quantized weights), or
// both.
struct ProductInput {
  float* f32 = nullptr;     // none: nobody reads it
  size_t f32_stride = 0;    // floats
  std::byte* q8 = nullptr;  // none: nobody reads it
  size_t q8_stride = 0;     // bytes
  size_t columns = 0;
};

// Where some columns of an activation go in form kQ8: into rows of `columns`, from `first_column`
// on. Whole blocks, but for the end of the row.
struct Q8Output {
  std::byte* rows = nullptr;  // none: nobody reads it
  size_t stride = 0;          // bytes
  size_t columns = 0;
  size_t first_column = 0;
};

// A rank's part of the KV cache: for each layer and each of the rank's KV heads one run of pages,
// in each page the keys' block and then the values'.
struct KvLayout {
  KvFormat format = KvFormat::kF16;
  size_t layer_count = 0;
  size_t head_count = 0;
  size_t head_dimension = 0;
  size_t page_count = 0;
  std::byte* base = nullptr;

  size_t keys_bytes() const { return key_block_bytes(format, head_dimension); }
  size_t page_stride_bytes() const {
    return keys_bytes() + value_block_bytes(format, head_dimension);
  }
  // Of one page over all layers and heads.
  size_t page_bytes() const { return layer_count * head_count * page_stride_bytes(); }
  size_t size_bytes() const { return page_bytes() * page_count; }
  std::byte* keys(size_t layer, size_t head) const {
    return base + (layer * head_count + head) * page_count * page_stride_bytes();
  }
};

// Zeroes the pages that the batch hands out. Work is shared by layer and head.
struct ClearPagesStep {};

// table[token]: the cosines, then the sines of every pair's angle at the token's position.
struct RotaryTableStep {
  const std::vector<double>* frequencies = nullptr;
  float* table = nullptr;
  size_t stride = 0;
};

// Of the vocabulary's rows this rank holds those from `row_begin` on; tokens of others are theirs.
struct EmbedStep {
  PackedMatrix table;
  size_t row_begin = 0;
  float* output = nullptr;
  size_t output_stride = 0;
  bool gather = false;
};

// Over kLogits rows the input row is the one of the token, the output row the logit's own.
struct NormStep {
  Rows rows = Rows::kTokens;
  const float* input = nullptr;
  size_t input_stride = 0;
  const float* weight = nullptr;
  float epsilon = 0;
  ProductInput output;
};

// Several products of one input: their panels are shared among the workers as one list.
struct MatmulPart {
  PackedMatrix matrix;
  const float* bias = nullptr;
  float* output = nullptr;
  size_t output_stride = 0;
  bool accumulate = false;  // the residual is added to
  bool gather = false;
  bool remote = false;  // the output lies on another rank
};
struct MatmulStep {
  Rows rows = Rows::kTokens;
  ProductInput input;
  std::vector<MatmulPart> parts;
};

// Each head of the queries and keys: norm (if any), rotary positions (if any); then keys and values
// go into the cache.
struct PrepareHeadsStep {
  size_t layer = 0;
  float* queries = nullptr;
  float* keys = nullptr;
  const float* values = nullptr;
  size_t query_stride = 0;
  size_t kv_stride = 0;
  size_t head_count = 0;
  size_t kv_head_count = 0;
  size_t head_dimension = 0;
  const float* query_norm = nullptr;
  const float* key_norm = nullptr;
  float epsilon = 0;
  RotaryPairs pairs = RotaryPairs::kInterleaved;
  const float* rotary_table = nullptr;  // RotaryTableStep's; none: no rotary positions
  size_t rotary_stride = 0;
  size_t rotary_dimensions = 0;
};

// The rank's query heads, in groups that share a KV head. The first group may be without its first
// `group_offset` heads, the last without its last: other ranks have them, and the KV head as well.
struct AttendStep {
  size_t layer = 0;
  const float* queries = nullptr;
  size_t query_stride = 0;
  size_t head_count = 0;
  size_t kv_head_count = 0;
  size_t group = 0;  // query heads of one KV head
  size_t group_offset = 0;
  size_t head_dimension = 0;
  float scale = 0;
  float* output = nullptr;
  size_t output_stride = 0;
  bool gather = false;
};

// f32 to kQ8.
struct QuantizeStep {
  const float* input = nullptr;
  size_t input_stride = 0;
  size_t columns = 0;  // of the input
  Q8Output output;
  bool gather = false;
};

// output = silu(gate) * up, and kQ8 of it where it is read. `output` may be `gate`.
struct ActivateStep {
  const float* gate = nullptr;
  size_t gate_stride = 0;
  const float* up = nullptr;
  size_t up_stride = 0;
  size_t columns = 0;
  float* output = nullptr;
  size_t output_stride = 0;
  bool gather_f32 = false;
  Q8Output q8;
  bool gather_q8 = false;
};

// output += the sum of the contributors' partial results, in order of rank.
struct AllReduceStep {
  std::vector<size_t> contributors;  // ranks
  Rows rows = Rows::kTokens;
  const float* partial = nullptr;
  size_t partial_stride = 0;
  float* output = nullptr;
  size_t output_stride = 0;
  size_t columns = 0;
  // In the exchange arena, where sums travel as bf16; none: they travel as f32.
  uint16_t* bf16_partial = nullptr;
  uint16_t* bf16_sum = nullptr;
};

using StepWork =
    std::variant<ClearPagesStep, RotaryTableStep, EmbedStep, NormStep, MatmulStep, PrepareHeadsStep,
                 AttendStep, QuantizeStep, ActivateStep, AllReduceStep>;

// Who meets after a step.
enum class Meet : uint8_t { kRank, kAllRanks };

struct Step {
  StepWork work;
  Meet meet = Meet::kRank;
};

// Rows [row_begin, row_end) and of them columns [column_begin, column_end) of a weight, held by
// this rank at `address`: packed panels for a matrix, f32 for a vector (row 0 to 1). Nothing is
// held where either is empty. Columns begin and end at multiples of the format's block, or at the
// end.
struct WeightSlice {
  WeightId weight = kNone;
  size_t row_begin = 0;
  size_t row_end = 0;
  size_t column_begin = 0;
  size_t column_end = 0;
  std::byte* address = nullptr;
  size_t size_bytes = 0;
};

struct Plan {
  std::vector<Step> steps;
  std::vector<WeightSlice> weights;  // by WeightId
  KvLayout kv;
  Peers peers;
  float* logits = nullptr;  // [logit row][vocabulary], on rank 0
  size_t logits_stride = 0;
  size_t vocabulary_size = 0;
  size_t batch_tokens = 0;
  size_t logit_rows = 0;
  size_t weight_bytes = 0;  // of the arenas; the cache's is kv.size_bytes()
  size_t scratch_bytes = 0;
  size_t exchange_bytes = 0;
  size_t logits_bytes = 0;  // 0 but on rank 0
};

}  // namespace lockstep
