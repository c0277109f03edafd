// Each of AMX's tile instructions does what Intel's manual says, on a processor that has them or
// emulated: so both are held to the same.
#include "tests/engine/kernels/tile_emulation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <immintrin.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <csignal>
#include <cstring>
#include <thread>
#include <vector>

#include "engine/kernels/cpu/matrix_unit_amx.h"
#include "tests/engine/kernels/bf16_model.h"

namespace lockstep {
namespace {

constexpr uint64_t kSeed = 91;

// The configuration that LDTILECFG reads: any tile of any shape.
struct alignas(64) TileShapes {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  TileShapes& with(size_t tile, size_t row_count, size_t bytes) {
    rows[tile] = static_cast<uint8_t>(row_count);
    row_bytes[tile] = static_cast<uint16_t>(bytes);
    return *this;
  }
  bool operator==(const TileShapes&) const = default;
};

void configure(const TileShapes& shapes) {
  asm volatile("ldtilecfg %0" ::"m"(shapes) : "memory");
}
TileShapes stored_configuration() {
  TileShapes shapes;
  asm volatile("sttilecfg %0" : "=m"(shapes)::"memory");
  return shapes;
}
void release() {
  asm volatile("tilerelease" ::: "memory");
}

// The words of a tile: rows of up to 16.
using Words = std::vector<uint32_t>;

// m x k words, times k x n, added to m x n.
struct Shape {
  size_t m, k, n;
};
constexpr Shape kShapes[] = {{16, 16, 16}, {1, 1, 1},  {5, 7, 3},  {16, 3, 9},
                             {1, 16, 16},  {7, 16, 2}, {16, 16, 1}};

class TileInstructions : public testing::Test {
 protected:
  void SetUp() override {
    if (!emulation_.obstacle().empty()) GTEST_SKIP() << emulation_.obstacle();
  }
  void TearDown() override {
    if (emulation_.obstacle().empty()) release();
  }

  template <int kTile>
  static void load(const void* from, ptrdiff_t stride) {
    MatrixUnit().load<kTile>(from, static_cast<size_t>(stride));
  }
  template <int kTile>
  static void store(void* to, ptrdiff_t stride) {
    MatrixUnit().store<kTile>(to, static_cast<size_t>(stride));
  }

  // The result of an instruction in tile 1 from tiles 2 and 3.
  template <typename Instruction>
  static Words product(const Shape& shape, const Words& sum, const Words& first,
                       const Words& second, const Instruction& instruction) {
    const auto stride = [](size_t words) { return static_cast<ptrdiff_t>(words * 4); };
    configure(TileShapes()
                  .with(1, shape.m, shape.n * 4)
                  .with(2, shape.m, shape.k * 4)
                  .with(3, shape.k, shape.n * 4));
    load<1>(sum.data(), stride(shape.n));
    load<2>(first.data(), stride(shape.k));
    load<3>(second.data(), stride(shape.n));
    instruction();
    Words result(shape.m * shape.n);
    store<1>(result.data(), stride(shape.n));
    return result;
  }

  // The answer to an instruction that is wrong; on a processor with tiles no reason is said.
  testing::Matcher<const std::string&> reason(const std::string& said) const {
    if (emulation_.is_active()) return testing::HasSubstr("tile instruction refused: " + said);
    return testing::_;
  }

