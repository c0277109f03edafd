// A block's part of a product: 32 rows of weights, two panels, with the tokens of one window.
// Included by product.inl.h and expert_product.inl.h.
//
// Its 8 warps share out the units of columns. A warp copies units into stages of its own in shared
// memory, which keeps enough bytes in flight without registers. Tokens are the columns of the tile
// product, 8 at a time; in the kernel for more of them a weight that has been made bf16 is used for
// all. The first units are asked for before anything else, while launches before this one may still
// be under way. At the end the warps' sums meet in shared memory, and a warp finishes a token, each
// lane a row.
#pragma once

#include "engine/base/check.h"
#include "engine/base/checked_math.h"
#include "engine/kernels/cuda/kernel_words.inl.h"
#include "engine/kernels/cuda/product_place.inl.h"

namespace lockstep {
namespace {

// More than 99 KiB not every GPU has; three blocks of a multiprocessor hold 72 KiB each. How many
// stages that gives, and more than eight being of no use, was not measured.
constexpr unsigned kSharedBytesMax = 99 * 1024;
constexpr unsigned kStageBytesWanted = 72 * 1024;
constexpr unsigned kStagesMax = 8;

template <Format kFormat>
constexpr unsigned stage_count() {
  constexpr unsigned kStageBytes = kProductWarps * Stage<kFormat>::kBytes;
  constexpr unsigned kFit = kStageBytesWanted / kStageBytes;
  if (kFit >= 2) return kFit > kStagesMax ? kStagesMax : kFit;
  return 2 * kStageBytes <= kSharedBytesMax ? 2 : 1;
}

template <Format kFormat, unsigned kGroups>
constexpr size_t product_shared_bytes() {
  constexpr size_t kStages =
      size_t{kProductWarps} * stage_count<kFormat>() * Stage<kFormat>::kBytes;
  constexpr size_t kSums = sizeof(float) * kProductWarps * kGroups * kGroupTokens * kSumsStride;
  static_assert(kStages <= kSharedBytesMax && kSums <= kSharedBytesMax);
  return kStages > kSums ? kStages : kSums;
}

template <Format kFormat>
GPU_FUNCTION std::byte* warp_stages() {
  return shared_memory() + warp_index() * (stage_count<kFormat>() * Stage<kFormat>::kBytes);
}

// Asks for the warp's first units, one for each of its stages. Of weights alone: it may come before
// what waits for other launches.
template <Format kFormat>
GPU_FUNCTION void begin_weights(BlockWeights& weights, unsigned units) {
  std::byte* stages = warp_stages<kFormat>();
  for (unsigned stage = 0; stage < stage_count<kFormat>(); ++stage) {
    if (warp_index() + stage * kProductWarps < units) {
      begin_unit<kFormat>(weights, stages + stage * Stage<kFormat>::kBytes);
    }
    close_copies();
  }
}

// The warp's units, from the first that it takes to the last, after begin_weights().
template <Format kFormat, unsigned kGroups, typename Input>
GPU_FUNCTION void add_units(Input& input, BlockWeights& weights, unsigned units,
                            ProductSums<kGroups>& sums) {
  constexpr unsigned kStages = stage_count<kFormat>();
  constexpr unsigned kStageBytes = Stage<kFormat>::kBytes;
  // One for all lanes, as the compiler sees then.
  const unsigned warp = from_lane(warp_index(), 0);
  const unsigned end = (warp + 1) * (kStages * kStageBytes);
  unsigned stage = end - kStages * kStageBytes;  // in bytes
  for (unsigned unit = warp; unit < units; unit += kProductWarps) {
    std::byte* staged = shared_memory() + stage;
    wait_for_copies<kStages - 1>();
    meet_warp();
    add_unit<kFormat, kGroups>(input, staged, unit, sums);
    meet_warp();
    if (unit + kStages * kProductWarps < units) begin_unit<kFormat>(weights, staged);
    close_copies();
    stage += kStageBytes;
    if (stage == end) stage -= kStages * kStageBytes;
  }
}

// Leaves the warps' sums in shared memory, for all threads to see: [warp][token][kSumsStride].
template <unsigned kGroups>
GPU_FUNCTION const float* gather_sums(const ProductSums<kGroups>& sums) {
  constexpr unsigned kTokens = kGroups * kGroupTokens;
  meet_block();  // all stages have been read
  auto* shared = reinterpret_cast<float*>(shared_memory());
  GPU_UNROLL
  for (unsigned index = 0; index < kBlockPanels * kGroups * 4; ++index) {
    const unsigned group = index / 4 % kGroups;
    const unsigned token = group * kGroupTokens + lane_index() % 4 * 2 + index % 2;
    const unsigned row = index / 4 / kGroups * kGpuPanelRows + lane_index() / 4 + index % 4 / 2 * 8;
    shared[(warp_index() * kTokens + token) * kSumsStride + row] =
        sums.sums[index / 4 / kGroups][group][index % 4];
  }
  meet_block();
  return shared;
}

// With few tokens it is the memory's latency that must be hidden, with more their sums need the
// registers: of 2 bits those of 16 tokens already. Three blocks leave none for quants to be made
// bf16 in; where up to 8 tokens' activations are in shared memory (product_few.inl.h), three
// instead of two were a seventh slower on an H200.
template <Format kFormat, unsigned kGroups>
constexpr unsigned blocks_at_once() {
  constexpr unsigned kBits = gpu_layout(kFormat).quant_bits;
  if (kGroups == 1) return kBits < 16 ? 2 : 3;
  return kGroups >= 8 || kBits == 2 ? 1 : 2;
}

// The window's product with the two panels of `weights`, which begin_weights() has asked for.
// `first`: which row of everything that is written the window's first token has.
template <Format kFormat, unsigned kGroups, typename Input>
GPU_FUNCTION void multiply_window(const GpuProduct& product, const BlockPlace& place,
                                  BlockWeights& weights, unsigned units, const Input& input,
                                  size_t first) {
  constexpr unsigned kTokens = kGroups * kGroupTokens;
  float factors[kTokens / kProductWarps];
  const auto find_factors = [&] {
    GPU_UNROLL
    for (unsigned turn = 0; turn < kTokens / kProductWarps; ++turn) {
      const unsigned token = warp_index() + turn * kProductWarps;
      factors[turn] =
          token < input.tokens ? norm_factor(product.norm, input.source_of(token)) : 0.0F;
    }
  };
  // Before the loop their loads are under way beside its own. With more tokens it has no registers
  // to keep them in.
  if constexpr (kGroups == 1) find_factors();
  ProductSums<kGroups> sums;
  begin_sums<kFormat>(sums);
  add_units<kFormat, kGroups>(input, weights, units, sums);
  const float* const gathered = gather_sums(sums);
  if constexpr (kGroups != 1) find_factors();
  finish_tokens<kProductWarps, kSumsStride, Input::kIsScaled>(
      product, place, gathered, input.tokens, kTokens, factors, first);
}

// Calls launch.operator()<kFormat>(begin, end) for each run of parts of one format.
template <typename Launch>
void for_each_run(const GpuProduct& product, const Launch& launch) {
  for (size_t begin = 0; begin < product.part_count;) {
    const Format format = product.parts[begin].matrix.format;
    size_t end = begin + 1;
    while (end < product.part_count && product.parts[end].matrix.format == format) ++end;
    with_format(format, [&]<Format kFormat>() { launch.template operator()<kFormat>(begin, end); });
    begin = end;
  }
}

void check_product(const GpuProduct& product) {
  CHECK(product.token_limit >= 1 && product.token_limit <= kGpuProductTokens, "{} tokens",
        product.token_limit);
  CHECK(product.part_count >= 1 && product.part_count <= kGpuProductParts, "{} parts",
        product.part_count);
  CHECK(product.norm_count <= kGpuProductNorms, "{} norms", product.norm_count);
  const GpuMatrix& first = product.parts[0].matrix;
  CHECK(first.columns < size_t{1} << 31U && product.input_stride_bytes < size_t{1} << 32U,
        "{} columns, rows {} bytes apart", first.columns, product.input_stride_bytes);
  // Blocks of 256 fill whole units, behind whose columns no activations are.
  CHECK(first.columns % gpu_layout(first.format).block_elements == 0, "{} columns of whole blocks",
        first.columns);
  for (size_t part = 1; part < product.part_count; ++part) {
    const GpuMatrix& matrix = product.parts[part].matrix;
    CHECK(matrix.columns == first.columns, "{} columns beside {}", matrix.columns, first.columns);
  }
  const bool gate = product.finish == GpuFinish::kGate;
  CHECK(product.finish == GpuFinish::kNorms || product.norm_count == 0, "{} norms without a finish",
        product.norm_count);
  CHECK(product.finish != GpuFinish::kNorms || product.part_count == 1, "norms of {} parts",
        product.part_count);
  CHECK(gate == (product.gate.bf16 != nullptr || product.gate.f32 != nullptr),
        "a gate's rows go with a gate");
  const GpuMatrix& second = product.parts[1].matrix;
  CHECK(!gate ||
            (product.part_count == 2 && first.format == second.format && first.rows == second.rows),
        "a gate of {} parts, {} and {} rows", product.part_count, first.rows, second.rows);
}

}  // namespace
}  // namespace lockstep
