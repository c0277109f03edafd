// A model file as the engine would hold it, without scheduler and text: tokens in, logits out.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/model/architecture.h"
#include "engine/runtime/executor.h"
#include "engine/runtime/gpu/gpu_rank.h"
#include "engine/runtime/hosts/host_exchange.h"

namespace lockstep {

struct LoadedModelOptions {
  const KernelTable* kernels = nullptr;    // null: kernel_row() of tests/paths.h
  size_t workers = 1;                      // of each rank
  std::vector<double> shares = {1};        // one per rank
  std::vector<double> expert_shares = {};  // of a mixture's experts; none: the same
  size_t apart_layers = kNone;             // Shares::apart_layers
  Strategy strategy = Strategy::kGather;
  // The ranks' layers, one rank more than these: of find_layer_borders(), instead of shares.
  std::vector<LayerBorder> borders = {};
  bool bf16_sums = false;
  KvFormats kv_format = KvFormat::kF32;
  Profile profile = Profile::kFast;
  std::optional<ProductFormTable> forms = {};  // instead of the profile's
  // How many of a pass's first tokens count as generated: none, or all.
  bool generated = false;
  size_t batch_tokens = 128;
  size_t chunk_tokens = 0;  // PlanOptions::chunk_tokens
  size_t kv_pages = 32;
  size_t context_tokens = 0;  // ModelSource::context_tokens
  // Through which ranks on GPUs are used, with arithmetic and kernels of their own; none: all ranks
  // are processors. The first so many ranks are GPUs; none: all.
  const GpuPlatform* gpus = nullptr;
  std::optional<size_t> gpu_count = {};
  GpuPanelLimits panel_limits = {};
  FusionSet without_fusion = {};
  // One host of several: how many ranks each has. The group must outlive the model.
  HostGroup* hosts = nullptr;
  std::vector<size_t> ranks_of_hosts = {};
  size_t block_rows = kExchangedBlockRows;  // that travel together between them
};

class LoadedModel {
 public:
  // Throws std::runtime_error with the engine's message: a test that gets it fails.
  LoadedModel(const std::string& path, const LoadedModelOptions& options);
  // The same of another model than the file's: its weights are the file's tensors.
  LoadedModel(const std::string& path, Model model, const LoadedModelOptions& options);
  LoadedModel(const GgufFile& file, Model model, const LoadedModelOptions& options);

  // A sequence in the cache, on pages of its own.
  struct Sequence {
    std::vector<uint32_t> pages;                // that it has taken
    std::vector<std::vector<uint32_t>> tables;  // by group
    uint32_t state = 0;                         // the slot of its states
    size_t length = 0;
    size_t second_text = SIZE_MAX;  // the token from which on it is a second text
  };
  Sequence new_sequence(size_t tokens);

  // Its pages, and its states' slot, are those that were taken last.
  void give_back(const Sequence& sequence);

  // The next pass begins with copying a state from slot to slot, after those that were asked for
  // before.
  void copy_state(uint32_t from, uint32_t to) { state_copies_.push_back({from, to}); }
  // The next pass keeps in a slot the state behind one of its tokens, by its place in the order of
  // all pieces; ascending.
  void keep_state(uint32_t token, uint32_t slot) {
    checkpoints_.push_back({.token = token, .slot = slot});
  }

  // Adds tokens to sequences in one pass; the logits after every token, [token][vocabulary], in the
  // order given.
  struct Piece {
    Sequence& sequence;
    std::span<const TokenId> tokens;
    // Batch::given_rows of them, where the model reads any; none: given_row() of each.
    std::span<const float> given_rows = {};
  };
  std::vector<std::vector<float>> compute(std::span<const Piece> pieces);

  // A whole sequence by itself, in chunks of at most `chunk` tokens.
  std::vector<std::vector<float>> compute_alone(std::span<const TokenId> tokens, size_t chunk,
                                                std::span<const float> given_rows = {});

  // A whole sequence by itself, in one pass that gives the logits after the last token alone.
  std::vector<float> compute_last(std::span<const TokenId> tokens);

  // Several pieces with tokens, of which the first `generated` tokens count as generated.
  std::vector<std::vector<float>> compute(std::span<const Piece> pieces, size_t generated);
  // Rows of the last pass.
  std::vector<float> hidden_row(size_t token, HiddenForm form = HiddenForm::kNormed);
  std::vector<float> kept_row(size_t token);
  // Several from one on, read at once.
  std::vector<std::vector<float>> hidden_rows(size_t first_token, size_t count);
  LogitRow logit_row(size_t token) const { return executor_->logits(token); }

  // Whether all tokens of a pass count as generated from now on.
  void set_generated(bool generated) { generated_ = generated; }

  const Plan& plan() const { return ranks_->root_plan(); }
  Ranks& ranks() const { return *ranks_; }
  Executor& executor() const { return *executor_; }
  const Model& model() const { return *model_; }

 private:
  void load(const GgufFile& file, const LoadedModelOptions& options);
  Split make_split(const LoadedModelOptions& options) const;
  Batch batch_of(std::span<const Piece> pieces) const;

  std::unique_ptr<Ranks> make_ranks(const Split& split, const PlanOptions& plan_options,
                                    std::span<const RankPlace> places,
                                    const LoadedModelOptions& options);

  std::unique_ptr<Model> model_;
  std::unique_ptr<HostExchange> exchange_;
  std::unique_ptr<Ranks> ranks_;
  std::unique_ptr<Executor> executor_;
  bool generated_ = false;
  uint32_t next_page_ = 0;
  uint32_t next_state_ = 0;
  std::vector<Batch::StateCopy> state_copies_;
  std::vector<Batch::Checkpoint> checkpoints_;
};

// A row to give with a token: it depends on the token and its position alone.
std::vector<float> given_row(TokenId token, size_t position, size_t columns);

// The tables that this machine can run.
std::vector<const KernelTable*> supported_kernel_tables();

// The rank must be on a GPU.
inline const GpuExecutor& gpu_executor(const Rank& rank) {
  return dynamic_cast<const GpuRank&>(rank).executor();
}

}  // namespace lockstep
