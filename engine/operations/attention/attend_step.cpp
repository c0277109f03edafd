#include "engine/operations/attention/attend_step.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string_view>

#include "engine/kernels/rotary.h"
#include "engine/operations/step_text.h"
#include "engine/pass/form_writer.h"
#include "engine/pass/pass.h"

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

// Turns a key, a query or a value as the cache's format wants it.
void turn_head(const Pass& pass, KvFormat format, size_t dimensions, float* head) {
  if (!turns_heads(format)) return;
  pass.kernels.hadamard(hadamard_dimensions(dimensions), dimensions, head);
}

void append_to_cache(const AttendStep& step, const Pass& pass, size_t token, size_t head) {
  const KvLayout& kv = pass.kv;
  const BatchToken& where = pass.batch.tokens[token];
  const KvLayer& layer = kv.layers[step.layer];
  const uint32_t page = pass.batch.pages(where.sequence, layer.group)[where.position / kPageTokens];
  std::byte* keys = pass.at(kv.keys(step.layer, head)) + page * layer.page_stride_bytes;
  const PrepareHeads& prepare = step.prepare;
  alignas(64) float key[kMaxHeadDimension];
  std::memcpy(key, pass.at(prepare.keys) + token * prepare.key_stride + head * step.head_dimension,
              step.head_dimension * sizeof(float));
  treat_head(step, pass, token, pass.at(prepare.key_norm), key);
  turn_head(pass, kv.format.keys, step.head_dimension, key);
  const size_t value_dimension = layer.stored_value_dimension();
  const float* value = nullptr;
  alignas(64) float turned[kMaxHeadDimension];
  if (value_dimension != 0) {
    value = pass.at(prepare.values) + token * prepare.value_stride + head * value_dimension;
    if (turns_heads(kv.format.values)) {
      std::memcpy(turned, value, value_dimension * sizeof(float));
      turn_head(pass, kv.format.values, value_dimension, turned);
      value = turned;
    }
  }
  pass.kernels.append_kv({kv.format, step.head_dimension, value_dimension, key, value},
                         where.position % kPageTokens, keys, keys + kv.keys_bytes(step.layer));
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
        float* query = own + head * step.head_dimension;
        treat_head(step, pass, block.token + token, pass.at(step.prepare.query_norm), query);
        turn_head(pass, pass.kv.format.keys, step.head_dimension, query);
      }
    }
  }
  const float* rows() const { return rows_; }

 private:
  static constexpr size_t kFloats = kBf16AttentionElements;
  alignas(64) float rows_[kFloats];
};

// The arguments for query heads `heads` of the block.
AttentionArguments arguments_of(const AttendStep& step, const Pass& pass, const QueryBlock& block,
                                size_t kv_head, Range heads, const float* queries) {
  const KvLayout& kv = pass.kv;
  const BatchToken& where = pass.batch.tokens[block.token];
  const KvLayer& layer = kv.layers[step.layer];
  const std::byte* keys = pass.at(kv.keys(step.layer, kv_head));
  return {.format = kv.format,
          .head_dimension = step.head_dimension,
          .value_dimension = step.value_dimension,
          .keys = keys,
          .values = layer.has_values_in_keys ? nullptr : keys + kv.keys_bytes(step.layer),
          .page_stride_bytes = layer.page_stride_bytes,
          .pages = pass.batch.pages(where.sequence, layer.group).data(),
          .position = where.position,
          .token_count = block.count,
          .window = step.window,
          .section = step.section,
          .ahead = step.ahead,
          .length = block.length,
          .queries = queries,
          .query_stride = step.head_dimension,
          .query_token_stride = heads.size() * step.head_dimension,
          .query_count = heads.size(),
          .scale = step.scale,
          .score_cap = step.score_cap,
          .slopes = step.slopes.empty() ? nullptr : step.slopes.data() + heads.begin,
          .sinks = pass.at(step.sinks + heads.begin),
          .output = pass.at(step.output) + block.token * step.output_stride +
                    heads.begin * step.value_dimension,
          .output_stride = step.value_dimension,
          .output_token_stride = step.output_stride};
}

