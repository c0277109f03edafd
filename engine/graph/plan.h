// One rank's share of a graph: a flat list of steps in which every address is fixed. All workers of
// the rank walk it; a barrier follows each step, over all ranks where one has written what another
// reads. All ranks' plans have the same steps in the same order. What varies
// from pass to pass (tokens, positions, pages, which rows want logits) is not in here: the steps'
// runner reads it from a Batch.
//
// A layer of the usual decoder is five steps:
//   product    queries, keys and values of the normed residual
//   attend     heads' norms and rotary positions, the cache, attention
//   product    the attention's output, added to the residual; the next norm's product and sums
//   product    gate and up of the normed residual, and the gate's activation
//   product    down, added to the residual; the next norm's product and sums
// A norm needs no step of its own: the worker that computed columns of the residual multiplies them
// with the norm's weight, converts them to the forms in which they are consumed, and leaves the
// sums of their squares; their reader multiplies its results with the factor that these sums
// give.
//
// In a mixture of experts, four steps take the place of the last two:
//   product    every expert's score
//   route      which experts a token goes to
//   experts    gate and up of each expert's tokens, and the gate's activation
//   experts    down, weighted, added to the residual; the next norm's product and sums
//
// A step that bears `gather` pushes what it has computed into every other rank's copy of the same
// buffer; such buffers lie in the exchange arenas, at the same offset on every rank.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "engine/base/range.h"
#include "engine/collectives/shared_memory.h"
#include "engine/graph/graph.h"
#include "engine/kernels/gpu_batch.h"
#include "engine/kernels/gpu_panel.h"
#include "engine/kernels/kernel_table.h"
#include "engine/kernels/profile.h"

namespace lockstep {

// Over which rows of a pass a step runs.
enum class Rows : uint8_t {
  kTokens,   // every token of the batch
  kLogits,   // those whose logits are asked for, in the batch's order
  kExperts,  // each token once for every expert that it goes to, in the order of a Routing
};

// One form of an activation, for the tokens that are consumed in it.
struct FormBuffer {
  std::byte* rows = nullptr;
  size_t stride_bytes = 0;
  bool prompted = false;   // written and read for prompted tokens
  bool generated = false;  // ... for generated tokens

  bool is_read() const { return prompted || generated; }
};

// An activation in the forms in which products consume it.
struct Forms {
  size_t columns = 0;  // of a row
  std::array<FormBuffer, kActivationFormCount> buffers;

