#include "tests/engine/kernels/cuda/attended_tokens.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "engine/base/checked_math.h"
#include "engine/kernels/gpu_attention.h"

namespace lockstep {
namespace {

// The memory that a launch reads and writes.
class Launch {
 public:
  Launch(const Attended& run, const std::vector<AttendedPlace>& places)
      : run_(run), batch_(limits_of(run)) {
    for (size_t i = 0; i < run.cache.sequence_count(); ++i) {
      batch_.writer().add_sequence(run.cache.pages(i));
    }
    for (const AttendedPlace& place : places) {
      batch_.writer().add_generated(0, place.position, place.sequence);
      const std::vector<float> own = queries_of(run, place);
      queries_.insert(queries_.end(), own.begin(), own.end());
    }
    batch_.writer().end();
    for (size_t i = 0; i < run.cache.sequence_count(); ++i) {
      batch().lengths[i] = static_cast<uint32_t>(run.cache.context(i));
    }
    const size_t units = batch().counts->attention_units;
    partial_outputs_.resize(units * row(), NAN);
    partial_sums_.resize(units * run.heads.count * 2, NAN);
    arrived_.resize(units * run.heads.count);
    const size_t stride = round_up<size_t>(row(), 32);
    outputs_ = {std::vector<float>(places.size() * row(), NAN),
                std::vector<uint16_t>(places.size() * stride, 0x1234), stride};
  }

  const GpuBatch& batch() const { return batch_.batch(); }
  size_t query_row() const { return run_.heads.count * run_.cache.layer().key_dimension; }
  size_t row() const { return run_.heads.count * run_.cache.layer().value_dimension; }
  AttendedOutputs& outputs() { return outputs_; }
  std::vector<float>& queries() { return queries_; }

  GpuAttention attention() {
    return {.batch = batch(),
            .kv = run_.cache.layer(),
            .queries = queries_.data(),
            .query_stride = query_row(),
            .head_count = run_.heads.count,
            .kv_head_count = run_.cache.kv_head_count(),
            .group = run_.heads.group,
            .group_offset = run_.heads.offset,
            .window = run_.window,
            .scale = kAttendedScale,
            .output = {.floats = outputs_.floats.data(),
                       .float_stride = row(),
                       .bf16 = outputs_.bf16.data(),
                       .bf16_stride = outputs_.bf16_stride},
            .partial_outputs = partial_outputs_.data(),
            .partial_sums = partial_sums_.data(),
            .arrived = arrived_.data(),
            .grid_rows = run_.grid_rows,
            .section = static_cast<unsigned>(run_.others.section),
            .score_cap = run_.others.score_cap,
            .sinks = run_.others.sinks.empty() ? nullptr : run_.others.sinks.data(),
            .slopes = run_.others.slopes.empty() ? nullptr : run_.others.slopes.data(),
            .ahead = static_cast<unsigned>(run_.others.ahead)};
  }

  void expect_counters_at_zero() const {
    EXPECT_TRUE(std::ranges::all_of(arrived_, [](uint32_t count) { return count == 0; }));
  }

 private:
  static GpuBatchLimits limits_of(const Attended& run) {
    GpuBatchLimits limits = run.cache.limits();
    limits.attention_units = run.units_max;
    limits.lengths = limits.sequences;
    return limits;
  }

  const Attended& run_;
  GpuTestBatch batch_;
  std::vector<float> queries_;
  std::vector<float> partial_outputs_;
  std::vector<float> partial_sums_;
  std::vector<uint32_t> arrived_;
  AttendedOutputs outputs_;
};

}  // namespace

std::vector<float> queries_of(const Attended& run, const AttendedPlace& place) {
  return random_floats(run.heads.count * run.cache.layer().key_dimension,
                       9000 + place.sequence * 1000 + place.position);
}

AttendedOutputs attend_prepared(const Attended& run, const std::vector<AttendedPlace>& places) {
  Launch launch(run, places);
  if (run.units_max > 0) gpu_attend_generated(nullptr, launch.attention());
  std::vector<float>& floats = launch.outputs().floats;
  const std::vector<float> with_units = floats;
  const auto split = static_cast<std::ptrdiff_t>(launch.batch().counts->split * launch.row());
  const auto is_nan = [](float x) { return std::isnan(x); };
  EXPECT_TRUE(std::all_of(with_units.begin() + split, with_units.end(), is_nan));
  std::fill_n(floats.begin(), split, NAN);
  gpu_attend_walked(nullptr, launch.attention());
  EXPECT_TRUE(std::all_of(floats.begin(), floats.begin() + split, is_nan));
  std::copy_n(with_units.begin(), split, floats.begin());
  launch.expect_counters_at_zero();
  return launch.outputs();
}

AttendedOutputs attend_unprepared(const Attended& run, const std::vector<AttendedPlace>& places,
                                  Preparing preparing, int passes) {
  Launch launch(run, places);
  const unsigned dimensions = run.cache.layer().key_dimension;
  const unsigned kv_heads = run.cache.kv_head_count();
  const unsigned rotary = dimensions / 4 * 2;
  const std::vector<float> query_norm = random_floats(dimensions, 31);
  const std::vector<float> key_norm = random_floats(dimensions, 32);
  std::vector<float> table = random_floats(places.size() * rotary, 33);
  for (float& value : table) value = std::tanh(value);
  const size_t key_row = kv_heads * dimensions;
  const size_t value_row = kv_heads * run.cache.layer().value_dimension;
  const std::vector<float> keys = random_floats(places.size() * key_row, 34);
  const std::vector<float> values = random_floats(places.size() * value_row, 35);
  const GpuHeads heads = {.batch = launch.batch(),
                          .kv = run.cache.layer(),
                          .queries = launch.queries().data(),
                          .query_stride = launch.query_row(),
                          .keys = keys.data(),
                          .values = values.data(),
                          .key_stride = key_row,
                          .value_stride = value_row,
                          .head_count = run.heads.count,
                          .kv_head_count = kv_heads,
                          .query_norm = query_norm.data(),
                          .key_norm = key_norm.data(),
                          .epsilon = 1e-5F,
                          .rotary_table = table.data(),
                          .rotary_stride = rotary,
                          .rotary_dimensions = rotary};
  if (preparing == Preparing::kApart) gpu_prepare_heads(nullptr, heads);
  AttendedOutputs first;
  for (int pass = 0; pass < passes; ++pass) {
    std::ranges::fill(launch.outputs().floats, NAN);
    gpu_attend_generated(nullptr, launch.attention(),
                         preparing == Preparing::kApart ? nullptr : &heads);
    launch.expect_counters_at_zero();
    if (pass == 0) first = launch.outputs();
    EXPECT_TRUE(launch.outputs() == first) << "pass " << pass;
  }
  return first;
}

}  // namespace lockstep
