// The cost of a prompt's chunk in the two forms of latent attention (engine/docs/steps.md): one
// layer's 16 heads of 512 + 64 latents and 128 + 64 dimensions of keys, 128 of values, as DeepSeek
// V2 Lite has them (of V3's 128 heads each costs as much). One thread, profile fast, matrices in
// Q8_0, `chunk` tokens after `depth` others.
//   absorbed: the product of the queries, attention over the latents in f16, that of its results.
//   expanded: keys and values made of every latent that is seen, 64 at a time, and attention over
//     them. These lie in the second cache, and keys are not turned around: a bound from below.
//   build/release/lockstep_latent_attention_benchmark --benchmark_filter='avx512/chunk:64/'
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/kernels/kernel_choice.h"
#include "engine/kernels/profile.h"
#include "tests/engine/kernels/paged_sequence.h"
#include "tests/engine/kernels/random_weights.h"

namespace lockstep {
namespace {

constexpr size_t kHeads = 16;
constexpr size_t kLatent = 512;
constexpr size_t kRotated = 64;
constexpr size_t kOwn = 128;    // of a head's keys, without positions
constexpr size_t kValue = 128;  // of a head
constexpr Format kWeights = Format::kQ8_0;
// Tokens of a sequence that lie in memory; longer ones see them again and again.
constexpr size_t kStoredTokens = 8192;

// Products of tokens with each head's matrix of `rows` by `columns`.
class HeadProducts {
 public:
  HeadProducts(const KernelTable& table, size_t rows, size_t columns, size_t tokens)
      : form_(product_forms(Profile::kFast, table)[static_cast<size_t>(kWeights)].prompted),
        kernel_(matmul_kernel(table, kWeights, form_)),
        random_(3),
        rows_(rows),
        matrix_(kWeights, kHeads * rows, columns, random_),
        input_(table, form_, random_values(tokens * columns, random_), tokens, columns),
        output_(tokens * kHeads * rows * sizeof(float)) {}

  void multiply(size_t head, size_t tokens) {
    kernel_({.matrix = matrix_.packed(),
             .panel_begin = head * rows_ / kPanelRows,
             .panel_end = (head + 1) * rows_ / kPanelRows,
             .input = input_.row(0),
             .input_stride_bytes = input_.stride_bytes(),
             .token_count = tokens,
             .output = output_.floats(),
             .output_stride = kHeads * rows_});
  }

 private:
  ActivationForm form_;
  MatmulKernel kernel_;
  RandomEngine random_;
  size_t rows_;
  RandomMatrix matrix_;
  Activations input_;
  AlignedBuffer output_;
};

// The pages of `tokens` tokens, which repeat those of the sequence.
std::vector<uint32_t> repeated_pages(const PagedSequence& sequence, size_t tokens) {
  std::vector<uint32_t> pages((tokens + kPageTokens - 1) / kPageTokens + 1);
  for (size_t page = 0; page < pages.size(); ++page) {
    pages[page] = sequence.pages()[page % sequence.page_count()];
  }
  return pages;
}

void attend_prompt(const KernelTable& table, const AttentionArguments& arguments) {
  (table.attend_bf16 != nullptr ? table.attend_bf16 : table.attend)(arguments);
}

void absorbed(benchmark::State& state, const KernelTable& table, size_t chunk, size_t depth) {
  constexpr size_t kDimension = kLatent + kRotated;
  const PagedSequence sequence(KvFormat::kF16, kDimension, std::min(depth + chunk, kStoredTokens),
                               1);
  const std::vector<uint32_t> pages = repeated_pages(sequence, depth + chunk);
  HeadProducts queries_product(table, kLatent, kOwn, chunk);
  HeadProducts result_product(table, kValue, kLatent, chunk);
  // As many tokens as the step has on its stack.
  const size_t most = kBf16AttentionElements / (kHeads * kDimension);
  const std::vector<float> queries = random_floats(most * kHeads * kDimension, 2);
  std::vector<float> output(queries.size());
  for (auto unused : state) {
    static_cast<void>(unused);
    for (size_t head = 0; head < kHeads; ++head) queries_product.multiply(head, chunk);
    for (size_t token = 0; token < chunk; token += most) {
      const size_t count = std::min(most, chunk - token);
      AttentionArguments arguments =
          sequence.arguments(queries.data(), kHeads, output.data(), count);
      arguments.values = nullptr;
      arguments.value_dimension = kLatent;
      arguments.pages = pages.data();
      arguments.position = depth + token;
      attend_prompt(table, arguments);
    }
    for (size_t head = 0; head < kHeads; ++head) result_product.multiply(head, chunk);
    benchmark::ClobberMemory();
  }
}

void expanded(benchmark::State& state, const KernelTable& table, size_t chunk, size_t depth) {
  constexpr size_t kDimension = kOwn + kRotated;
  constexpr size_t kCachedPages = 4;
  const KvFormat format = table.attend_bf16 != nullptr ? KvFormat::kBf16 : KvFormat::kF32;
  const PagedSequence sequence(format, kDimension, kCachedPages * kPageTokens, 1);
  const std::vector<uint32_t> pages = repeated_pages(sequence, depth + chunk);
  HeadProducts keys_product(table, kOwn, kLatent, kPageTokens);
  HeadProducts values_product(table, kValue, kLatent, kPageTokens);
  const std::vector<float> queries = random_floats(chunk * kDimension, 2);
  std::vector<float> output(queries.size());
  AttentionArguments arguments = sequence.arguments(queries.data(), 1, output.data(), 1);
  arguments.token_count = chunk;
  arguments.value_dimension = kValue;
  arguments.pages = pages.data();
  arguments.position = depth;
  for (auto unused : state) {
    static_cast<void>(unused);
    for (size_t head = 0; head < kHeads; ++head) {
      for (size_t token = 0; token < depth + chunk; token += kPageTokens) {
        const size_t count = std::min(kPageTokens, depth + chunk - token);
        keys_product.multiply(head, count);
        values_product.multiply(head, count);
      }
      attend_prompt(table, arguments);
    }
    benchmark::ClobberMemory();
  }
}

void register_all(const KernelTable& table) {
  for (const size_t depth : Sizes{0, 2048, 8192, 32768}) {
    for (const size_t chunk : Sizes{32, 64, 128, 256, 512}) {
      const auto add = [&](const char* form, auto function) {
        benchmark::RegisterBenchmark(
            fmt::format("{}/{}/chunk:{}/depth:{}", form, table.name, chunk, depth).c_str(),
            [&table, function, chunk, depth](benchmark::State& state) {
              function(state, table, chunk, depth);
            })
            ->Unit(benchmark::kMillisecond);
      };
      add("absorbed", absorbed);
      add("expanded", expanded);
    }
  }
}

}  // namespace
}  // namespace lockstep

int main(int argument_count, char** arguments) {
  using namespace lockstep;
  for (const KernelTable* table : all_kernel_tables()) {
    if (machine_supports(*table) && table->name != "scalar") register_all(*table);
  }
  benchmark::Initialize(&argument_count, arguments);
  if (benchmark::ReportUnrecognizedArguments(argument_count, arguments)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
