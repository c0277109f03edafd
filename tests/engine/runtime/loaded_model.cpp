#include "tests/engine/runtime/loaded_model.h"

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <utility>

#include "engine/base/checked_math.h"
#include "engine/kernels/kernel_choice.h"
#include "engine/model/weight_loader.h"
#include "engine/planner/layer_split.h"
#include "tests/engine/machine/lazy_memory.h"
#include "tests/engine/runtime/value_or_throw.h"
#include "tests/paths.h"

namespace lockstep {
LoadedModel::LoadedModel(const std::string& path, const LoadedModelOptions& options) {
  const GgufFile file = value_or_throw(GgufFile::open(path));
  model_ = std::make_unique<Model>(
      value_or_throw(build_model({.file = file, .context_tokens = options.context_tokens})));
  load(file, options);
}

LoadedModel::LoadedModel(const std::string& path, Model model, const LoadedModelOptions& options) {
  model_ = std::make_unique<Model>(std::move(model));
  load(value_or_throw(GgufFile::open(path)), options);
}

LoadedModel::LoadedModel(const GgufFile& file, Model model, const LoadedModelOptions& options) {
  model_ = std::make_unique<Model>(std::move(model));
  load(file, options);
}

void LoadedModel::load(const GgufFile& file, const LoadedModelOptions& options) {
  const KernelTable* kernels = options.kernels != nullptr
                                   ? options.kernels
                                   : value_or_throw(choose_kernel_table(kernel_row()));
  generated_ = options.generated;
  const PlanOptions plan_options{
      .batch_tokens = options.batch_tokens,
      .chunk_tokens = options.chunk_tokens,
      .logit_rows = options.batch_tokens,
      .kv_format = options.kv_format,
      .kv_pages = options.kv_pages,
      .bf16_sums = options.bf16_sums,
      .forms = options.forms.value_or(product_forms(options.profile, *kernels)),
      .prompt_attention = options.forms
                              ? AttentionForm::kF32
                              : prompt_attention(options.profile, *kernels, options.kv_format),
      .panel_limits = options.panel_limits,
      .without_fusion = options.without_fusion};
  const Split split = make_split(options);
  std::vector<RankPlace> places;
  const std::vector<double> shares =
      options.borders.empty() ? options.shares : std::vector<double>(split.rank_count, 1.0);
  const size_t gpu_count = options.gpus == nullptr ? 0 : options.gpu_count.value_or(shares.size());
  for (const double share : shares) {
    const bool is_gpu = places.size() < gpu_count;
    const GpuPlace gpu{static_cast<int>(places.size())};
    RankPlace& place = places.emplace_back();
    place.cpus.assign(is_gpu ? 1 : options.workers, -1);
    place.share = share;
    if (is_gpu) place.device = gpu;
  }
  ranks_ = make_ranks(split, plan_options, places, options);
  std::vector<std::unique_ptr<WeightSink>> sinks;
  std::vector<LoadTarget> targets;
  for (size_t rank = 0; rank < ranks_->count(); ++rank) {
    Rank& target = (*ranks_)[rank];
    sinks.push_back(target.make_weight_sink());
    targets.push_back({.plan = target.plan(),
                       .weights = target.addresses().at(ArenaOffset<std::byte>{Arena::kWeights}),
                       .workers = target.workers(),
                       .sink = sinks.back().get()});
  }
  std::atomic<uint64_t> bytes_done = 0;
  value_or_throw(load_weights(file, model_->graph, targets, bytes_done));
  executor_ = std::make_unique<Executor>(*ranks_, *kernels);
}

Split LoadedModel::make_split(const LoadedModelOptions& options) const {
  if (!options.borders.empty()) return split_at_borders(model_->graph, options.borders);
  const auto& expert_shares =
      options.expert_shares.empty() ? options.shares : options.expert_shares;
  return value_or_throw(split_graph(model_->graph,
                                    Shares{options.shares, expert_shares, options.apart_layers},
                                    options.strategy));
}

std::unique_ptr<Ranks> LoadedModel::make_ranks(const Split& split, const PlanOptions& plan_options,
                                               std::span<const RankPlace> places,
                                               const LoadedModelOptions& options) {
  std::vector<ArenaSources> sources(places.size());
  for (ArenaSources& source : sources) source.calls = &test::LazyMemory::instance();
  if (options.hosts == nullptr) {
    return value_or_throw(
        Ranks::make(model_->graph, split, plan_options, places, std::move(sources), options.gpus));
  }
  HostRanks ranks{.host = options.hosts->index()};
  size_t next = 0;
  for (const size_t count : options.ranks_of_hosts) {
    ranks.of_host.push_back({next, next + count});
    next += count;
  }
  std::vector<Plan> plans;
  for (const RankPlace& place : places) {
    plans.push_back(make_plan(model_->graph, split, plans.size(), options_on(place, plan_options)));
  }
  sources.resize(ranks.own().size());
  exchange_ = std::make_unique<HostExchange>(*options.hosts, std::move(ranks), std::move(plans),
                                             options.block_rows);
  return value_or_throw(Ranks::make_among_hosts(model_->graph, split, plan_options, places,
                                                std::move(sources), *exchange_));
}

LoadedModel::Sequence LoadedModel::new_sequence(size_t tokens) {
  Sequence sequence;
  for (const AttentionWindow& window : plan().kv.windows) {
    const size_t count = window.most_pages(tokens, plan().batch_tokens, kPageTokens);
    const uint32_t first = next_page_;
    for (size_t page = 0; page < count; ++page) sequence.pages.push_back(next_page_++);
    // Pages in another order than they lie in memory: the page table is what counts. What lies
    // behind a window is written over.
    std::vector<uint32_t>& table = sequence.tables.emplace_back(divide_up(tokens, kPageTokens));
    for (size_t page = 0; page < table.size(); ++page) {
      table[page] = first + static_cast<uint32_t>(count - 1 - page % count);
    }
  }
  sequence.state = next_state_++;
  if (next_page_ > plan().kv.page_count) throw std::runtime_error("the test needs more KV pages");
  return sequence;
}

void LoadedModel::give_back(const Sequence& sequence) {
  next_page_ -= static_cast<uint32_t>(sequence.pages.size());
  --next_state_;
}

std::vector<std::vector<float>> LoadedModel::compute(std::span<const Piece> pieces) {
  size_t tokens = 0;
  for (const Piece& piece : pieces) tokens += piece.tokens.size();
  return compute(pieces, generated_ ? tokens : 0);
}

std::vector<float> LoadedModel::hidden_row(size_t token, HiddenForm form) {
  std::vector<float> row(executor_->hidden_width());
  value_or_throw(executor_->read_hidden_rows(token, row, form));
  return row;
}

std::vector<float> LoadedModel::kept_row(size_t token) {
  std::vector<float> row(executor_->kept_width());
  value_or_throw(executor_->read_kept_rows(token, row));
  return row;
}

std::vector<std::vector<float>> LoadedModel::hidden_rows(size_t first_token, size_t count) {
  const size_t width = executor_->hidden_width();
  std::vector<float> all(count * width);
  value_or_throw(executor_->read_hidden_rows(first_token, all));
  std::vector<std::vector<float>> rows;
  for (auto row = all.begin(); row != all.end(); row += static_cast<ptrdiff_t>(width)) {
    rows.emplace_back(row, row + static_cast<ptrdiff_t>(width));
  }
  return rows;
}

Batch LoadedModel::batch_of(std::span<const Piece> pieces) const {
  Batch batch;
  batch.group_count = plan().kv.group_count();
  for (const Piece& piece : pieces) {
    const auto slot = static_cast<uint32_t>(batch.sequence_count());
    batch.state_slots.push_back(piece.sequence.state);
    batch.page_tables.insert(batch.page_tables.end(), piece.sequence.tables.begin(),
                             piece.sequence.tables.end());
    if (piece.sequence.length == 0) {
      batch.cleared_pages.insert(batch.cleared_pages.end(), piece.sequence.pages.begin(),
                                 piece.sequence.pages.end());
    }
    const size_t columns = plan().given_columns;
    batch.given_rows.insert(batch.given_rows.end(), piece.given_rows.begin(),
                            piece.given_rows.end());
    for (const TokenId token : piece.tokens) {
      if (columns > 0 && piece.given_rows.empty()) {
        const std::vector<float> row = given_row(token, piece.sequence.length, columns);
        batch.given_rows.insert(batch.given_rows.end(), row.begin(), row.end());
      }
      batch.logit_tokens.push_back(static_cast<uint32_t>(batch.tokens.size()));
      const size_t position = piece.sequence.length++;
      batch.tokens.push_back({.token = token,
                              .position = static_cast<uint32_t>(position),
                              .sequence = slot,
                              .segment = position < piece.sequence.second_text ? 0U : 1U});
    }
  }
  return batch;
}

std::vector<std::vector<float>> LoadedModel::compute(std::span<const Piece> pieces,
                                                     size_t generated) {
  Batch batch = batch_of(pieces);
  batch.generated_tokens = generated;
  batch.state_copies = std::exchange(state_copies_, {});
  batch.checkpoints = std::exchange(checkpoints_, {});
  value_or_throw(executor_->run(batch));
  std::vector<std::vector<float>> rows;
  for (size_t row = 0; row < batch.tokens.size(); ++row) {
    const std::span<const float> logits = value_or_throw(executor_->logits(row).all());
    rows.emplace_back(logits.begin(), logits.end());
  }
  return rows;
}

std::vector<std::vector<float>> LoadedModel::compute_alone(std::span<const TokenId> tokens,
                                                           size_t chunk,
                                                           std::span<const float> given_rows) {
  const size_t columns = given_rows.empty() ? 0 : plan().given_columns;
  Sequence sequence = new_sequence(tokens.size());
  std::vector<std::vector<float>> rows;
  for (size_t begin = 0; begin < tokens.size(); begin += chunk) {
    const size_t count = std::min(chunk, tokens.size() - begin);
    const std::vector<Piece> pieces = {{sequence, tokens.subspan(begin, count),
                                        given_rows.subspan(begin * columns, count * columns)}};
    for (auto& row : compute(pieces)) rows.push_back(std::move(row));
  }
  give_back(sequence);
  return rows;
}

std::vector<float> LoadedModel::compute_last(std::span<const TokenId> tokens) {
  Sequence sequence = new_sequence(tokens.size());
  Batch batch = batch_of(std::vector<Piece>{{sequence, tokens}});
  batch.logit_tokens = {static_cast<uint32_t>(tokens.size() - 1)};
  batch.generated_tokens = generated_ ? tokens.size() : 0;
  value_or_throw(executor_->run(batch));
  const std::span<const float> logits = value_or_throw(executor_->logits(0).all());
  give_back(sequence);
  return {logits.begin(), logits.end()};
}

std::vector<float> given_row(TokenId token, size_t position, size_t columns) {
  std::vector<float> row(columns);
  uint64_t state = static_cast<uint64_t>(token) * 1000003 + position;
  for (float& value : row) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    value = static_cast<float>(state >> 40U) / static_cast<float>(1U << 23U) - 1;
  }
  return row;
}

std::vector<const KernelTable*> supported_kernel_tables() {
  std::vector<const KernelTable*> tables;
  for (const KernelTable* table : all_kernel_tables()) {
    if (machine_supports(*table)) tables.push_back(table);
  }
  return tables;
}

}  // namespace lockstep
