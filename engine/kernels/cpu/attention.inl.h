// Attention over pages of keys and values; see AttentionArguments in attention.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/kernels/attention.h"
#include "engine/kernels/cpu/attention_softmax.inl.h"
#include "engine/kernels/cpu/attention_walk.inl.h"

namespace lockstep {
namespace {

inline constexpr size_t kBlockStates = kBlockRows / 16;

// A block's rows, with what has been merged so far.
struct AttentionBlock {
  RowBlock rows;
  ChunkScratch scratch;
  SoftmaxState states[kBlockStates];
  alignas(64) float output[kBlockFloats];
  // The maximums and sums of the chunk at hand.
  alignas(64) float chunk_maximums[kBlockRows];
  alignas(64) float chunk_sums[kBlockRows];
  alignas(64) float chunk_output[kBlockFloats];
};

// Merges a chunk into `count` rows, of which those in `seeing` see something of it.
inline void merge_rows(size_t count, RowRange seeing, size_t padded, const ChunkResult& chunk,
                       SoftmaxState* states, float* output) {
  for (size_t row = 0; row < count; row += 16) {
    const size_t lanes = smaller(16, count - row);
    const MergeFactors factors =
        merge({load_first(chunk.maximums + row, lanes), load_first(chunk.sums + row, lanes)},
              states[row / 16]);
    alignas(64) float old_factors[16];
    alignas(64) float new_factors[16];
    store(old_factors, factors.old_factor);
    store(new_factors, factors.new_factor);
    for (size_t lane = 0; lane < lanes; ++lane) {
      const size_t place = row + lane;
      if (place < seeing.begin || place >= seeing.end) continue;
      merge_output(chunk.output + place * padded, padded, old_factors[lane], new_factors[lane],
                   output + place * padded);
    }
  }
}

// Writes the outputs of `count` rows, from row `first` of the arguments on.
inline void write_outputs(const AttentionArguments& arguments, size_t first, size_t count,
                          const SoftmaxState* states, const float* output) {
  const size_t padded = padded_dimension(arguments.value_dimension);
  for (size_t row = 0; row < count; ++row) {
    alignas(64) float sums[16];
    store(sums, states[row / 16].sum);
    const F32x16 sum = broadcast(sums[row % 16]);
    const size_t token = (first + row) / arguments.query_count;
    const size_t query = (first + row) % arguments.query_count;
    float* to =
        arguments.output + token * arguments.output_token_stride + query * arguments.output_stride;
    for (size_t begin = 0; begin < arguments.value_dimension; begin += 16) {
      store_first(to + begin, div(load(output + row * padded + begin), sum),
                  smaller(16, arguments.value_dimension - begin));
    }
  }
}

inline void attend(const AttentionArguments& arguments) {
  const size_t rows = arguments.token_count * arguments.query_count;
  const size_t padded = padded_dimension(arguments.value_dimension);
  AttentionBlock block;
  const ChunkResult chunk_result = {block.chunk_maximums, block.chunk_sums, block.chunk_output};
  for (size_t first = 0; first < rows; first += block.rows.count) {
    begin_block(arguments, first, block.rows);
    const size_t count = block.rows.count;
    for (size_t row = 0; row < count; row += 16) {
      block.states[row / 16] = initial_state(arguments, first + row, smaller(16, count - row));
    }
    set_zero(count * padded, block.output);
    const size_t end = block.rows.keys[count - 1].end;
    size_t chunk = block.rows.keys[0].begin / kAttentionChunkTokens;
    for (; chunk * kAttentionChunkTokens < end; ++chunk) {
      take_chunk(arguments, chunk, (chunk + 1) * kAttentionChunkTokens < end, block.rows,
                 block.scratch, chunk_result);
      merge_rows(count, block.rows.seeing, padded, chunk_result, block.states, block.output);
    }
    write_outputs(arguments, first, count, block.states, block.output);
  }
}

// The parts of a partial result.
inline ChunkResult partial_result(const AttentionArguments& arguments, size_t first,
                                  float* partial) {
  const size_t maximums = padded_dimension(arguments.query_count);
  return {partial + first, partial + maximums + first,
          partial + 2 * maximums + first * padded_dimension(arguments.value_dimension)};
}

inline void attend_chunk(const AttentionArguments& arguments, size_t chunk, float* partial) {
  RowBlock block;
  ChunkScratch scratch;
  for (size_t first = 0; first < arguments.query_count; first += block.count) {
    begin_block(arguments, first, block);
    take_chunk(arguments, chunk, false, block, scratch, partial_result(arguments, first, partial));
  }
}

inline void merge_chunks(const AttentionArguments& arguments, const float* partials,
                         size_t partial_stride) {
  const AttentionChunks chunks =
      attention_chunks(arguments.position, arguments.window, arguments.section);
  const size_t padded = padded_dimension(arguments.value_dimension);
  constexpr size_t kRows = 16;
  alignas(64) float output[kRows * kMaxHeadDimension];
  for (size_t first = 0; first < arguments.query_count; first += kRows) {
    const size_t count = smaller(kRows, arguments.query_count - first);
    SoftmaxState state = initial_state(arguments, first, count);
    set_zero(count * padded, output);
    for (size_t chunk = 0; chunk < chunks.end - chunks.begin; ++chunk) {
      // Only read; a result has no form for what is not written to.
      auto* partial = const_cast<float*>(partials + chunk * partial_stride);
      merge_rows(count, {0, count}, padded, partial_result(arguments, first, partial), &state,
                 output);
    }
    write_outputs(arguments, first, count, &state, output);
  }
}

}  // namespace
}  // namespace lockstep
