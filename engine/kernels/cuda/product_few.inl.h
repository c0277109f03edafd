// The product of up to 8 tokens with weights (gpu_product.h): with so few it is latency that
// counts, of a chain of launches in which each waits for the one before. So whatever a block needs
// is asked for at once: weights, biases and the norms' before it waits; after that activations,
// what the norm's factor is made of and what the output holds, and the factor is formed when the
// sums are there. A block takes 32 rows, and then others, as many as the launch has for each: the
// weights of the next ones are asked for before those at hand are finished. Included by
// product.inl.h.
#pragma once

#include "engine/kernels/cuda/product_block.inl.h"

namespace lockstep {
namespace {

// The activations of up to 8 tokens, in shared memory: each warp has those of the units that it
// takes, [unit][token]. Rows of several tokens lie 64 bytes further apart than they are long, so
// that those of neighbours are in other banks.
template <Format kFormat>
struct StagedInput {
  static constexpr bool kIsStaged = true;
  static constexpr GpuLayout kLayout = gpu_layout(kFormat);
  static constexpr unsigned kRowBytes = kLayout.unit_columns() * sizeof(uint16_t);

  unsigned columns;
  unsigned tokens;
  unsigned unit_bytes;    // from unit to unit
  const std::byte* lane;  // the lane's part of the unit that the warp multiplies next

  static constexpr unsigned row_stride(size_t token_limit) {
    return token_limit == 1 ? kRowBytes : kRowBytes + 64;
  }
  // The bytes that a block needs for them.
  static constexpr size_t size_bytes(size_t token_limit, size_t matrix_columns) {
    const size_t units = divide_up<size_t>(matrix_columns, kLayout.unit_columns());
    return round_up<size_t>(units, kProductWarps) * token_limit * row_stride(token_limit);
  }
};

// A warp copies its own: all of them are under way at once, as far as registers do.
template <Format kFormat>
GPU_FUNCTION StagedInput<kFormat> stage_input(const GpuProduct& product, std::byte* memory,
                                              unsigned units, unsigned tokens) {
  using Input = StagedInput<kFormat>;
  constexpr unsigned kPieces = Input::kRowBytes / 16;  // of a row
  constexpr unsigned kAtOnce = 4;
  const auto columns = static_cast<unsigned>(product.parts[0].matrix.columns);
  const unsigned readable = round_up(columns, 32U);
  const unsigned stride = Input::row_stride(product.token_limit);
  const unsigned warp = warp_index();
  const unsigned own_units = units > warp ? divide_up(units - warp, kProductWarps) : 0;
  memory += size_t{divide_up(units, kProductWarps)} * warp * tokens * stride;
  const unsigned count = own_units * kPieces;
  GPU_KEEP_LOOP
  for (unsigned token = 0; token < tokens; ++token) {
    const std::byte* const from = product.input + size_t{token} * product.input_stride_bytes;
    std::byte* const to = memory + token * stride;
    GPU_KEEP_LOOP
    for (unsigned begin = lane_index(); begin < count; begin += kAtOnce * kWarpThreads) {
      Words4 held[kAtOnce] = {};
      GPU_UNROLL
      for (unsigned k = 0; k < kAtOnce; ++k) {
        const unsigned piece = begin + k * kWarpThreads;
        const unsigned unit = warp + piece / kPieces * kProductWarps;
        const unsigned column = unit * Input::kLayout.unit_columns() + piece % kPieces * 8;
        if (piece < count && column < readable) {
          held[k] = load_16(from + size_t{column} * sizeof(uint16_t));
        }
      }
      GPU_UNROLL
      for (unsigned k = 0; k < kAtOnce; ++k) {
        const unsigned piece = begin + k * kWarpThreads;
        if (piece >= count) continue;
        store_16(to + piece / kPieces * tokens * stride + piece % kPieces * 16, held[k]);
      }
    }
  }
  meet_warp();
  const unsigned own = lane_index() / 4;  // its sums are not read if there is no such token
  return {columns, tokens, tokens * stride,
          memory + (own < tokens ? own : tokens - 1) * stride + lane_row_byte<kFormat>()};
}

template <Format kFormat>
GPU_FUNCTION Words4 read_wide(StagedInput<kFormat>& input, unsigned /*group*/, size_t /*column*/,
                              unsigned tile, unsigned half) {
  return load_16(input.lane + (tile * kGpuTileColumns + half * 32) * sizeof(uint16_t));
}
template <Format kFormat>
GPU_FUNCTION Words2 read_narrow(StagedInput<kFormat>& input, unsigned /*group*/, size_t /*column*/,
                                unsigned tile, unsigned step) {
  return load_8(input.lane + (tile * kGpuTileColumns + step * 16) * sizeof(uint16_t));
}

// Brings what a warp needs to finish its token; it is on its way into shared memory behind the
// stages while the block multiplies. A thread reads what it has asked for itself.
class FinishAhead {
 public:
  // The most sums of chunks that are asked for ahead; norms of more columns are rare.
  static constexpr unsigned kChunksMost = 512;

