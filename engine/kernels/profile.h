// Which arithmetic products and attention follow. A token's arithmetic depends on the profile, on
// the weights' format, and on whether the token was prompted or generated; on nothing else.
//
//   exact  prompts and generation compute one function, the same on every machine: products with
//          bf16 activations, but for F32 weights, and attention in f32. A key or value has the same
//          bits however its token came into the cache, and whichever instruction set computed it.
//   fast   each the fastest that the instruction set has. Where that is the same form for both,
//          what was said of the cache holds as well; where it is not (has_tiles), only what was
//          prompted in one way is the same.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "engine/base/result.h"
#include "engine/kernels/kernel_table.h"

namespace lockstep {

enum class Profile : uint8_t { kExact, kFast };

std::string_view profile_name(Profile profile);  // "exact", "fast"

// The forms in which activations enter products with weights of one format.
struct ProductForms {
  ActivationForm prompted = ActivationForm::kF32;
  ActivationForm generated = ActivationForm::kF32;

  friend bool operator==(const ProductForms&, const ProductForms&) = default;
};

// The two functions that attention is; see attention.h.
enum class AttentionForm : uint8_t { kF32, kBf16 };

using ProductFormTable = std::array<ProductForms, kFormatCount>;  // by Format

// Every format with activations of activation_form(): the profile fast without tiles and bf16 dot
// products.
ProductFormTable own_product_forms();
ProductFormTable product_forms(Profile profile, const KernelTable& table);

// The form of attention of prompted tokens: bf16 under `fast` with has_tiles, but f32 where the
// cache's elements are, which are kept so for their digits. Generated tokens attend in f32.
AttentionForm prompt_attention(Profile profile, const KernelTable& table, const KvFormats& format);

// A GPU has arithmetic of its own, whatever the profile: bf16, but f32 for F32 weights.
ProductFormTable gpu_product_forms();

// The profile called `name`, or the instruction set's own if `name` is "auto". Fails with
// kInvalidInput.
Result<Profile> choose_profile(std::string_view name, const KernelTable& table);

}  // namespace lockstep