// Outputs are sums of values as they are stored: turns them back. Values in keys are what the
// keys' matrices have turned.
void turn_outputs(const AttendStep& step, const Pass& pass, const QueryBlock& block, Range heads) {
  const bool in_keys = pass.kv.layers[step.layer].has_values_in_keys;
  const KvFormats& format = pass.kv.format;
  if (!turns_heads(in_keys ? format.keys : format.values)) return;
  const size_t size = hadamard_dimensions(in_keys ? step.head_dimension : step.value_dimension);
  for (size_t token = block.token; token < block.token + block.count; ++token) {
    pass.kernels.hadamard(
        size, heads.size() * step.value_dimension,
        pass.at(step.output) + token * step.output_stride + heads.begin * step.value_dimension);
  }
}

void write_outputs(const AttendStep& step, const Pass& pass, const QueryBlock& block, Range heads) {
  turn_outputs(step, pass, block, heads);
  if (!step.forms) return;
  const Range columns = {heads.begin * step.value_dimension, heads.end * step.value_dimension};
  for (size_t token = block.token; token < block.token + block.count; ++token) {
    write_forms(pass, pass.at(step.output) + token * step.output_stride + columns.begin,
                *step.forms, token, columns, token < pass.batch.generated_tokens);
  }
  carry_rows(pass, {block.token, block.token + block.count}, heads.size(), step.head_count);
}

// Calls function(heads) for the heads in parts that attention takes at once.
template <typename Function>
void for_each_part(Range heads, Function function) {
  for (size_t begin = heads.begin; begin < heads.end; begin += kMaxQueryGroup) {
    function(Range{begin, std::min(heads.end, begin + kMaxQueryGroup)});
  }
}

// The partial result of one chunk of the block's token for `part` of the query heads `heads`.
float* partial_of(const AttendStep& step, const Pass& pass, const QueryBlock& block, size_t kv_head,
                  size_t chunk, Range heads, Range part) {
  const NodePartials& partials = pass.areas().partials;
  const size_t index = block.row + chunk - block.chunk + kv_head * partials.block_count;
  return pass.at(partials.rows) + index * partials.stride +
         attention_partial_floats(part.begin - heads.begin, step.value_dimension);
}

// After a chunk of a token: the last of its chunks to be computed merges all.
void finish_chunk(const AttendStep& step, const Pass& pass, const QueryBlock& block, size_t kv_head,
                  Range heads) {
  const size_t position = pass.batch.tokens[block.token].position;
  const AttentionChunks chunks = attention_chunks(position, step.window, step.section);
  const NodePartials& partials = pass.areas().partials;
  // Releases this chunk's partial result to the worker that merges, and acquires those of the
  // others.
  std::atomic_ref<uint32_t> arrived(
      pass.at(partials.arrived)[block.token * step.kv_head_count + kv_head]);
  const uint32_t others = arrived.fetch_add(1, std::memory_order_acq_rel);
  if (others + 1 < chunks.end - chunks.begin) return;
  arrived.store(0, std::memory_order_relaxed);  // seen by the next layer after the barrier
  for_each_part(heads, [&](Range part) {
    pass.kernels.merge_chunks(arguments_of(step, pass, block, kv_head, part, nullptr),
                              partial_of(step, pass, block, kv_head, chunks.begin, heads, part),
                              partials.stride);
    write_outputs(step, pass, block, part);
  });
}

// As many tokens and heads as there is space for; `heads`: all that share the KV head.
void attend_part(const AttendStep& step, const Pass& pass, const QueryBlock& block, size_t kv_head,
                 Range heads, Range part) {
  const Queries queries(step, pass, block, part);
  const AttentionArguments arguments =
      arguments_of(step, pass, block, kv_head, part, queries.rows());
  if (block.chunk != QueryBlock::kAllChunks) {
    return pass.kernels.attend_chunk(
        arguments, block.chunk, partial_of(step, pass, block, kv_head, block.chunk, heads, part));
  }
  const bool prompted = block.token >= pass.batch.generated_tokens;
  if (prompted && step.prompt_attention == AttentionForm::kBf16) {
    pass.kernels.attend_bf16(arguments);
  } else {
    pass.kernels.attend(arguments);
  }
  write_outputs(step, pass, block, part);
}

