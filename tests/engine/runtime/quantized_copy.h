// Copies of model files whose matrices are F32, with those in Q8_0 whose rows are whole blocks.
// The logits and rows of such copies lie beside the files: make_family_fixtures.py and
// make_encoder_fixtures.py write them. is_quantized() in scripts/models/make_logits_fixtures.py
// chooses the same matrices.
#pragma once

#include <filesystem>

namespace lockstep {

// Throws std::runtime_error where the file cannot be read.
void write_quantized_copy(const std::filesystem::path& path, const std::filesystem::path& copy);

}  // namespace lockstep
