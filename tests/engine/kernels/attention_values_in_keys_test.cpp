// That values which are their keys' first dimensions give the bits of the same values stored by
// themselves.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/kernels/kernel_table.h"
#include "tests/engine/kernels/attention_reference.h"
#include "tests/engine/kernels/paged_sequence.h"
#include "tests/engine/kernels/software_tiles.h"
#include "tests/engine/kernels/tile_emulation.h"

namespace lockstep {
namespace {

struct Case {
  size_t key_dimension = 0;
  size_t value_dimension = 0;
  size_t query_count = 0;
  size_t tokens = 1;
};

class ValuesInKeys : public testing::TestWithParam<KvFormat> {
 protected:
  using Attend = void (*)(const KernelTable&, const AttentionArguments&);

  // The outputs' first value_dimension columns, of values in keys or of their copies.
  static std::vector<uint32_t> attend(const KernelTable& table, const PagedSequence& sequence,
                                      const Case& one, bool in_keys, Attend attend) {
    const size_t row = one.query_count * one.key_dimension;
    const std::vector<float> queries = random_floats(one.tokens * row, 31);
    std::vector<float> output(one.tokens * row);
    AttentionArguments arguments =
        sequence.arguments(queries.data(), one.query_count, output.data(), one.tokens);
    if (in_keys) {
      arguments.values = nullptr;
      arguments.value_dimension = one.value_dimension;
    }
    attend(table, arguments);
    std::vector<float> first;
    for (size_t begin = 0; begin < output.size(); begin += one.key_dimension) {
      const auto from = output.begin() + static_cast<ptrdiff_t>(begin);
      first.insert(first.end(), from, from + static_cast<ptrdiff_t>(one.value_dimension));
    }
    return bits_of(first);
  }

  static void expect_same(const KernelTable& table, const PagedSequence& sequence, const Case& one,
                          Attend how) {
    ASSERT_EQ(attend(table, sequence, one, /*in_keys=*/true, how),
              attend(table, sequence, one, /*in_keys=*/false, how))
        << describe(table, sequence) << ", values of " << one.value_dimension << ", "
        << one.query_count << " queries, " << one.tokens << " tokens";
  }
};

void attend_whole(const KernelTable& table, const AttentionArguments& arguments) {
  table.attend(arguments);
}

void attend_in_bf16(const KernelTable& table, const AttentionArguments& arguments) {
  table.attend_bf16(arguments);
}

void attend_in_chunks(const KernelTable& table, const AttentionArguments& arguments) {
  const size_t stride = attention_partial_floats(arguments.query_count, arguments.value_dimension);
  const AttentionChunks chunks = attention_chunks(arguments.position, arguments.window);
  std::vector<float> partials((chunks.end - chunks.begin) * stride + 16);
  float* first = partials.data();
  while (reinterpret_cast<uintptr_t>(first) % 64 != 0) ++first;
  for (size_t chunk = chunks.begin; chunk < chunks.end; ++chunk) {
    table.attend_chunk(arguments, chunk, first + (chunk - chunks.begin) * stride);
  }
  table.merge_chunks(arguments, first, stride);
}

TEST_P(ValuesInKeys, give_the_bits_of_values_by_themselves) {
  const TileEmulation emulation;
  std::vector<const KernelTable*> tables = tables_that_run_here();
  tables.push_back(&software_tiles_scalar());
  for (const Case& one :
       {Case{576, 512, 3, 1}, Case{576, 512, 16, 1}, Case{576, 512, 6, 5}, Case{576, 512, 16, 9},
        Case{96, 64, 40, 1}, Case{64, 64, 4, 33}, Case{96, 40, 7, 9}}) {
    for (const size_t context : {size_t{33}, size_t{64}, size_t{300}}) {
      PagedSequence sequence(GetParam(), one.key_dimension, context, 17, /*filler=*/0xff);
      sequence.copy_keys_to_values();
      for (const KernelTable* table : tables) {
        if (table->attend != nullptr) {
          expect_same(*table, sequence, one, attend_whole);
          if (one.tokens == 1) expect_same(*table, sequence, one, attend_in_chunks);
        }
        if (table->attend_bf16 != nullptr) expect_same(*table, sequence, one, attend_in_bf16);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, ValuesInKeys, testing::ValuesIn(kAllKvFormats),
                         [](const auto& test) { return format_name(test.param); });

}  // namespace
}  // namespace lockstep
