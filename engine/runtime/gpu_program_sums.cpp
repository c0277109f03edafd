// How a GPU rank's program exchanges with the other ranks', all of them GPUs.
#include <algorithm>

#include "engine/runtime/gpu_program.h"

namespace lockstep {
namespace {

// Of the smallest sum that connects the ranks.
constexpr size_t kFewestRows = 8;

// What NCCL sends in two parts, with what adds them up between and what times each of them.
constexpr size_t kNcclLaunches = 7;

}  // namespace

size_t exchanged_floats_max(const Plan& plan) {
  size_t floats = 0;
  for (const Step& step : plan.steps) {
    if (const auto* const sum = std::get_if<AllReduceStep>(&step.work); sum != nullptr) {
      const size_t rows = sum->rows == Rows::kTokens ? plan.batch_tokens : plan.logit_rows;
      floats = std::max(floats, rows * sum->partial_stride);
    }
    if (const auto* const embed = std::get_if<EmbedStep>(&step.work); embed != nullptr) {
      floats = std::max(floats, plan.batch_tokens * embed->output_stride);
    }
  }
  return floats;
}

// Rows that the batch does not have are summed as well: nobody reads them.
GpuAllReduce GpuProgram::sized(const Sum& sum, const GpuPassShape& shape) const {
  GpuAllReduce sized = sum.sum;
  sized.contributors = sum.contributors;
  sized.row_count =
      std::min<size_t>(sum.rows == Rows::kTokens ? shape.tokens : shape.logits, sum.sum.row_count);
  return sized;
}

GpuSumWay GpuProgram::way_of(const GpuAllReduce& sum) const {
  return sum_way_({.rank_count = rank_count_,
                   .bytes = sum.row_count * sum.column_count * sizeof(float),
                   .peer_access = links_.peers.has_value(),
                   .nccl = links_.nccl.has_value()});
}

size_t GpuProgram::run(const Sum& sum, void* stream, const GpuPassShape& shape) const {
  const GpuAllReduce sized = this->sized(sum, shape);
  if (sized.row_count == 0) return 0;
  if (way_of(sized) == GpuSumWay::kNccl) {
    nccl_all_reduce(stream, sized, *links_.nccl, collectives_);
    return kNcclLaunches;
  }
  collectives_.all_reduce(stream, sized, *links_.peers);
  return 1;
}

size_t GpuProgram::run(const Meeting&, void* stream, const GpuPassShape&) const {
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
    const auto* const sum = std::get_if<Sum>(&launch);
    return sum != nullptr && way_of(sized(*sum, shape)) == GpuSumWay::kNccl;
  });
}

size_t GpuProgram::sent_bytes(const GpuPassShape& shape, std::span<const BatchToken> tokens) const {
  if (rank_count_ == 1) return 0;
  size_t bytes = 0;
  for (const Launch& launch : launches_) {
    if (const auto* const embedding = std::get_if<GpuEmbedding>(&launch); embedding != nullptr) {
      const auto is_own = [&table = *embedding](const BatchToken& token) {
        const auto id = static_cast<size_t>(token.token);
        return id >= table.row_begin && id - table.row_begin < table.table.rows;
      };
      bytes += embedding->copy_count * static_cast<size_t>(std::ranges::count_if(tokens, is_own)) *
               embedding->table.columns * sizeof(float);
    } else if (const auto* const join = std::get_if<Join>(&launch); join != nullptr) {
      bytes += nccl_sent_bytes(*links_.nccl, joined_floats(*join, shape));
    } else if (const auto* const any = std::get_if<Sum>(&launch); any != nullptr) {
      const GpuAllReduce sum = sized(*any, shape);
      const bool by_nccl = way_of(sum) == GpuSumWay::kNccl;
      bytes += by_nccl ? nccl_sent_bytes(*links_.nccl, sum.row_count * sum.partial_stride)
                       : (rank_count_ - 1) * sum.row_count * sum.column_count *
                             (sum.bf16 ? sizeof(uint16_t) : sizeof(float));
    }
  }
  return bytes;
}

void GpuProgram::connect(void* stream) const {
  if (!links_.nccl) return;
  for (size_t rows = std::min<size_t>(kFewestRows, batch_tokens_);; rows *= 2) {
    const auto tokens = static_cast<uint32_t>(std::min(rows, batch_tokens_));
    const GpuPassShape shape = {.tokens = tokens, .logits = tokens};
    const auto is_by_nccl = [&](const Launch& launch) {
      const auto* const sum = std::get_if<Sum>(&launch);
      return sum != nullptr && way_of(sized(*sum, shape)) == GpuSumWay::kNccl;
    };
    const auto found = std::ranges::find_if(launches_, is_by_nccl);
    if (found != launches_.end()) run(std::get<Sum>(*found), stream, shape);
    for (const Launch& launch : launches_) {
      if (const auto* const join = std::get_if<Join>(&launch); join != nullptr) {
        run(*join, stream, shape);
      }
    }
    if (rows >= batch_tokens_) return;
  }
}

}  // namespace lockstep
