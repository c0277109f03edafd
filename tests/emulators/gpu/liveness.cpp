#include "tests/emulators/gpu/liveness.h"

#include <algorithm>
#include <bit>
#include <span>

namespace lockstep::ptx {
namespace {

// A set of registers.
class Set {
 public:
  explicit Set(size_t size) : words_((size + 63) / 64) {}

  void add(uint32_t i) { words_[i / 64] |= uint64_t{1} << (i % 64); }
  bool has(uint32_t i) const { return (words_[i / 64] >> (i % 64)) & 1; }
  void add_all(const Set& other) {
    for (size_t i = 0; i < words_.size(); ++i) words_[i] |= other.words_[i];
  }
  // Adds what is in `other` but not in `without`; whether that changed anything.
  bool add_all_but(const Set& other, const Set& without) {
    uint64_t added = 0;
    for (size_t i = 0; i < words_.size(); ++i) {
      const uint64_t more = other.words_[i] & ~without.words_[i] & ~words_[i];
      words_[i] |= more;
      added |= more;
    }
    return added != 0;
  }
  template <typename Function>
  void for_each(Function function) const {
    for (size_t i = 0; i < words_.size(); ++i) {
      for (uint64_t word = words_[i]; word != 0; word &= word - 1) {
        function(static_cast<uint32_t>(i * 64) + static_cast<uint32_t>(std::countr_zero(word)));
      }
    }
  }

 private:
  std::vector<uint64_t> words_;
};

// Instructions that run one after the other.
struct Stretch {
  Stretch(uint32_t first, uint32_t end, size_t registers)
      : begin(first), end_before(end), reads(registers), writes(registers), live(registers) {}
  uint32_t begin;
  uint32_t end_before;
  std::vector<uint32_t> next;
  Set reads;  // before they are written here
  Set writes;
  Set live;  // needed at its begin
};

std::vector<Stretch> find_stretches(const Draft& draft) {
  const auto count = static_cast<uint32_t>(draft.instructions.size());
  std::vector<uint32_t> begins{0, count};
  for (const auto& [from, to] : draft.branches) begins.insert(begins.end(), {from + 1, to});
  for (const uint32_t end : draft.ends) begins.push_back(end + 1);
  std::sort(begins.begin(), begins.end());
  begins.erase(std::unique(begins.begin(), begins.end()), begins.end());
  const auto index_of = [&](uint32_t instruction) {
    const auto found = std::upper_bound(begins.begin(), begins.end(), instruction);
    return static_cast<uint32_t>(found - begins.begin()) - 1;
  };
  std::vector<Stretch> stretches;
  for (size_t i = 0; i + 1 < begins.size(); ++i) {
    stretches.emplace_back(begins[i], begins[i + 1], draft.registers.size());
    if (i + 2 < begins.size()) stretches.back().next.push_back(static_cast<uint32_t>(i) + 1);
  }
  for (const uint32_t end : draft.ends) stretches[index_of(end)].next.clear();
  for (const auto& [from, to] : draft.branches) {
    if (to < count) stretches[index_of(from)].next.push_back(index_of(to));
  }
  return stretches;
}

std::span<const uint32_t> written(const Draft& draft, uint32_t i) {
  return {draft.operands.data() + draft.first_operand[i], draft.instructions[i].written};
}
std::span<const uint32_t> read(const Draft& draft, uint32_t i) {
  return {draft.operands.data() + draft.first_operand[i] + draft.instructions[i].written,
          draft.instructions[i].read};
}

}  // namespace

Liveness find_liveness(const Draft& draft) {
  std::vector<Stretch> stretches = find_stretches(draft);
  for (Stretch& stretch : stretches) {
    for (uint32_t i = stretch.begin; i < stretch.end_before; ++i) {
      for (const uint32_t r : read(draft, i)) {
        if (!stretch.writes.has(r)) stretch.reads.add(r);
      }
      for (const uint32_t r : written(draft, i)) stretch.writes.add(r);
    }
    stretch.live = stretch.reads;
  }
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t i = stretches.size(); i-- > 0;) {
      Stretch& stretch = stretches[i];
      for (const uint32_t next : stretch.next) {
        changed |= stretch.live.add_all_but(stretches[next].live, stretch.writes);
      }
    }
  }
  Liveness result{.intervals = std::vector<Interval>(draft.registers.size()), .read_first = {}};
  std::vector<Interval>& intervals = result.intervals;
  stretches[0].live.for_each([&](uint32_t r) {
    if (draft.registers[r].kind == Draft::Kind::kPlain) result.read_first.push_back(r);
  });
  for (const Stretch& stretch : stretches) {
    stretch.live.for_each([&](uint32_t r) { intervals[r].cover(2 * stretch.begin); });
    for (const uint32_t next : stretch.next) {
      stretches[next].live.for_each(
          [&](uint32_t r) { intervals[r].cover(2 * stretch.end_before); });
    }
    for (uint32_t i = stretch.begin; i < stretch.end_before; ++i) {
      const bool may_overwrite = draft.instructions[i].pure_lane_bytes != 0;
      for (const uint32_t r : read(draft, i)) intervals[r].cover(2 * i);
      for (const uint32_t r : written(draft, i)) {
        intervals[r].cover(may_overwrite ? 2 * i + 1 : 2 * i);
        intervals[r].cover(2 * i + 1);
      }
    }
  }
  return result;
}

}  // namespace lockstep::ptx
