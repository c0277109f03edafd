// A GPU rank's exchange with the other ranks, all of them GPUs.
#include <algorithm>
#include <array>

#include "engine/base/checked_math.h"
#include "engine/collectives/gpu_sum_launch.h"
#include "engine/kernels/gpu_product.h"
#include "engine/operations/exchanged_rows.h"
#include "engine/runtime/gpu/gpu_program.h"

namespace lockstep {
namespace {

// The rows of the smallest sum that connects the ranks.
constexpr size_t kFewestRows = 1;

// Two parts that NCCL sends, the addition between them, and the timing of each.
constexpr size_t kNcclLaunches = 7;

// The sum of the tokens from this one on.
GpuAllReduce sum_from(GpuAllReduce sum, size_t token) {
  sum.partial += token * sum.partial_stride;
  sum.output += token * sum.output_stride;
  for (GpuNormOutput& norm : sum.norms) norm = norm_from(norm, token);
  return sum;
}

// The number by which a token looks the table's rows up.
size_t id_of(const BatchToken& token, const GpuEmbedding& embedding) {
  if (embedding.ids == embedding.batch.positions) return token.position;
  if (embedding.ids == embedding.batch.segments) return token.segment;
  return static_cast<size_t>(token.token);
}

}  // namespace

size_t exchanged_floats_max(const Plan& plan) {
  size_t floats = 0;
  for (const Step& step : plan.steps) {
    if (const auto* const sum = std::get_if<AllReduceStep>(&step.work); sum != nullptr) {
      const size_t rows = sum->rows == Rows::kTokens ? plan.chunk_tokens : plan.logit_rows;
      floats = std::max(floats, rows * sum->partial_stride);
    }
    if (const auto* const embed = std::get_if<EmbedStep>(&step.work);
        embed != nullptr && embed->gather) {
      floats = std::max(floats, plan.chunk_tokens * embed->output_stride);
    }
  }
  return floats;
}

Range logit_columns(const Plan& plan) {
  for (const ExchangedRows& rows : rows_of_logits(plan.steps.back())) {
    const size_t first = (rows.first.bytes - plan.logits.bytes) / sizeof(float);
    return {first, first + rows.row_bytes / sizeof(float)};
  }
  return {};
}

// By NCCL, rows that the batch does not have are summed as well: nobody reads them.
std::array<GpuAllReduce, 2> GpuProgram::parts_of(const Sum& sum, const GpuPassShape& shape) const {
  GpuAllReduce f32 = sum.sum;
  f32.contributors = sum.contributors;
  f32.bf16 = false;
  f32.row_count =
      std::min<size_t>(sum.rows == Rows::kTokens ? shape.tokens : shape.logits, sum.sum.row_count);
  GpuAllReduce bf16 = sum_from(f32, shape.generated);
  bf16.bf16 = true;
  bf16.row_count = 0;
  if (sum.sum.bf16 && sum.rows == Rows::kTokens && shape.prompted > 0) {
    f32.row_count = shape.generated;
    // No row beyond the batch's: its norms would be another's. The limit counts all tokens.
    bf16.row_count = shape.prompted;
    bf16.row_limit = nullptr;
  }
  for (GpuAllReduce* part : {&f32, &bf16}) {
    part->two_shots = way_of(*part) == GpuSumWay::kPeerMemoryInTwoShots;
  }
  return {f32, bf16};
}

GpuSumWay GpuProgram::way_of(const GpuAllReduce& sum) const {
  return sum_way_({.rank_count = rank_count_,
                   .bytes = sum.row_count * sum.column_count * sizeof(float),
                   .peer_access = links_.peers.has_value(),
                   .nccl = links_.nccl.has_value(),
                   .one_shot_bytes_max = links_.one_shot_bytes_max});
}

bool GpuProgram::is_by_nccl(const Sum& sum, const GpuPassShape& shape) const {
  return std::ranges::any_of(parts_of(sum, shape), [&](const GpuAllReduce& part) {
    return part.row_count > 0 && way_of(part) == GpuSumWay::kNccl;
  });
}

size_t GpuProgram::run(const Sum& sum, void* stream, const GpuPassShape& shape) const {
  size_t launches = exchange(sum, stream, shape);
  if (!is_by_nccl(sum, shape)) return launches;
  for (const GpuNormRows& norm : sum.norms) launches += run(norm, stream, shape);
  return launches;
}

size_t GpuProgram::exchange(const Sum& sum, void* stream, const GpuPassShape& shape) const {
  const bool by_nccl = is_by_nccl(sum, shape);
  size_t launches = 0;
  for (GpuAllReduce& part : parts_of(sum, shape)) {
    if (part.row_count == 0) continue;
    if (by_nccl) part.norm_count = 0;
    if (way_of(part) == GpuSumWay::kNccl) {
      nccl_all_reduce(stream, part, *links_.nccl, collectives_);
      launches += kNcclLaunches;
    } else {
      collectives_.all_reduce(stream, part, *links_.peers);
      ++launches;
    }
  }
  return launches;
}

size_t GpuProgram::gather(const LogitColumns& logits, void* stream,
                          const GpuPassShape& shape) const {
  const size_t rows = gathered_rows(logits, shape);
  if (rows == 0) return 0;
  nccl_gather_columns(stream, logits.rows, logits.stride, rows, links_.logit_columns, *links_.nccl);
  return kNcclLaunches;
}

size_t GpuProgram::run(const RankBarrier&, void* stream, const GpuPassShape&) const {
  collectives_.meet(stream, *links_.peers);
  return 1;
}

size_t GpuProgram::run(const Join& join, void* stream, const GpuPassShape& shape) const {
  nccl_join(stream, join.rows, joined_floats(join, shape), *links_.nccl, collectives_);
  return kNcclLaunches;
}

bool GpuProgram::is_recordable(const GpuPassShape& shape) const {
  return std::ranges::none_of(launches_, [&](const Launch& launch) {
    if (std::holds_alternative<Join>(launch)) return true;
    const auto* const search = std::get_if<Search>(&launch);
    if (search != nullptr && gathered_rows(search->gather, shape) > 0) return true;
    const auto* const sum = std::get_if<Sum>(&launch);
    return sum != nullptr && is_by_nccl(*sum, shape);
  });
}

size_t GpuProgram::sent_bytes(const GpuPassShape& shape, std::span<const BatchToken> tokens) const {
  if (rank_count_ == 1) return 0;
  size_t bytes = 0;
  for (const Launch& launch : launches_) {
    if (const auto* const embedding = std::get_if<GpuEmbedding>(&launch); embedding != nullptr) {
      const auto is_own = [&table = *embedding](const BatchToken& token) {
        const size_t id = id_of(token, table);
        return id >= table.row_begin && id - table.row_begin < table.table.rows;
      };
      bytes += embedding->copy_count * static_cast<size_t>(std::ranges::count_if(tokens, is_own)) *
               embedding->table.columns * sizeof(float);
    } else if (const auto* const sums = std::get_if<GpuChunkSums>(&launch); sums != nullptr) {
      const size_t chunks = divide_up<size_t>(sums->columns, kChunkColumns);
      bytes += sums->copy_count * tokens.size() * chunks * sizeof(float);
    } else if (const auto* const own = std::get_if<GpuElementwise>(&launch); own != nullptr) {
      bytes += own->copy_count * tokens.size() * own->columns * sizeof(float);
    } else if (const auto* const join = std::get_if<Join>(&launch); join != nullptr) {
      bytes += nccl_sent_bytes(*links_.nccl, joined_floats(*join, shape));
    } else if (const auto* const search = std::get_if<Search>(&launch); search != nullptr) {
      if (rank_ == 0 || links_.logit_columns.empty()) continue;
      bytes +=
          gathered_rows(search->gather, shape) * links_.logit_columns[rank_].size() * sizeof(float);
    } else if (const auto* const any = std::get_if<Sum>(&launch); any != nullptr) {
      for (GpuAllReduce& sum : parts_of(*any, shape)) {
        const bool by_nccl = way_of(sum) == GpuSumWay::kNccl;
        if (!by_nccl && sum.row_limit != nullptr && any->rows == Rows::kTokens) {
          sum.row_count = std::min(sum.row_count, tokens.size());
        }
        bytes += by_nccl ? nccl_sent_bytes(*links_.nccl, sum.row_count * sum.partial_stride)
                         : gpu_sum_sent_bytes(sum, rank_count_);
      }
    }
  }
  return bytes;
}

void GpuProgram::connect(void* stream) const {
  if (!links_.nccl) return;
  for (size_t rows = std::min<size_t>(kFewestRows, batch_tokens_);; rows *= 2) {
    const auto tokens = static_cast<uint32_t>(std::min(rows, batch_tokens_));
    const GpuPassShape shape = {.tokens = tokens, .logits = tokens};
    GpuPassShape of_prompts = shape;
    of_prompts.prompted = tokens;
    // Rows that travel as bf16 may take other links of NCCL's.
    for (const GpuPassShape& each : {shape, of_prompts}) {
      const auto found = std::ranges::find_if(launches_, [&](const Launch& launch) {
        const auto* const sum = std::get_if<Sum>(&launch);
        return sum != nullptr && is_by_nccl(*sum, each);
      });
      if (found == launches_.end()) continue;
      const Sum& sum = std::get<Sum>(*found);
      if (each.prompted == 0 || sum.sum.bf16) exchange(sum, stream, each);
    }
    for (const Launch& launch : launches_) {
      if (const auto* const join = std::get_if<Join>(&launch); join != nullptr) {
        run(*join, stream, shape);
      } else if (const auto* const search = std::get_if<Search>(&launch); search != nullptr) {
        gather(search->gather, stream, shape);
      }
    }
    if (rows >= batch_tokens_) return;
  }
}

}  // namespace lockstep
