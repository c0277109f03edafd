#include "engine/operations/value_buffers.h"

#include "engine/base/check.h"

namespace lockstep {

namespace {

std::vector<ReadForms> find_read_forms(const Graph& graph, const ProductFormTable& forms) {
  std::vector<ReadForms> read(graph.value_count());
  for (const GraphNode& node : graph.nodes()) {
    for (const ValueId input : node.inputs) {
      const WeightId weight = multiplied_weight(node, input);
      if (weight == kNone) continue;
      const ProductForms product = forms[static_cast<size_t>(graph.weights()[weight].format)];
      read[input].forms[static_cast<size_t>(product.prompted)].prompted = true;
      read[input].forms[static_cast<size_t>(product.generated)].generated = true;
    }
  }
  return read;
}

}  // namespace

ValueBuffers::ValueBuffers(const Graph& graph, const Split& split, const PlanOptions& options)
    : graph_(graph),
      split_(split),
      options_(options),
      readers_(find_readers(graph)),
      read_forms_(find_read_forms(graph, options.forms)),
      buffer_(graph.value_count(), kNone) {}

bool ValueBuffers::is_read_plain(ValueId value) const {
  const std::vector<size_t>& nodes = readers_[value].nodes;
  return nodes.size() < readers_[value].count || std::ranges::any_of(nodes, [&](size_t reader) {
           return multiplied_weight(graph_.nodes()[reader], value) == kNone;
         });
}

size_t ValueBuffers::row_count(ValueId value) const {
  switch (graph_.rows(value)) {
    case Rows::kTokens:
      return options_.tokens_at_once();
    case Rows::kLogits:
      return options_.logit_rows;
    case Rows::kExperts:
      return options_.tokens_at_once() * graph_.chosen_experts();
  }
  CHECK(false, "value {} has rows of no kind", value);
}

Buffer& ValueBuffers::buffer_of(ValueId value) {
  if (buffer_[value] == kNone) {
    buffer_[value] = buffers_.size();
    buffers_.emplace_back().references = readers_[value].count;
  }
  return buffers_[buffer_[value]];
}

Stretch ValueBuffers::place_plain(ValueId value, Arena arena, Range held) {
  Buffer& buffer = buffer_of(value);
  buffer.plain = activations_.allocate_f32(arena, held.size(), row_count(value));
  buffer.held = held;
  return *buffer.plain;
}

void ValueBuffers::place_handed(ValueId value, const Stretch& rows, Range held) {
  Buffer& buffer = buffer_of(value);
  buffer.plain = rows;
  buffer.held = held;
}

FormsOutput ValueBuffers::place_forms(ValueId value, Range own) {
  const bool gathered = split_.values[value].gathered;
  Buffer& buffer = buffer_of(value);
  buffer.form_columns = gathered ? graph_.columns(value) : own.size();
  for (size_t form = 0; form < kActivationFormCount; ++form) {
    if (!read_forms_[value].forms[form].any()) continue;
    buffer.forms[form] = activations_.allocate(static_cast<ActivationForm>(form),
                                               gathered ? Arena::kExchange : Arena::kScratch,
                                               buffer.form_columns, row_count(value));
  }
  return {forms(value), gathered ? own.begin : 0, gathered, own.size()};
}

FormsOutput ValueBuffers::place_whole(ValueId value, Range own) {
  Buffer& buffer = buffer_of(value);
  const size_t columns = graph_.columns(value);
  buffer.whole = activations_.allocate_f32(Arena::kExchange, columns, row_count(value));
  FormsOutput output{.forms = {.columns = columns, .buffers = {}},
                     .first_column = own.begin,
                     .gather = true,
                     .columns = own.size()};
  output.forms[ActivationForm::kF32] = {buffer.whole->at<std::byte>(), buffer.whole->stride_bytes,
                                        /*prompted=*/true, /*generated=*/true};
  return output;
}

ChunkSums ValueBuffers::place_chunk_sums(ValueId value, size_t columns, float epsilon) {
  const Arena arena = split_.values[value].gathered ? Arena::kExchange : Arena::kScratch;
  Buffer& buffer = buffer_of(value);
  buffer.chunk_sums = activations_.allocate_f32(
      arena, (columns + kChunkColumns - 1) / kChunkColumns, row_count(value));
  const ChunkSums chunks = {buffer.chunk_sums->at<float>(), buffer.chunk_sums->floats()};
  buffer.norm = {chunks, columns, epsilon};
  return chunks;
}

void ValueBuffers::share(ValueId value, ValueId with) {
  CHECK(is_placed(with), "value {} is computed over value {}, which has no place", value, with);
  buffer_[value] = buffer_[with];
  buffer_of(value).references += readers_[value].count;
  consume(with);
}

void ValueBuffers::consume(ValueId value) {
  Buffer& buffer = buffer_of(value);
  CHECK(buffer.references > 0, "value {} is used more often than it was counted", value);
  if (--buffer.references == 0) activations_.release(buffer);
}

Forms ValueBuffers::forms(ValueId value) {
  const Buffer& buffer = buffer_of(value);
  Forms forms;
  forms.columns = buffer.form_columns;
  for (size_t form = 0; form < kActivationFormCount; ++form) {
    if (!buffer.forms[form]) continue;
    const ReadForms::Form& read = read_forms_[value].forms[form];
    forms.buffers[form] = {buffer.forms[form]->at<std::byte>(), buffer.forms[form]->stride_bytes,
                           read.prompted, read.generated};
  }
  return forms;
}

}  // namespace lockstep
