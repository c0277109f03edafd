#include "engine/kernels/activation.h"

namespace lockstep {

namespace {

constexpr size_t kAlignment = 64;

size_t aligned(size_t bytes) {
  return round_up(bytes, kAlignment);
}

}  // namespace

ActivationForm activation_form(Format weights) {
  return traits(weights).is_quantized() ? ActivationForm::kQ8 : ActivationForm::kF32;
}

Q8Row q8_row(size_t columns) {
  const size_t blocks = columns / kQ8BlockElements;
  Q8Row row{};
  row.scales = aligned(columns * sizeof(int8_t));
  row.sums = row.scales + aligned(blocks * sizeof(float));
  row.first_sums = row.sums + aligned(blocks * sizeof(int32_t));
  row.scaled_sums = row.first_sums + aligned(blocks * sizeof(int32_t));
  row.size_bytes = row.scaled_sums + aligned(blocks * sizeof(float));
  return row;
}

size_t activation_row_bytes(ActivationForm form, size_t columns) {
  switch (form) {
    case ActivationForm::kF32:
      return aligned(columns * sizeof(float));
    case ActivationForm::kBf16:
    case ActivationForm::kBf16Dots:
      return aligned(columns * sizeof(uint16_t)) | kAlignment;
    case ActivationForm::kQ8:
      break;
  }
  return q8_row(columns).size_bytes;
}

}  // namespace lockstep
