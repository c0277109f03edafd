#include "tests/engine/runtime/predicting_model.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <numeric>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "engine/model/gguf_file.h"
#include "engine/model/given_rows.h"
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

// Embeddings are of one length, and their column 0 is the same for all tokens: norms keep both so.
std::vector<float> with_constant_column(const GgufTensor& tensor, std::vector<float> values) {
  if (tensor.name != "token_embd.weight") return values;
  const size_t columns = values.size() / tensor.rows();
  const double squares = std::inner_product(values.begin(), values.end(), values.begin(), 0.0);
  const double usual = std::sqrt(squares / static_cast<double>(values.size()));
  for (auto row = values.begin(); row != values.end(); row += static_cast<ptrdiff_t>(columns)) {
    const auto end = row + static_cast<ptrdiff_t>(columns);
    const double own = std::sqrt(std::inner_product(row + 1, end, row + 1, 0.0));
    const double factor = usual * std::sqrt(static_cast<double>(columns - 1)) / own;
    for (auto value = row + 1; value != end; ++value) *value *= static_cast<float>(factor);
    *row = static_cast<float>(usual);
  }
  return values;
}

// Queries and keys are one large number, which comes from the embedding's constant column: their
// rotary positions make the score with the token's own key by far the greatest. Its value is its
// embedding, normed, and nothing else is added to it.
std::vector<float> foreseeing_eagle_values(const GgufTensor& tensor, std::vector<float> values) {
  constexpr float kLarge = 20;
  const std::string& name = tensor.name;
  const size_t columns = values.size() / tensor.rows();
  if (name.ends_with("norm.weight")) std::ranges::fill(values, 1.0F);
  if (!name.ends_with("norm.weight")) std::ranges::fill(values, 0.0F);
  const bool is_identity = name.contains("attn_v.") || name.contains("attn_output.");
  const bool is_large = name.contains("attn_q.") || name.contains("attn_k.");
  for (size_t row = 0; row < tensor.rows(); ++row) {
    if (is_identity) values[row * columns + row] = 1;
    if (is_large) values[row * columns] = kLarge;
  }
  return values;
}

// The model's last norm with these weights, or an assistant's: a token's embedding is then not the
// nearest one to itself.
std::vector<float> alternating_signs(size_t columns) {
  std::vector<float> signs(columns, 1);
  for (size_t column = 0; column < columns; column += 3) signs[column] = -1;
  return signs;
}

// The first columns of the layers' input are the embedding's, and so are those of the table. The
// layers add nothing.
std::vector<float> foreseeing_assistant_values(const GgufTensor& tensor, std::vector<float> values,
                                               std::span<const float> model_table) {
  const std::string& name = tensor.name;
  const size_t rows = tensor.rows();
  const size_t columns = values.size() / rows;
  if (name == "output_norm.weight") return alternating_signs(values.size());
  if (adds_to_residual(name)) return std::vector<float>(values.size());
  if (name == "nextn.pre_projection.weight") {
    std::ranges::fill(values, 0.0F);
    for (size_t row = 0; row < std::min(rows, columns / 2); ++row) values[row * columns + row] = 1;
  }
  if (name != "token_embd.weight") return values;
  const size_t model_columns = model_table.size() / rows;
  if (columns < model_columns) throw std::runtime_error("the table is too narrow");
  std::ranges::fill(values, 0.0F);
  for (size_t row = 0; row < rows; ++row) {
    std::ranges::copy(model_table.subspan(row * model_columns, model_columns),
                      values.begin() + static_cast<ptrdiff_t>(row * columns));
  }
  return values;
}

using ChangeValues =
    std::function<std::vector<float>(const GgufTensor& tensor, std::vector<float> values)>;

void write_changed_copy(const std::filesystem::path& path, const std::filesystem::path& copy,
                        const ChangeValues& change) {
  const GgufFile file = value_or_throw(GgufFile::open(path));
  if (path != copy) {
    std::filesystem::copy_file(path, copy, std::filesystem::copy_options::overwrite_existing);
  }
  std::vector<std::vector<float>> changed;
  for (const GgufTensor& tensor : file.tensors()) {
    if (tensor.format != Format::kF32) throw std::runtime_error(tensor.name + " is not F32");
    changed.push_back(change(tensor, value_or_throw(read_tensor(file, tensor))));
  }
  std::fstream out(copy, std::ios::binary | std::ios::in | std::ios::out);
  for (size_t index = 0; index < changed.size(); ++index) {
    out.seekp(static_cast<std::streamoff>(file.tensors()[index].offset));
    out.write(reinterpret_cast<const char*>(changed[index].data()),
              static_cast<std::streamsize>(changed[index].size() * sizeof(float)));
  }
  if (!out.flush()) throw std::runtime_error("cannot write " + copy.string());
}

}  // namespace

Model predicting_block(const std::string& path) {
  const GgufFile file = value_or_throw(GgufFile::open(path));
  return value_or_throw(build_predicting_block({.file = file}, 0));
}

BlockFile open_block(const std::string& path, const std::string& model_path) {
  GgufFile file = value_or_throw(GgufFile::open(path));
  if (path == model_path) return {std::move(file), predicting_block(path)};
  value_or_throw(borrow_shared_tensors(value_or_throw(GgufFile::open(model_path)), file));
  Model model = value_or_throw(build_drafting_model({.file = file}));
  model.graph.keep_all_keys();
  return {std::move(file), std::move(model)};
}

Model model_for(const std::string& model_path, const Model& block) {
  const GgufFile file = value_or_throw(GgufFile::open(model_path));
  Model model = value_or_throw(build_model({.file = file}));
  for (const ValueId value : value_or_throw(given_values(model, block))) model.graph.keep(value);
  return model;
}

void write_foreseeing_eagle(const std::string& path, const std::string& model_path,
                            const std::string& copy, const std::string& model_copy) {
  write_foreseeing_copy(model_path, model_copy);
  write_changed_copy(model_copy, model_copy, with_constant_column);
  write_changed_copy(path, copy, foreseeing_eagle_values);
}

void write_foreseeing_assistant(const std::string& path, const std::string& model_path,
                                const std::string& copy, const std::string& model_copy) {
  write_foreseeing_copy(model_path, model_copy);
  write_changed_copy(
      model_copy, model_copy, [](const GgufTensor& tensor, std::vector<float> values) {
        return tensor.name == "output_norm.weight" ? alternating_signs(values.size()) : values;
      });
  const GgufFile model = value_or_throw(GgufFile::open(model_copy));
  const auto table = value_or_throw(read_tensor(model, *model.find_tensor("token_embd.weight")));
  write_changed_copy(path, copy, [&](const GgufTensor& tensor, std::vector<float> values) {
    return foreseeing_assistant_values(tensor, std::move(values), table);
  });
}

void write_foreseeing_copy(const std::filesystem::path& path, const std::filesystem::path& copy) {
  write_changed_copy(path, copy, foreseeing_values);
}

}  // namespace lockstep
