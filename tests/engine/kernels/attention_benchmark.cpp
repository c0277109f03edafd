// How fast attend() is, per row of the kernel table, KV format and head dimension, with four
// queries to a KV head. FLOPS counts two operations per multiplication with a key and with a value
// that a token sees.
//   generation/...: one token of each of several sequences in turn, which together fill more than a
//     cache; bytes_per_second is that of their keys and values.
//   prompt/...: 512 tokens after `depth` others, in one call.
//   prompt_bf16/...: the same of attention in bf16, where the row has it.
#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/kernels/kernel_choice.h"
#include "engine/kernels/kernel_table.h"
#include "tests/engine/kernels/paged_sequence.h"

namespace lockstep {
namespace {

constexpr size_t kQueries = 4;
constexpr size_t kPromptTokens = 512;
constexpr size_t kManyBytes = size_t{96} << 20U;

size_t kv_bytes(KvFormat format, size_t head_dimension, size_t tokens) {
  return tokens / kPageTokens *
         (key_block_bytes(format, head_dimension) + value_block_bytes(format, head_dimension));
}

void count_operations(benchmark::State& state, size_t head_dimension, size_t keys_seen) {
  state.counters["FLOPS"] =
      benchmark::Counter(static_cast<double>(4 * kQueries * head_dimension * keys_seen),
                         benchmark::Counter::kIsIterationInvariantRate);
}

// Keys and values that fill more than a cache; made again only for another format or dimension.
const PagedSequence& many_pages(KvFormat format, size_t head_dimension) {
  static std::unique_ptr<const PagedSequence> pages;
  if (pages == nullptr || pages->format() != format || pages->head_dimension() != head_dimension) {
    const size_t token_bytes = kv_bytes(format, head_dimension, kPageTokens) / kPageTokens;
    pages = std::make_unique<PagedSequence>(format, head_dimension, kManyBytes / token_bytes, 1);
  }
  return *pages;
}

void generate(benchmark::State& state, const KernelTable& table, KvFormat format,
              size_t head_dimension, size_t context) {
  const PagedSequence& pages = many_pages(format, head_dimension);
  const size_t pages_each = context / kPageTokens;
  const std::vector<float> queries = random_floats(kQueries * head_dimension, 2);
  std::vector<float> output(queries.size());
  AttentionArguments arguments = pages.arguments(queries.data(), kQueries, output.data());
  arguments.position = context - 1;
  size_t first = 0;
  for (auto _ : state) {
    arguments.pages = pages.pages().data() + first;
    table.attend(arguments);
    benchmark::DoNotOptimize(output.data());
    benchmark::ClobberMemory();
    first += pages_each;
    if (first + pages_each > pages.page_count()) first = 0;
  }
  count_operations(state, head_dimension, context);
  state.SetBytesProcessed(state.iterations() *
                          static_cast<int64_t>(kv_bytes(format, head_dimension, context)));
}

void prompt_by(benchmark::State& state, void (*attend)(const AttentionArguments&), KvFormat format,
               size_t head_dimension, size_t depth) {
  const PagedSequence sequence(format, head_dimension, depth + kPromptTokens, 1);
  const std::vector<float> queries = random_floats(kPromptTokens * kQueries * head_dimension, 2);
  std::vector<float> output(queries.size());
  for (auto _ : state) {
    attend(sequence.arguments(queries.data(), kQueries, output.data(), kPromptTokens));
    benchmark::DoNotOptimize(output.data());
    benchmark::ClobberMemory();
  }
  count_operations(state, head_dimension,
                   kPromptTokens * depth + kPromptTokens * (kPromptTokens + 1) / 2);
}

void prompt(benchmark::State& state, const KernelTable& table, KvFormat format,
            size_t head_dimension, size_t depth) {
  prompt_by(state, table.attend, format, head_dimension, depth);
}

void prompt_bf16(benchmark::State& state, const KernelTable& table, KvFormat format,
                 size_t head_dimension, size_t depth) {
  prompt_by(state, table.attend_bf16, format, head_dimension, depth);
}

void register_benchmarks(const KernelTable& table, KvFormat format, size_t head_dimension) {
  const std::string what =
      std::string(table.name) + "/" + format_name(format) + "/d" + std::to_string(head_dimension);
  const auto add = [&](const std::string& name, auto function, size_t argument) {
    benchmark::RegisterBenchmark(
        (name + std::to_string(argument)).c_str(),
        [function, &table, format, head_dimension, argument](benchmark::State& state) {
          function(state, table, format, head_dimension, argument);
        });
  };
  for (const size_t context : Sizes{512, 8192}) {
    add("generation/" + what + "/context", generate, context);
  }
  for (const size_t depth : Sizes{0, 8192}) {
    add("prompt/" + what + "/depth", prompt, depth);
    if (table.attend_bf16 != nullptr) add("prompt_bf16/" + what + "/depth", prompt_bf16, depth);
  }
}

}  // namespace
}  // namespace lockstep

int main(int argument_count, char** arguments) {
  using namespace lockstep;
  for (const KernelTable* table : all_kernel_tables()) {
    if (!machine_supports(*table) || table->name == "scalar") continue;
    for (const KvFormat format : kAllKvFormats) {
      for (const size_t head_dimension : Sizes{64, 128}) {
        register_benchmarks(*table, format, head_dimension);
      }
    }
  }
  benchmark::Initialize(&argument_count, arguments);
  if (benchmark::ReportUnrecognizedArguments(argument_count, arguments)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
