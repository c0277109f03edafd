#include "engine/kernels/profile.h"

namespace lockstep {

namespace {

ProductForms forms_of(Format format, Profile profile, bool has_tiles) {
  const ActivationForm own = activation_form(format);
  if (format == Format::kF32) return {own, own};
  if (profile == Profile::kExact) return {ActivationForm::kBf16, ActivationForm::kBf16};
  return {has_tiles ? ActivationForm::kBf16 : own, own};
}

ProductFormTable forms_for(Profile profile, bool has_tiles) {
  ProductFormTable forms;
  for (size_t format = 0; format < kFormatCount; ++format) {
    forms[format] = forms_of(static_cast<Format>(format), profile, has_tiles);
  }
  return forms;
}

}  // namespace

std::string_view profile_name(Profile profile) {
  return profile == Profile::kExact ? "exact" : "fast";
}

ProductFormTable own_product_forms() {
  return forms_for(Profile::kFast, false);
}

ProductFormTable product_forms(Profile profile, const KernelTable& table) {
  return forms_for(profile, table.has_tiles);
}

Result<Profile> choose_profile(std::string_view name, const KernelTable& table) {
  (void)table;
  if (name == "exact") return Profile::kExact;
  if (name == "fast" || name == "auto") return Profile::kFast;
  return invalid_input("unknown arithmetic '{}'; known are: auto, exact, fast", name);
}

}  // namespace lockstep
