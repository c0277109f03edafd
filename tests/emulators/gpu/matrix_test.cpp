#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "tests/emulators/gpu/small_kernels.h"

namespace lockstep::ptx {
namespace {

// PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type", formula by formula: lane
// and element give row and column.
struct Element {
  uint32_t row;
  uint32_t column;
};
Element place_in_a(uint32_t lane, uint32_t i) {
  const uint32_t group = lane >> 2;
  const uint32_t in_group = lane % 4;
  return {(i < 2) || (4 <= i && i < 6) ? group : group + 8,
          i < 4 ? in_group * 2 + (i & 1) : in_group * 2 + (i & 1) + 8};
}
Element place_in_b(uint32_t lane, uint32_t i) {
  return {i < 2 ? lane % 4 * 2 + (i & 1) : lane % 4 * 2 + (i & 1) + 8, lane >> 2};
}
Element place_in_c(uint32_t lane, uint32_t i) {
  return {i < 2 ? lane >> 2 : (lane >> 2) + 8, lane % 4 * 2 + (i & 1)};
}

// n/8 in bf16 and in f16, exact for small n.
uint16_t as_bf16(int eighths) {
  return static_cast<uint16_t>(std::bit_cast<uint32_t>(static_cast<float>(eighths) / 8) >> 16);
}
uint16_t as_f16(int eighths) {
  if (eighths == 0) return 0;
  int exponent = 0;
  const float fraction = std::frexp(std::fabs(static_cast<float>(eighths) / 8), &exponent);
  const auto mantissa = static_cast<uint16_t>(std::ldexp(fraction, 11));
  return static_cast<uint16_t>((eighths < 0 ? 0x8000 : 0) | (exponent + 14) << 10 |
                               (mantissa & 0x3ff));
}

constexpr const char* kLoad = R"(
    ld.param.u64 %rd0, [p0]; ld.param.u64 %rd1, [p1];
    mov.u32 %r0, %tid.x; mul.wide.u32 %rd2, %r0, 64; add.s64 %rd0, %rd0, %rd2;
    mul.wide.u32 %rd2, %r0, 16; add.s64 %rd1, %rd1, %rd2;
    ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%rd0];
    ld.global.v2.u32 {%r5, %r6}, [%rd0+16];
    ld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%rd0+32];
)";

void expect_product(const std::string& type, uint16_t (*rounded)(int)) {
  std::mt19937 random(11);
  const auto small = [&] { return static_cast<int>(random() % 61) - 30; };
  int a[16][16];
  int b[16][8];
  int c[16][8];
  for (auto& row : a) {
    for (int& value : row) value = small();
  }
  for (auto& row : b) {
    for (int& value : row) value = small();
  }
  for (auto& row : c) {
    for (int& value : row) value = small();
  }
  // 16 words a lane: A in 0-3, B in 4-5, C in 8-11.
  std::vector<uint32_t> words(32 * 16);
  for (uint32_t lane = 0; lane < 32; ++lane) {
    uint32_t* const its = &words[lane * 16];
    for (uint32_t i = 0; i < 8; ++i) {
      const Element at = place_in_a(lane, i);
      its[i / 2] |= uint32_t{rounded(a[at.row][at.column])} << (16 * (i % 2));
    }
    for (uint32_t i = 0; i < 4; ++i) {
      const Element at = place_in_b(lane, i);
      its[4 + i / 2] |= uint32_t{rounded(b[at.row][at.column])} << (16 * (i % 2));
      const Element of_c = place_in_c(lane, i);
      its[8 + i] = std::bit_cast<uint32_t>(static_cast<float>(c[of_c.row][of_c.column]));
    }
  }
  TestMemory memory;
  const uint64_t from = memory.add(words);
  const uint64_t to = memory.add(32 * 16);
  const Module module = parsed(kernel_text(
      kLoad + fmt::format("mma.sync.aligned.m16n8k16.row.col.f32.{0}.{0}.f32 "
                          "{{%f5, %f6, %f7, %f8}}, {{%r1, %r2, %r3, %r4}}, {{%r5, %r6}}, "
                          "{{%f1, %f2, %f3, %f4}};"
                          "st.global.v4.f32 [%rd1], {{%f5, %f6, %f7, %f8}};",
                          type),
      2));
  ASSERT_EQ(run_block(small_launch(module, {from, to}), memory), "");
  const auto* const results = memory.at<float>(to);
  for (uint32_t lane = 0; lane < 32; ++lane) {
    for (uint32_t i = 0; i < 4; ++i) {
      const Element at = place_in_c(lane, i);
      // Small enough that no order of sums rounds.
      int sum = 64 * c[at.row][at.column];
      for (uint32_t k = 0; k < 16; ++k) sum += a[at.row][k] * b[k][at.column];
      ASSERT_EQ(results[lane * 4 + i], static_cast<float>(sum) / 64) << lane << ", " << i;
    }
  }
}

