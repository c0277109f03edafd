// A stable sort that any order may drive, even one that fails or contradicts itself. (The standard
// library's asks for a proper order, and under clang GCC 12's is deprecated within itself.)
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

namespace lockstep::jinja {

// `before(a, b)`: a must come before b. What it throws passes through; the items are then some
// of them moved from.
template <typename T, typename Before>
void merge_sort(std::vector<T>& items, const Before& before) {
  std::vector<T> merged(items.size());
  for (size_t width = 1; width < items.size(); width *= 2) {
    for (size_t begin = 0; begin < items.size(); begin += 2 * width) {
      const size_t middle = std::min(begin + width, items.size());
      const size_t end = std::min(begin + 2 * width, items.size());
      size_t left = begin;
      size_t right = middle;
      for (size_t out = begin; out < end; ++out) {
        const bool take_right =
            right < end && (left == middle || before(items[right], items[left]));
        merged[out] = std::move(items[take_right ? right++ : left++]);
      }
    }
    std::swap(items, merged);
  }
}

}  // namespace lockstep::jinja
