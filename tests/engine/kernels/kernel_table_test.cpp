#include "engine/kernels/kernel_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/kernels/kernel_choice.h"

namespace lockstep {

namespace {

using testing::HasSubstr;

TEST(KernelTable, rows_are_named_slowest_first) {
  std::vector<std::string_view> names;
  for (const KernelTable* table : all_kernel_tables()) names.push_back(table->name);
  EXPECT_THAT(names, testing::ElementsAre("scalar", "avx2", "avx512", "avx512bf16", "amx"));
}

TEST(KernelTable, every_row_has_every_operation) {
  for (const KernelTable* table : all_kernel_tables()) {
    for (const auto& function : table->matmul) EXPECT_NE(function, nullptr) << table->name;
    for (const FormatTraits& format : all_formats()) {
      const bool has = matmul_kernel(*table, format.format, ActivationForm::kBf16) != nullptr;
      EXPECT_EQ(has, format.format != Format::kF32) << table->name << ", " << format.name;
    }
    EXPECT_NE(matmul_kernel(*table, Format::kBf16, ActivationForm::kBf16Dots), nullptr);
    EXPECT_EQ(matmul_kernel(*table, Format::kF16, ActivationForm::kBf16Dots), nullptr);
    EXPECT_NE(table->to_bf16, nullptr);
    EXPECT_NE(table->quantize, nullptr);
    EXPECT_NE(table->rms_norm, nullptr);
    for (const auto& function : table->activate) EXPECT_NE(function, nullptr) << table->name;
    for (const auto& function : table->gate) EXPECT_NE(function, nullptr) << table->name;
    EXPECT_NE(table->attend, nullptr);
    EXPECT_NE(table->attend_chunk, nullptr);
    EXPECT_NE(table->merge_chunks, nullptr);
    EXPECT_NE(table->convolve, nullptr);
    EXPECT_NE(table->apply_delta, nullptr);
    EXPECT_NE(table->apply_scan, nullptr);
    EXPECT_NE(table->append_kv, nullptr);
  }
}

TEST(KernelTable, every_machine_supports_the_scalar_row) {
  EXPECT_TRUE(machine_supports(*all_kernel_tables().front()));
  const auto scalar = choose_kernel_table("scalar");
  ASSERT_TRUE(scalar.has_value());
  EXPECT_EQ((*scalar)->name, "scalar");
}

TEST(KernelTable, no_name_chooses_the_best_supported_row) {
  const auto chosen = choose_kernel_table("");
  ASSERT_TRUE(chosen.has_value());
  EXPECT_TRUE(machine_supports(**chosen) && machine_prefers(**chosen));
  bool after = false;
  for (const KernelTable* table : all_kernel_tables()) {
    EXPECT_FALSE(after && machine_supports(*table) && machine_prefers(*table)) << table->name;
    after = after || table == *chosen;
  }
}

TEST(KernelTable, a_row_is_chosen_by_name_or_refused_with_what_is_missing) {
  for (const KernelTable* table : all_kernel_tables()) {
    const auto chosen = choose_kernel_table(table->name);
    if (machine_supports(*table)) {
      ASSERT_TRUE(chosen.has_value());
      EXPECT_EQ(*chosen, table);
    } else {
      ASSERT_FALSE(chosen.has_value());
      EXPECT_EQ(chosen.error().kind, ErrorKind::kInvalidInput);
      EXPECT_THAT(chosen.error().message, HasSubstr("which this machine lacks"));
    }
  }
}

TEST(KernelTable, an_unknown_name_is_refused_with_the_known_ones) {
  const auto chosen = choose_kernel_table("avx1024");
  ASSERT_FALSE(chosen.has_value());
  EXPECT_EQ(chosen.error().kind, ErrorKind::kInvalidInput);
  EXPECT_EQ(chosen.error().message,
            "unknown instruction set 'avx1024'; known are: scalar, avx2, avx512, avx512bf16, amx");
}

}  // namespace

}  // namespace lockstep