  FormBuffer& operator[](ActivationForm form) { return buffers[static_cast<size_t>(form)]; }
  const FormBuffer& operator[](ActivationForm form) const {
    return buffers[static_cast<size_t>(form)];
  }
};

// The destination of some columns of an activation: rows of `forms`, from `first_column` on. Whole
// blocks of 32, but for the end of the row.
struct FormsOutput {
  Forms forms;
  size_t first_column = 0;
  bool gather = false;
};

inline constexpr size_t kChunkColumns = 32;

// Sums of the squares of a residual's chunks of 32 columns, [token][chunk].
struct ChunkSums {
  float* sums = nullptr;
  size_t stride = 0;  // floats
};

// The factor of a product of a normed input, per token: 1 / sqrt(the sum of the chunks /
// columns + epsilon).
struct NormFactor {
  ChunkSums chunks;  // none: the input is not normed
  size_t columns = 0;
  float epsilon = 0;
};

// The product of a residual with a norm's weight, and the sums of its squares. Over kLogits rows
// the residual's row is the one of the token, the output's row the logit's own.
struct NormOutput {
  Rows rows = Rows::kTokens;
  const float* weight = nullptr;  // of the residual's columns that are at hand
  FormsOutput output;
  ChunkSums chunks;
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
  // The size of one page over all layers and heads.
  size_t page_bytes() const { return layer_count * head_count * page_stride_bytes(); }
  size_t size_bytes() const { return page_bytes() * page_count; }
  std::byte* keys(size_t layer, size_t head) const {
    return base + (layer * head_count + head) * page_count * page_stride_bytes();
  }
};

// Zeroes the pages that the batch hands out. Work is shared by layer and head.
struct ClearPagesStep {};

// table[token]: the cosines, then the sines of every pair's angle at the token's position, times
// `magnitude`.
struct RotaryTableStep {
  const std::vector<double>* frequencies = nullptr;
  double magnitude = 1;
  float* table = nullptr;
  size_t stride = 0;
};

// This rank holds the vocabulary's rows from `row_begin` on; other ranks embed the other tokens.
struct EmbedStep {
  PackedMatrix table;
  size_t row_begin = 0;
  float* output = nullptr;
  size_t output_stride = 0;
  bool gather = false;
};

// A norm whose residual no product of this rank has just computed.
struct NormStep {
  const float* residual = nullptr;
  size_t residual_stride = 0;
  size_t columns = 0;
  NormOutput norm;
};

struct MatmulPart {
  PackedMatrix matrix;
  ProductForms forms;
  const float* bias = nullptr;
  float* output = nullptr;
  size_t output_stride = 0;
  bool accumulate = false;  // the residual is added to
  bool remote = false;      // the output lies on another rank
};

// After a part's rows have been added to the residual: the norms that read it.
struct ResidualFinish {
  std::vector<NormOutput> norms;
};

// After the rows of both parts: silu(the first's) * the second's.
struct GateFinish {
  FormsOutput output;
};

// Several products of one input. Their panels are shared among the workers as one list; with a
// finish, the worker that computed rows finishes them.
struct MatmulStep {
  Rows rows = Rows::kTokens;
  Forms input;
  NormFactor norm;
  std::vector<MatmulPart> parts;
  std::variant<std::monostate, ResidualFinish, GateFinish> finish;
};

// Which rows experts compute: those of an expert follow one another, in the batch's order (so that
// generated tokens come first), after those of the experts before it. One for all layers.
struct Routing {
  size_t expert_count = 0;
  size_t chosen_count = 0;            // of a token
  uint32_t* chosen = nullptr;         // [token][chosen_count]: experts, ...
  float* weights = nullptr;           // ... and what their results are multiplied with
  uint32_t* row_begin = nullptr;      // [expert], and the end of the last one's
  uint32_t* generated_end = nullptr;  // [expert]: its rows before this one are of generated tokens
  uint32_t* row_tokens = nullptr;     // [row]
  float* row_weights = nullptr;       // [row]
  // On a GPU, which has neither generated_end nor row_weights: [token][chosen_count], the row.
  uint32_t* choice_rows = nullptr;
};

// Work is shared by token; the rows are put in order by one worker.
struct RouteStep {
  const float* scores = nullptr;  // [token][expert]; none: the rank has no experts
  size_t score_stride = 0;
  Routing routing;
};

// The same product of every expert with its rows.
struct ExpertPart {
  std::vector<PackedMatrix> matrices;  // by expert, all of one format and size
  ProductForms forms;
  float* output = nullptr;
  size_t output_stride = 0;
};

// The most rows of an expert that are multiplied at once, and the columns of a sum they go into.
inline constexpr size_t kExpertRows = 256;
inline constexpr size_t kExpertSumColumns = 256;

// gate and up of the tokens' rows, and per row silu(gate's) * up's.
struct ExpertGateStep {
  Forms input;  // [token]
  NormFactor norm;
  Routing routing;
  // An expert's tokens need not follow one another in the batch: here each worker of `workers` has
  // kExpertRows rows in which to bring them together. A GPU needs none.
  Forms gathered = {};
  size_t workers = 0;
  ExpertPart gate;
  ExpertPart up;
  FormsOutput output = {};  // [row]

