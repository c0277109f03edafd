#include "engine/planner/split_graph.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <numeric>
#include <optional>
#include <ranges>
#include <set>
#include <span>

#include "engine/base/check.h"
#include "engine/operations/operation_table.h"
#include "engine/planner/cut_units.h"
#include "engine/planner/layer_split.h"
#include "engine/planner/product_roles.h"

namespace lockstep {
namespace {

// Slices begin at a whole number of panels and of activation blocks: the first where a rank gets
// many of them, the second where it gets few.
constexpr size_t kRowsPreferred = 64;
constexpr size_t kRowsLeast = 32;
constexpr size_t kUnitsPerRank = 8;

size_t row_unit(size_t total, size_t rank_count) {
  return total >= kRowsPreferred * kUnitsPerRank * rank_count ? kRowsPreferred : kRowsLeast;
}

std::vector<Range> scaled(const std::vector<Range>& ranges, size_t factor) {
  std::vector<Range> result;
  for (const Range& range : ranges) result.push_back({range.begin * factor, range.end * factor});
  return result;
}

// The first rank that has a share of the work and none of these ranges; none: all that have a share
// have one.
std::optional<size_t> first_without(const std::vector<Range>& ranges,
                                    std::span<const double> shares) {
  for (size_t rank = 0; rank < ranges.size(); ++rank) {
    if (shares[rank] > 0 && ranges[rank].empty()) return rank;
  }
  return std::nullopt;
}

class Splitter {
 public:
  Splitter(const Graph& graph, const Shares& shares, Strategy strategy,
           const std::set<ValueId>& held)
      : graph_(graph),
        shares_(shares),
        held_(held),
        roles_(graph),
        units_(graph, roles_, strategy == Strategy::kReduce) {
    CHECK(shares.dense.size() == shares.experts.size(), "shares of {} and of {} ranks",
          shares.dense.size(), shares.experts.size());
    split_.strategy = strategy;
    split_.rank_count = shares.dense.size();
    split_.weights.resize(graph.weights().size());
    split_.values.resize(graph.value_count());
    find_mixtures();
    find_readers();
  }

  Result<Split> make();

 private:
  struct Heads {
    std::vector<Range> queries;
    std::vector<Range> kv;  // those that the queries attend to; ranks may share some
  };

  void find_mixtures();
  void find_readers();
  // The shares of the product's weights, or of the router's.
  std::span<const double> shares_of(const GraphNode& product) const;
  // The rank that has all columns of what a product reads, if that is so and no other rank reads
  // the residual to which the product adds.
  std::optional<size_t> sole_rank(const GraphNode& product) const;

  void split_product(const GraphNode& node);
  void split_by_rows(const GraphNode& node, std::vector<Range> ranges, bool gathered);
  void split_by_columns(const GraphNode& node);
  Heads cut_heads(const GraphNode& attention) const;
  std::vector<Range> cut_activation(size_t total, size_t unit, std::span<const double> shares);
  ValueId cut_before(ValueId value) const;
  void split_as_inputs(const GraphNode& node);
  std::optional<std::vector<Range>> heads_of(ValueId value, size_t head_count) const;
  void split_at_heads(const GraphNode& node);
  void find_factors(const GraphNode& node);
  void split_convolution(const GraphNode& node);
  void split_value_heads(const GraphNode& node);
  bool is_cut_at_chunks(ValueId value) const;
  bool is_held_whole(ValueId value) const;
  bool lacks_columns(const GraphNode& product, const ValueSplit& input) const;
  bool is_read_whole(const GraphNode& node) const;
  void split_node(const GraphNode& node);
  ValueSplit sliced(std::vector<Range> columns, bool gathered) const;

  Result<void> check_ranks() const;

