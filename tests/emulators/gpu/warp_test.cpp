#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/emulators/gpu/small_kernels.h"

namespace lockstep::ptx {
namespace {

using testing::HasSubstr;

// %r0: the thread; %rd0: the address of its own 4 bytes.
constexpr const char* kOwnPlace =
    "ld.param.u64 %rd0, [p0]; mov.u32 %r0, %tid.x; mul.wide.u32 %rd1, %r0, 4;"
    "add.s64 %rd0, %rd0, %rd1;\n";

std::vector<uint32_t> run_lanes(const std::string& body, uint32_t threads = 32) {
  std::vector<uint32_t> result;
  EXPECT_EQ(run_body(kOwnPlace + body, threads * sizeof(uint32_t), &result, {threads, 1, 1}), "");
  return result;
}
std::string failure_of(const std::string& body, uint32_t threads = 32) {
  return run_body(kOwnPlace + body, threads * sizeof(uint32_t), nullptr, {threads, 1, 1});
}

TEST(PtxWarps, lanes_that_part_write_only_their_own_and_meet_again) {
  // Each instruction that lanes run alone must leave the others' registers as they are: of 1, 2, 4
  // and 8 bytes a lane. Behind the branches all are together, or the ballot would fail.
  const auto result = run_lanes(R"(
    mov.u32 %r1, 7; mov.u64 %rd2, 70; mov.u16 %rs1, 700; mov.pred %p2, 0;
    and.b32 %r2, %r0, 1;
    setp.eq.s32 %p0, %r2, 1;
    @%p0 bra ODD;
    add.s32 %r1, %r1, 1; add.s64 %rd2, %rd2, 2; add.s16 %rs1, %rs1, 3; mov.pred %p2, 1;
    bra.uni MEET;
    ODD:
    setp.lt.u32 %p1, %r0, 16;
    @%p1 bra MEET;
    add.s32 %r1, %r1, 1000;
    MEET:
    vote.sync.ballot.b32 %r3, %p2, -1;
    cvt.u32.u64 %r4, %rd2; cvt.u32.u16 %r5, %rs1;
    add.s32 %r1, %r1, %r4; add.s32 %r1, %r1, %r5; add.s32 %r1, %r1, %r3;
    st.global.u32 [%rd0], %r1;
  )");
  for (uint32_t lane = 0; lane < 32; ++lane) {
    const uint32_t even = 8 + 72 + 703;
    const uint32_t odd = 777 + (lane < 16 ? 0 : 1000);
    EXPECT_EQ(result[lane], 0x55555555 + (lane % 2 == 0 ? even : odd)) << lane;
  }
}

TEST(PtxWarps, loops_of_different_lengths_end_together) {
  // Lane n adds n, n-1, .. 1; then all lanes sum up what they have.
  const auto result = run_lanes(R"(
    mov.u32 %r1, 0; mov.u32 %r2, %r0;
    LOOP:
    setp.eq.s32 %p0, %r2, 0;
    @%p0 bra DONE;
    add.s32 %r1, %r1, %r2; add.s32 %r2, %r2, -1;
    bra LOOP;
    DONE:
    redux.sync.add.u32 %r3, %r1, -1;
    sub.s32 %r3, %r3, %r1;
    st.global.u32 [%rd0], %r3;
  )");
  for (uint32_t lane = 0; lane < 32; ++lane) {
    EXPECT_EQ(result[lane], 5456 - lane * (lane + 1) / 2) << lane;
  }
}

TEST(PtxWarps, values_that_a_loop_carries_keep_their_registers) {
  // %r1 is only written on a path of the loop that is not taken first: its place must not be given
  // to the registers that the loop uses meanwhile.
  const auto result = run_lanes(R"(
    mov.u32 %r2, 0; mov.u32 %r1, 5;
    LOOP:
    setp.eq.s32 %p0, %r2, 2;
    @!%p0 bra NEXT;
    add.s32 %r1, %r0, 100;
    NEXT:
    add.s32 %r10, %r2, 1; add.s32 %r11, %r10, 2; add.s32 %r12, %r11, 3; add.s32 %r13, %r12, %r11;
    add.s32 %r2, %r2, 1;
    setp.lt.u32 %p1, %r2, 6;
    @%p1 bra LOOP;
    add.s32 %r1, %r1, %r13;
    st.global.u32 [%rd0], %r1;
  )");
  for (uint32_t lane = 0; lane < 32; ++lane) EXPECT_EQ(result[lane], lane + 100 + 8 + 11) << lane;
}

TEST(PtxWarps, lanes_that_come_back_in_the_text_meet_those_that_wait) {
  const auto result = run_lanes(R"(
    setp.lt.u32 %p0, %r0, 16;
    @!%p0 bra LATER;
    MEET:
    redux.sync.add.u32 %r1, %r0, -1;
    st.global.u32 [%rd0], %r1;
    bra DONE;
    LATER:
    add.s32 %r0, %r0, 100;
    bra MEET;
    DONE:
  )");
  for (uint32_t lane = 0; lane < 32; ++lane) EXPECT_EQ(result[lane], 496u + 1600) << lane;
}

TEST(PtxWarps, lanes_that_have_met_run_as_one) {
  // The branch, 2 instructions on one side and a branch, 3 on the other, 4 together and the end.
  const Module module = parsed(kernel_text(R"(
    mov.u32 %r0, %tid.x;
    setp.lt.u32 %p0, %r0, 16;
    @%p0 bra OTHER;
    add.s32 %r1, %r0, 1; add.s32 %r1, %r1, 2;
    bra MEET;
    OTHER:
    add.s32 %r1, %r0, 3; add.s32 %r1, %r1, 4; add.s32 %r1, %r1, 5;
    MEET:
    add.s32 %r2, %r1, 1; add.s32 %r3, %r2, 1; add.s32 %r4, %r3, 1; add.s32 %r5, %r4, 1;
  )"));
  TestMemory memory;
  const Launch launch = small_launch(module, {0});
  Block block(launch, {}, memory, 1);
  EXPECT_EQ(block.run(1000, true), BlockState::kDone);
  EXPECT_EQ(block.warp_instructions(), 3u + 3 + 3 + 4 + 1);
}

TEST(PtxWarps, a_predicate_before_an_instruction_chooses_lanes) {
  const auto result = run_lanes(R"(
    mov.u32 %r1, 1;
    setp.gt.u32 %p0, %r0, 3;
    @%p0 mov.u32 %r1, 2;
    @!%p0 add.s32 %r1, %r1, 4;
    @%p0 st.global.u32 [%rd0], %r1;
  )");
  for (uint32_t lane = 0; lane < 32; ++lane) EXPECT_EQ(result[lane], lane > 3 ? 2u : 0u) << lane;
}

TEST(PtxWarps, a_warp_may_have_fewer_lanes) {
  const auto result = run_lanes(R"(
    mov.pred %p0, 1;
    setp.lt.u32 %p1, %r0, 32;
    @%p1 bra STORE;
    vote.sync.ballot.b32 %r0, %p0, 0x1f;
    STORE: st.global.u32 [%rd0], %r0;
  )",
                                37);
  EXPECT_EQ(result[31], 31u);
  for (uint32_t lane = 32; lane < 37; ++lane) EXPECT_EQ(result[lane], 0x1fu);
  EXPECT_THAT(failure_of("vote.sync.ballot.b32 %r0, %p0, -1;", 37), HasSubstr("are none or have"));
}

// The lane that shfl.sync reads, by PTX ISA's own pseudocode.
uint32_t shuffle_source(const std::string& mode, uint32_t lane, uint32_t b, uint32_t c,
                        bool& in_range) {
  const uint32_t segment_mask = (c >> 8) & 0x1f;
  const uint32_t max_lane = (lane & segment_mask) | ((c & 0x1f) & ~segment_mask);
  const uint32_t min_lane = lane & segment_mask;
  int32_t j = 0;
  if (mode == "up") {
    j = static_cast<int32_t>(lane - (b & 0x1f));
    in_range = j >= static_cast<int32_t>(max_lane);
  } else {
    if (mode == "down") j = static_cast<int32_t>(lane + (b & 0x1f));
    if (mode == "bfly") j = static_cast<int32_t>(lane ^ (b & 0x1f));
    if (mode == "idx") j = static_cast<int32_t>(min_lane | ((b & 0x1f) & ~segment_mask));
    in_range = j <= static_cast<int32_t>(max_lane);
  }
  return in_range ? static_cast<uint32_t>(j) : lane;
}

TEST(PtxWarps, shuffles_take_values_within_their_segments) {
  for (const std::string mode : {"up", "down", "bfly", "idx"}) {
    for (const uint32_t c : {0x1fu, 0x00u, 0x1c1fu, 0x1003u, 0x181fu, 0x1800u}) {
      for (const uint32_t b : {0u, 1u, 2u, 5u, 16u, 31u}) {
        const auto result = run_lanes(fmt::format(
            "add.s32 %r1, %r0, 100; shfl.sync.{}.b32 %r1|%p0, %r1, {}, {}, -1;"
            "selp.u32 %r2, 1000, 0, %p0; add.s32 %r1, %r1, %r2; st.global.u32 [%rd0], %r1;",
            mode, b, c));
        for (uint32_t lane = 0; lane < 32; ++lane) {
          bool in_range = false;
          const uint32_t source = shuffle_source(mode, lane, b, c, in_range);
          ASSERT_EQ(result[lane], source + 100 + (in_range ? 1000 : 0))
              << mode << " lane " << lane << " b " << b << " c " << c;
        }
      }
    }
  }
}

TEST(PtxWarps, lanes_of_a_part_exchange_among_themselves) {
  const auto result = run_lanes(R"(
    setp.lt.u32 %p0, %r0, 8;
    @!%p0 bra OTHERS;
    shfl.sync.bfly.b32 %r1, %r0, 7, 31, 0xff;
    redux.sync.add.u32 %r2, %r1, 0xff;
    mad.lo.s32 %r1, %r2, 100, %r1;
    bra STORE;
    OTHERS:
    redux.sync.add.u32 %r1, 1, 0xffffff00;
    STORE:
    bar.warp.sync -1;
    st.global.u32 [%rd0], %r1;
  )");
  for (uint32_t lane = 0; lane < 32; ++lane) {
    EXPECT_EQ(result[lane], lane < 8 ? 2800 + (lane ^ 7) : 24) << lane;
  }
}

TEST(PtxWarps, exchanges_that_not_all_reach_are_refused) {
  // The others run past the place, and end.
  const std::string ended = failure_of(R"(
    setp.lt.u32 %p0, %r0, 16;
    @%p0 bra DONE;
    shfl.sync.bfly.b32 %r1, %r0, 1, 31, -1;
    DONE:
  )");
  EXPECT_THAT(ended, HasSubstr("have ended"));
  EXPECT_THAT(ended, HasSubstr("shfl.sync.bfly.b32 %r1"));
  // They wait elsewhere.
  const std::string elsewhere = failure_of(R"(
    setp.lt.u32 %p0, %r0, 16;
    @%p0 bra OTHER;
    bar.warp.sync -1;
    bra DONE;
    OTHER:
    redux.sync.add.u32 %r1, %r0, -1;
    DONE:
  )");
  EXPECT_THAT(elsewhere, HasSubstr("not all lanes that have to meet"));
  EXPECT_THAT(elsewhere, HasSubstr("0x0000ffff"));
  EXPECT_THAT(failure_of("bar.warp.sync 0xffff;"), HasSubstr("not in its own mask"));
  EXPECT_THAT(failure_of("shl.b32 %r1, 1, %r0; bar.warp.sync %r1;"), HasSubstr("its mask is"));
  EXPECT_THAT(failure_of(R"(
    setp.lt.u32 %p0, %r0, 16;
    @!%p0 bra DONE;
    shfl.sync.bfly.b32 %r1, %r0, 16, 31, 0xffff;
    DONE:
  )"),
              HasSubstr("takes the value of lane 16"));
}

TEST(PtxWarps, failures_name_kernel_line_instruction_thread_and_block) {
  const Module module = parsed(kernel_text("mov.u32 %r0, %tid.y;\nbar.warp.sync %r0;"));
  TestMemory memory;
  const Launch launch = small_launch(module, {0}, {4, 4, 2});
  const std::string failure = run_block(launch, memory, {5, 6, 7});
  EXPECT_THAT(failure, HasSubstr("k, line 10: `bar.warp.sync %r0`: thread ("));
  EXPECT_THAT(failure, HasSubstr("of block (5, 6, 7): "));
  EXPECT_THAT(failure, HasSubstr("thread (0, 1, 0)"));
}

}  // namespace
}  // namespace lockstep::ptx