  TileEmulation emulation_;
};

Words random_words(size_t count, RandomEngine& random) {
  Words words(count);
  for (uint32_t& word : words) word = static_cast<uint32_t>(random());
  return words;
}

TEST_F(TileInstructions, move_rows_of_any_number_and_length_and_stride) {
  RandomEngine random(kSeed);
  const Words memory = random_words(64 * 16, random);
  const auto* bytes = reinterpret_cast<const std::byte*>(memory.data());
  for (const size_t rows : {1U, 7U, 16U}) {
    for (const size_t row_bytes : {4U, 20U, 64U}) {
      for (const ptrdiff_t stride : {0, 4, 64, 136, -68}) {
        SCOPED_TRACE(testing::Message() << rows << " rows of " << row_bytes << ", " << stride);
        const std::byte* from = bytes + (stride < 0 ? 2048 : 0);
        configure(TileShapes().with(5, rows, row_bytes));
        load<5>(from, stride);
        std::vector<std::byte> out(4096, std::byte{0xAB});
        std::vector<std::byte> expected = out;
        std::byte* to = out.data() + 2048;
        // Rows that do not overlap.
        const ptrdiff_t apart = stride < 0 ? -100 : 100;
        store<5>(to, apart);
        for (size_t row = 0; row < rows; ++row) {
          const auto r = static_cast<ptrdiff_t>(row);
          std::memcpy(expected.data() + 2048 + r * apart, from + r * stride, row_bytes);
        }
        ASSERT_EQ(out, expected);
        // The other kind of load.
        configure(TileShapes().with(5, rows, row_bytes));
        asm volatile("tileloaddt1 (%0,%1,1), %%tmm5" ::"r"(from), "r"(stride) : "memory");
        std::vector<std::byte> again(4096, std::byte{0xAB});
        store<5>(again.data() + 2048, apart);
        ASSERT_EQ(again, expected);
      }
    }
  }
}

TEST_F(TileInstructions, find_their_memory_by_every_kind_of_address) {
  RandomEngine random(kSeed + 1);
  const Words memory = random_words(16 * 16, random);
  const uint64_t base = reinterpret_cast<uint64_t>(memory.data());
  Words result(16 * 16);
  const auto expect_loaded = [&](const char* what) {
    std::memset(result.data(), 0, result.size() * 4);
    store<0>(result.data(), 64);
    EXPECT_EQ(result, memory) << what;
    MatrixUnit().zero<0>();
  };
  configure(TileShapes().with(0, 16, 64));
  asm volatile("tileloadd -0x1000(%0,%1,4), %%tmm0" ::"r"(base + 0x1000), "r"(16L) : "memory");
  expect_loaded("scaled by 4, far displacement");
  asm volatile("mov %0, %%r13; mov %1, %%r12; tileloadd 8(%%r13,%%r12,8), %%tmm0" ::"r"(base - 8),
               "r"(8L)
               : "r12", "r13", "memory");
  expect_loaded("r13 and r12, scaled by 8, near displacement");
  asm volatile("mov %0, %%r12; mov %1, %%r15; tileloadd (%%r12,%%r15,2), %%tmm0" ::"r"(base),
               "r"(32L)
               : "r12", "r15", "memory");
  expect_loaded("r12 and r15");
  // Without an index, every row is the first.
  asm volatile("tileloadd (%0), %%tmm0" ::"r"(base) : "memory");
  store<0>(result.data(), 64);
  for (size_t i = 0; i < result.size(); ++i) EXPECT_EQ(result[i], memory[i % 16]);
  // On the stack, and beside the code.
  asm volatile("sub $192, %%rsp; sttilecfg 128(%%rsp); ldtilecfg 128(%%rsp); add $192, %%rsp" ::
                   : "memory");
  EXPECT_EQ(stored_configuration(), TileShapes().with(0, 16, 64));
  asm volatile(
      "sttilecfg 1f(%%rip); ldtilecfg 1f(%%rip)\n\t"
      ".pushsection .data; 1: .zero 64; .popsection" ::
          : "memory");
  EXPECT_EQ(stored_configuration(), TileShapes().with(0, 16, 64));
}

TEST_F(TileInstructions, keep_a_configuration_until_it_is_released) {
  release();
  TileShapes nothing;
  nothing.palette = 0;
  EXPECT_EQ(stored_configuration(), nothing);
  const TileShapes shapes = TileShapes().with(0, 16, 64).with(3, 1, 4).with(7, 9, 33);
  configure(shapes);
  EXPECT_EQ(stored_configuration(), shapes);
  release();
  EXPECT_EQ(stored_configuration(), nothing);
  configure(shapes);
  configure(nothing);
  EXPECT_EQ(stored_configuration(), nothing);
}

TEST_F(TileInstructions, zero_a_tile_alone_and_all_with_a_configuration) {
  RandomEngine random(kSeed + 2);
  const Words memory = random_words(16 * 16, random);
  const Words zeros(16 * 16);
  const TileShapes shapes = TileShapes().with(2, 16, 64).with(6, 16, 64);
  const auto tiles = [&] {
    std::vector<Words> words(2, Words(16 * 16));
    store<2>(words[0].data(), 64);
    store<6>(words[1].data(), 64);
    return words;
  };
  configure(shapes);
  load<2>(memory.data(), 64);
  load<6>(memory.data(), 64);
  EXPECT_EQ(tiles(), (std::vector{memory, memory}));
  MatrixUnit().zero<6>();
  EXPECT_EQ(tiles(), (std::vector{memory, zeros}));
  configure(shapes);
  EXPECT_EQ(tiles(), (std::vector{zeros, zeros}));
}

// Every row is loaded at its place from the start row on, and only once.
TEST_F(TileInstructions, go_on_at_the_start_row) {
  RandomEngine random(kSeed + 3);
  const Words memory = random_words(16 * 16, random);
  TileShapes shapes = TileShapes().with(4, 16, 64);
  shapes.start_row = 5;
  configure(shapes);
  load<4>(memory.data(), 64);
  EXPECT_EQ(stored_configuration().start_row, 0);
  Words result(16 * 16);
  store<4>(result.data(), 64);
  Words expected = memory;
  std::fill_n(expected.begin(), 5 * 16, 0U);
  EXPECT_EQ(result, expected);
}

// Pairs of bf16 around 1, of all sizes, and of all bits.
uint16_t random_bf16(RandomEngine& random, int spread) {
  const auto bits = static_cast<uint16_t>(random());
  if (spread == 0) return bits;
  const auto width = static_cast<uint64_t>(2 * spread);
  const auto exponent = 127 - static_cast<uint64_t>(spread) + random() % width;
  return static_cast<uint16_t>((bits & 0x807FU) | exponent << 7U);
}

Words random_pairs(size_t count, int spread, RandomEngine& random) {
  Words pairs(count);
  for (uint32_t& pair : pairs) {
    pair = static_cast<uint32_t>(random_bf16(random, spread)) << 16U | random_bf16(random, spread);
  }
  return pairs;
}

float even_of(uint32_t pair) {
  return std::bit_cast<float>(pair << 16U);
}
float odd_of(uint32_t pair) {
  return std::bit_cast<float>(pair & 0xFFFF0000U);
}

TEST_F(TileInstructions, multiply_pairs_of_bf16_as_the_definition_says_in_any_mode) {
  RandomEngine random(kSeed + 4);
  const unsigned mode = _mm_getcsr();
  // Rounding down, numbers below the normal ones as zero: neither is the unit's.
  const unsigned modes[] = {mode, mode | 0x2000U, mode | 0x8040U};
  for (const Shape& shape : kShapes) {
    for (const int spread : {3, 120, 0}) {
      const Words first = random_pairs(shape.m * shape.k, spread, random);
      const Words second = random_pairs(shape.k * shape.n, spread, random);
      const Words sum = random_pairs(shape.m * shape.n, spread, random);
      for (const unsigned other_mode : modes) {
        _mm_setcsr(other_mode);
        const Words result =
            product(shape, sum, first, second, [] { MatrixUnit().multiply<1, 2, 3>(); });
        const unsigned after = _mm_getcsr();
        _mm_setcsr(mode);
        EXPECT_EQ(after, other_mode);
        for (size_t i = 0; i < result.size(); ++i) {
          const size_t m = i / shape.n;
          const size_t n = i % shape.n;
          float even = 0;
          float odd = 0;
          for (size_t k = 0; k < shape.k; ++k) {
            const uint32_t a = first[m * shape.k + k];
            const uint32_t b = second[k * shape.n + n];
            even = model_fma(even_of(a), even_of(b), even);
            odd = model_fma(odd_of(a), odd_of(b), odd);
          }
          const float expected = model_add(std::bit_cast<float>(sum[i]), model_add(even, odd));
          ASSERT_TRUE(same_number(std::bit_cast<float>(result[i]), expected))
              << std::bit_cast<float>(result[i]) << " instead of " << expected << ": row " << m
              << ", column " << n << ", spread " << spread << ", seed " << kSeed + 4;
        }
      }
    }
  }
}

template <typename First, typename Second>
Words byte_product(const Shape& shape, const Words& sum, const Words& first, const Words& second) {
  Words result = sum;
  for (size_t i = 0; i < result.size(); ++i) {
    int64_t total = static_cast<int32_t>(sum[i]);
    for (size_t k = 0; k < shape.k; ++k) {
      for (unsigned byte = 0; byte < 32; byte += 8) {
        total += int64_t{static_cast<First>(first[i / shape.n * shape.k + k] >> byte)} *
                 static_cast<Second>(second[k * shape.n + i % shape.n] >> byte);
      }
    }
    result[i] = static_cast<uint32_t>(total);  // its lower half
  }
  return result;
}

TEST_F(TileInstructions, multiply_bytes_with_and_without_signs) {
  RandomEngine random(kSeed + 5);
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(testing::Message() << shape.m << ", " << shape.k << ", " << shape.n);
    const Words first = random_words(shape.m * shape.k, random);
    const Words second = random_words(shape.k * shape.n, random);
    const Words sum = random_words(shape.m * shape.n, random);
    const auto multiply = [&](const auto& instruction) {
      return product(shape, sum, first, second, instruction);
    };
    EXPECT_EQ(multiply([] { asm volatile("tdpbssd %tmm3, %tmm2, %tmm1"); }),
              (byte_product<int8_t, int8_t>(shape, sum, first, second)));
    EXPECT_EQ(multiply([] { asm volatile("tdpbsud %tmm3, %tmm2, %tmm1"); }),
              (byte_product<int8_t, uint8_t>(shape, sum, first, second)));
    EXPECT_EQ(multiply([] { asm volatile("tdpbusd %tmm3, %tmm2, %tmm1"); }),
              (byte_product<uint8_t, int8_t>(shape, sum, first, second)));
    EXPECT_EQ(multiply([] { asm volatile("tdpbuud %tmm3, %tmm2, %tmm1"); }),
              (byte_product<uint8_t, uint8_t>(shape, sum, first, second)));
  }
}

TEST_F(TileInstructions, leave_every_other_register_as_it_is) {
  RandomEngine random(kSeed + 6);
  const Words before = random_words(16, random);
  Words after(16);
  const Words tile = random_words(16 * 16, random);
  configure(TileShapes().with(1, 16, 64).with(2, 16, 64).with(3, 16, 64));
  load<2>(tile.data(), 64);
  load<3>(tile.data(), 64);
  uint64_t general = 0;
  uint64_t mask = 0;
  bool carry = false;
  // Below the stack pointer lies what a function without calls may keep there.
  uint64_t below = 0;
  asm volatile(
      "vmovdqu32 (%5), %%zmm17\n\t"
      "mov $0x123456789ABCDEF, %%r11\n\t"
      "kmovq %%r11, %%k3\n\t"
      "mov %%r11, -120(%%rsp)\n\t"
      "stc\n\t"
      "tdpbf16ps %%tmm3, %%tmm2, %%tmm1\n\t"
      "setc %2\n\t"
      "vmovdqu32 %%zmm17, (%4)\n\t"
      "mov %%r11, %0\n\t"
      "kmovq %%k3, %1\n\t"
      "mov -120(%%rsp), %3"
      : "=&r"(general), "=&r"(mask), "=&r"(carry), "=&r"(below)
      : "r"(after.data()), "r"(before.data())
      : "r11", "cc", "memory");
  EXPECT_EQ(after, before);
  EXPECT_EQ(general, 0x123456789ABCDEFU);
  EXPECT_EQ(mask, 0x123456789ABCDEFU);
  EXPECT_EQ(below, 0x123456789ABCDEFU);
  EXPECT_TRUE(carry);
}

TEST_F(TileInstructions, work_on_tiles_of_the_thread) {
  RandomEngine random(kSeed + 7);
  const Words mine = random_words(16 * 16, random);
  const Words others = random_words(16 * 16, random);
  configure(TileShapes().with(0, 16, 64));
  load<0>(mine.data(), 64);
  std::thread([&] {
    // The state that a thread begins with is the system's affair: Linux lets it inherit the
    // configuration.
    configure(TileShapes().with(0, 16, 64));
    load<0>(others.data(), 64);
    release();
  }).join();
  Words result(16 * 16);
  store<0>(result.data(), 64);
  EXPECT_EQ(result, mine);
}

TEST_F(TileInstructions, are_counted_where_they_are_emulated) {
  using enum TileOperation;
  if (!emulation_.is_active()) GTEST_SKIP() << "this processor has tiles";
  configure(TileShapes().with(1, 1, 4).with(2, 1, 4).with(3, 1, 4));
  for (int i = 0; i < 3; ++i) MatrixUnit().zero<1>();
  std::thread([] { release(); }).join();
  EXPECT_EQ(emulation_.count(kLoadConfiguration), 1U);
  EXPECT_EQ(emulation_.count(kZero), 3U);
  EXPECT_EQ(emulation_.count(kRelease), 1U);
  EXPECT_EQ(emulation_.count(kBf16Product), 0U);
}

using TileInstructionsDeathTest = TileInstructions;

TEST_F(TileInstructionsDeathTest, refuse_a_wrong_configuration) {
  const auto refused = [&](const TileShapes& shapes, const char* why) {
    EXPECT_EXIT(configure(shapes), testing::KilledBySignal(SIGSEGV), reason(why)) << why;
  };
  TileShapes shapes;
  shapes.palette = 2;
  refused(shapes, "LDTILECFG of an unknown palette");
  shapes = {};
  shapes.reserved[13] = 1;
  refused(shapes, "LDTILECFG with reserved bytes that are not zero");
  refused(TileShapes().with(0, 17, 64), "LDTILECFG of more than 16 rows");
  refused(TileShapes().with(7, 1, 65), "LDTILECFG of a row of more than 64 bytes");
  refused(TileShapes().with(3, 0, 64), "LDTILECFG of a tile with rows or columns alone");
  refused(TileShapes().with(3, 4, 0), "LDTILECFG of a tile with rows or columns alone");
  refused(TileShapes().with(8, 4, 4), "LDTILECFG of a tile that there is not");
}

TEST_F(TileInstructionsDeathTest, refuse_tiles_that_are_not_there) {
  Words memory(16 * 16);
  const auto expect_refusals = [&](const char* why) {
    const auto undefined = testing::KilledBySignal(SIGILL);
    EXPECT_EXIT(MatrixUnit().zero<1>(), undefined, reason(why));
    EXPECT_EXIT(load<1>(memory.data(), 64), undefined, reason(why));
    EXPECT_EXIT(store<1>(memory.data(), 64), undefined, reason(why));
    EXPECT_EXIT((MatrixUnit().multiply<1, 2, 3>()), undefined, reason(why));
    EXPECT_EXIT((MatrixUnit().multiply<2, 1, 3>()), undefined, reason(why));
    EXPECT_EXIT((MatrixUnit().multiply<2, 3, 1>()), undefined, reason(why));
  };
  release();
  expect_refusals("a tile is used while none is configured");
  configure(TileShapes().with(2, 16, 64).with(3, 16, 64));
  expect_refusals("a tile is used that the configuration leaves out");
}

TEST_F(TileInstructionsDeathTest, refuse_tiles_that_do_not_fit) {
  const auto refused = [&](const TileShapes& shapes, const char* why) {
    EXPECT_EXIT(
        {
          configure(shapes);
          (MatrixUnit().multiply<1, 2, 3>());
        },
        testing::KilledBySignal(SIGILL), reason(why));
  };
  constexpr const char* kFit = "a product's tiles do not fit one another";
  refused(TileShapes().with(1, 5, 12).with(2, 6, 28).with(3, 7, 12), kFit);
  refused(TileShapes().with(1, 5, 12).with(2, 5, 24).with(3, 7, 12), kFit);
  refused(TileShapes().with(1, 5, 12).with(2, 5, 28).with(3, 7, 16), kFit);
  refused(TileShapes().with(1, 5, 13).with(2, 5, 28).with(3, 7, 13),
          "a tile's rows are no multiple of 4 bytes");
  EXPECT_EXIT(
      {
        configure(TileShapes().with(1, 16, 64).with(2, 16, 64));
        // tdpbssd %tmm2, %tmm1, %tmm1, which no assembler writes.
        asm volatile(".byte 0xC4, 0xE2, 0x6B, 0x5E, 0xC9");
      },
      testing::KilledBySignal(SIGILL), reason("a product names a tile twice"));
  Words memory(16 * 16);
  TileShapes shapes = TileShapes().with(1, 4, 64);
  shapes.start_row = 4;
  EXPECT_EXIT(
      {
        configure(shapes);
        load<1>(memory.data(), 64);
      },
      testing::KilledBySignal(SIGILL), reason("the start row is beyond the tile"));
}

TEST_F(TileInstructionsDeathTest, are_all_that_is_emulated) {
  EXPECT_EXIT(asm volatile("ud2"), testing::KilledBySignal(SIGILL), "");
}

TEST(TileEmulationDeathTest, leaves_other_instructions_to_who_handled_them_before) {
  EXPECT_EXIT(
      {
        struct sigaction action {};
        action.sa_handler = [](int) { _exit(7); };
        sigaction(SIGILL, &action, nullptr);
        const TileEmulation emulation;
        asm volatile("ud2");
      },
      testing::ExitedWithCode(7), "");
}

TEST(TileEmulationDeathTest, ends_with_the_object) {
  if (!TileEmulation().is_active()) GTEST_SKIP() << "nothing is emulated here";
  EXPECT_EXIT(release(), testing::KilledBySignal(SIGILL), "");
}

}  // namespace
}  // namespace lockstep
