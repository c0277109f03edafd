#include "engine/text/jinja/budget.h"

namespace lockstep::jinja {

void Budget::reserve(uint64_t bytes) const {
  if (bytes > limits_.memory_bytes || used_ > limits_.memory_bytes - bytes) {
    Failure failure{fmt::format("the memory budget of {} bytes is spent ({} in use, {} asked for)",
                                limits_.memory_bytes, used_, bytes)};
    failure.budget = true;
    throw failure;
  }
}

void Budget::take(uint64_t bytes) {
  reserve(bytes);
  used_ += bytes;
  note_held_bytes(static_cast<int64_t>(bytes));
}

void Budget::fail_steps() const {
  Failure failure{fmt::format("the budget of {} steps is spent", limits_.steps)};
  failure.budget = true;
  throw failure;
}

void TextBuilder::append(std::string_view text, bool is_foreign) {
  const size_t ranges = text_.foreign.size();
  grow(text.size());
  text_.append(text, is_foreign);
  take_ranges(text_.foreign.size() - ranges);
}

void TextBuilder::append(size_t count, char character) {
  grow(count);
  text_.text.append(count, character);
}

void TextBuilder::append(const TracedText& text) {
  append(text, 0, text.text.size());
}

void TextBuilder::append(const TracedText& text, size_t begin, size_t bytes) {
  const size_t ranges = text_.foreign.size();
  grow(bytes);
  text_.append(text, begin, bytes);
  take_ranges(text_.foreign.size() - ranges);
}

void TextBuilder::take_ranges(size_t count) {
  if (count == 0) return;
  budget_.take(count * sizeof(TextRange));
  taken_ += count * sizeof(TextRange);
}

void TextBuilder::grow(uint64_t bytes) {
  if (output_bytes_ > 0) {
    if (bytes > output_bytes_ || size() > output_bytes_ - bytes) {
      Failure failure{fmt::format("the output budget of {} bytes is spent", output_bytes_)};
      failure.budget = true;
      throw failure;
    }
    return;
  }
  budget_.take(bytes);
  taken_ += bytes;
}

}  // namespace lockstep::jinja
