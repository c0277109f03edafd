#include "engine/text/jinja/heap.h"

#include <utility>

#include "engine/text/jinja/value.h"

namespace lockstep::jinja {

Heap::Heap(const TemplateLimits& limits) : limits_(limits) {}

Heap::~Heap() {
  digging_ = true;
  for (Object* object = objects_; object != nullptr; object = object->next_) {
    graves_.push_back(std::move(object->values_));
    object->values_.clear();
  }
  digging_ = false;
  bury({});
}

void Heap::reserve(uint64_t bytes) const {
  if (bytes > limits_.memory_bytes || used_ > limits_.memory_bytes - bytes) {
    Failure failure{fmt::format("the memory budget of {} bytes is spent ({} in use, {} asked for)",
                                limits_.memory_bytes, used_, bytes)};
    failure.budget = true;
    throw failure;
  }
}

void Heap::take(uint64_t bytes) {
  reserve(bytes);
  used_ += bytes;
}

void Heap::bury(std::vector<Value>&& values) noexcept {
  graves_.push_back(std::move(values));
  if (digging_) return;
  digging_ = true;
  while (!graves_.empty()) {
    // A value that dies here may bury more: it is only added to the list.
    const std::vector<Value> grave = std::move(graves_.back());
    graves_.pop_back();
  }
  digging_ = false;
}

void Heap::fail_steps() const {
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
  heap_.take(count * sizeof(TextRange));
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
  heap_.take(bytes);
  taken_ += bytes;
}

}  // namespace lockstep::jinja
