// Speed of the matrix products: every row of the kernel table that this machine supports x every
// format x 1, 8 and 256 tokens (with bf16 activations 1, 8, 64 and 512); with few tokens of weights
// that fit into the second-level cache ("cached") and of weights that do not fit into any
// ("memory"), with many of 512 rows ("prompt"); and of packing every format. One thread. GB/s are
// of weights, as the file stores them. The daemon's memory is in huge pages, which the allocator is
// asked for so:
//   GLIBC_TUNABLES=glibc.malloc.hugetlb=1
//   build/release/lockstep_kernel_benchmark --benchmark_filter='avx512/Q4_0'
//   build/release/lockstep_kernel_benchmark --benchmark_filter='matmul_bf16/avx512'
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <cstddef>
#include <initializer_list>
#include <memory>
#include <string>

#include "engine/kernels/kernel_choice.h"
#include "engine/kernels/kernel_table.h"
#include "tests/engine/kernels/random_weights.h"

namespace lockstep {

namespace {

constexpr size_t kColumns = 4096;
constexpr size_t kCachedBytes = size_t{512} << 10U;
constexpr size_t kMemoryBytes = size_t{256} << 20U;
constexpr size_t kPromptPanels = 32;

// One panel of random rows, repeated: all that speed depends on.
struct Weights {
  Weights(Format format, size_t bytes)
      : panel_count(bytes / panel_bytes(format, kColumns)),
        panels(panel_count * panel_bytes(format, kColumns)) {
    RandomEngine random(1);
    const RandomMatrix one(format, kPanelRows, kColumns, random);
    const size_t size = panel_bytes(format, kColumns);
    for (size_t panel = 0; panel < panel_count; ++panel) {
      __builtin_memcpy(panels.data() + panel * size, one.packed().panels, size);
    }
  }

  size_t panel_count;
  AlignedBuffer panels;
};

// `form` is kBf16 or that of the format.
void matmul(benchmark::State& state, const KernelTable& table, Format format, ActivationForm form,
            size_t bytes, size_t token_count) {
  const Weights weights(format, bytes);
  const size_t rows = weights.panel_count * kPanelRows;
  RandomEngine random(2);
  const Activations activations(table, form, random_values(token_count * kColumns, random),
                                token_count, kColumns);
  const size_t output_stride = activation_stride(rows) | 16;
  AlignedBuffer output(token_count * output_stride * sizeof(float));
  const MatmulArguments arguments = {
      .matrix = {.format = format,
                 .rows = rows,
                 .columns = kColumns,
                 .panels = weights.panels.data()},
      .panel_end = weights.panel_count,
      .input = activations.row(0),
      .input_stride_bytes = activations.stride_bytes(),
      .token_count = token_count,
      .output = output.floats(),
      .output_stride = output_stride,
      .panel_streams = preferred_panel_streams(),
  };
  for (auto unused : state) {
    static_cast<void>(unused);
    matmul_kernel(table, format, form)(arguments);
    benchmark::ClobberMemory();
  }
  const auto passes = static_cast<double>(state.iterations());
  const auto weight_bytes =
      static_cast<double>(weights.panel_count * panel_bytes(format, kColumns));
  const auto operations = 2.0 * static_cast<double>(rows * kColumns * token_count);
  state.counters["GB/s"] =
      benchmark::Counter(passes * weight_bytes / 1e9, benchmark::Counter::kIsRate);
  state.counters["Gop/s"] =
      benchmark::Counter(passes * operations / 1e9, benchmark::Counter::kIsRate);
}

// Rows of a file into panels, as the load does it: both larger than any cache.
void pack(benchmark::State& state, Format format) {
  const size_t size = panel_bytes(format, kColumns);
  const size_t count = kMemoryBytes / size;
  AlignedBuffer rows(count * size);
  AlignedBuffer panels(count * size);
  RandomEngine random(4);
  const std::vector<std::byte> some = random_rows(format, kPanelRows, kColumns, random);
  for (size_t panel = 0; panel < count; ++panel) {
    __builtin_memcpy(rows.data() + panel * size, some.data(), size);
  }
  for (auto unused : state) {
    static_cast<void>(unused);
    for (size_t panel = 0; panel < count; ++panel) {
      pack_panel(format, kColumns, rows.data() + panel * size, kPanelRows,
                 panels.data() + panel * size);
    }
    benchmark::ClobberMemory();
  }
  state.counters["GB/s"] = benchmark::Counter(
      static_cast<double>(state.iterations()) * static_cast<double>(count * size) / 1e9,
      benchmark::Counter::kIsRate);
}

void quantize(benchmark::State& state, const KernelTable& table) {
  RandomEngine random(3);
  const std::vector<float> values = random_values(kColumns, random);
  AlignedBuffer row(activation_row_bytes(ActivationForm::kQ8, kColumns));
  for (auto unused : state) {
    static_cast<void>(unused);
    table.quantize(values.data(), kColumns, 0, kColumns, row.data());
    benchmark::ClobberMemory();
  }
  state.counters["elements/s"] =
      benchmark::Counter(static_cast<double>(state.iterations()) * static_cast<double>(kColumns),
                         benchmark::Counter::kIsRate);
}

void register_matmul(std::string_view product, const KernelTable& table, const FormatTraits& format,
                     ActivationForm form, std::initializer_list<size_t> token_counts) {
  for (const size_t token_count : token_counts) {
    const auto add = [&](std::string_view place, size_t bytes) {
      const std::string name =
          fmt::format("{}/{}/{}/{}/{}", product, table.name, format.name, place, token_count);
      benchmark::RegisterBenchmark(name.c_str(), matmul, table, format.format, form, bytes,
                                   token_count);
    };
    if (token_count > 8) {
      add("prompt", kPromptPanels * panel_bytes(format.format, kColumns));
      continue;
    }
    add("cached", kCachedBytes);
    add("memory", kMemoryBytes);
  }
}

void register_all() {
  for (const FormatTraits& format : all_formats()) {
    benchmark::RegisterBenchmark(fmt::format("pack/{}", format.name).c_str(), pack, format.format);
  }
  for (const KernelTable* table : all_kernel_tables()) {
    if (!machine_supports(*table)) continue;
    benchmark::RegisterBenchmark(fmt::format("quantize/{}", table->name).c_str(), quantize, *table);
    for (const FormatTraits& format : all_formats()) {
      register_matmul("matmul", *table, format, activation_form(format.format), {1, 8, 256});
      if (matmul_kernel(*table, format.format, ActivationForm::kBf16) == nullptr) continue;
      register_matmul("matmul_bf16", *table, format, ActivationForm::kBf16, {1, 8, 64, 512});
      if (matmul_kernel(*table, format.format, ActivationForm::kBf16Dots) == nullptr) continue;
      register_matmul("matmul_bf16_dots", *table, format, ActivationForm::kBf16Dots, {1, 8, 256});
    }
  }
}

}  // namespace

}  // namespace lockstep

int main(int argc, char** argv) {
  lockstep::register_all();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
