#include "engine/text/traced_text.h"

#include <algorithm>
#include <utility>

namespace lockstep {

namespace {

// The first of ascending ranges that ends behind `position`.
std::span<const TextRange>::iterator first_behind(std::span<const TextRange> ranges,
                                                  size_t position) {
  return std::ranges::partition_point(
      ranges, [&](const TextRange& range) { return range.end <= position; });
}

void add_range(std::vector<TextRange>& ranges, const TextRange& range) {
  if (range.begin == range.end) return;
  if (!ranges.empty() && ranges.back().end == range.begin) {
    ranges.back().end = range.end;
  } else {
    ranges.push_back(range);
  }
}

}  // namespace

TracedText::TracedText(std::string content, bool is_foreign) : text(std::move(content)) {
  if (is_foreign) add_range(foreign, {0, text.size()});
}

void TracedText::append(std::string_view part, bool is_foreign) {
  const size_t begin = text.size();
  text.append(part);
  if (is_foreign) add_range(foreign, {begin, text.size()});
}

void TracedText::append(const TracedText& whole, size_t begin, size_t bytes) {
  const size_t target = text.size();
  const size_t end = begin + bytes;
  text.append(whole.text, begin, bytes);
  const std::span<const TextRange> ranges = whole.foreign;
  for (auto range = first_behind(ranges, begin); range != ranges.end() && range->begin < end;
       ++range) {
    add_range(foreign, {std::max(range->begin, begin) - begin + target,
                        std::min(range->end, end) - begin + target});
  }
}

void TracedText::truncate(size_t bytes) {
  text.resize(std::min(bytes, text.size()));
  while (!foreign.empty() && foreign.back().begin >= bytes) foreign.pop_back();
  if (!foreign.empty()) foreign.back().end = std::min(foreign.back().end, bytes);
}

void TracedText::mark_foreign(size_t begin) {
  while (!foreign.empty() && foreign.back().begin >= begin) foreign.pop_back();
  if (!foreign.empty()) begin = std::max(begin, foreign.back().end);
  add_range(foreign, {begin, text.size()});
}

bool overlaps(std::span<const TextRange> ranges, const TextRange& range) {
  const auto found = first_behind(ranges, range.begin);
  return found != ranges.end() && found->begin < range.end;
}

}  // namespace lockstep