  // Floats of a warp.
  static constexpr unsigned size(const GpuProduct& product) {
    return (kChunks + chunk_count(product)) * kWarpThreads;
  }

  GPU_FUNCTION FinishAhead(const GpuProduct& product, const BlockPlace& place, float* memory)
      : product_(product),
        place_(place),
        is_gate_(product.finish == GpuFinish::kGate),
        lane_floats_(memory + warp_index() * size(product) + lane_index()) {}

  // Biases and the norms' weights, which no launch writes.
  GPU_FUNCTION void ask_constants() const {
    const GpuPart& own = part();
    if (!is_row()) return;
    if (own.bias != nullptr) ask(kBias, own.bias + row());
    for (unsigned norm = 0; norm < product_.norm_count; ++norm) {
      ask(kNorms + norm, product_.norms[norm].weight + row());
    }
  }

  GPU_FUNCTION void ask_others(unsigned token) const {
    const GpuPart& own = part();
    if (own.accumulate && is_row()) ask(kHeld, output(token));
    const unsigned chunks = product_.norm.chunk_sums == nullptr ? 0 : norm_chunks(product_);
    if (chunks > kChunksMost) return;
    const float* from = product_.norm.chunk_sums + token * product_.norm.stride;
    GPU_UNROLL_BY(4)
    for (unsigned chunk = lane_index(), turn = 0; chunk < chunks; chunk += kWarpThreads, ++turn) {
      ask(kChunks + turn, from + chunk);
    }
  }

  // As finish_token() does, once all copies of the thread are done. `sum`: of the lane's row.
  GPU_FUNCTION void finish(float sum, unsigned token) const {
    float y = 0;
    const float factor = form_factor(token);
    if (is_row()) y = finish_row(sum, factor, token);
    if (is_gate_) finish_gate(product_, place_, y, token);
    for (unsigned norm = 0; norm < product_.norm_count; ++norm) {
      const float weight = is_row() ? lane_floats_[(kNorms + norm) * kWarpThreads] : 0.0F;
      finish_norm(product_.norms[norm], place_, y, is_row(), weight, token);
    }
  }

 private:
  // Which float of the warp's rows of 32.
  enum Row : unsigned { kBias, kHeld, kNorms, kChunks = kNorms + kGpuProductNorms };

  static constexpr unsigned norm_chunks(const GpuProduct& product) {
    return static_cast<unsigned>(divide_up<size_t>(product.norm.columns, kBlockRows));
  }
  static constexpr unsigned chunk_count(const GpuProduct& product) {
    if (product.norm.chunk_sums == nullptr) return 0;
    const unsigned chunks = norm_chunks(product);
    return chunks > kChunksMost ? 0 : divide_up(chunks, kWarpThreads);
  }

  GPU_FUNCTION const GpuPart& part() const {
    return product_.parts[is_gate_ ? lane_index() / kGpuPanelRows : place_.part];
  }
  GPU_FUNCTION size_t row() const {
    return place_.row + (is_gate_ ? lane_index() % kGpuPanelRows : lane_index());
  }
  GPU_FUNCTION bool is_row() const { return row() < part().matrix.rows; }
  GPU_FUNCTION float* output(unsigned token) const {
    return part().output + token * part().output_stride + row();
  }
  GPU_FUNCTION void ask(unsigned index, const float* from) const {
    begin_copy_4(reinterpret_cast<std::byte*>(lane_floats_ + index * kWarpThreads),
                 reinterpret_cast<const std::byte*>(from));
  }

