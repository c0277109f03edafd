// The cost of a pass: the work of prompt tokens relative to one another, and a pass's time as a
// function of its tokens, learnt from measured passes. Has no clock: times are numbers that it is
// given.
#pragma once

#include <array>
#include <cstddef>

namespace lockstep {

// This many seen keys are counted as one token more. By operations it is 5,000 (0.6B parameters) to
// 50,000 (70B): so few that attention may be several times as slow as products, and a chunk deep in
// a prompt is counted as too costly rather than too cheap. Not measured.
inline constexpr double kKeysPerToken = 1024;

// The cost of the tokens [begin, begin + count) of a prompt, in tokens that see few keys: the
// deeper in its sequence a token is, the more keys it sees.
double prompt_work(size_t begin, size_t count);

// How many tokens from `begin` on, `most` at most, cost no more than `work`.
size_t prompt_tokens_within(double work, size_t begin, size_t most);

// The tokens of a pass, as far as its time depends on them.
struct PassLoad {
  size_t generated = 0;    // tokens
  double prompt_work = 0;  // of all chunks of prompts; 0: there is none
};

// Models the time of a pass as a sum of four parts: one for the pass itself, one for each generated
// token, one for having any prompt, and one for each unit of prompt work. Fits them to the last
// measured passes (least squares, none of them below 0).
class PassCost {
 public:
  // Adds a measured pass. Passes with prompts and passes without are forgotten separately.
  void add(const PassLoad& load, double seconds);

  // The expected time of a pass; 0 before the first was added.
  double seconds(const PassLoad& load) const;
  // The time that the work adds to a pass that has prompts.
  double prompt_seconds(double work) const { return parts_[kWork] * work; }
  // The time that any prompt adds to a pass, however short it is: weights are read once more.
  double prompt_overhead() const { return parts_[kPrompts]; }

  // The most prompt work with which a pass of so many generated tokens is expected to take no
  // longer than `seconds`; at most twice the most that has been measured. 0 where there is no time
  // for any.
  double work_within(double seconds, size_t generated) const;

 private:
  enum Part : size_t { kWork, kPrompts, kGenerated, kPass, kPartCount };
  using Parts = std::array<double, kPartCount>;

  // Sums over passes, of which the last twenty weigh the most.
  struct Sums {
    std::array<Parts, kPartCount> products = {};  // of the amounts of two parts
    Parts seconds = {};                           // of the amount of a part and the time

    void add(const Parts& amounts, double time);
  };

  static Parts amounts(const PassLoad& load);
  void fit();

  Sums without_prompts_;
  Sums with_prompts_;
  Parts parts_ = {};  // seconds for one of each
  double work_most_ = 0;
};

}  // namespace lockstep
