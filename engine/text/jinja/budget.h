// The budget of one rendering: steps and memory, counted as they are spent.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "engine/base/pause_point.h"
#include "engine/text/jinja/failure.h"
#include "engine/text/traced_text.h"

namespace lockstep {

// The limits of one rendering of a chat template.
struct TemplateLimits {
  uint32_t depth = 64;                 // nesting of expressions, blocks, macros and values
  uint64_t steps = 2'000'000;          // evaluated nodes
  uint64_t output_bytes = 4U << 20U;   // rendered text
  uint64_t memory_bytes = 64U << 20U;  // strings and lists alive in a rendering
};

namespace jinja {

class Budget {
 public:
  explicit Budget(const TemplateLimits& limits) : limits_(limits) {}
  Budget(const Budget&) = delete;
  Budget& operator=(const Budget&) = delete;

  const TemplateLimits& limits() const { return limits_; }

  // One step of evaluation, or as many as `count`; fails when the budget is spent.
  void step(uint64_t count = 1) {
    const uint64_t pauses = std::exchange(steps_, steps_ + count) / kStepsPerPause;
    if (pauses != steps_ / kStepsPerPause) [[unlikely]]
      pause_point((steps_ / kStepsPerPause - pauses) * kStepsPerPause);
    if (steps_ > limits_.steps) [[unlikely]]
      fail_steps();
  }
  // The steps that touching so many bytes is worth.
  void step_bytes(uint64_t bytes) { step(1 + bytes / 64); }

  // Fails when so many bytes more would be over the budget; takes nothing.
  void reserve(uint64_t bytes) const;
  void take(uint64_t bytes);
  void give(uint64_t bytes) noexcept {
    used_ -= bytes;
    note_held_bytes(-static_cast<int64_t>(bytes));
  }

 private:
  static constexpr uint64_t kStepsPerPause = 256;  // some tens of microseconds

  [[noreturn]] void fail_steps() const;

  TemplateLimits limits_;
  uint64_t steps_ = 0;
  uint64_t used_ = 0;
};

// A text that grows under a budget: the rendering's output, or memory.
class TextBuilder {
 public:
  explicit TextBuilder(Budget& budget) : budget_(budget) {}
  // The rendering's own output, which has its own budget.
  TextBuilder(Budget& budget, uint64_t output_bytes)
      : budget_(budget), output_bytes_(output_bytes) {}
  ~TextBuilder() { budget_.give(taken_); }
  TextBuilder(const TextBuilder&) = delete;
  TextBuilder& operator=(const TextBuilder&) = delete;

  // The template's own text, unless it says otherwise.
  void append(std::string_view text, bool is_foreign = false);
  void append(size_t count, char character);
  void append(const TracedText& text);
  // Appends `bytes` bytes of `text` from `begin` on.
  void append(const TracedText& text, size_t begin, size_t bytes);
  void mark_foreign(size_t begin) { text_.mark_foreign(begin); }
  size_t size() const { return text_.text.size(); }
  std::string_view view() const { return text_.text; }

  TracedText finish() {
    budget_.give(taken_);
    taken_ = 0;
    return std::move(text_);
  }

 private:
  void grow(uint64_t bytes);
  void take_ranges(size_t count);

  Budget& budget_;
  uint64_t output_bytes_ = 0;  // 0: counts as memory
  uint64_t taken_ = 0;
  TracedText text_;
};

}  // namespace jinja
}  // namespace lockstep
