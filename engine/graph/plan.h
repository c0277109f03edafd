// One rank's share of a graph: a flat list of steps, in which memory is named by arena and offset
// (arenas.h). A plan is a value: it holds no address, is made once, before any memory is taken, and
// can be compared and printed (plan_text()). The rank that runs it looks its addresses up: on
// processors where a step needs them, on a GPU once, when the steps become launches.
//
// All workers of the rank walk the plan; a barrier follows each step, over all ranks where one has
// written what another reads. All ranks' plans have the same steps in the same order. The steps'
// runner reads what varies from pass to pass (tokens, positions, pages, which rows want logits)
// from a Batch.
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
// A step with `gather` pushes what it has computed into every other rank's copy of the same buffer;
// such buffers lie in the exchange arenas.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "engine/base/range.h"
#include "engine/graph/arenas.h"
#include "engine/graph/device_areas.h"
#include "engine/graph/graph.h"
#include "engine/graph/kv_layout.h"
#include "engine/graph/step_buffers.h"
#include "engine/kernels/activation_function.h"
#include "engine/kernels/kernel_table.h"
#include "engine/kernels/profile.h"

namespace lockstep {

// Zeroes the pages that the batch hands out. Work is shared by their parts.
struct ClearPagesStep {
  friend bool operator==(const ClearPagesStep&, const ClearPagesStep&) = default;
};

// table[token]: the cosines, then the sines of every pair's angle at the token's position, times
// `magnitude`.
struct RotaryTableStep {
  std::vector<double> frequencies;  // Rotary's
  double magnitude = 1;
  ArenaOffset<float> table = {};
  size_t stride = 0;

  friend bool operator==(const RotaryTableStep&, const RotaryTableStep&) = default;
};

// This rank holds the table's rows from `row_begin` on; other ranks embed the other tokens.
struct EmbedStep {
  EmbedIndex index = EmbedIndex::kToken;
  PlannedMatrix table;
  size_t row_begin = 0;
  ArenaOffset<float> output = {};
  size_t output_stride = 0;
  bool gather = false;

  friend bool operator==(const EmbedStep&, const EmbedStep&) = default;
};

// A norm whose residual no product of this rank has just computed.
struct NormStep {
  ArenaOffset<const float> residual = {};
  size_t residual_stride = 0;
  size_t columns = 0;
  Rows residual_rows = Rows::kTokens;  // kLogits: only those have been selected
  NormOutput norm;

  friend bool operator==(const NormStep&, const NormStep&) = default;
};

struct MatmulPart {
  PlannedMatrix matrix;
  ProductForms forms;
  size_t first_column = 0;  // of the input: the next ones are the matrix's
  ArenaOffset<const float> bias = {};
  ArenaOffset<float> output = {};
  size_t output_stride = 0;
  bool accumulate = false;  // the residual is added to
  bool remote = false;      // the output lies on another rank

  friend bool operator==(const MatmulPart&, const MatmulPart&) = default;
};

// After a part's rows have been added to the residual: the norms that read it.
struct ResidualFinish {
  std::vector<NormOutput> norms;

  friend bool operator==(const ResidualFinish&, const ResidualFinish&) = default;
};

// After the rows of both parts: activation(the first's) * the second's; of one part alone:
// activation(the part's).
struct GateFinish {
  Activation activation = {};
  FormsOutput output;

  friend bool operator==(const GateFinish&, const GateFinish&) = default;
};

// Several products of one input. Their panels are shared among the workers as one list; with a
// finish, the worker that computed rows finishes them.
struct MatmulStep {
  Rows rows = Rows::kTokens;
  Forms input;
  NormFactor norm;
  std::vector<MatmulPart> parts;
  std::variant<std::monostate, ResidualFinish, GateFinish> finish;

  friend bool operator==(const MatmulStep&, const MatmulStep&) = default;
};

// Work is shared by token; the rows are put in order by one worker.
struct RouteStep {
  ArenaOffset<const float> scores = {};  // [token][expert]; none: the rank has no experts
  size_t score_stride = 0;
  Routing routing;
  Gating gating = {};
  ArenaOffset<const float> bias = {};  // [expert], of the choice alone; or none

  friend bool operator==(const RouteStep&, const RouteStep&) = default;
};

// The same product of every expert with its rows.
struct ExpertPart {
  std::vector<PlannedMatrix> matrices;                // by expert, all of one format and size
  std::vector<ArenaOffset<const float>> biases = {};  // by expert; none: there are none here
  ProductForms forms;
  ArenaOffset<float> output = {};
  size_t output_stride = 0;

  friend bool operator==(const ExpertPart&, const ExpertPart&) = default;
};

// The most rows of an expert that are multiplied at once, and the columns of a sum they go into.
inline constexpr size_t kExpertRows = 256;
inline constexpr size_t kExpertSumColumns = 256;

// Rows of processors' workers, [worker][kExpertRows]. An expert's tokens need not follow one
// another in the batch: a worker brings them together here.
struct GatheredRows {
  Forms rows;
  size_t workers = 0;