  const Graph& graph_;
  const Shares& shares_;
  const std::set<ValueId>& held_;  // the outputs of products that every rank computes in full
  const ProductRoles roles_;
  const CutUnits units_;
  std::map<ValueId, size_t> mixtures_;  // by routing: which of the layers with experts
  std::map<std::vector<double>, std::vector<double>> owed_;  // by shares, by rank: units
  std::vector<std::set<size_t>> readers_;                    // by value: ranks that compute with it
  Split split_;
};

void Splitter::find_mixtures() {
  for (const GraphNode& node : graph_.nodes()) {
    if (node.operation == Operation::kRoute) mixtures_.emplace(node.output, mixtures_.size());
  }
}

// Finds the readers of every output that is no product's.
void Splitter::find_readers() {
  readers_.resize(graph_.value_count());
  for (const GraphNode& node : graph_.nodes() | std::views::reverse) {
    std::set<size_t> readers = readers_[node.output];
    if (is_product(node)) {
      readers.clear();
      const std::span<const double> shares = shares_of(node);
      for (size_t rank = 0; rank < shares.size(); ++rank) {
        if (shares[rank] > 0) readers.insert(rank);
      }
    }
    for (const ValueId input : node.inputs) readers_[input].insert(readers.begin(), readers.end());
  }
}

std::span<const double> Splitter::shares_of(const GraphNode& product) const {
  ValueId routing = kNone;
  if (!product.experts.empty()) {
    routing = product.inputs[1];
  } else if (roles_.role_of(product) == Role::kScores) {
    routing = roles_.routing_of(product).output;
  }
  const bool is_apart = routing != kNone && mixtures_.at(routing) < shares_.apart_layers;
  return is_apart ? shares_.experts : shares_.dense;
}

std::optional<size_t> Splitter::sole_rank(const GraphNode& product) const {
  const std::set<size_t>& readers = readers_[roles_.consumer(product.output)->output];
  if (split_.rank_count == 1 || readers.size() != 1) return std::nullopt;
  const size_t rank = *readers.begin();
  const ValueId input = product.inputs[0];
  const bool has_all = split_.values[input].columns[rank].size() == graph_.columns(input);
  return has_all ? std::optional(rank) : std::nullopt;
}

Splitter::Heads Splitter::cut_heads(const GraphNode& attention) const {
  const size_t group = attention.head_count / attention.kv_head_count;
  const size_t least = units_.least_heads(attention);
  Heads heads;
  heads.queries = cut(attention.head_count, std::lcm(group, least), shares_.dense);
  if (first_without(heads.queries, shares_.dense)) {
    heads.queries = cut(attention.head_count, least, shares_.dense);
  }
  for (const Range& queries : heads.queries) {
    heads.kv.push_back(queries.empty()
                           ? Range{}
                           : Range{queries.begin / group, (queries.end + group - 1) / group});
  }
  return heads;
}

// If there are too few whole blocks for every rank (3 of 256 columns over 4 ranks), some ranks have
// none of a layer, and others have none of the next: a unit goes to the rank that is furthest below
// its share of all layers so far. So memory follows the shares over the layers, and in each layer
// no rank has more than its share rounded up. Both products of a gate are cut alike.
std::vector<Range> Splitter::cut_activation(size_t total, size_t unit,
                                            std::span<const double> shares) {
  std::vector<Range> ranges = cut(total, unit, shares);
  if (split_.strategy == Strategy::kGather || !first_without(ranges, shares)) return ranges;
  const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  const size_t units = (total + unit - 1) / unit;
  std::vector<double>& owed = owed_[{shares.begin(), shares.end()}];
  owed.resize(shares.size());
  for (size_t rank = 0; rank < shares.size(); ++rank) {
    owed[rank] += static_cast<double>(units) * shares[rank] / sum;
  }
  std::vector<size_t> counts(shares.size());
  for (size_t given = 0; given < units; ++given) {
    const auto most = std::ranges::max_element(owed);
    *most -= 1;
    ++counts[static_cast<size_t>(most - owed.begin())];
  }
  size_t begin = 0;
  for (size_t rank = 0; rank < shares.size(); ++rank) {
    const size_t end = std::min(total, begin + counts[rank] * unit);
    ranges[rank] = {begin, end};
    begin = end;
  }
  return ranges;
}

// The value if it is cut already, or the one as which it will be: a delta net's results as its
// values are, and norms of heads likewise.
ValueId Splitter::cut_before(ValueId value) const {
  while (split_.values[value].kind != SplitKind::kSliced) {
    const GraphNode& node = graph_.producer(value);
    const SplitRule rule = row_of(node.operation).split;
    const bool is_of_heads =
        rule == SplitRule::kHeads ||
        (rule == SplitRule::kValueHeads && heads_of(node.inputs[0], node.head_count).has_value());
    if (!is_of_heads) break;
    value = node.inputs[0];
  }
  return value;
}

ValueSplit Splitter::sliced(std::vector<Range> columns, bool gathered) const {
  return {SplitKind::kSliced, std::move(columns), gathered};
}

void Splitter::split_by_rows(const GraphNode& node, std::vector<Range> ranges, bool gathered) {
  for (const WeightId bias : biases_of(node)) {
    split_.weights[bias] = {SplitKind::kSliced, true, ranges};
  }
  for (const WeightId weight : matrices_of(node)) {
    split_.weights[weight] = {SplitKind::kSliced, false, ranges};
  }
  split_.values[node.output] = sliced(std::move(ranges), gathered);
}

void Splitter::split_by_columns(const GraphNode& node) {
  const std::vector<Range>& ranges = split_.values[node.inputs[0]].columns;
  for (const WeightId weight : matrices_of(node)) {
    split_.weights[weight] = {SplitKind::kSliced, true, ranges};
  }
  std::vector<Range> first(split_.rank_count);
  const auto adds_it = std::ranges::find_if_not(ranges, &Range::empty);
  first[static_cast<size_t>(adds_it - ranges.begin())] = {0, graph_.columns(node.output)};
  for (const WeightId bias : biases_of(node)) {
    split_.weights[bias] = {SplitKind::kSliced, true, first};
  }
  split_.values[node.output] = {SplitKind::kPartial, {}, false};
}

void Splitter::split_product(const GraphNode& node) {
  const ValueSplit& input = split_.values[node.inputs[0]];
  const size_t rows = graph_.columns(node.output);
  const bool of_slices =
      input.kind == SplitKind::kSliced && !input.gathered && !is_held_whole(node.inputs[0]);
  if (of_slices && roles_.role_of(node) == Role::kResidual) {
    const auto owner = sole_rank(node);
    if (!owner) return split_by_columns(node);
    std::vector<Range> ranges(split_.rank_count);
    ranges[*owner] = {0, rows};
    return split_by_rows(node, std::move(ranges), false);
  }
  const size_t unit = row_unit(rows, split_.rank_count);
  const std::span<const double> shares = shares_of(node);
  switch (roles_.role_of(node)) {
    case Role::kQueries: {
      const GraphNode& attention = roles_.attention_of(node);
      const std::vector<Range> heads = cut_heads(attention).queries;
      if (const WeightId sinks = attention.attention.sinks; sinks != kNone) {
        split_.weights[sinks] = {SplitKind::kSliced, true, heads};
      }
      return split_by_rows(node, scaled(heads, rows / attention.head_count), false);
    }
    case Role::kKeys:
    case Role::kValues: {
      const GraphNode& attention = roles_.attention_of(node);
      return split_by_rows(node, scaled(cut_heads(attention).kv, rows / attention.kv_head_count),
                           false);
    }
    // Every rank that has experts finds out by itself which ones a token goes to: nothing has to be
    // exchanged for it, and the matrix is small.
    case Role::kScores: {
      std::vector<Range> ranges;
      for (const double share : shares) ranges.push_back(share > 0 ? Range{0, rows} : Range{});
      return split_by_rows(node, std::move(ranges), false);
    }
    // As small, and found out by every rank that has the input.
    case Role::kFactors: {
      std::vector<Range> ranges(split_.rank_count, {0, rows});
      for (size_t rank = 0; of_slices && rank < split_.rank_count; ++rank) {
        if (input.columns[rank].size() < graph_.columns(node.inputs[0])) ranges[rank] = {};
      }
      return split_by_rows(node, std::move(ranges), false);
    }
    case Role::kActivation: {
      const GraphNode& reader = *roles_.consumer(node.output);
      size_t block = units_.block_behind(node.output, reader);
      // As what is read beside it, a gate's other product say, if that is cut and as wide.
      for (const ValueId product : reader.inputs) {
        const ValueId before = cut_before(product);
        if (split_.values[before].kind == SplitKind::kSliced && graph_.columns(before) == rows) {
          return split_by_rows(node, split_.values[before].columns, false);
        }
        const GraphNode& producer = graph_.producer(product);
        if (is_product(producer)) block = std::lcm(block, units_.bias_block(producer));
      }
      return split_by_rows(node, cut_activation(rows, std::lcm(unit, block), shares), false);
    }
    case Role::kResidual:
      return split_by_rows(
          node,
          cut(rows,
              std::lcm(std::lcm(unit, units_.input_block(node.output)),
                       std::lcm(units_.sum_block(node.output), units_.bias_block(node))),
              shares),
          false);
    case Role::kLogits:
      return split_by_rows(node, cut(rows, std::lcm(unit, units_.bias_block(node)), shares), false);
  }
}

// Whether every rank's columns are whole chunks, but for the end; so are those of what is not cut.
bool Splitter::is_cut_at_chunks(ValueId value) const {
  const size_t columns = graph_.columns(value);
  return std::ranges::all_of(split_.values[value].columns, [&](const Range& range) {
    return range.empty() ||
           (range.begin % kRowsLeast == 0 && (range.end % kRowsLeast == 0 || range.end == columns));
  });
}

// Each element is computed where the inputs' are: cut as the first input that is cut at whole
// chunks, and of inputs that are cut otherwise every rank gets all columns. A sum of partial
// results is mirrored, and so is what has mirrored inputs alone.
void Splitter::split_as_inputs(const GraphNode& node) {
  const auto is_cut = [&](ValueId input) {
    return split_.values[input].kind == SplitKind::kSliced;
  };
  std::vector<ValueId> cut_inputs;
  std::ranges::copy_if(node.inputs, std::back_inserter(cut_inputs), is_cut);
  if (cut_inputs.empty()) return;
  const auto alike = [&](ValueId input) {
    return split_.values[input].columns == split_.values[cut_inputs.front()].columns;
  };
  ValueId chosen = cut_inputs.front();
  if (!std::ranges::all_of(cut_inputs, alike)) {
    const auto found =
        std::ranges::find_if(cut_inputs, [&](ValueId input) { return is_cut_at_chunks(input); });
    chosen = found == cut_inputs.end() ? kNone : *found;
  }
  if (chosen != kNone) split_.values[node.output] = sliced(split_.values[chosen].columns, false);
  for (const ValueId input : cut_inputs) {
    ValueSplit& value = split_.values[input];
    value.whole = value.whole || chosen == kNone || value.columns != split_.values[chosen].columns;
  }
}

// The heads that each rank has; none: the value is not cut, or within a head.
std::optional<std::vector<Range>> Splitter::heads_of(ValueId value, size_t head_count) const {
  const ValueSplit& split = split_.values[value];
  const size_t columns = graph_.columns(value) / head_count;
  if (split.kind != SplitKind::kSliced) return std::nullopt;
  std::vector<Range> heads;
  for (const Range& range : split.columns) {
    if (range.begin % columns != 0 || range.end % columns != 0) return std::nullopt;
    heads.push_back({range.begin / columns, range.end / columns});
  }
  return heads;
}

// Each head is computed where an input has it; where no input is cut at heads, every rank computes
// all of them. What a rank then lacks of an input it gets.
void Splitter::split_at_heads(const GraphNode& node) {
  const std::vector<Range> all(split_.rank_count, {0, node.head_count});
  std::optional<std::vector<Range>> heads = heads_of(node.inputs[0], node.head_count);
  const bool is_joined = node.operation == Operation::kJoinHeads;
  if (!heads && is_joined && node.kv_head_count == node.head_count) {
    heads = heads_of(node.inputs[1], node.head_count);
  }
  const size_t columns = graph_.columns(node.output) / node.head_count;
  if (heads) split_.values[node.output] = sliced(scaled(*heads, columns), false);
  if (heads && has_own_norms(graph_, node)) {
    split_.weights[node.weight] = {SplitKind::kSliced, true, scaled(*heads, columns)};
  }
  if (node.operation == Operation::kHeadMatmul) {
    split_.weights[node.weight] = {SplitKind::kSliced, false, scaled(heads.value_or(all), columns)};
    return;  // a product's input is gathered where it is not at hand
  }
  for (size_t index = 0; index < node.inputs.size(); ++index) {
    ValueSplit& input = split_.values[node.inputs[index]];
    if (input.kind != SplitKind::kSliced) continue;
    const size_t head_count = index == 0 ? node.head_count : node.kv_head_count;
    const size_t head_columns = graph_.columns(node.inputs[index]) / head_count;
    for (size_t rank = 0; rank < split_.rank_count; ++rank) {
      const Range read = heads.value_or(all)[rank];
      const Range needed = head_count == 1 && !read.empty()
                               ? Range{0, head_columns}
                               : Range{read.begin * head_columns, read.end * head_columns};
      const Range held = input.columns[rank];
      const bool has_all = held.begin <= needed.begin && needed.end <= held.end;
      input.whole = input.whole || !(needed.empty() || has_all);
    }
  }
}

// Ranks that scale rows without having found out the factors get them.
void Splitter::find_factors(const GraphNode& node) {
  ValueSplit& factors = split_.values[node.inputs[1]];
  if (factors.kind != SplitKind::kSliced) return;
  const ValueSplit& scaled = split_.values[node.output];
  for (size_t rank = 0; rank < split_.rank_count; ++rank) {
    const bool scales = scaled.kind != SplitKind::kSliced || !scaled.columns[rank].empty();
    if (scales && factors.columns[rank].empty()) factors.whole = true;
  }
}

// A rank holds the factors of the columns that it computes.
void Splitter::split_convolution(const GraphNode& node) {
  const ValueSplit& output = split_.values[node.output];
  if (output.kind != SplitKind::kSliced) return;
  split_.weights[node.weight] = {SplitKind::kSliced, true, scaled(output.columns, node.taps)};
  if (node.bias != kNone) split_.weights[node.bias] = {SplitKind::kSliced, true, output.columns};
}

// Value heads are computed where the values are, if these are cut at heads; else every rank
// computes all of them. What a rank then lacks of an input it gets.
void Splitter::split_value_heads(const GraphNode& node) {
  const DeltaShape& shape = node.delta;
  const std::vector<Range> all(split_.rank_count, {0, shape.value_heads});
  const auto heads = heads_of(node.inputs[0], shape.value_heads);
  if (heads) {
    split_.values[node.output] = sliced(scaled(*heads, node.value_dimension), false);
    for (const WeightId factors : {node.weight, node.bias, node.skip}) {
      if (factors == kNone) continue;
      const size_t each = graph_.weights()[factors].columns / shape.value_heads;
      split_.weights[factors] = {SplitKind::kSliced, true, scaled(*heads, each)};
    }
  }
  for (size_t index = 0; index < node.inputs.size(); ++index) {
    ValueSplit& input = split_.values[node.inputs[index]];
    if (input.kind != SplitKind::kSliced) continue;
    for (size_t rank = 0; rank < split_.rank_count; ++rank) {
      const Range needed = delta_operand(node, index, heads.value_or(all)[rank]);
      const Range held = input.columns[rank];
      const bool has_all = held.begin <= needed.begin && needed.end <= held.end;
      input.whole = input.whole || !(needed.empty() || has_all);
    }
  }
}

// Whether each of several ranks has all of the value, as keys that all ranks' queries attend to.
bool Splitter::is_held_whole(ValueId value) const {
  const Range all = {0, graph_.columns(value)};
  if (split_.rank_count == 1 || split_.values[value].kind != SplitKind::kSliced) return false;
  return std::ranges::all_of(split_.values[value].columns,
                             [&](const Range& range) { return range == all; });
}

// Whether a rank that has a share of the product has not all of its input.
bool Splitter::lacks_columns(const GraphNode& product, const ValueSplit& input) const {
  const Range all = {0, graph_.columns(product.inputs[0])};
  const std::span<const double> shares = shares_of(product);
  for (size_t rank = 0; rank < shares.size(); ++rank) {
    if (shares[rank] > 0 && input.columns[rank] != all) return true;
  }
  return false;
}

// Whether products read columns of the node's output that other ranks compute. Under `reduce` those
// that add to a residual are cut by columns and read a rank's own; the factor of a norm takes the
// sums of all columns.
bool Splitter::is_read_whole(const GraphNode& node) const {
  const ValueSplit& value = split_.values[node.output];
  if (value.kind != SplitKind::kSliced) return false;
  const auto is_read = [&](size_t index) {
    const GraphNode& reader = graph_.nodes()[index];
    if (multiplied_weight(reader, node.output) == kNone) return false;
    if (reader.operation == Operation::kHeadMatmul) {
      return !heads_of(node.output, reader.head_count).has_value();
    }
    if (is_held_whole(node.output)) return false;
    if (split_.strategy == Strategy::kGather) return true;
    if (roles_.role_of(reader) != Role::kResidual) return lacks_columns(reader, value);
    const auto parts = std::ranges::count_if(value.columns, std::not_fn(&Range::empty));
    return parts > 1 && node.operation == Operation::kRmsNorm;
  };
  return std::ranges::any_of(roles_.consumers(node.output), is_read);
}

void Splitter::split_node(const GraphNode& node) {
  switch (row_of(node.operation).split) {
    case SplitRule::kVocabulary: {
      const size_t rows = graph_.weights()[node.weight].rows;
      split_.weights[node.weight] = {SplitKind::kSliced, false,
                                     cut(rows, row_unit(rows, split_.rank_count), shares_.dense)};
      return;  // each rank pushes the rows it holds: the value is mirrored
    }
    case SplitRule::kProduct:
      if (held_.contains(node.output)) {
        const Range all = {0, graph_.columns(node.output)};
        split_.weights[node.weight] = {SplitKind::kSliced, false, {split_.rank_count, all}};
        return;
      }
      split_product(node);
      break;
    case SplitRule::kMirrored:
      return;
    case SplitRule::kFirstInput: {
      const ValueSplit& input = split_.values[node.inputs[0]];
      if (input.kind != SplitKind::kPartial) {
        split_.values[node.output] = {input.kind, input.columns};
      }
      if (node.operation == Operation::kAttention) {
        // The output has the queries' heads.
        for (Range& columns : split_.values[node.output].columns) {
          columns = {columns.begin / node.head_dimension * node.value_dimension,
                     columns.end / node.head_dimension * node.value_dimension};
        }
      }
      if (is_whole_norm(node) && !is_cut_at_chunks(node.inputs[0])) {
        split_.values[node.inputs[0]].whole = true;  // sums of chunks that ranks would share
      }
      break;
    }
    case SplitRule::kInputs:
      split_as_inputs(node);
      break;
    case SplitRule::kHeads:
      split_at_heads(node);
      break;
    case SplitRule::kValueHeads:
      split_value_heads(node);
      break;
  }
  if (node.operation == Operation::kScaleRows) find_factors(node);
  if (node.operation == Operation::kConvolution) split_convolution(node);
  if (is_read_whole(node)) split_.values[node.output].gathered = true;
}

// A rank that holds a part of no matrix only waits for the others. A router does not count: a rank
// that has a share of the experts has all of it. Nor do matrices of factors, and those of `held_`.
Result<void> Splitter::check_ranks() const {
  std::set<WeightId> whole = graph_.routers();
  for (const ValueId product : held_) whole.insert(graph_.producer(product).weight);
  for (size_t rank = 0; rank < split_.rank_count; ++rank) {
    const Weight* largest = nullptr;
    bool has_work = false;
    for (WeightId id = 0; id < split_.weights.size(); ++id) {
      const Weight& weight = graph_.weights()[id];
      if (!weight.is_matrix || weight.rows == 1 || whole.contains(id)) continue;
      has_work = has_work || !split_.weights[id].ranges[rank].empty();
      if (largest == nullptr || weight.rows > largest->rows) largest = &weight;
    }
    if (has_work || largest == nullptr) continue;
    return invalid_input(
        "rank {} of {} would hold nothing: its share of tensor {} ({} rows, cut at multiples of "
        "{}) rounds to none; use fewer ranks (--ranks, or fewer GPUs in --devices) or a larger "
        "share for it in --shares",
        rank, split_.rank_count, largest->name, largest->rows, kRowsLeast);
  }
  return {};
}

Result<Split> Splitter::make() {
  for (const GraphNode& node : graph_.nodes()) split_node(node);
  if (auto checked = check_ranks(); !checked) return std::unexpected(checked.error());
  return std::move(split_);
}

}  // namespace

std::vector<Range> cut(size_t total, size_t unit, std::span<const double> shares) {
  const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  const size_t units = (total + unit - 1) / unit;
  std::vector<Range> ranges;
  double before = 0;
  size_t begin = 0;
  for (size_t rank = 0; rank < shares.size(); ++rank) {
    before += shares[rank];
    const bool last = rank + 1 == shares.size();
    const auto bound = static_cast<size_t>(std::llround(static_cast<double>(units) * before / sum));
    const size_t end = last ? total : std::min(total, bound * unit);
    ranges.push_back({begin, std::max(begin, end)});
    begin = ranges.back().end;
  }
  return ranges;
}

Result<Split> split_graph(const Graph& graph, std::span<const double> shares, Strategy strategy) {
  const std::vector<double> each(shares.begin(), shares.end());
  return split_graph(graph, Shares{each, each}, strategy);
}

Result<Split> split_graph(const Graph& graph, const Shares& shares, Strategy strategy) {
  CHECK(!shares.dense.empty(), "no ranks to split a graph over");
  if (strategy == Strategy::kLayers) return split_layers(graph, shares.dense);
  const ProductRoles roles(graph);
  for (std::set<ValueId> held;;) {
    auto split = Splitter(graph, shares, strategy, held).make();
    const bool sums = split && strategy == Strategy::kReduce && split->rank_count > 1;
    if (!sums || !add_held_products(graph, roles, *split, held)) return split;
  }
}

}  // namespace lockstep
