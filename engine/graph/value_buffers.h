// The places of the values of one rank's plan, and how long they are kept.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/base/range.h"
#include "engine/graph/activation_buffers.h"
#include "engine/graph/graph.h"
#include "engine/graph/plan.h"
#include "engine/graph/plan_target.h"
#include "engine/graph/split.h"
#include "engine/kernels/profile.h"

namespace lockstep {

// The readers of a value of the graph, and the forms that they read.
struct ValueUses {
  std::vector<size_t> consumers;  // the nodes that read it, ascending
  size_t count = 0;               // how many uses there are, the engine's included

  // The forms in which products read it, by ActivationForm.
  struct Form {
    bool prompted = false;
    bool generated = false;
    bool any() const { return prompted || generated; }
  };
  std::array<Form, kActivationFormCount> forms;
};

// The uses of all values, by ValueId.
std::vector<ValueUses> find_uses(const Graph& graph, const ProductFormTable& forms);

class ValueBuffers {
 public:
  // All must outlive this.
  ValueBuffers(const Graph& graph, const Split& split, const PlanOptions& options);

  const ValueUses& uses(ValueId value) const { return uses_[value]; }
  Rows rows(ValueId value) const { return rows_[value]; }
  void set_rows(ValueId value, Rows rows) { rows_[value] = rows; }
  bool is_placed(ValueId value) const { return buffer_[value] != kNone; }
  // Valid until the next value is placed.
  const Buffer& of(ValueId value) { return buffer_of(value); }

  // f32, the columns `held` of the value.
  Stretch place_plain(ValueId value, Arena arena, Range held);
  // The forms in which products read the value, of which this rank computes the columns `own`:
  // whole rows in the exchange arena where other ranks compute the rest.
  FormsOutput place_forms(ValueId value, Range own);
  // A norm's: the sums of its residual's squares beside its forms.
  ChunkSums place_chunk_sums(ValueId value, size_t columns, float epsilon);
  // `value` is computed in place over `with`.
  void share(ValueId value, ValueId with);
  // One of its uses is behind; the last one frees it.
  void consume(ValueId value);

  Forms forms(ValueId value);

  // For what is no value of the graph.
  ActivationBuffers& activations() { return activations_; }

  size_t row_count(ValueId value) const;

 private:
  Buffer& buffer_of(ValueId value);

  const Graph& graph_;
  const Split& split_;
  const PlanOptions& options_;
  ActivationBuffers activations_;
  std::vector<ValueUses> uses_;  // by value
  std::vector<Rows> rows_;       // by value
  std::vector<size_t> buffer_;   // by value: index into buffers_
  std::vector<Buffer> buffers_;
};

}  // namespace lockstep
