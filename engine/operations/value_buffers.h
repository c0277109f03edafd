// The places of the values of one rank's plan, and how long they are kept.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/base/range.h"
#include "engine/graph/activation_buffers.h"
#include "engine/graph/graph.h"
#include "engine/graph/split.h"
#include "engine/kernels/profile.h"
#include "engine/operations/plan_target.h"

namespace lockstep {

// The forms in which products read a value.
struct ReadForms {
  struct Form {
    bool prompted = false;
    bool generated = false;
    bool any() const { return prompted || generated; }
  };
  std::array<Form, kActivationFormCount> forms;  // by ActivationForm
  bool any() const { return std::ranges::any_of(forms, &Form::any); }
};

class ValueBuffers {
 public:
  // All must outlive this.
  ValueBuffers(const Graph& graph, const Split& split, const PlanOptions& options);

  const ValueReaders& readers(ValueId value) const { return readers_[value]; }
  bool is_multiplied(ValueId value) const { return read_forms_[value].any(); }
  // Whether anything but products reads it.
  bool is_read_plain(ValueId value) const;
  // One use more, which is never behind: the value outlives the pass.
  void keep(ValueId value) { ++readers_[value].count; }

  bool is_placed(ValueId value) const { return buffer_[value] != kNone; }
  // Valid until the next value is placed.
  const Buffer& of(ValueId value) { return buffer_of(value); }

  // f32, the columns `held` of the value.
  Stretch place_plain(ValueId value, Arena arena, Range held);
  // The same where another rank has computed all columns, and copies them to these rows.
  void place_handed(ValueId value, const Stretch& rows, Range held);
  // The forms in which products read the value, of which this rank computes the columns `own`:
  // whole rows in the exchange arena where other ranks compute the rest.
  FormsOutput place_forms(ValueId value, Range own);
  // Whole rows in f32, of which this rank computes the columns `own`, and other ranks the rest.
  FormsOutput place_whole(ValueId value, Range own);
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
  std::vector<ValueReaders> readers_;  // by value
  std::vector<ReadForms> read_forms_;  // by value
  std::vector<size_t> buffer_;         // by value: index into buffers_
  std::vector<Buffer> buffers_;
};

}  // namespace lockstep