  friend bool operator==(const GatheredRows&, const GatheredRows&) = default;
};

// gate and up of the tokens' rows, and per row activation(gate's) * up's.
struct ExpertGateStep {
  Forms input;  // [token]
  NormFactor norm;
  Routing routing;
  std::optional<GatheredRows> gathered = {};  // none on a GPU, which gathers while it reads
  ExpertPart gate;
  ExpertPart up;
  Activation activation = {};
  FormsOutput output = {};  // [row]

  // True where a GPU computes both at once, with what follows.
  bool is_one_shape() const { return gate.matrices.front().format == up.matrices.front().format; }

  friend bool operator==(const ExpertGateStep&, const ExpertGateStep&) = default;
};

// Products on their way to their tokens, on processors: [worker][kExpertRows][kExpertSumColumns].
struct WorkerProducts {
  ArenaOffset<float> rows = {};
  size_t stride = 0;  // floats
  size_t workers = 0;

  friend bool operator==(const WorkerProducts&, const WorkerProducts&) = default;
};

// Products on their way to their tokens, on a GPU: [row][column].
struct RowProducts {
  ArenaOffset<float> rows = {};
  size_t stride = 0;  // floats

  friend bool operator==(const RowProducts&, const RowProducts&) = default;
};

// Per token the sum of its experts' results, each multiplied with its weight, in the order of the
// experts: added to a residual, or by itself.
struct ExpertSumStep {
  Forms input;  // [row]
  Routing routing;
  ExpertPart down;          // its output is by token
  bool accumulate = false;  // to what the output holds
  // None: the rank has no experts.
  std::variant<std::monostate, WorkerProducts, RowProducts> products = {};
  ResidualFinish finish = {};

  friend bool operator==(const ExpertSumStep&, const ExpertSumStep&) = default;
};

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
  // Set where a group's outputs are whole blocks of the forms; else a FormStep follows.
  std::optional<FormsOutput> forms = {};

  friend bool operator==(const AttendStep&, const AttendStep&) = default;
};

// f32 to the forms in which it is consumed.
struct FormStep {
  Rows rows = Rows::kTokens;
  Routing routing = {};  // with kExperts
  ArenaOffset<const float> input = {};
  size_t input_stride = 0;
  size_t columns = 0;  // of the input
  FormsOutput output;

  friend bool operator==(const FormStep&, const FormStep&) = default;
};

// output += the sum of the contributors' partial results, in order of rank.
struct AllReduceStep {
  std::vector<size_t> contributors;  // ranks
  Rows rows = Rows::kTokens;
  ArenaOffset<const float> partial = {};
  size_t partial_stride = 0;
  ArenaOffset<float> output = {};
  size_t output_stride = 0;
  size_t columns = 0;
  // In the exchange arena, where sums travel as bf16; none: they travel as f32.
  ArenaOffset<uint16_t> bf16_partial = {};
  ArenaOffset<uint16_t> bf16_sum = {};

  friend bool operator==(const AllReduceStep&, const AllReduceStep&) = default;
};

// The plain steps: what no fusion rule has made a part of another step. Processors alone have them.

enum class Elementwise : uint8_t {
  kZero,        // 0
  kCopy,        // x
  kSelect,      // x of the tokens whose logits are asked for
  kAdd,         // x + y
  kActivation,  // activation(x)
  kGate,        // activation(x) * y
  kScale,       // scale * x
  kSoftCap,     // scale * tanh(x / scale)
  kClamp,       // x, at least -scale and at most scale
  kScaleRows,   // activation(y[row][0]) * x
  // x * the factor of the token's position
  kTemperature,
};

// A function of each element by itself. Work is shared by rows and chunks of columns.
struct ElementwiseStep {
  Elementwise function = Elementwise::kCopy;
  Rows rows = Rows::kTokens;
  Routing routing = {};          // with kExperts
  Activation activation = {};    // kActivation, kGate, kScaleRows
  float scale = 0;               // kScale, kSoftCap, kClamp
  Temperature temperature = {};  // kTemperature
  PlainRows x;
  PlainRows y;
  size_t columns = 0;
  PlainOutput output;

  friend bool operator==(const ElementwiseStep&, const ElementwiseStep&) = default;
};

// The norm, or the rotary positions, of each head by itself. Work is shared by rows and heads.
struct HeadsStep {
  PlainRows input;
  size_t head_count = 0;
  size_t head_dimension = 0;
  bool is_normed = false;
  bool subtracts_mean = false;
  ArenaOffset<const float> norm = {};  // its weight, or none
  size_t norm_stride = 0;              // from one head's weight to the next; 0: all have the same
  float epsilon = 0;
  RotaryPairs pairs = RotaryPairs::kInterleaved;
  RotaryTable rotary = {};
  ArenaOffset<float> output = {};
  size_t output_stride = 0;

  friend bool operator==(const HeadsStep&, const HeadsStep&) = default;
};

// Some columns of each head of a value in f32.
struct HeadColumns {
  PlainRows input;
  size_t head_stride = 0;  // columns; 0: one head for all
  size_t first = 0;        // of a head's columns
  size_t columns = 0;

