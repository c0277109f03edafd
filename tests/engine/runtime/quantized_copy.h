// Copies of model files whose matrices are F32, with those in Q8_0 whose rows are whole blocks.
// What make_family_fixtures.py and make_encoder_fixtures.py expect of such copies is stored beside
// the files: is_quantized() in scripts/models/make_logits_fixtures.py is the same rule.
#pragma once

#include <filesystem>

namespace lockstep {

// Throws std::runtime_error where the file cannot be read.
void write_quantized_copy(const std::filesystem::path& path, const std::filesystem::path& copy);

}  // namespace lockstep