  // Whether a GPU computes both at once, with what follows.
  bool is_one_shape() const { return gate.matrices.front().format == up.matrices.front().format; }
};

// Per token the sum of its experts' results, each multiplied with its weight, in the order of the
// experts: added to a residual, or by itself.
struct ExpertSumStep {
  Forms input;  // [row]
  Routing routing;
  ExpertPart down;          // its output is by token
  bool accumulate = false;  // to what the output holds
  // Products on their way to their tokens: each worker of `workers` has kExpertRows rows; on a GPU
  // each row has its own, with all columns.
  float* products = nullptr;
  size_t product_stride = 0;
  size_t workers = 0;
  ResidualFinish finish = {};
};

// The treatment of each head of the queries and keys before attention: norm (if any) and
// rotary positions (if any), in this order unless `norm_is_last`. Then keys and values go into the
// cache.
struct PrepareHeads {
  const float* keys = nullptr;
  const float* values = nullptr;
  size_t kv_stride = 0;
  const float* query_norm = nullptr;
  const float* key_norm = nullptr;
  float epsilon = 0;
  bool norm_is_last = false;
  RotaryPairs pairs = RotaryPairs::kInterleaved;
  const float* rotary_table = nullptr;  // RotaryTableStep's; none: no rotary positions
  size_t rotary_stride = 0;
  size_t rotary_dimensions = 0;
};

// Only a pass's first so many tokens have their keys cut into chunks: of more, each worker has
// enough.
inline constexpr size_t kSplitTokens = 64;

// Partial results of chunks of long sequences, one row per block of queries and KV head, and the
// counters of chunks that are done, per token and KV head: the worker of the last one merges them.
struct AttentionPartials {
  float* rows = nullptr;
  size_t stride = 0;       // floats
  size_t block_count = 0;  // capacity in blocks
  uint32_t* arrived = nullptr;
  // On a GPU rows follow one another without gaps, one per unit of the batch with all the rank's
  // query heads' outputs; maximums and sums, two floats per head, lie here; counters are [head].
  float* sums = nullptr;
};

// The rank's query heads, in groups that share a KV head. The first group may be without its first
// `group_offset` heads, the last without its last: other ranks have them, and the KV head as well.
struct AttendStep {
  size_t layer = 0;
  PrepareHeads prepare;
  // Processors prepare copies; a GPU prepares them where they are, but in passes whose attention
  // does it, which leave them as they came.
  float* queries = nullptr;
  size_t query_stride = 0;
  size_t head_count = 0;
  size_t kv_head_count = 0;
  size_t group = 0;  // query heads of one KV head
  size_t group_offset = 0;
  size_t head_dimension = 0;
  size_t window = 0;  // most keys that a token sees; 0: all before it
  float scale = 0;
  AttentionForm prompt_attention = AttentionForm::kF32;  // on processors
  float* output = nullptr;
  size_t output_stride = 0;
  AttentionPartials partials;
  // Set where a group's outputs are whole blocks of the forms; else a FormStep follows.
  std::optional<FormsOutput> forms;
};

// f32 to the forms in which it is consumed.
struct FormStep {
  const float* input = nullptr;
  size_t input_stride = 0;
  size_t columns = 0;  // of the input
  FormsOutput output;
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
    std::variant<ClearPagesStep, RotaryTableStep, EmbedStep, NormStep, MatmulStep, RouteStep,
                 ExpertGateStep, ExpertSumStep, AttendStep, FormStep, AllReduceStep>;

// The scope of the barrier after a step.
enum class Meet : uint8_t { kRank, kAllRanks };

struct Step {
  StepWork work;
  Meet meet = Meet::kRank;
};

// Rows [row_begin, row_end) and of them columns [column_begin, column_end) of a weight, held by
// this rank at `address`: panels (or, on a GPU, tiles) for a matrix, f32 for a vector (row 0 to 1).
// Nothing is held where either is empty. Columns begin and end at multiples of the format's block,
// or at the end.
struct WeightSlice {
  WeightId weight = kNone;
  size_t row_begin = 0;
  size_t row_end = 0;
  size_t column_begin = 0;
  size_t column_end = 0;
  std::byte* address = nullptr;
  size_t size_bytes = 0;
};

// The residual of every token of a pass as the last norm reads it, which stays where it is until
// the next pass begins: what hidden rows are made of. Each rank has the columns that it has
// computed.
struct HiddenRows {
  const float* residual = nullptr;  // [token], from columns.begin on
  size_t residual_stride = 0;       // floats
  Range columns;                    // all ranks' follow one another; empty: other ranks have them
  const float* norm_weight = nullptr;  // of `columns`
  size_t width = 0;                    // of a whole row; 0: the graph's logits are not of a norm
  float epsilon = 0;
};

// Further areas in the memory of a rank on a GPU; all null on processors.
struct GpuAreas {
  std::byte* batch = nullptr;     // a pass's batch, as gpu_batch_at() lays it out
  GpuBatchLimits limits;          // its capacity
  double* frequencies = nullptr;  // RotaryTableStep's, of the GPU
  // Work space of the search for logits' candidates and of draws, on rank 0. Unused where the
  // logits are the host's: among processors, or GPUs that do not reach one another's memory.
  uint32_t* candidate_words = nullptr;
  float* logit_maxima = nullptr;  // [logit row]
  double* draw_sums = nullptr;    // [logit row], gpu_draw_blocks() each
  // For products of prompted tokens: a panel of unpacked weights, their sums for all of a pass's
  // tokens, and kGpuLibraryBytes. None where no weights are unpacked.
  GpuPanelLimits panel_limits;
  uint16_t* panel = nullptr;
  float* panel_sums = nullptr;
  std::byte* library = nullptr;
};

struct Plan {
  std::vector<Step> steps;
  std::vector<WeightSlice> weights;  // by WeightId
  KvLayout kv;
  Peers peers;
  HiddenRows hidden;
  GpuAreas gpu;
  // [logit row][vocabulary], on rank 0: in GPU memory where all are GPUs that reach one another's.
  float* logits = nullptr;
  size_t logits_stride = 0;
  size_t vocabulary_size = 0;
  size_t batch_tokens = 0;
  size_t logit_rows = 0;
  size_t attention_blocks = 0;  // the capacity of AttentionPartials
  size_t weight_bytes = 0;      // of the arenas; the cache's is kv.size_bytes()
  size_t scratch_bytes = 0;
  size_t exchange_bytes = 0;
  size_t logits_bytes = 0;  // 0 but on rank 0
  // Host memory for candidates and draws from a GPU's logits; 0 but on rank 0.
  size_t candidate_bytes = 0;
};

}  // namespace lockstep