void attend(const AttendStep& step, const Pass& pass, const QueryBlock& block, size_t kv_head) {
  const Range heads = queries_of(step, kv_head);
  if (heads.empty()) return;
  const size_t position = pass.batch.tokens[block.token].position;
  const bool whole = block.chunk == QueryBlock::kAllChunks;
  if (!whole && block.chunk < attention_chunks(position, step.window, step.section).begin) return;
  const bool has_own_position = whole || block.chunk == position / kAttentionChunkTokens;
  if (step.prepare.keys && pass.layout.one_token_each() && has_own_position) {
    append_to_cache(step, pass, block.token, kv_head);
  }
  for_each_part(heads, [&](Range part) {
    const size_t most = Queries::tokens_most(step, part);
    for (size_t done = 0; done < block.count; done += most) {
      QueryBlock some = block;
      some.token += static_cast<uint32_t>(done);
      some.count = static_cast<uint32_t>(std::min(most, block.count - done));
      attend_part(step, pass, some, kv_head, heads, part);
    }
  });
  if (!whole) finish_chunk(step, pass, block, kv_head, heads);
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

constexpr std::string_view kAttentionNames[] = {"f32", "bf16"};

std::string text_of(const PrepareHeads& prepare) {
  return fmt::format("keys {} values {} norms {} {} epsilon {}{} rotary {} {} dimensions {}",
                     text_of(prepare.keys, prepare.key_stride), text_of(prepare.values),
                     text_of(prepare.query_norm), text_of(prepare.key_norm), prepare.epsilon,
                     prepare.norm_is_last ? " last" : "", name_in(kPairNames, prepare.pairs),
                     text_of(prepare.rotary.rows, prepare.rotary.stride),
                     prepare.rotary.dimensions);
}

// The traits that most models' attention lacks, where it has them.
std::string traits_text(const AttendStep& step) {
  std::string all;
  if (step.value_dimension != step.head_dimension) {
    all += fmt::format(" values of {}/{}", step.value_dimension, step.prepare.value_stride);
  }
  if (step.section != 0) all += fmt::format(" section {}", step.section);
  if (step.ahead == kAllAhead) {
    all += " all ahead";
  } else if (step.ahead != 0) {
    all += fmt::format(" {} ahead", step.ahead);
  }
  if (step.score_cap != 0) all += fmt::format(" cap {}", step.score_cap);
  if (!step.slopes.empty()) all += fmt::format(" slopes {}", fmt::join(step.slopes, " "));
  if (step.sinks) all += fmt::format(" sinks {}", text_of(step.sinks));
  return all;
}

}  // namespace

std::string text_of(const AttendStep& step) {
  return fmt::format(
      "attend layer {} queries {} heads {} of {} KV heads group {} offset {} dimension {} window "
      "{} scale {}{} prompts {} {} to {} {}",
      step.layer, text_of(step.queries, step.query_stride), step.head_count, step.kv_head_count,
      step.group, step.group_offset, step.head_dimension, step.window, step.scale,
      traits_text(step), name_in(kAttentionNames, step.prompt_attention), text_of(step.prepare),
      text_of(step.output, step.output_stride), step.forms ? text_of(*step.forms) : "");
}

void run(const AttendStep& step, const Pass& pass, TaskCounter& tasks) {
  if (step.prepare.keys && !pass.layout.one_token_each()) append_all(step, pass);
  const std::span<const QueryBlock> blocks = pass.layout.blocks();
  const size_t count = blocks.size() * step.kv_head_count;
  for (size_t task = tasks.take(); task < count; task = tasks.take()) {
    attend(step, pass, blocks[task / step.kv_head_count], task % step.kv_head_count);
  }
}

}  // namespace lockstep
