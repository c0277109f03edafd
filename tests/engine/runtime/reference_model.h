// Computes a model in float64: walks its graph node by node over dequantized weights, without
// kernels, splits or plans. The result is the same on every machine. Also bounds how far an
// arithmetic may be from it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/kernels/activation.h"
#include "engine/kernels/attention.h"
#include "engine/kernels/profile.h"
#include "engine/model/architecture.h"
#include "tests/engine/runtime/logits_rows.h"

namespace lockstep {

// The values that an arithmetic rounds and the reference does not. Everything else is f32.
struct Roundings {
  // Forms of activations, by the format of the weights that they are multiplied with.
  std::array<ActivationForm, kFormatCount> inputs = {};
  bool bf16_weights = false;  // weights of all formats but F32
  KvFormats kv_format = KvFormat::kF32;
  double attention = 0;    // of queries and of the weights of keys, as a part of them
  double angles = 0;       // of rotary positions, as a part of them
  bool bf16_sums = false;  // of the parts of what is added to the residual, and of the sum
  size_t ranks = 1;        // which have such parts

  bool operator==(const Roundings&) const = default;
};

// Roundings of a row of the kernel table, for prompted or generated tokens.
Roundings roundings_of(const KernelTable& table, Profile profile, const KvFormats& kv_format,
                       bool generated = false);
// Roundings of a GPU for prompted tokens. Generated tokens have some of them and no others.
Roundings gpu_roundings(KvFormat kv_format);
// Every rounding that either does: of ranks of both kinds.
Roundings joined(const Roundings& a, const Roundings& b);

// A weight's values, [row][column]. Throws std::runtime_error where the file lacks it.
std::vector<float> read_weight(const GgufFile& file, const Weight& weight);

using ReferenceRows = std::vector<std::vector<double>>;  // [token][column]

// A model and a text. Not to be shared by threads.
class ReferenceModel {
 public:
  // `context_tokens`: ModelSource::context_tokens. Throws std::runtime_error with the engine's
  // message.
  ReferenceModel(const std::string& path, std::vector<TokenId> tokens, size_t context_tokens = 0);

  // The same of another model than the file's: its weights are the file's tensors.
  // `given_rows`: Batch::given_rows of all tokens; none: given_row() of each.
  ReferenceModel(const std::string& path, Model model, std::vector<TokenId> tokens,
                 std::vector<float> given_rows = {});
  ReferenceModel(const GgufFile& file, Model model, std::vector<TokenId> tokens,
                 std::vector<float> given_rows = {});

  const ReferenceRows& logits() const { return logits_; }
  const ReferenceRows& hidden() const { return hidden_; }  // what the last norm gives

  // How far logits (or hidden rows) may be from the reference, by these roundings.
  //
  // An arithmetic's roundings are as good as random: each moves a value by at most half a unit in
  // its last place, up or down. So the whole model is computed in float64 kDraws times, and each
  // value that the arithmetic rounds is moved by a random part of its largest error (Monte Carlo
  // arithmetic: D. S. Parker, 1997). That takes every rounding through the model's own layers,
  // norms and softmaxes. A logit's distance is then a sum of thousands of independent errors, so
  // nearly normal; of a thousand logits the worst is some 3 to 4 deviations out in every draw and
  // in the arithmetic itself. kTimes the worst of all draws is so far beyond that no rounding
  // reaches it, and far below what a wrong weight, head or expert does (reference_model_test).
  // Draws have fixed seeds.
  static constexpr size_t kDraws = 4;
  static constexpr double kTimes = 2;
  double bound(const Roundings& roundings) const;
  double hidden_bound(const Roundings& roundings) const;

 private:
  struct Worst {
    double logits = 0;
    double hidden = 0;
  };
  void compute(const GgufFile& file);
  Worst worst_of_draws(const Roundings& roundings) const;

  Model model_;
  std::vector<TokenId> tokens_;
  std::vector<float> given_rows_;
  std::vector<std::vector<float>> weights_;  // by WeightId, dequantized
  ReferenceRows logits_;
  ReferenceRows hidden_;
};

double worst_difference(const LogitRows& rows, const ReferenceRows& reference);

// Puts the reference's row in the place of one that roundings carry elsewhere: where two experts of
// a token are nearly tied, the other one may be chosen.
void leave_out(size_t row, LogitRows& rows, const ReferenceRows& reference);

// That logits are as near to the reference as their roundings let them be.
void expect_near(const LogitRows& rows, const ReferenceModel& reference,
                 const Roundings& roundings);

}  // namespace lockstep
