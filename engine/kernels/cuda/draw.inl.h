// Kernels of gpu_draw.h. Included after gpu_code.h.
#pragma once

#include "engine/base/checked_math.h"
#include "engine/kernels/cuda/kernel_words.inl.h"
#include "engine/kernels/gpu_draw.h"

namespace lockstep {
namespace {

constexpr unsigned kDrawThreads = 256;
constexpr unsigned kDrawLanes = 8;
constexpr unsigned kDrawBlocks = kDrawThreads / kDrawLanes;  // that a block of threads sums
static_assert(kDrawThreads == kGpuDrawBlock);                // a thread for each weight

// exp_nonpositive() of engine/sampling/exponential.h, to the bit.
GPU_FUNCTION float weight_exponential(float x) {
  constexpr float kLeast = -87.0F;
  constexpr float kLog2E = 1.44269504F;
  constexpr float kLn2High = 0.693359375F;
  constexpr float kLn2Low = -2.12194440e-4F;
  constexpr float kRounder = 12582912.0F;
  const float clamped = x > kLeast ? x : kLeast;
  const float shifted = multiply(clamped, kLog2E) + kRounder;
  const float n = shifted - kRounder;
  const float r = (clamped - multiply(n, kLn2High)) - multiply(n, kLn2Low);
  float polynomial = 1.0F / 5040.0F;
  polynomial = multiply(polynomial, r) + 1.0F / 720.0F;
  polynomial = multiply(polynomial, r) + 1.0F / 120.0F;
  polynomial = multiply(polynomial, r) + 1.0F / 24.0F;
  polynomial = multiply(polynomial, r) + 1.0F / 6.0F;
  polynomial = multiply(polynomial, r) + 0.5F;
  polynomial = multiply(polynomial, r) + 1.0F;
  polynomial = multiply(polynomial, r) + 1.0F;
  const auto exponent = static_cast<uint32_t>(static_cast<int32_t>(n) + 127);
  const float scale = bits_to_float(exponent << 23U);
  return x >= kLeast ? multiply(polynomial, scale) : 0.0F;
}

GPU_FUNCTION float draw_weight(float logit, float maximum, const GpuDrawRequest& request) {
  const float weight = weight_exponential(multiply(logit - maximum, request.inverse_temperature));
  return weight >= request.weight_min ? weight : 0.0F;
}

// A thread sums a lane of a draw's block.
GPU_KERNEL_OF(kDrawThreads) void sum_weights(GpuDraw draw) {
  follow_launches();
  auto* lanes = reinterpret_cast<double*>(shared_memory());
  const auto blocks = static_cast<unsigned>(gpu_draw_blocks(draw.columns));
  const unsigned first_block = block_column() * kDrawBlocks;
  const unsigned lane = thread_index() % kDrawLanes;
  const auto begin =
      static_cast<unsigned>((first_block + thread_index() / kDrawLanes) * kGpuDrawBlock);
  const unsigned rows = *draw.row_count;
  for (unsigned row = block_row(); row < rows; row += block_rows()) {
    const GpuDrawRequest request = draw.requests[row];
    if (request.inverse_temperature == 0.0F) continue;
    const float* logits = draw.logits + row * draw.stride;
    const float maximum = draw.maxima[row];
    double sum = 0;
    GPU_UNROLL_BY(8) for (unsigned index = lane; index < kGpuDrawBlock; index += kDrawLanes) {
      const unsigned column = begin + index;
      if (column >= draw.columns) continue;
      sum += static_cast<double>(draw_weight(logits[column], maximum, request));
    }
    lanes[thread_index()] = sum;
    meet_block();
    const unsigned block = first_block + thread_index();
    if (thread_index() < kDrawBlocks && block < blocks) {
      double block_sum = 0;
      for (unsigned index = 0; index < kDrawLanes; ++index) {
        block_sum += lanes[thread_index() * kDrawLanes + index];
      }
      draw.sums[row * blocks + block] = block_sum;
    }
    meet_block();
  }
}

// Shared memory of a block that draws.
struct DrawShared {
  double before;  // weight of the blocks before the one that is drawn from
  double target;
  uint32_t block;
  uint32_t last;              // the last block before it that weighs anything
  double sums[kDrawThreads];  // of blocks, so many at a time
  float weights[kGpuDrawBlock];
};

// Calls `use(block, sum)` for every block in order, by the first thread, as long as it returns
// true. The sums are read by all threads together.
template <typename Use>
GPU_FUNCTION void for_each_sum(const double* sums, unsigned blocks, DrawShared& shared,
                               const Use& use) {
  bool going = true;
  for (unsigned begin = 0; begin < blocks; begin += kDrawThreads) {
    const unsigned own = begin + thread_index();
    if (own < blocks) shared.sums[thread_index()] = sums[own];
    meet_block();
    const unsigned end = begin + kDrawThreads < blocks ? begin + kDrawThreads : blocks;
    if (thread_index() == 0) {
      for (unsigned block = begin; block < end && going; ++block) {
        going = use(block, shared.sums[block - begin]);
      }
    }
    meet_block();
  }
}

GPU_FUNCTION void load_weights(const GpuDraw& draw, unsigned row, unsigned block,
                               const GpuDrawRequest& request, DrawShared& shared) {
  const size_t column = block * kGpuDrawBlock + thread_index();
  shared.weights[thread_index()] =
      column < draw.columns
          ? draw_weight(draw.logits[row * draw.stride + column], draw.maxima[row], request)
          : 0.0F;
  meet_block();
}

// The host's Sampler::draw(): the block in which the running sum passes the target, then the token.
GPU_KERNEL_OF(kDrawThreads) void draw_rows(GpuDraw draw) {
  follow_launches();
  auto& shared = *reinterpret_cast<DrawShared*>(shared_memory());
  const auto blocks = static_cast<unsigned>(gpu_draw_blocks(draw.columns));
  const unsigned rows = *draw.row_count;
  GpuDrawn* drawn = behind(draw.drawn, draw.result_offset);
  for (unsigned row = block_row(); row < rows; row += block_rows()) {
    const GpuDrawRequest request = draw.requests[row];
    if (request.inverse_temperature == 0.0F) {
      if (thread_index() == 0 && draw.picks != nullptr) {
        drawn[row].pick = static_cast<int32_t>(draw.picks[row]);
      }
      continue;
    }
    const double* sums = draw.sums + size_t{row} * blocks;
    double sum = 0;
    for_each_sum(sums, blocks, shared, [&](unsigned, double block_sum) {
      sum += block_sum;
      return true;
    });
    if (thread_index() == 0) {
      shared.target = request.uniform * sum;
      shared.before = 0;
      shared.block = 0;
      shared.last = 0;
    }
    for_each_sum(sums, blocks, shared, [&](unsigned block, double block_sum) {
      shared.block = block;
      if (block + 1 == blocks || shared.before + block_sum > shared.target) return false;
      shared.before += block_sum;
      if (block_sum > 0) shared.last = block;
      return true;
    });
    const unsigned block = shared.block;
    load_weights(draw, row, block, request, shared);
    int32_t picked = -1;
    if (thread_index() == 0) {
      double before = shared.before;
      for (unsigned index = 0; index < kGpuDrawBlock && before <= shared.target; ++index) {
        if (shared.weights[index] == 0.0F) continue;
        picked = static_cast<int32_t>(block * kGpuDrawBlock + index);
        before += static_cast<double>(shared.weights[index]);
      }
      shared.block = picked < 0 ? shared.last : block;
    }
    meet_block();
    // Rounding has put the target behind all weights: the last token that weighs anything.
    const bool is_behind = shared.block != block;
    if (is_behind) load_weights(draw, row, shared.last, request, shared);
    if (thread_index() == 0) {
      for (unsigned index = kGpuDrawBlock; is_behind && picked < 0 && index-- > 0;) {
        if (shared.weights[index] == 0.0F) continue;
        picked = static_cast<int32_t>(shared.last * kGpuDrawBlock + index);
      }
      drawn[row].sum = sum;
      drawn[row].token = picked;
      if (draw.picks != nullptr) {
        draw.picks[row] = static_cast<uint32_t>(picked);
        drawn[row].pick = picked;
      }
    }
    meet_block();
  }
}

}  // namespace

void gpu_draw_tokens(void* stream, const GpuDraw& draw) {
  const auto blocks = static_cast<unsigned>(gpu_draw_blocks(draw.columns));
  launch(stream,
         {.columns = divide_up<unsigned>(blocks, kDrawBlocks),
          .rows = draw.grid_rows,
          .threads = kDrawThreads,
          .shared_bytes = kDrawThreads * sizeof(double)},
         sum_weights, draw);
  launch(stream,
         {.rows = draw.grid_rows, .threads = kDrawThreads, .shared_bytes = sizeof(DrawShared)},
         draw_rows, draw);
}

}  // namespace lockstep