  GPU_FUNCTION float form_factor(unsigned token) const {
    const GpuNormFactor& norm = product_.norm;
    if (norm.chunk_sums == nullptr) return 1;
    const unsigned chunks = norm_chunks(product_);
    if (chunks > kChunksMost) return norm_factor(norm, token);
    float sum = 0;
    for (unsigned chunk = lane_index(), turn = 0; chunk < chunks; chunk += kWarpThreads, ++turn) {
      sum += lane_floats_[(kChunks + turn) * kWarpThreads];
    }
    return factor_of_sums(norm, sum);
  }

  GPU_FUNCTION float finish_row(float y, float factor, unsigned token) const {
    const GpuPart& own = part();
    if (product_.norm.chunk_sums != nullptr) y = multiply(y, factor);
    if (own.scale != 1) y = multiply(y, own.scale);
    if (own.bias != nullptr) y += lane_floats_[kBias * kWarpThreads];
    if (own.output == nullptr) return y;
    if (own.accumulate) y += lane_floats_[kHeld * kWarpThreads];
    *output(token) = y;
    return y;
  }

  const GpuProduct& product_;
  const BlockPlace& place_;
  bool is_gate_;
  float* lane_floats_;
};

// The rows of weights that a block takes, unit by unit as a warp multiplies them: asked for as many
// units ahead as there are stages, across the border between some rows and the next.
template <Format kFormat>
class UnitStream {
 public:
  static constexpr unsigned kStageBytes = Stage<kFormat>::kBytes;

  GPU_FUNCTION UnitStream(const GpuProduct& product, size_t part_begin, size_t part_end,
                          unsigned blocks, unsigned stages)
      : product_(product),
        part_begin_(part_begin),
        part_end_(part_end),
        blocks_(blocks),
        block_(block_column()),
        bytes_(stages * kStageBytes),
        stages_(shared_memory() + warp_index() * bytes_),
        lane_byte_(lane_index() * 16) {
    keep(lane_byte_);
    const GpuMatrix& matrix = product.parts[part_begin].matrix;
    units_ = static_cast<unsigned>(divide_up<size_t>(matrix.columns, Unit::kColumns));
    place_rows();
    for (unsigned stage = 0; stage < bytes_; stage += kStageBytes) ask(stages_ + stage);
  }

  GPU_FUNCTION unsigned units() const { return units_; }
  // The stage whose unit is the next to be multiplied.
  GPU_FUNCTION std::byte* front() const { return stages_ + front_; }
  // It has been multiplied: asks for another in its place.
  GPU_FUNCTION void advance() {
    ask(stages_ + front_);
    front_ += kStageBytes;
    if (front_ == bytes_) front_ = 0;
  }

 private:
  struct Unit {
    static constexpr unsigned kColumns = gpu_layout(kFormat).unit_columns();
  };

  GPU_FUNCTION void place_rows() {
    unit_ = warp_index();
    if (block_ >= blocks_) return;
    const BlockPlace place = block_place(product_, part_begin_, part_end_, block_);
    const GpuMatrix& matrix = product_.parts[place.part].matrix;
    const GpuPlanes planes = gpu_planes(gpu_layout(kFormat), matrix.rows, matrix.columns);
    const bool gate = product_.finish == GpuFinish::kGate;
    weights_ = place_panels<kFormat>(matrix, gate ? product_.parts[1].matrix : matrix, gate, planes,
                                     place, warp_index());
  }
  GPU_FUNCTION void ask(std::byte* stage) {
    if (block_ < blocks_ && unit_ < units_) {
      begin_unit<kFormat>(weights_, stage, lane_byte_);
      unit_ += kProductWarps;
      if (unit_ >= units_) {
        block_ += block_columns();
        place_rows();
      }
    }
    close_copies();
  }

