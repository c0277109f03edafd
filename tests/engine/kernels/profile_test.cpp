// Which arithmetic products follow, for every profile and row of the kernel table.
#include "engine/kernels/profile.h"

#include <gtest/gtest.h>

#include "engine/kernels/kernel_choice.h"

namespace lockstep {

namespace {

// A row of which only has_tiles matters.
KernelTable simulated_row(bool has_tiles) {
  KernelTable table = *all_kernel_tables().front();
  table.has_tiles = has_tiles;
  return table;
}

TEST(Profile, has_a_name) {
  EXPECT_EQ(profile_name(Profile::kExact), "exact");
  EXPECT_EQ(profile_name(Profile::kFast), "fast");
}

TEST(Profile, is_chosen_by_name) {
  for (const KernelTable* table : all_kernel_tables()) {
    for (const Profile profile : {Profile::kExact, Profile::kFast}) {
      const auto chosen = choose_profile(profile_name(profile), *table);
      ASSERT_TRUE(chosen.has_value());
      EXPECT_EQ(*chosen, profile);
    }
  }
}

TEST(Profile, of_no_instruction_set_is_exact_where_exact_costs_more_than_a_twentieth) {
  for (const KernelTable* table : all_kernel_tables()) {
    const auto chosen = choose_profile("auto", *table);
    ASSERT_TRUE(chosen.has_value());
    EXPECT_EQ(*chosen, Profile::kFast) << table->name;
  }
}

TEST(Profile, of_an_unknown_name_is_refused_with_the_known_ones) {
  const auto chosen = choose_profile("quick", *all_kernel_tables().front());
  ASSERT_FALSE(chosen.has_value());
  EXPECT_EQ(chosen.error().kind, ErrorKind::kInvalidInput);
  EXPECT_EQ(chosen.error().message, "unknown arithmetic 'quick'; known are: auto, exact, fast");
}

TEST(ProductForms, of_exact_are_one_form_for_prompts_and_generation_on_every_machine) {
  for (const bool has_tiles : {false, true}) {
    const ProductFormTable forms = product_forms(Profile::kExact, simulated_row(has_tiles));
    for (const FormatTraits& format : all_formats()) {
      const ProductForms& form = forms[static_cast<size_t>(format.format)];
      const bool f32 = format.format == Format::kF32;
      EXPECT_EQ(form.prompted, f32 ? ActivationForm::kF32 : ActivationForm::kBf16) << format.name;
      EXPECT_EQ(form.generated, form.prompted) << format.name;
    }
  }
}

TEST(ProductForms,
     of_fast_prompt_and_generate_with_bf16_weights_through_tiles_where_there_are_some) {
  for (const bool has_tiles : {false, true}) {
    const ProductFormTable forms = product_forms(Profile::kFast, simulated_row(has_tiles));
    for (const FormatTraits& format : all_formats()) {
      const ProductForms& form = forms[static_cast<size_t>(format.format)];
      const ActivationForm own = activation_form(format.format);
      const bool prompted = has_tiles && format.format != Format::kF32;
      const bool generated = has_tiles && format.format == Format::kBf16;
      EXPECT_EQ(form.prompted, prompted ? ActivationForm::kBf16 : own) << format.name;
      EXPECT_EQ(form.generated, generated ? ActivationForm::kBf16 : own) << format.name;
    }
  }
}

TEST(ProductForms, of_fast_take_bf16_weights_by_dot_products_where_there_are_some) {
  KernelTable table = simulated_row(false);
  table.has_bf16_dots = true;
  const ProductFormTable forms = product_forms(Profile::kFast, table);
  for (const FormatTraits& format : all_formats()) {
    const ProductForms& form = forms[static_cast<size_t>(format.format)];
    const bool dots = format.format == Format::kBf16;
    EXPECT_EQ(form.prompted, dots ? ActivationForm::kBf16Dots : activation_form(format.format));
    EXPECT_EQ(form.generated, form.prompted) << format.name;
  }
}

TEST(PromptAttention, is_in_bf16_under_fast_with_tiles_unless_the_cache_is_f32) {
  for (const bool has_tiles : {false, true}) {
    for (const Profile profile : {Profile::kExact, Profile::kFast}) {
      for (const KvFormat format :
           {KvFormat::kF32, KvFormat::kF16, KvFormat::kBf16, KvFormat::kQ8_0}) {
        const bool bf16 = has_tiles && profile == Profile::kFast && format != KvFormat::kF32;
        EXPECT_EQ(prompt_attention(profile, simulated_row(has_tiles), format),
                  bf16 ? AttentionForm::kBf16 : AttentionForm::kF32);
      }
    }
  }
}

// A form for which the table has no kernel could be called.
TEST(ProductForms, have_their_kernels_in_every_row) {
  for (const KernelTable* table : all_kernel_tables()) {
    for (const Profile profile : {Profile::kExact, Profile::kFast}) {
      const ProductFormTable forms = product_forms(profile, *table);
      for (const FormatTraits& format : all_formats()) {
        const ProductForms& form = forms[static_cast<size_t>(format.format)];
        EXPECT_NE(matmul_kernel(*table, format.format, form.prompted), nullptr);
        EXPECT_NE(matmul_kernel(*table, format.format, form.generated), nullptr);
      }
      if (prompt_attention(profile, *table, KvFormat::kF16) == AttentionForm::kBf16) {
        EXPECT_NE(table->attend_bf16, nullptr);
      }
    }
  }
}

}  // namespace

}  // namespace lockstep
