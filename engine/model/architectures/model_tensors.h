// The tensors that an architecture's graph reads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
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

// A matrix that multiplies a layer's input: "attn_q" for the tensors blk.N.attn_q.weight and .bias.
struct ProductName {
  std::string name;
  size_t rows = 0;
};

struct Product {
  WeightId weight = kNone;
  WeightId bias = kNone;
};

// Adds the file's tensors to the graph after checking their shapes; the first error stays, and
// what is added after it is of no use.
class ModelTensors {
 public:
  ModelTensors(const GgufFile& file, Graph& graph) : file_(file), graph_(graph) {}

  // A matrix of products: beside "<...>.weight" the file may have "<...>.scale", one value.
  WeightId matrix(const std::string& name, size_t rows, size_t columns);
  // A matrix for each head, one after the other in a tensor of three dimensions: their rows.
  WeightId matrix_of_heads(const std::string& name, size_t heads, size_t rows, size_t columns);
  // A matrix without a scale: its rows are embedded, or "<...>.scale" is something else.
  WeightId matrix_alone(const std::string& name, size_t rows, size_t columns);
  // kNone where it is optional and the file has none.
  WeightId vector(const std::string& name, size_t columns, Presence presence);
  // The rows of a tensor of two dimensions, one after the other, as one vector.
  WeightId vector_of_heads(const std::string& name, size_t heads, size_t columns,
                           Presence presence);
  // Rows [first, first + count) of a tensor with two dimensions of which it has `rows`, likewise.
  WeightId rows_of_vector(const std::string& name, size_t rows, size_t columns, size_t first,
                          size_t count);
  // Elements [first, first + count) of a vector of `columns`; kNone where the file has none.
  WeightId part_of_vector(const std::string& name, size_t columns, size_t first, size_t count);
  // The value of a tensor that holds one; none where the file has none.
  std::optional<float> number(const std::string& name);
  // Marks all tensors whose names begin so as not used, and so to be named in the log: they belong
  // to `part`, which the model does without.
  void leave_out(const std::string& prefix, const std::string& part);

  // <block><name>.weight and its bias.
  Product product(const std::string& block, const ProductName& name, size_t columns,
                  Presence bias = Presence::kOptional);
  // The matrices that multiply one input, each in a tensor of its own or, in this order, as rows of
  // the tensor <block><fused>.weight; there alone, if they have no names. Biases lie likewise. The
  // first `used` of them alone are read.
  std::vector<Product> products(const std::string& block, std::span<const ProductName> names,
                                const std::string& fused, size_t columns,
                                Presence biases = Presence::kOptional, size_t used = kNone);

  // One matrix for each expert, all in one format. For "blk.0.ffn_up" they lie one after the other
  // in the tensor "blk.0.ffn_up_exps.weight", whose scales are one value for each in
  // "blk.0.ffn_up_exps.scale"; older files have "blk.0.ffn_up.E.weight" for each.
  std::vector<WeightId> experts(const std::string& name, size_t count, size_t rows, size_t columns);
  // The matrices of `names`, each with `rows` rows, by name. The tensor <fused>_exps.weight may
  // hold them all: expert by expert, in each the matrices of that expert in this order.
  std::vector<std::vector<WeightId>> experts(std::span<const std::string> names,
                                             const std::string& fused, size_t count, size_t rows,
                                             size_t columns);

  // A matrix for each of the experts, the same for `group` of them that follow one another: those
  // of one tensor of this name.
  std::vector<WeightId> group_experts(const std::string& tensor, size_t experts, size_t group,
                                      size_t rows, size_t columns);

  // A vector for each expert, the rows of the tensor "<name>_exps.bias"; none without it.
  std::vector<WeightId> expert_biases(const std::string& name, size_t count, size_t columns);

  // The names of the tensors that gave scales, and other numbers that the graph itself has.
  const std::set<std::string>& scale_tensors() const { return scale_tensors_; }
  // By name the part that leave_out() was given.
  const std::map<std::string, std::string>& unused_tensors() const { return unused_tensors_; }

  bool has(const std::string& name) const { return file_.find_tensor(name) != nullptr; }
  bool failed() const { return error_.has_value(); }
  Result<void> result() const;

 private:
  // The rows that an expert's matrix has in a tensor of all experts: `rows` of `stride`, from
  // `first` on.
  struct ExpertRows {
    size_t rows = 0;
    size_t stride = 0;
    size_t first = 0;
  };

  bool is_fused(const std::string& block, std::span<const ProductName> names,
                const std::string& fused) const;
  std::vector<WeightId> experts_of_one_tensor(const std::string& name, size_t count,
                                              const ExpertRows& rows, size_t columns);
  std::vector<WeightId> experts_of_their_own(const std::string& name, size_t count, size_t rows,
                                             size_t columns);
  // Weight::scale of each of the `count` matrices in the tensor `weight`.
  std::vector<float> scales(std::string weight, size_t count);
  const GgufTensor* find(const std::string& name, Presence presence);
  const GgufTensor* find_matrix(const std::string& name, size_t rows, size_t columns);
  // A tensor of three dimensions, of which the last may be left out where it is 1.
  const GgufTensor* find_matrices(const std::string& name, size_t rows, size_t columns,
                                  size_t count, std::string_view of);
  const GgufTensor* wrong_shape(const GgufTensor& tensor, size_t rows, size_t columns);
  void fail(const Error& error);

  const GgufFile& file_;
  Graph& graph_;
  std::set<std::string> scale_tensors_;
  std::map<std::string, std::string> unused_tensors_;
  std::optional<Error> error_;
};

}  // namespace lockstep
