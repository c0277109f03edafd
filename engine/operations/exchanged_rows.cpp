#include "engine/operations/exchanged_rows.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "engine/base/check.h"
#include "engine/base/checked_math.h"
#include "engine/kernels/activation.h"

namespace lockstep {
namespace {

// Collects what a step's outputs say. Each step is named: what a new one brings has to be said.
class Collector {
 public:
  std::vector<ExchangedRows> take() { return std::move(found_); }

  void operator()(const EmbedStep& step) {
    if (!step.gather || step.table.rows == 0) return;
    add({.first = as_bytes(step.output),
         .stride_bytes = step.output_stride * sizeof(float),
         .row_bytes = step.table.columns * sizeof(float),
         .embed = &step});
  }
  void operator()(const MatmulStep& step) {
    for (const MatmulPart& part : step.parts) {
      if (part.remote) add_logits(part.output, part.output_stride, part.matrix.rows, step.rows);
    }
    if (const auto* residual = std::get_if<ResidualFinish>(&step.finish)) add(*residual);
    if (const auto* gate = std::get_if<GateFinish>(&step.finish)) add(gate->output, step.rows, {});
  }
  void operator()(const NormStep& step) { add(step.norm); }
  void operator()(const NormSumsStep& step) {
    if (!step.gather) return;
    if (step.sums.sums) add_sums(step.sums, step.columns, step.rows);
    add_sums(step.chunks, step.columns, step.rows);
  }
  void operator()(const NormScaleStep& step) { add(step.output, step.rows, {}); }
  void operator()(const AttendStep& step) {
    if (step.forms) add(*step.forms, Rows::kTokens, {});
  }
  void operator()(const FormStep& step) { add(step.output, step.rows, step.routing); }
  void operator()(const ElementwiseStep& step) { add(step.output, step.rows, step.routing); }
  void operator()(const HeadsStep& /*step*/) {}  // its output is of this rank alone
  void operator()(const CopyHeadsStep& step) { add(step.output, step.rows, step.routing); }
  void operator()(const ExpertGateStep& step) { add(step.output, Rows::kExperts, step.routing); }
  void operator()(const ExpertSumStep& step) { add(step.finish); }
  void operator()(const ConvolutionStep& step) {
    for (const ConvolutionPart& part : step.parts) add(part.output, Rows::kTokens, {});
  }
  void operator()(const DeltaNetStep& step) { add(step.output, Rows::kTokens, {}); }
  void operator()(const ScanStep& step) { add(step.output, Rows::kTokens, {}); }
  void operator()(const MeanStep& step) { add(step.output, Rows::kLogits, {}); }
  void operator()(const AllReduceStep& /*step*/) {
    CHECK(false, "sums of parts do not go to ranks of other processes");
  }
  void operator()(const GivenRowsStep& step) { add(step.output, Rows::kTokens, {}); }
  void operator()(const HandOverStep& /*step*/) {
    CHECK(false, "layers are not handed over between ranks of several processes");
  }
  void operator()(const ClearPagesStep& /*step*/) {}
  void operator()(const CopyStatesStep& /*step*/) {}
  void operator()(const RotaryTableStep& /*step*/) {}
  void operator()(const RouteStep& /*step*/) {}
  void operator()(const ExpertProductStep& /*step*/) {}

 private:
  static ArenaOffset<std::byte> as_bytes(ArenaOffset<float> offset) {
    return {offset.arena, offset.bytes};
  }