TEST(PtxMatrices, products_have_their_elements_where_the_document_says) {
  expect_product("bf16", as_bf16);
  expect_product("f16", as_f16);
}

// B in shared memory: for 8 columns of A the 16 columns of B, 16 bytes each. `%rd4`: its
// descriptor.
constexpr const char* kLoadGroup = R"(
    ld.param.u64 %rd0, [p0]; ld.param.u64 %rd1, [p1]; ld.param.u64 %rd2, [p2];
    mov.u32 %r0, %tid.x; mul.wide.u32 %rd3, %r0, 4; add.s64 %rd1, %rd1, %rd3;
    ld.global.u32 %r5, [%rd1]; shl.b32 %r6, %r0, 2; add.s32 %r6, %r6, 1024;
    st.shared.u32 [%r6], %r5;
    mul.wide.u32 %rd3, %r0, 16; add.s64 %rd0, %rd0, %rd3;
    ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%rd0];
    mul.wide.u32 %rd3, %r0, 32; add.s64 %rd2, %rd2, %rd3;
    fence.proxy.async.shared::cta;
)";
constexpr const char* kMultiplyGroup = R"(
    wgmma.fence.sync.aligned;
    wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16
      {%f1, %f2, %f3, %f4, %f5, %f6, %f7, %f8}, {%r1, %r2, %r3, %r4}, %rd4, 0, 1, 1, 0;
    wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16
      {%f1, %f2, %f3, %f4, %f5, %f6, %f7, %f8}, {%r1, %r2, %r3, %r4}, %rd4, 1, 1, 1, 0;
    wgmma.commit_group.sync.aligned;
    wgmma.wait_group.sync.aligned 0;
    st.global.v4.f32 [%rd2], {%f1, %f2, %f3, %f4};
    st.global.v4.f32 [%rd2+16], {%f5, %f6, %f7, %f8};
)";
// It begins at byte 1024 of shared memory; 8 more columns of A are 256 bytes further on, 8 more of
// B 128.
constexpr const char* kDescriptor = "mov.u64 %rd4, 0x0000000800100040;";

std::string run_group(const std::string& body, Size3 block, std::vector<float>* sums,
                      const std::vector<uint32_t>& a, const std::vector<uint32_t>& b) {
  TestMemory memory;
  const uint64_t to = memory.add(128 * 32);
  const Module module = parsed(kernel_text(body, 3));
  Launch launch = small_launch(module, {memory.add(a), memory.add(b), to}, block, 512);
  launch.refuses_shared_races = true;
  const std::string wrong = run_block(launch, memory);
  if (sums != nullptr) sums->assign(memory.at<float>(to), memory.at<float>(to) + 128 * 8);
  return wrong;
}

