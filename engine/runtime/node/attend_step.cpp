#include <algorithm>
#include <atomic>
#include <cstring>

#include "engine/kernels/rotary.h"
#include "engine/runtime/node/form_writer.h"
#include "engine/runtime/node/steps.h"

namespace lockstep {
namespace {

void treat_head(const AttendStep& step, const Pass& pass, size_t token, const float* norm,
                float* head) {
  const PrepareHeads& prepare = step.prepare;
  if (norm != nullptr && !prepare.norm_is_last) {
    pass.kernels.rms_norm(head, norm, step.head_dimension, prepare.epsilon, head);
  }
  if (prepare.rotary.rows) {
    const float* cosines = pass.at(prepare.rotary.rows) + token * prepare.rotary.stride;
    rotate(prepare.pairs, cosines, cosines + prepare.rotary.dimensions / 2,
           prepare.rotary.dimensions, head);
  }
  if (norm != nullptr && prepare.norm_is_last) {
    pass.kernels.rms_norm(head, norm, step.head_dimension, prepare.epsilon, head);
  }
}

void append_to_cache(const AttendStep& step, const Pass& pass, size_t token, size_t head) {
  const KvLayout& kv = pass.plan.kv;
  const BatchToken& where = pass.batch.tokens[token];
  const KvLayer& layer = kv.layers[step.layer];
  const uint32_t page = pass.batch.pages(where.sequence, layer.group)[where.position / kPageTokens];
  std::byte* keys = pass.at(kv.keys(step.layer, head)) + page * layer.page_stride_bytes;
  const size_t offset = token * step.prepare.kv_stride + head * step.head_dimension;
  alignas(64) float key[kMaxHeadDimension];
  std::memcpy(key, pass.at(step.prepare.keys) + offset, step.head_dimension * sizeof(float));
  treat_head(step, pass, token, pass.at(step.prepare.key_norm), key);
  pass.kernels.append_kv(kv.format, step.head_dimension, where.position % kPageTokens, key,
                         pass.at(step.prepare.values) + offset, keys,
                         keys + kv.keys_bytes(step.layer));
}

// The rank's query heads that attend to one of its KV heads.
Range queries_of(const AttendStep& step, size_t kv_head) {
  const size_t begin = kv_head * step.group;
  return {begin - std::min(begin, step.group_offset),
          std::min(step.head_count, begin + step.group - step.group_offset)};
}

// A block's queries as attention sees them, on the stack: as many tokens as there is space for.
class Queries {
 public:
  static size_t tokens_most(const AttendStep& step, Range heads) {
    return std::max<size_t>(1, kFloats / (heads.size() * step.head_dimension));
  }

  Queries(const AttendStep& step, const Pass& pass, const QueryBlock& block, Range heads) {
    for (size_t token = 0; token < block.count; ++token) {
      const float* row = pass.at(step.queries) + (block.token + token) * step.query_stride +
                         heads.begin * step.head_dimension;
      float* own = rows_ + token * heads.size() * step.head_dimension;
      std::memcpy(own, row, heads.size() * step.head_dimension * sizeof(float));
      for (size_t head = 0; head < heads.size(); ++head) {
        treat_head(step, pass, block.token + token, pass.at(step.prepare.query_norm),
                   own + head * step.head_dimension);
      }
    }
  }
  const float* rows() const { return rows_; }

