#include "tests/emulators/gpu/draft.h"

#include <algorithm>
#include <cstring>

#include "tests/emulators/gpu/liveness.h"

namespace lockstep::ptx {
namespace {

// Places in a register file. A place that has become free is taken again by a register of its size.
class Places {
 public:
  explicit Places(uint32_t first) : end_(first) {}

  uint32_t take(uint32_t bytes) {
    std::vector<uint32_t>& free = free_[bytes];
    if (free.empty()) {
      const uint32_t place = end_;
      end_ += bytes;
      return place;
    }
    const uint32_t place = free.back();
    free.pop_back();
    return place;
  }
  void give(uint32_t place, uint32_t bytes) { free_[bytes].push_back(place); }
  uint32_t end() const { return end_; }

 private:
  std::map<uint32_t, std::vector<uint32_t>> free_;
  uint32_t end_;
};

}  // namespace

uint32_t Draft::add_register(uint32_t lane_bytes) {
  registers.push_back({.lane_bytes = static_cast<uint8_t>(lane_bytes)});
  return static_cast<uint32_t>(registers.size()) - 1;
}

uint32_t Draft::constant(uint64_t bits, uint32_t lane_bytes) {
  if (lane_bytes < 8) bits &= (uint64_t{1} << (8 * lane_bytes)) - 1;
  const auto [found, is_new] = constants_.try_emplace({bits, lane_bytes}, 0);
  if (is_new) {
    found->second = add_register(lane_bytes);
    registers.back().kind = Kind::kConstant;
    registers.back().bits = bits;
  }
  return found->second;
}

uint32_t Draft::special(Special which) {
  const auto [found, is_new] = specials_.try_emplace(which, 0);
  if (is_new) {
    found->second = add_register(4);
    registers.back().kind = Kind::kSpecial;
    registers.back().special = which;
  }
  return found->second;
}

Instruction& Draft::add(Handler run, uint32_t offset, std::span<const uint32_t> written,
                        std::span<const uint32_t> read) {
  first_operand.push_back(static_cast<uint32_t>(operands.size()));
  operands.insert(operands.end(), written.begin(), written.end());
  operands.insert(operands.end(), read.begin(), read.end());
  instructions.push_back({.run = run,
                          .offset = offset,
                          .written = static_cast<uint8_t>(written.size()),
                          .read = static_cast<uint8_t>(read.size())});
  return instructions.back();
}

void Draft::finish(Program& program) const {
  std::vector<uint32_t> places(registers.size());
  // Numbers and special registers first: they keep their places. The widest first, so that all are
  // aligned.
  for (const uint32_t lane_bytes : {8u, 4u, 2u, 1u}) {
    for (size_t r = 0; r < registers.size(); ++r) {
      const Register& its = registers[r];
      if (its.kind == Kind::kPlain || its.lane_bytes != lane_bytes) continue;
      places[r] = static_cast<uint32_t>(program.constants.size());
      if (its.kind == Kind::kSpecial) program.specials.push_back({its.special, places[r]});
      program.constants.resize(places[r] + lane_bytes * kLanes);
      for (uint32_t lane = 0; lane < kLanes; ++lane) {
        std::memcpy(&program.constants[places[r] + lane * lane_bytes], &its.bits, lane_bytes);
      }
    }
  }
  const Liveness liveness = find_liveness(*this);
  const std::vector<Interval>& intervals = liveness.intervals;
  std::vector<uint32_t> by_first;
  for (uint32_t r = 0; r < registers.size(); ++r) {
    if (registers[r].kind == Kind::kPlain && !intervals[r].is_empty()) by_first.push_back(r);
  }
  std::sort(by_first.begin(), by_first.end(),
            [&](uint32_t a, uint32_t b) { return intervals[a].first < intervals[b].first; });
  std::vector<uint32_t> by_last = by_first;
  std::sort(by_last.begin(), by_last.end(),
            [&](uint32_t a, uint32_t b) { return intervals[a].last < intervals[b].last; });
  // Predicates are 0 or 1 at any time, so their places are never another register's.
  Places free(static_cast<uint32_t>(program.constants.size()));
  size_t ended = 0;
  for (const uint32_t r : by_first) {
    for (; intervals[by_last[ended]].last < intervals[r].first; ++ended) {
      const uint32_t old = by_last[ended];
      free.give(places[old], registers[old].lane_bytes * kLanes);
    }
    places[r] = free.take(registers[r].lane_bytes * kLanes);
    if (registers[r].lane_bytes == 1) program.predicates.push_back(places[r]);
  }
  std::sort(program.predicates.begin(), program.predicates.end());
  program.predicates.erase(std::unique(program.predicates.begin(), program.predicates.end()),
                           program.predicates.end());
  for (const uint32_t r : liveness.read_first) {
    program.read_first.push_back({places[r], registers[r].lane_bytes * kLanes});
  }
  program.register_file_bytes = (free.end() + 63) / 64 * 64;
  program.instructions = instructions;
  program.registers.resize(operands.size());
  for (size_t i = 0; i < operands.size(); ++i) program.registers[i] = places[operands[i]];
  for (size_t i = 0; i < instructions.size(); ++i) {
    program.instructions[i].registers = program.registers.data() + first_operand[i];
  }
}

}  // namespace lockstep::ptx