TEST(PtxMatrices, products_of_warp_groups_read_b_where_its_descriptor_says) {
  std::mt19937 random(12);
  const auto small = [&] { return static_cast<int>(random() % 61) - 30; };
  std::vector<uint32_t> a_words(128 * 4);
  std::vector<uint32_t> b_words(128);
  int a[64][16];
  int b[16][16];
  for (uint32_t lane = 0; lane < 128; ++lane) {
    for (uint32_t i = 0; i < 8; ++i) {
      const Element at = place_in_a(lane % 32, i);
      int& value = a[lane / 32 * 16 + at.row][at.column];
      value = small();
      a_words[lane * 4 + i / 2] |= uint32_t{as_bf16(value)} << (16 * (i % 2));
    }
  }
  for (uint32_t k = 0; k < 16; ++k) {
    for (uint32_t column = 0; column < 16; ++column) {
      b[k][column] = small();
      const uint32_t half = k / 8 * 128 + column * 8 + k % 8;
      b_words[half / 2] |= uint32_t{as_bf16(b[k][column])} << (16 * (half % 2));
    }
  }
  std::vector<float> sums;
  ASSERT_EQ(run_group(std::string(kLoadGroup) + "bar.sync 0;" + kDescriptor + kMultiplyGroup,
                      {128, 1, 1}, &sums, a_words, b_words),
            "");
  for (uint32_t lane = 0; lane < 128; ++lane) {
    for (uint32_t i = 0; i < 8; ++i) {
      const Element at = place_in_c(lane % 32, i % 4);
      int sum = 0;
      for (uint32_t k = 0; k < 16; ++k) {
        sum += 2 * a[lane / 32 * 16 + at.row][k] * b[k][i / 4 * 8 + at.column];
      }
      ASSERT_EQ(sums[lane * 8 + i], static_cast<float>(sum) / 64) << lane << ", " << i;
    }
  }
}

TEST(PtxMatrices, products_of_warp_groups_are_refused_where_a_gpu_would_do_anything) {
  const std::vector<uint32_t> a(128 * 4);
  const std::vector<uint32_t> b(128);
  const auto run = [&](const std::string& body, Size3 block = {128, 1, 1}) {
    return run_group(std::string(kLoadGroup) + body + kMultiplyGroup, block, nullptr, a, b);
  };
  EXPECT_EQ(run(std::string("bar.sync 0;") + kDescriptor), "");
  EXPECT_THAT(run(kDescriptor), testing::HasSubstr("a product reads shared memory that"));
  EXPECT_THAT(run("bar.sync 0; mov.u64 %rd4, 0x0000000800100050;"),
              testing::HasSubstr("that the block has not"));
  EXPECT_THAT(run("bar.sync 0; mov.u64 %rd4, 0x4000000800100040;"),
              testing::HasSubstr("not swizzled"));
  EXPECT_THAT(run(std::string("bar.sync 0;") + kDescriptor, {96, 1, 1}),
              testing::HasSubstr("four warps"));
}

TEST(PtxMatrices, sums_round_to_floats) {
  // 2^24 + 1 is no float: each of the ones is lost, where a wider sum would keep them.
  std::vector<uint32_t> result;
  EXPECT_EQ(run_body(R"(
    ld.param.u64 %rd0, [p0];
    mov.u32 %r1, 0x3f803f80; mov.f32 %f1, 0f4B800000; mov.f32 %f2, 0fFF800000;
    mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f3, %f4, %f5, %f6},
      {%r1, %r1, %r1, %r1}, {%r1, %r1}, {%f1, %f2, %f1, %f1};
    st.global.f32 [%rd0], %f3; st.global.f32 [%rd0+4], %f4;
  )",
                     8, &result),
            "");
  EXPECT_EQ(result, (std::vector<uint32_t>{0x4b800000, 0xff800000}));
}

TEST(PtxMatrices, all_lanes_take_part) {
  EXPECT_THAT(run_body(R"(
    mov.u32 %r0, %tid.x; setp.eq.s32 %p0, %r0, 31;
    @%p0 bra DONE;
    mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f3, %f4, %f5, %f6},
      {%r1, %r1, %r1, %r1}, {%r1, %r1}, {%f1, %f2, %f1, %f1};
    DONE:
  )",
                       8),
              testing::HasSubstr("0x80000000 are none or have ended"));
}

}  // namespace
}  // namespace lockstep::ptx