 private:
  // The size of kBf16AttentionRows of 128 dimensions.
  static constexpr size_t kFloats = 2 * kMaxQueryGroup * kMaxHeadDimension;
  alignas(64) float rows_[kFloats];
};

AttentionArguments arguments_of(const AttendStep& step, const Pass& pass, const QueryBlock& block,
                                size_t kv_head, const float* queries) {
  const KvLayout& kv = pass.plan.kv;
  const BatchToken& where = pass.batch.tokens[block.token];
  const Range heads = queries_of(step, kv_head);
  const KvLayer& layer = kv.layers[step.layer];
  const std::byte* keys = pass.at(kv.keys(step.layer, kv_head));
  return {.format = kv.format,
          .head_dimension = step.head_dimension,
          .keys = keys,
          .values = keys + kv.keys_bytes(step.layer),
          .page_stride_bytes = layer.page_stride_bytes,
          .pages = pass.batch.pages(where.sequence, layer.group).data(),
          .position = where.position,
          .token_count = block.count,
          .window = step.window,
          .section = step.section,
          .queries = queries,
          .query_stride = step.head_dimension,
          .query_token_stride = heads.size() * step.head_dimension,
          .query_count = heads.size(),
          .scale = step.scale,
          .score_cap = step.score_cap,
          .slopes = step.slopes.empty() ? nullptr : step.slopes.data() + heads.begin,
          .sinks = pass.at(step.sinks + heads.begin),
          .output = pass.at(step.output) + block.token * step.output_stride +
                    heads.begin * step.head_dimension,
          .output_stride = step.head_dimension,
          .output_token_stride = step.output_stride};
}

void write_outputs(const AttendStep& step, const Pass& pass, const QueryBlock& block,
                   size_t kv_head) {
  if (!step.forms) return;
  const Range heads = queries_of(step, kv_head);
  const Range columns = {heads.begin * step.head_dimension, heads.end * step.head_dimension};
  for (size_t token = block.token; token < block.token + block.count; ++token) {
    write_forms(pass, pass.at(step.output) + token * step.output_stride + columns.begin,
                *step.forms, token, columns, token < pass.batch.generated_tokens);
  }
}

// One chunk of one token; the last of them to be computed merges all.
void attend_chunk(const AttendStep& step, const Pass& pass, const QueryBlock& block, size_t kv_head,
                  const AttentionArguments& arguments) {
  const AttentionChunks chunks =
      attention_chunks(arguments.position, arguments.window, arguments.section);
  const NodePartials& partials = pass.areas().partials;
  float* const rows = pass.at(partials.rows);
  const auto row_of = [&](size_t chunk) {
    const size_t index = (block.first_row + chunk) + kv_head * partials.block_count;
    return rows + index * partials.stride;
  };
  pass.kernels.attend_chunk(arguments, block.chunk, row_of(block.chunk));
  // Releases this chunk's partial result to the worker that merges, and acquires those of the
  // others.
  std::atomic_ref<uint32_t> arrived(
      pass.at(partials.arrived)[block.token * step.kv_head_count + kv_head]);
  const uint32_t others = arrived.fetch_add(1, std::memory_order_acq_rel);
  if (others + 1 < chunks.end - chunks.begin) return;
  arrived.store(0, std::memory_order_relaxed);  // seen by the next layer after the barrier
  pass.kernels.merge_chunks(arguments, row_of(chunks.begin), partials.stride);
  write_outputs(step, pass, block, kv_head);
}

void attend_block(const AttendStep& step, const Pass& pass, const QueryBlock& block,
                  size_t kv_head) {
  const size_t position = pass.batch.tokens[block.token].position;
  const bool whole = block.chunk == QueryBlock::kAllChunks;
  if (!whole && block.chunk < attention_chunks(position, step.window, step.section).begin) return;
  const Queries queries(step, pass, block, queries_of(step, kv_head));
  const AttentionArguments arguments = arguments_of(step, pass, block, kv_head, queries.rows());
  const bool has_own_position = whole || block.chunk == position / kAttentionChunkTokens;
  if (pass.layout.one_token_each() && has_own_position) {
    append_to_cache(step, pass, block.token, kv_head);
  }
  if (!whole) return attend_chunk(step, pass, block, kv_head, arguments);
  const bool prompted = block.token >= pass.batch.generated_tokens;
  if (prompted && step.prompt_attention == AttentionForm::kBf16) {
    pass.kernels.attend_bf16(arguments);
  } else {
    pass.kernels.attend(arguments);
  }
  write_outputs(step, pass, block, kv_head);
}

void attend(const AttendStep& step, const Pass& pass, const QueryBlock& block, size_t kv_head) {
  const Range heads = queries_of(step, kv_head);
  if (heads.empty()) return;
  const size_t most = Queries::tokens_most(step, heads);
  for (size_t done = 0; done < block.count; done += most) {
    QueryBlock part = block;
    part.token += static_cast<uint32_t>(done);
    part.count = static_cast<uint32_t>(std::min(most, block.count - done));
    attend_block(step, pass, part, kv_head);
  }
}

// Keys of a prompt are seen by tokens that other workers have.
void append_all(const AttendStep& step, const Pass& pass) {
  const size_t units = pass.batch.tokens.size() * step.kv_head_count;
  const Range mine = share(Range{0, units}, pass.worker, pass.worker_count);
  for (size_t unit = mine.begin; unit < mine.end; ++unit) {
    append_to_cache(step, pass, unit / step.kv_head_count, unit % step.kv_head_count);
  }
  meet_rank(pass);
}

}  // namespace

void run_attention(const AttendStep& step, const Pass& pass, TaskCounter& tasks) {
  if (!pass.layout.one_token_each()) append_all(step, pass);
  const std::span<const QueryBlock> blocks = pass.layout.blocks();
  const size_t count = blocks.size() * step.kv_head_count;
  for (size_t task = tasks.take(); task < count; task = tasks.take()) {
    attend(step, pass, blocks[task / step.kv_head_count], task % step.kv_head_count);
  }
}

}  // namespace lockstep
