#include "engine/kernels/profile.h"

namespace lockstep {

namespace {

ProductForms forms_of(Format format, Profile profile, bool has_tiles, bool has_bf16_dots) {
  const ActivationForm own = activation_form(format);
  if (format == Format::kF32) return {own, own};
  if (profile == Profile::kExact) return {ActivationForm::kBf16, ActivationForm::kBf16};
  if (has_tiles) {
    // Generation takes BF16 weights through the tiles as well: on two cores of a Granite
    // Rapids 13.8 and 14.0 tokens/s of a 1B model against 13.4 and 13.5 in f32, and 8 sequences 100
    // against 89.
    return {ActivationForm::kBf16, format == Format::kBf16 ? ActivationForm::kBf16 : own};
  }
  if (has_bf16_dots && format == Format::kBf16) {
    return {ActivationForm::kBf16Dots, ActivationForm::kBf16Dots};
  }
  return {own, own};
}

ProductFormTable forms_for(Profile profile, bool has_tiles, bool has_bf16_dots) {
  ProductFormTable forms;
  for (size_t format = 0; format < kFormatCount; ++format) {
    forms[format] = forms_of(static_cast<Format>(format), profile, has_tiles, has_bf16_dots);
  }
  return forms;
}

// The instruction sets' own profiles. `exact` where it costs less than a twentieth, so nowhere yet:
// with a 1B model in Q4_0 on two cores of a Zen 4, avx512's `exact` computes prompts at 0.33 and
// generates at 0.25 of the speed of `fast`, whose prompts and generation are one function there as
// well (lockstepd bench --prompt 512 --generate 32 --arithmetic exact). amx, on two cores of a
// Granite Rapids: prompts 0.99, generation 0.61 (Q4_0), 0.60 (Q4_K_M), 0.88 (Q8_0).
struct OwnProfile {
  std::string_view instruction_set;
  Profile profile;
};
constexpr OwnProfile kOwnProfiles[] = {
    {"scalar", Profile::kFast},     {"avx2", Profile::kFast}, {"avx512", Profile::kFast},
    {"avx512bf16", Profile::kFast}, {"amx", Profile::kFast},
};

}  // namespace

std::string_view profile_name(Profile profile) {
  return profile == Profile::kExact ? "exact" : "fast";
}

ProductFormTable own_product_forms() {
  return forms_for(Profile::kFast, false, false);
}

ProductFormTable product_forms(Profile profile, const KernelTable& table) {
  return forms_for(profile, table.has_tiles, table.has_bf16_dots);
}

AttentionForm prompt_attention(Profile profile, const KernelTable& table, const KvFormats& format) {
  const bool bf16 = profile == Profile::kFast && table.has_tiles && format.keys != KvFormat::kF32 &&
                    format.values != KvFormat::kF32;
  return bf16 ? AttentionForm::kBf16 : AttentionForm::kF32;
}

ProductFormTable gpu_product_forms() {
  return forms_for(Profile::kExact, false, false);
}

Result<Profile> choose_profile(std::string_view name, const KernelTable& table) {
  if (name == "exact") return Profile::kExact;
  if (name == "fast") return Profile::kFast;
  if (name == "auto") {
    for (const OwnProfile& own : kOwnProfiles) {
      if (own.instruction_set == table.name) return own.profile;
    }
    return Profile::kFast;
  }
  return invalid_input("unknown arithmetic '{}'; known are: auto, exact, fast", name);
}

}  // namespace lockstep