  void add(const ExchangedRows& rows) {
    if (rows.row_bytes > 0) found_.push_back(rows);
  }
  void add_logits(ArenaOffset<float> first, size_t stride, size_t columns, Rows rows) {
    add({.first = as_bytes(first),
         .stride_bytes = stride * sizeof(float),
         .row_bytes = columns * sizeof(float),
         .rows = rows});
  }
  void add_sums(const ChunkSums& sums, size_t columns, Rows rows) {
    add({.first = as_bytes(sums.sums),
         .stride_bytes = sums.stride * sizeof(float),
         .row_bytes = divide_up(columns, kChunkColumns) * sizeof(float),
         .rows = rows});
  }
  void add(const NormOutput& norm) {
    if (!norm.output.gather) return;
    add(norm.output, norm.rows, {});
    add_sums(norm.chunks, norm.output.columns, norm.rows);
  }
  void add(const ResidualFinish& finish) {
    for (const NormOutput& norm : finish.norms) add(norm);
  }
  void add(const PlainOutput& output, Rows rows, const Routing& routing) {
    if (output.rows.arena == Arena::kLogits) {
      add_logits(output.rows, output.stride, output.columns, rows);
    }
    for (const FormsOutput& forms : output.forms) add(forms, rows, routing);
  }
  void add(const FormsOutput& output, Rows rows, const Routing& routing) {
    if (!output.gather || output.columns == 0) return;
    for (size_t form = 0; form < kActivationFormCount; ++form) {
      const FormBuffer& buffer = output.forms.buffers[form];
      if (!buffer.is_read()) continue;
      const ExchangedRows all = {.first = buffer.rows,
                                 .stride_bytes = buffer.stride_bytes,
                                 .rows = rows,
                                 .chosen_count = routing.chosen_count,
                                 .generated = buffer.generated,
                                 .prompted = buffer.prompted};
      add_form(static_cast<ActivationForm>(form), output, all);
    }
  }
  void add_form(ActivationForm form, const FormsOutput& output, const ExchangedRows& all) {
    const size_t first = output.first_column;
    const auto add_part = [&](size_t offset, size_t bytes) {
      ExchangedRows part = all;
      part.first = part.first + offset;
      part.row_bytes = bytes;
      add(part);
    };
    switch (form) {
      case ActivationForm::kF32:
        return add_part(first * sizeof(float), output.columns * sizeof(float));
      case ActivationForm::kBf16:
      case ActivationForm::kBf16Dots: {
        // Behind the last column are zeros.
        const bool ends_row = first + output.columns == output.forms.columns;
        const size_t end = first + output.columns;
        const size_t written = (ends_row ? round_up<size_t>(end, kChunkColumns) : end) - first;
        return add_part(first * sizeof(uint16_t), written * sizeof(uint16_t));
      }
      case ActivationForm::kQ8: {
        add_part(first, output.columns);
        const size_t offset =
            q8_row(output.forms.columns).scales + first / kQ8BlockElements * sizeof(float);
        ExchangedRows scales = all;
        scales.first = scales.first + offset;
        scales.row_bytes = output.columns / kQ8BlockElements * sizeof(float);
        scales.q8 = {output.forms.columns, first, output.columns, offset};
        add(scales);
      }
    }
  }