  const GpuProduct& product_;
  size_t part_begin_;
  size_t part_end_;
  unsigned blocks_;
  unsigned block_;  // the next unit's
  unsigned unit_;   // the next to be asked for
  unsigned units_;
  unsigned front_ = 0;
  unsigned bytes_;  // of all stages
  std::byte* stages_;
  unsigned lane_byte_;  // 16 of a lane
  BlockWeights weights_;
};

// Behind the stages: the warps' sums, and what finishes a token.
template <Format kFormat>
constexpr size_t few_stages_bytes(unsigned stages) {
  return size_t{kProductWarps} * stages * Stage<kFormat>::kBytes;
}
// If two blocks or fewer are on a multiprocessor, each may have more, and the next launch's as
// many as they need.
constexpr size_t kDeepStageBytes = 106 * 1024;
constexpr size_t kDeepBlockBytes = 112 * 1024;
template <Format kFormat>
constexpr unsigned deep_stage_count() {
  constexpr auto kFit = static_cast<unsigned>(kDeepStageBytes / few_stages_bytes<kFormat>(1));
  constexpr unsigned kStages = kFit > kStagesMax ? kStagesMax : kFit;
  return kStages > stage_count<kFormat>() ? kStages : stage_count<kFormat>();
}
// There are two of them: of the rows at hand and of those before, which are read meanwhile.
constexpr size_t few_sums(size_t tokens) {
  return 2 * kProductWarps * tokens * kSumsStride;
}

// Leaves the warps' sums where all see them: [warp][token][kSumsStride].
GPU_FUNCTION void gather_few(const ProductSums<1>& sums, unsigned tokens, float* shared) {
  GPU_UNROLL
  for (unsigned of_two = 0; of_two < 2; ++of_two) {
    const unsigned token = lane_index() % 4 * 2 + of_two;
    if (token >= tokens) continue;
    float* const rows = shared + (warp_index() * tokens + token) * kSumsStride + lane_index() / 4;
    GPU_UNROLL
    for (unsigned half = 0; half < kBlockPanels * 2; ++half) {
      rows[half * 8] = sums.sums[half / 2][0][half % 2 * 2 + of_two];
    }
  }
  meet_block();
}

// Until a warp has all that it has asked for to finish a token: it was closed with the first
// weights asked for since. Later ones, of as many units as the warp has of these rows, may be on
// their way.
GPU_FUNCTION void wait_for_finish(unsigned units) {
  constexpr unsigned kLater = 3;
  if (units > kLater * kProductWarps + warp_index()) return wait_for_copies<kLater>();
  close_copies();
  wait_for_copies<0>();
}

// Blocks of a multiprocessor: three if they fit, and if registers do for unpacking scales and for
// minimums; or two.
template <Format kFormat>
constexpr unsigned few_blocks() {
  if (Stage<kFormat>::kUnpacks || has_minimums(kFormat)) return 2;
  constexpr size_t kWithInput = few_stages_bytes<kFormat>(stage_count<kFormat>()) + (11 << 10);
  return 3 * kWithInput <= 227 << 10 ? 3 : 2;
}

template <Format kFormat>
GPU_KERNEL_AT_ONCE(kProductWarps* kWarpThreads, few_blocks<kFormat>())
void multiply_few_rows(GpuProduct product, size_t part_begin, size_t part_end, unsigned blocks,
                       bool is_deep) {
  const unsigned token_count = load_of_batch(product.token_count);
  const unsigned stages = is_deep ? deep_stage_count<kFormat>() : stage_count<kFormat>();
  UnitStream<kFormat> stream(product, part_begin, part_end, blocks, stages);
  const size_t left = token_count - product.token_begin;
  const bool none = token_count <= product.token_begin;
  const auto tokens =
      none ? 0 : static_cast<unsigned>(left < product.token_limit ? left : product.token_limit);
  std::byte* const inputs = shared_memory() + few_stages_bytes<kFormat>(stages);
  auto* gathered =
      reinterpret_cast<float*>(inputs + StagedInput<kFormat>::size_bytes(
                                            product.token_limit, product.parts[0].matrix.columns));
  float* const ahead_floats = gathered + few_sums(product.token_limit);
  const unsigned own_token = warp_index();
  const bool has_token = own_token < tokens;
  unsigned block = block_column();
  const auto finish_of = [&](const BlockPlace& place) {
    return FinishAhead(product, place, ahead_floats);
  };
  BlockPlace place = block_place(product, part_begin, part_end, block);
  if (has_token) finish_of(place).ask_constants();
  follow_launches();
  // Not while copies go on: shared memory is another block's then.
  if (none) return wait_for_copies<0>();
  // They are closed with the next weights.
  if (has_token) finish_of(place).ask_others(own_token);
  auto input = stage_input<kFormat>(product, inputs, stream.units(), tokens);
  const std::byte* const first_lane = input.lane;
  auto half_sums = static_cast<int>(few_sums(product.token_limit) / 2);
  const unsigned warp = from_lane(warp_index(), 0);  // one for all lanes, as the compiler sees then
  while (true) {
    ProductSums<1> sums;
    begin_sums<kFormat>(sums);
    input.lane = first_lane;
    for (unsigned unit = warp; unit < stream.units(); unit += kProductWarps) {
      if (is_deep) {
        wait_for_copies<deep_stage_count<kFormat>() - 1>();
      } else {
        wait_for_copies<stage_count<kFormat>() - 1>();
      }
      meet_warp();
      add_unit<kFormat, 1>(input, stream.front(), unit, sums);
      meet_warp();
      stream.advance();
      input.lane += input.unit_bytes;
    }
    gather_few(sums, tokens, gathered);
    if (has_token) {
      wait_for_finish(stream.units());
      const float sum = add_warps<kProductWarps, kSumsStride>(gathered, own_token, tokens);
      finish_of(place).finish(sum, own_token);
    }
    gathered += half_sums;
    half_sums = -half_sums;
    block += block_columns();
    if (block >= blocks) break;
    place = block_place(product, part_begin, part_end, block);
    if (!has_token) continue;
    finish_of(place).ask_constants();
    finish_of(place).ask_others(own_token);
  }
  wait_for_copies<0>();
}

// More would leave too few blocks on a multiprocessor.
constexpr size_t kFewInputBytes = 32 << 10;

// False: too many tokens, or columns.
template <Format kFormat>
bool launch_few(void* stream, const GpuProduct& product, size_t begin, size_t end) {
  const auto blocks = static_cast<unsigned>(product_blocks(product, begin, end));
  const unsigned multiprocessors = multiprocessor_count();
  const size_t input_bytes =
      StagedInput<kFormat>::size_bytes(product.token_limit, product.parts[0].matrix.columns);
  const size_t floats =
      few_sums(product.token_limit) + product.token_limit * FinishAhead::size(product);
  const size_t beside = input_bytes + floats * sizeof(float);
  const auto bytes = [&](unsigned stages) { return few_stages_bytes<kFormat>(stages) + beside; };
  if (input_bytes > (blocks <= multiprocessors ? 2 : 1) * kFewInputBytes ||
      bytes(stage_count<kFormat>()) > shared_bytes_most()) {
    return false;
  }
  // Two blocks of a multiprocessor may have more stages, one any number.
  const size_t deep_bytes = bytes(deep_stage_count<kFormat>());
  const bool is_deep = deep_bytes <= (blocks <= multiprocessors       ? shared_bytes_most()
                                      : blocks <= 2 * multiprocessors ? kDeepBlockBytes
                                                                      : 0) &&
                       deep_bytes <= shared_bytes_most();
  const unsigned at_once = few_blocks<kFormat>() * multiprocessors;
  launch(stream,
         {.columns = blocks < at_once ? blocks : at_once,
          .threads = kProductWarps * kWarpThreads,
          .shared_bytes = bytes(is_deep ? deep_stage_count<kFormat>() : stage_count<kFormat>())},
         multiply_few_rows<kFormat>, product, begin, end, blocks, is_deep);
  return true;
}

}  // namespace
}  // namespace lockstep
