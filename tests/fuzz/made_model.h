// Small models of any shape, made of a fuzzer's input: metadata and tensors that agree, and then
// changes of both.
#pragma once

#include <fuzzer/FuzzedDataProvider.h>

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "tests/engine/model/gguf_writer.h"

namespace lockstep {

class MadeModel {
 public:
  // Takes from `input` the shape, the format of all matrices, and up to eight changes.
  explicit MadeModel(FuzzedDataProvider& input);

  std::vector<std::byte> bytes() const;

 private:
  using Value = std::variant<uint32_t, uint64_t, int32_t, float, bool, std::string>;

  void add_matrix(const std::string& name, uint64_t columns, uint64_t rows, uint64_t depth = 1);
  void add_vector(const std::string& name, uint64_t columns);
  void add_metadata(const std::string& architecture, FuzzedDataProvider& input);
  void add_layer(uint64_t layer, bool has_biases, bool has_norms);
  void change(FuzzedDataProvider& input);
  void change_key(FuzzedDataProvider& input);
  void change_tensor(FuzzedDataProvider& input);
  std::string any_key(FuzzedDataProvider& input) const;

  uint64_t columns_ = 0;
  uint64_t heads_ = 0;
  uint64_t kv_heads_ = 0;
  uint64_t head_dimension_ = 0;
  uint64_t feed_forward_ = 0;
  uint64_t experts_ = 0;  // 0: it is no mixture
  Format format_ = Format::kF32;
  std::string architecture_;
  std::map<std::string, Value> metadata_;
  std::vector<test::GgufWriter::Tensor> tensors_;
};

}  // namespace lockstep