  std::vector<ExchangedRows> found_;
};

// The rows of a batch that go, of those without a step that holds some.
Range rows_of(const ExchangedRows& rows, const Batch& batch, Range among) {
  const size_t tokens = batch.tokens.size();
  if (rows.rows == Rows::kExperts) return common_part({0, tokens * rows.chosen_count}, among);
  const bool logits = rows.rows == Rows::kLogits;
  const auto before = std::ranges::lower_bound(batch.logit_tokens, batch.generated_tokens);
  const size_t generated =
      logits ? static_cast<size_t>(before - batch.logit_tokens.begin()) : batch.generated_tokens;
  const size_t all = logits ? batch.logit_tokens.size() : tokens;
  return common_part({rows.generated ? 0 : generated, rows.prompted ? all : generated}, among);
}

// Calls work(row) for each row that goes, in order.
template <typename Work>
void for_each_row(const ExchangedRows& rows, const Batch& batch, Range among, Work work) {
  const Range all = rows_of(rows, batch, among);
  for (size_t row = all.begin; row < all.end; ++row) {
    if (rows.embed == nullptr || holds_row(*rows.embed, batch.tokens[row])) work(row);
  }
}

// Forms the sums of columns of a kQ8 row of its quants and scales: the bits that a kernel leaves
// there which quantizes them, since integers are exact and the product is rounded once.
void form_q8_sums(std::byte* row, const ExchangedRows::Q8Columns& q8) {
  constexpr size_t kHalf = kQ8BlockElements / 2;
  const Q8Row layout = q8_row(q8.all);
  for (size_t column = q8.first; column < q8.first + q8.count; column += kQ8BlockElements) {
    int8_t quants[kQ8BlockElements];
    std::memcpy(quants, row + column, sizeof quants);
    const int32_t first_sum = std::accumulate(quants, quants + kHalf, 0);
    const int32_t sum = std::accumulate(quants + kHalf, quants + kQ8BlockElements, first_sum);
    const int32_t negated_first_sum = -first_sum;
    const int32_t negated_sum = -sum;
    const size_t offset = column / kQ8BlockElements * sizeof(float);
    float scale = 0;
    std::memcpy(&scale, row + layout.scales + offset, sizeof scale);
    const float scaled_sum = scale * static_cast<float>(negated_sum);
    std::memcpy(row + layout.sums + offset, &negated_sum, sizeof negated_sum);
    std::memcpy(row + layout.first_sums + offset, &negated_first_sum, sizeof negated_first_sum);
    std::memcpy(row + layout.scaled_sums + offset, &scaled_sum, sizeof scaled_sum);
  }
}

}  // namespace

std::vector<ExchangedRows> exchanged_rows(const Step& step) {
  if (step.meet != Meet::kAllRanks) return {};
  Collector collector;
  std::visit(collector, step.work);
  return collector.take();
}

std::vector<ExchangedRows> rows_of_logits(const Step& step) {
  // A sum is every rank's.
  if (std::holds_alternative<AllReduceStep>(step.work)) return {};
  Collector collector;
  std::visit(collector, step.work);
  std::vector<ExchangedRows> found = collector.take();
  std::erase_if(found, [](const ExchangedRows& rows) { return !rows.is_of_logits(); });
  return found;
}

size_t exchanged_bytes(const ExchangedRows& rows, const Batch& batch, Range among) {
  if (rows.embed == nullptr) return rows_of(rows, batch, among).size() * rows.row_bytes;
  size_t bytes = 0;
  for_each_row(rows, batch, among, [&](size_t) { bytes += rows.row_bytes; });
  return bytes;
}

size_t exchanged_bytes_most(const ExchangedRows& rows, const Plan& plan) {
  if (rows.rows == Rows::kLogits) return plan.logit_rows * rows.row_bytes;
  const size_t of_token = rows.rows == Rows::kExperts ? rows.chosen_count : 1;
  return plan.batch_tokens * of_token * rows.row_bytes;
}

std::byte* take_rows(const ExchangedRows& rows, const Batch& batch, const ArenaAddresses& from,
                     std::byte* to, Range among) {
  const std::byte* const first = from.at(rows.first);
  for_each_row(rows, batch, among, [&](size_t row) {
    std::memcpy(to, first + row * rows.stride_bytes, rows.row_bytes);
    to += rows.row_bytes;
  });
  return to;
}

const std::byte* put_rows(const ExchangedRows& rows, const Batch& batch, const ArenaAddresses& to,
                          const std::byte* from, Range among) {
  std::byte* const first = to.at(rows.first);
  for_each_row(rows, batch, among, [&](size_t row) {
    std::byte* const place = first + row * rows.stride_bytes;
    std::memcpy(place, from, rows.row_bytes);
    from += rows.row_bytes;
    if (rows.q8.all > 0) form_q8_sums(place - rows.q8.scales_offset, rows.q8);
  });
  return from;
}

}  // namespace lockstep
