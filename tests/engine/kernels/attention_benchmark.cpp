// How fast attend() is, per row of the kernel table, KV format, head dimension, number of queries
// that share a KV head, and context. FLOPS counts two operations per multiplication with a key and
// with a value; bytes_per_second the keys and values of the context.
#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/kernels/kernel_table.h"
#include "tests/engine/kernels/paged_sequence.h"

namespace lockstep {
namespace {

void attend_benchmark(benchmark::State& state, const KernelTable& table, KvFormat format,
                      size_t head_dimension, size_t query_count, size_t context) {
  const PagedSequence sequence(format, head_dimension, context, 1);
  const std::vector<float> queries = random_floats(query_count * head_dimension, 2);
  std::vector<float> output(queries.size());
  const AttentionArguments arguments =
      sequence.arguments(queries.data(), query_count, output.data());
  for (auto _ : state) {
    table.attend(arguments);
    benchmark::DoNotOptimize(output.data());
    benchmark::ClobberMemory();
  }
  const auto products = static_cast<double>(head_dimension * query_count * context);
  state.counters["FLOPS"] =
      benchmark::Counter(4 * products, benchmark::Counter::kIsIterationInvariantRate);
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(2 * head_dimension * context *
                                                                    element_bytes(format)));
}

void register_benchmarks() {
  for (const KernelTable* table : all_kernel_tables()) {
    if (!machine_supports(*table)) continue;
    for (const KvFormat format : {KvFormat::kF16, KvFormat::kBf16, KvFormat::kF32}) {
      for (const size_t head_dimension : Sizes{64, 128}) {
        for (const size_t query_count : Sizes{1, 4, 8}) {
          for (const size_t context : Sizes{200, 4096}) {
            const std::string name = "attend/" + std::string(table->name) + "/" +
                                     format_name(format) + "/d" + std::to_string(head_dimension) +
                                     "/q" + std::to_string(query_count) + "/context" +
                                     std::to_string(context);
            benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State& state) {
              attend_benchmark(state, *table, format, head_dimension, query_count, context);
            });
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace lockstep

int main(int argument_count, char** arguments) {
  lockstep::register_benchmarks();
  benchmark::Initialize(&argument_count, arguments);
  if (benchmark::ReportUnrecognizedArguments(argument_count, arguments)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
