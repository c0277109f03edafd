#include "tests/engine/runtime/predicting_model.h"

#include <algorithm>
#include <fstream>
#include <numeric>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "engine/model/gguf_file.h"
#include "tests/engine/runtime/value_or_throw.h"

namespace lockstep {
namespace {

// Whether a layer's tensor makes what is added to the residual, in any of the fixtures.
bool adds_to_residual(std::string_view name) {
  return name.starts_with("blk.") &&
         (name.contains("attn_output.") || name.contains("ssm_out.") || name.contains("ffn_down"));
}

// Embeddings have no mean: norms that subtract it give what others do.
void subtract_means(std::vector<float>& rows, size_t columns) {
  for (auto row = rows.begin(); row != rows.end(); row += static_cast<ptrdiff_t>(columns)) {
    const auto end = row + static_cast<ptrdiff_t>(columns);
    const float mean = std::accumulate(row, end, 0.0F) / static_cast<float>(columns);
    std::for_each(row, end, [mean](float& value) { value -= mean; });
  }
}

bool is_last_norm(std::string_view name) {
  return name == "output_norm.weight" || name.contains("layer_output_norm.") ||
         name.contains("nextn.shared_head_norm.");
}

// The block's input is the token's embedding, normed; its norms have no weights.
std::vector<float> foreseeing_values(const GgufTensor& tensor, std::vector<float> values) {
  if (adds_to_residual(tensor.name)) return std::vector<float>(values.size());
  if (tensor.name.contains("nextn.enorm.") || is_last_norm(tensor.name)) {
    return std::vector<float>(values.size(), 1);
  }
  if (tensor.name == "token_embd.weight") subtract_means(values, values.size() / tensor.rows());
  if (!tensor.name.contains("nextn.eh_proj.")) return values;
  std::ranges::fill(values, 0);
  const size_t columns = values.size() / tensor.rows();
  for (size_t row = 0; row < tensor.rows(); ++row) values[row * columns + row] = 1;
  return values;
}

}  // namespace

Model predicting_block(const std::string& path) {
  const GgufFile file = value_or_throw(GgufFile::open(path));
  return value_or_throw(build_predicting_block({.file = file}, 0));
}

void write_foreseeing_copy(const std::filesystem::path& path, const std::filesystem::path& copy) {
  const GgufFile file = value_or_throw(GgufFile::open(path));
  std::filesystem::copy_file(path, copy, std::filesystem::copy_options::overwrite_existing);
  std::fstream out(copy, std::ios::binary | std::ios::in | std::ios::out);
  for (const GgufTensor& tensor : file.tensors()) {
    if (tensor.format != Format::kF32) throw std::runtime_error(tensor.name + " is not F32");
    const std::vector<float> values = value_or_throw(read_tensor(file, tensor));
    const std::vector<float> changed = foreseeing_values(tensor, values);
    out.seekp(static_cast<std::streamoff>(tensor.offset));
    out.write(reinterpret_cast<const char*>(changed.data()),
              static_cast<std::streamsize>(changed.size() * sizeof(float)));
  }
  if (!out.flush()) throw std::runtime_error("cannot write " + copy.string());
}

}  // namespace lockstep