  friend bool operator==(const HeadColumns&, const HeadColumns&) = default;
};

// A copy of all parts' columns of each head, one part's after another's. Work is shared by rows and
// chunks of columns.
struct CopyHeadsStep {
  Rows rows = Rows::kTokens;
  Routing routing = {};  // with kExperts
  std::vector<HeadColumns> parts;
  size_t columns = 0;  // of all heads
  PlainOutput output;

  friend bool operator==(const CopyHeadsStep&, const CopyHeadsStep&) = default;
};

// The sums of a value's own chunks, for a norm that is no factor: of the squares, or, where the
// mean is subtracted, of the elements and of the squares of their distances from their chunk's
// mean.
struct NormSumsStep {
  Rows rows = Rows::kTokens;
  PlainRows input;
  size_t columns = 0;
  ChunkSums chunks;  // of the squares, from the input's first column on
  ChunkSums sums;    // of the elements; none: the mean is not subtracted
  bool gather = false;

  friend bool operator==(const NormSumsStep&, const NormSumsStep&) = default;
};

// x (or its distance from the mean) times the factor that all chunks' sums give, times the norm's
// weight, plus its bias.
struct NormScaleStep {
  Rows rows = Rows::kTokens;
  PlainRows input;
  size_t columns = 0;
  ArenaOffset<const float> weight = {};  // of the input's columns; or none
  ArenaOffset<const float> bias = {};    // likewise
  NormFactor norm;
  ChunkSums sums;  // NormSumsStep's
  PlainOutput output;

  friend bool operator==(const NormScaleStep&, const NormScaleStep&) = default;
};

// The product of every expert with its rows.
struct ExpertProductStep {
  Forms input;  // [token]
  NormFactor norm;
  Routing routing;
  std::optional<GatheredRows> gathered = {};
  ExpertPart part;  // its output is by row

  friend bool operator==(const ExpertProductStep&, const ExpertProductStep&) = default;
};

using StepWork = std::variant<ClearPagesStep, RotaryTableStep, EmbedStep, NormStep, MatmulStep,
                              RouteStep, ExpertGateStep, ExpertSumStep, AttendStep, FormStep,
                              AllReduceStep, ElementwiseStep, HeadsStep, CopyHeadsStep,
                              NormSumsStep, NormScaleStep, ExpertProductStep>;

// The scope of the barrier after a step.
enum class Meet : uint8_t { kRank, kAllRanks };

struct Step {
  StepWork work;
  Meet meet = Meet::kRank;

  friend bool operator==(const Step&, const Step&) = default;
};

// Rows [row_begin, row_end) and of them columns [column_begin, column_end) of a weight, held by
// this rank: a matrix as its device reads it, a vector as f32 (row 0 to 1). Nothing is held where
// either is empty. Columns begin and end at multiples of the format's block, or at the end.
struct WeightSlice {
  WeightId weight = kNone;
  size_t row_begin = 0;
  size_t row_end = 0;
  size_t column_begin = 0;
  size_t column_end = 0;
  size_t offset = 0;  // in the arena of weights, bytes
  size_t size_bytes = 0;

  friend bool operator==(const WeightSlice&, const WeightSlice&) = default;
};

// The residual of every token of a pass as the last norm reads it: hidden rows are made of it. It
// stays in its place until the next pass begins. Each rank has the columns that it has computed.
struct HiddenRows {
  ArenaOffset<const float> residual = {};  // [token], from columns.begin on
  size_t residual_stride = 0;              // floats
  Range columns;  // all ranks' follow one another; empty: other ranks have them
  ArenaOffset<const float> norm_weight = {};  // of `columns`
  size_t width = 0;  // of a whole row; 0: the graph's logits are not of a norm
  float epsilon = 0;

  friend bool operator==(const HiddenRows&, const HiddenRows&) = default;
};

struct Plan {
  size_t rank = 0;
  size_t rank_count = 1;
  std::vector<Step> steps;
  std::vector<WeightSlice> weights;  // by WeightId
  KvLayout kv;
  HiddenRows hidden;
  DeviceAreas areas;
  // [logit row][vocabulary], of rank 0: in GPU memory where all are GPUs that reach one another's.
  ArenaOffset<float> logits = {};
  size_t logits_stride = 0;  // floats
  size_t vocabulary_size = 0;
  size_t batch_tokens = 0;
  size_t logit_rows = 0;
  size_t weight_bytes = 0;  // of the arenas; the cache's is kv.size_bytes()
  size_t scratch_bytes = 0;
  size_t exchange_bytes = 0;
  size_t logits_bytes = 0;  // 0 but on rank 0

  friend bool operator==(const Plan&, const Plan&) = default;
};

// The plan as text, to compare plans by or to keep a digest of one: everything that it says, its
// sizes, the device's areas and the weights' slices, then one line per step with its rows, buffers
// (arena+offset/stride) and sizes. Plans that differ have different texts, and equal ones the same.
std::string plan_text(const Plan& plan);

}  // namespace lockstep
