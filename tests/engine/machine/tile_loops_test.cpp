// The loops that measure AMX are compiled to its instructions, and to as many as they count.
#include <gtest/gtest.h>

#include <array>

#include "engine/machine/arithmetic_speed.h"
#include "tests/engine/kernels/tile_emulation.h"

namespace lockstep {
namespace {

using enum TileOperation;

// Multiplications and additions of a product of whole tiles.
uint64_t operations(const TileEmulation& emulation) {
  return 2 * 16 * 16 *
         (32 * emulation.count(kBf16Product) + 64 * emulation.count(kUnsignedSignedProduct));
}

TEST(TileLoops, run_as_many_products_as_they_count_and_leave_no_tile_in_use) {
  constexpr size_t kRounds = 5;
  size_t loops = 0;
  for (const ArithmeticLoop& loop : arithmetic_loops()) {
    if (loop.instruction_set != "amx") continue;
    SCOPED_TRACE(std::string(loop.operation));
    const TileEmulation emulation;
    if (!emulation.obstacle().empty()) GTEST_SKIP() << emulation.obstacle();
    loop.run(kRounds);
    ++loops;
    std::array<uint8_t, 64> configuration;
    configuration.fill(0xFF);
    asm volatile("sttilecfg %0" : "=m"(configuration)::"memory");
    EXPECT_EQ(configuration, (std::array<uint8_t, 64>{}));
    if (!emulation.is_active()) continue;
    EXPECT_EQ(operations(emulation), kRounds * loop.operations_per_round);
    EXPECT_EQ(
        emulation.count(loop.operation.starts_with("bf16") ? kUnsignedSignedProduct : kBf16Product),
        0U);
    EXPECT_EQ(emulation.count(kLoadConfiguration), 1U);
    EXPECT_EQ(emulation.count(kZero), 8U);
    EXPECT_EQ(emulation.count(kRelease), 1U);
  }
  EXPECT_EQ(loops, 2U);
}

}  // namespace
}  // namespace lockstep
