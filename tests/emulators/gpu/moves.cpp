// mov: copies, and vectors of small values in one large one ("pack", "unpack.INDEX": the decoder's
// own names). What a variable's generic address is in global memory is the same number.
#include <bit>
#include <cstdint>
#include <string>

#include "tests/emulators/gpu/lane_loops.h"
#include "tests/emulators/gpu/operations.h"

namespace lockstep::ptx {
namespace {

template <typename U>
void add_copies(Operations& table, const std::string& bits) {
  const Operation copy = each_lane<U(U)>([](U a) { return a; });
  for (const char kind : {'b', 'u', 's', 'f'}) table.add(std::string("mov.") + kind + bits, copy);
}

template <typename Whole, typename Half>
void add_halves(Operations& table, const std::string& type) {
  table.add("pack.2." + type, each_lane<Whole(Half, Half)>([](Half low, Half high) {
              return static_cast<Whole>(Whole{high} << (8 * sizeof(Half)) | low);
            }));
  table.add("unpack.2.0." + type,
            each_lane<Half(Whole)>([](Whole whole) { return static_cast<Half>(whole); }));
  table.add("unpack.2.1." + type, each_lane<Half(Whole)>([](Whole whole) {
              return static_cast<Half>(whole >> (8 * sizeof(Half)));
            }));
}

}  // namespace

void add_moves(Operations& table) {
  add_copies<uint16_t>(table, "16");
  add_copies<uint32_t>(table, "32");
  add_copies<uint64_t>(table, "64");
  table.add("mov.pred", each_lane<bool(bool)>([](bool a) { return a; }));
  table.add("cvta.to.global.u64", each_lane<uint64_t(uint64_t)>([](uint64_t a) { return a; }));
  add_halves<uint32_t, uint16_t>(table, "b32");
  add_halves<uint64_t, uint32_t>(table, "b64");
}

}  // namespace lockstep::ptx
