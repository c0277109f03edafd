// A load onto a real GPU, by CUDA and its kernel. In builds with CUDA alone; where there is no GPU,
// it is skipped and says so.
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <vector>

#include "engine/base/checked_math.h"
#include "engine/model/gpu_weight_sink.h"
#include "tests/engine/model/load_case.h"

namespace lockstep {
namespace {

using test::LoadCase;
using test::LoadFolder;

constexpr std::chrono::seconds kDeadline{10};

// Matrices at multiples of 256 bytes, vectors behind them; returns how many bytes they take.
size_t place(const Graph& graph, Plan& plan) {
  size_t bytes = 0;
  for (WeightSlice& slice : plan.weights) {
    const Weight& weight = graph.weights()[slice.weight];
    const size_t rows = slice.row_end - slice.row_begin;
    const size_t columns = slice.column_end - slice.column_begin;
    slice.size_bytes = weight.is_matrix ? gpu_matrix_bytes(weight.format, rows, columns)
                                        : rows * columns * sizeof(float);
    slice.offset = bytes;
    bytes += round_up<size_t>(slice.size_bytes, 256);
  }
  return bytes;
}

void expect_slice(const LoadCase& load_case, const WeightSlice& slice, const std::byte* loaded) {
  const Weight& weight = load_case.graph().weights()[slice.weight];
  const size_t rows = slice.row_end - slice.row_begin;
  const size_t columns = slice.column_end - slice.column_begin;
  std::vector<float> values(columns);
  for (size_t row = 0; row < rows && columns > 0; ++row) {
    const std::vector<float> expected = load_case.row_values(slice, row);
    if (weight.is_matrix) {
      unpack_gpu_row({weight.format, rows, columns, loaded}, row, values.data());
    } else {
      std::memcpy(values.data(), loaded, columns * sizeof(float));
    }
    ASSERT_EQ(0, std::memcmp(values.data(), expected.data(), columns * sizeof(float)))
        << weight.name << ", " << traits(weight.format).name << ", row " << row << " of " << rows;
  }
}

TEST(CudaWeightLoader, the_gpu_holds_the_files_values_in_every_format) {
  auto device = open_cuda_device(0);
  if (!device) GTEST_SKIP() << "no GPU: " << device.error().message;
  const LoadFolder folder;
  for (const size_t buffer_bytes : {size_t{12} << 10U, size_t{0}}) {
    const LoadCase load_case(folder.path(),
                             {.seed = 81, .ranks = 2, .tensors = 60, .for_gpus = true});
    Plan plan = *load_case.ranks().front().plan;
    const size_t bytes = place(load_case.graph(), plan);
    const GpuMemory memory = (*device)->allocate(bytes, "weights").value();
    const auto workers = Workers::start(std::vector<int>{-1, -1}, true).value();
    GpuWeightSink sink(**device, gpu_pack_rows);
    const std::vector<LoadTarget> targets = {
        {.plan = plan, .weights = memory.data(), .workers = *workers, .sink = &sink}};
    std::atomic<uint64_t> bytes_done = 0;
    const auto report = load_weights(load_case.file(), load_case.graph(), targets, bytes_done,
                                     {.buffer_bytes = buffer_bytes});
    ASSERT_TRUE(report.has_value()) << report.error().message;
    EXPECT_EQ(report->not_pinned, "");

    const NodeMemory host = NodeMemory::allocate({.bytes = bytes, .what = "a test"}).value();
    const GpuMemory pinned = (*device)->pin({host.data(), host.size_bytes()}).value();
    const auto stream = (*device)->make_stream().value();
    ASSERT_TRUE(stream->copy(host.data(), memory.data(), bytes).has_value());
    ASSERT_TRUE(stream->wait(kDeadline).has_value());
    for (const WeightSlice& slice : plan.weights) {
      const std::byte* loaded = host.data() + slice.offset;
      ASSERT_NO_FATAL_FAILURE(expect_slice(load_case, slice, loaded));
    }
  }
}

}  // namespace
}  // namespace lockstep
