// Packed weights stay in memory over a restart, and a later version of the program takes it over:
// one that packs otherwise must say so.
#include <gtest/gtest.h>

#include <vector>

#include "engine/base/digest.h"
#include "engine/kernels/packed_matrix.h"

namespace lockstep {
namespace {

// If this fails, the bytes of packed weights have changed (or a format has come or gone): raise
// kPackingVersion and write the new digest here.
TEST(PackingVersion, stands_for_the_bytes_of_every_format) {
  constexpr size_t kColumns = 512;
  Digest digest;
  for (const FormatTraits& format : all_formats()) {
    std::vector<std::byte> rows(kPanelRows * row_bytes(format.format, kColumns));
    uint32_t state = 12345;
    for (std::byte& byte : rows) {
      state = state * 1664525U + 1013904223U;
      byte = static_cast<std::byte>(state >> 24U);
    }
    std::vector<std::byte> panel(panel_bytes(format.format, kColumns));
    pack_panel(format.format, kColumns, rows.data(), kPanelRows, panel.data());
    digest.add(format.name);
    digest.add(panel);
  }
  EXPECT_EQ(kPackingVersion, 3U);
  EXPECT_EQ(digest.finish(), "c1ec3c6c41a332ba5ac0ea237f38d6f1e4b815884da22b076fb289ac460bc874");
}

}  // namespace
}  // namespace lockstep
