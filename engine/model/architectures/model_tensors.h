// The tensors that an architecture's graph reads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/result.h"
#include "engine/graph/graph.h"
#include "engine/model/gguf_file.h"

namespace lockstep {

enum class Presence : uint8_t {
  kOptional,  // used where the file has it
  kRequired,
};

// Adds the file's tensors to the graph after checking their shapes; the first error stays, and
// what is added after it is of no use.
class ModelTensors {
 public:
  ModelTensors(const GgufFile& file, Graph& graph) : file_(file), graph_(graph) {}

  WeightId matrix(const std::string& name, size_t rows, size_t columns);
  // kNone where it is optional and the file has none.
  WeightId vector(const std::string& name, size_t columns, Presence presence);
  // One matrix for each expert, all in one format. For "blk.0.ffn_up" they lie one after the other
  // in the tensor "blk.0.ffn_up_exps.weight"; older files have "blk.0.ffn_up.E.weight" for each.
  std::vector<WeightId> experts(const std::string& name, size_t count, size_t rows, size_t columns);

  bool has(const std::string& name) const { return file_.find_tensor(name) != nullptr; }
  bool failed() const { return error_.has_value(); }
  Result<void> result() const;

 private:
  std::vector<WeightId> experts_of_one_tensor(const std::string& name, size_t count, size_t rows,
                                              size_t columns);
  std::vector<WeightId> experts_of_their_own(const std::string& name, size_t count, size_t rows,
                                             size_t columns);
  const GgufTensor* find(const std::string& name, Presence presence);
  WeightId wrong_shape(const GgufTensor& tensor, size_t rows, size_t columns);
  void fail(const Error& error);

  const GgufFile& file_;
  Graph& graph_;
  std::optional<Error> error_;
};

}  // namespace lockstep
