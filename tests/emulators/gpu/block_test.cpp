#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/emulators/gpu/shared_touches.h"
#include "tests/emulators/gpu/small_kernels.h"

namespace lockstep::ptx {
namespace {

using testing::HasSubstr;

constexpr uint64_t kEnough = 1000000;

// %r0: the thread; %rd0: the address of its own 4 bytes; %r1: that of its place in shared memory.
constexpr const char* kOwnPlace =
    "ld.param.u64 %rd0, [p0]; mov.u32 %r0, %tid.x; mul.wide.u32 %rd1, %r0, 4;"
    "add.s64 %rd0, %rd0, %rd1; mov.u32 %r1, bytes; shl.b32 %r2, %r0, 2; add.s32 %r1, %r1, %r2;\n";

TEST(PtxBlocks, barriers_make_writes_seen_whatever_the_order_of_warps) {
  constexpr const char* kBody = R"(
    st.shared.u32 [%r1], %r0;
    bar.sync 0;
    xor.b32 %r3, %r2, 1020;
    mov.u32 %r4, bytes;
    add.s32 %r4, %r4, %r3;
    ld.shared.u32 %r5, [%r4];
    st.global.u32 [%rd0], %r5;
  )";
  std::vector<uint32_t> result;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    ASSERT_EQ(run_body(std::string(kOwnPlace) + kBody, 1024, &result, {256, 1, 1}, 1024, seed), "");
    for (uint32_t t = 0; t < 256; ++t) ASSERT_EQ(result[t], 255 - t);
  }
  // Without the barrier, at least one order shows it.
  std::string without = kBody;
  without.erase(without.find("bar.sync 0;"), 11);
  bool seen = false;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    seen =
        seen || run_body(std::string(kOwnPlace) + without, 1024, nullptr, {256, 1, 1}, 1024, seed)
                        .find("that nobody has written") != std::string::npos;
  }
  EXPECT_TRUE(seen);
}

// Two warps, of which each does its part: what is wrong, for some orders of them.
std::set<std::string> races_of(const std::string& first, const std::string& second) {
  const Module module = parsed(kernel_text(fmt::format(R"(
    ld.param.u64 %rd0, [p0]; mov.u32 %r0, %tid.x; mov.u32 %r1, bytes;
    and.b32 %r2, %r0, 31; shl.b32 %r2, %r2, 2; add.s32 %r2, %r2, %r1;
    setp.ge.u32 %p0, %r0, 32;
    @%p0 bra SECOND;
    {} bra BEHIND;
    SECOND: {}
    BEHIND: bar.sync 0;
    ld.shared.u32 %r5, [%r1];
  )",
                                                       first, second)));
  std::set<std::string> found;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    TestMemory memory;
    Launch launch = small_launch(module, {memory.add(4096)}, {64, 1, 1}, 256);
    launch.refuses_unwritten_shared = false;
    launch.refuses_shared_races = true;
    const std::string failure = run_block(launch, memory, {}, seed);
    found.insert(failure);
  }
  return found;
}

TEST(PtxBlocks, races_are_found_whatever_the_order_of_warps) {
  const std::string read = "ld.shared.u32 %r3, [%r2];";
  const std::string write = "st.shared.u32 [%r2], %r0;";
  const std::string aside = "st.shared.u32 [%r2+128], %r0;";
  const std::string one_byte = "st.shared.u8 [%r1+5], %r0;";
  const std::string copy =
      "cp.async.ca.shared.global [%r2], [%rd0], 4; cp.async.commit_group; cp.async.wait_group 0;";
  const std::set<std::string> none{""};
  EXPECT_EQ(races_of(read, read), none);
  EXPECT_EQ(races_of(write, aside), none);
  EXPECT_EQ(races_of(write + read, ""), none);
  for (const std::string& other : {read, write, one_byte, copy}) {
    EXPECT_EQ(races_of(write, other).count(""), 0u) << other;
    EXPECT_EQ(races_of(copy, other).count(""), 0u) << other;
  }
  EXPECT_EQ(races_of(read + read, one_byte).count(""), 0u);
  EXPECT_EQ(races_of(read, read + write).count(""), 0u);
  // Behind a barrier for all it is another time.
  EXPECT_EQ(races_of(write, "").count(""), 1u);
}

TEST(PtxBlocks, a_copy_that_was_waited_for_is_another_warps_only_behind_a_barrier) {
  const Module module = parsed(kernel_text(R"(
    ld.param.u64 %rd0, [p0]; mov.u32 %r0, %tid.x; mov.u32 %r1, bytes;
    setp.eq.s32 %p0, %r0, 0; setp.ge.u32 %p1, %r0, 32;
    @%p0 cp.async.ca.shared.global [%r1], [%rd0], 4;
    cp.async.commit_group;
    bar.sync 0;
    @!%p1 cp.async.wait_group 0;
    @%p1 ld.shared.u32 %r2, [%r1];
  )"));
  for (uint64_t seed = 0; seed < 8; ++seed) {
    TestMemory memory;
    Launch launch = small_launch(module, {memory.add(64)}, {64, 1, 1}, 64);
    launch.refuses_shared_races = true;
    EXPECT_NE(run_block(launch, memory, {}, seed), "");
  }
}

TEST(PtxBlocks, warps_that_have_ended_are_not_waited_for) {
  std::vector<uint32_t> result;
  EXPECT_EQ(run_body(std::string(kOwnPlace) + R"(
    setp.ge.u32 %p0, %r0, 32;
    @%p0 bra DONE;
    setp.ge.u32 %p0, %r0, 20;
    @%p0 ret;
    bar.sync 0;
    st.global.u32 [%rd0], 1;
    DONE:
  )",
                     512, &result, {128, 1, 1}),
            "");
  EXPECT_EQ(result[19], 1u);
  EXPECT_EQ(result[20], 0u);
}

TEST(PtxBlocks, barriers_that_part_of_a_warp_or_of_the_block_reaches_are_refused) {
  EXPECT_THAT(run_body(std::string(kOwnPlace) + R"(
    setp.eq.s32 %p0, %r0, 3;
    @%p0 bra OTHER;
    bar.sync 0;
    bra DONE;
    OTHER:
    bar.sync 0;
    DONE:
  )",
                       128),
              HasSubstr("not all lanes that have to meet"));
  EXPECT_THAT(run_body(std::string(kOwnPlace) + R"(
    setp.lt.u32 %p0, %r0, 32;
    @%p0 bra OTHER;
    bar.sync 0;
    bra DONE;
    OTHER:
    bar.sync 0;
    DONE:
  )",
                       256, nullptr, {64, 1, 1}),
              HasSubstr("waits at another barrier, line"));
}

TEST(PtxBlocks, special_registers_say_where_a_thread_is) {
  const Module module = parsed(kernel_text(R"(
    ld.param.u64 %rd0, [p0];
    mov.u32 %r0, %tid.x; mov.u32 %r1, %tid.y; mov.u32 %r2, %tid.z;
    mov.u32 %r3, %ntid.x; mov.u32 %r4, %ntid.y; mov.u32 %r5, %ntid.z;
    mov.u32 %r6, %ctaid.x; mov.u32 %r7, %ctaid.y; mov.u32 %r8, %ctaid.z;
    mov.u32 %r9, %nctaid.x; mov.u32 %r10, %nctaid.y; mov.u32 %r11, %nctaid.z;
    mov.u32 %r12, %laneid;
    mad.lo.s32 %r13, %r2, %r4, %r1; mad.lo.s32 %r13, %r13, %r3, %r0;
    mul.wide.u32 %rd1, %r13, 64; add.s64 %rd0, %rd0, %rd1;
    st.global.v4.u32 [%rd0], {%r0, %r1, %r2, %r3};
    st.global.v4.u32 [%rd0+16], {%r4, %r5, %r6, %r7};
    st.global.v4.u32 [%rd0+32], {%r8, %r9, %r10, %r11};
    st.global.u32 [%rd0+48], %r12;
  )"));
  TestMemory memory;
  const uint64_t address = memory.add(3 * 5 * 4 * 64);
  Launch launch = small_launch(module, {address}, {3, 5, 4});
  launch.grid = {7, 8, 9};
  ASSERT_EQ(run_block(launch, memory, {1, 2, 3}), "");
  const auto* const values = memory.at<uint32_t>(address);
  for (uint32_t t = 0; t < 60; ++t) {
    const std::vector<uint32_t> expected{t % 3, t / 3 % 5, t / 15, 3, 5, 4,     1,
                                         2,     3,         7,      8, 9, t % 32};
    EXPECT_EQ(std::vector(values + t * 16, values + t * 16 + 13), expected);
  }
}

TEST(PtxBlocks, wait_for_the_launch_before_and_let_the_next_begin) {
  const Module module = parsed(kernel_text(R"(
    ld.param.u64 %rd0, [p0];
    mov.u32 %r0, %tid.x;
    setp.lt.u32 %p0, %r0, 40;
    @%p0 bra WAITS;
    bar.sync 0;
    bra DONE;
    WAITS:
    griddepcontrol.wait;
    DONE:
    griddepcontrol.launch_dependents;
    st.global.u32 [%rd0], 1;
  )"));
  TestMemory memory;
  const uint64_t address = memory.add(4);
  // Warp 1 parts: some of its lanes are at the wait, others behind it at a barrier.
  {
    const Launch launch = small_launch(module, {address}, {32, 1, 1});
    Block block(launch, {}, memory, 1);
    EXPECT_EQ(block.run(kEnough, false), BlockState::kWaitsForLaunch);
    EXPECT_FALSE(block.lets_next_begin());
    EXPECT_EQ(*memory.at<uint32_t>(address), 0u);
    EXPECT_EQ(block.run(kEnough, true), BlockState::kDone);
    EXPECT_TRUE(block.lets_next_begin());
    EXPECT_EQ(*memory.at<uint32_t>(address), 1u);
  }
  const Launch launch = small_launch(module, {address}, {64, 1, 1});
  Block block(launch, {}, memory, 1);
  EXPECT_EQ(block.run(kEnough, false), BlockState::kWaitsForLaunch);
  EXPECT_EQ(block.run(kEnough, true), BlockState::kDone);
}

TEST(PtxBlocks, let_the_next_begin_when_they_say_so_or_end) {
  TestMemory memory;
  const Module early =
      parsed(kernel_text("griddepcontrol.launch_dependents; griddepcontrol.wait;"));
  const Launch launch = small_launch(early, {0});
  Block block(launch, {}, memory, 1);
  EXPECT_FALSE(block.lets_next_begin());
  EXPECT_EQ(block.run(kEnough, false), BlockState::kWaitsForLaunch);
  EXPECT_TRUE(block.lets_next_begin());
  const Module silent = parsed(kernel_text("bar.sync 0;"));
  const Launch other = small_launch(silent, {0});
  Block ended(other, {}, memory, 1);
  EXPECT_EQ(ended.run(kEnough, true), BlockState::kDone);
  EXPECT_TRUE(ended.lets_next_begin());
}

TEST(PtxBlocks, run_their_warps_in_an_order_that_the_seed_says) {
  std::set<uint32_t> last;
  for (uint64_t seed = 0; seed < 16; ++seed) {
    std::vector<uint32_t> result;
    EXPECT_EQ(run_body("ld.param.u64 %rd0, [p0]; mov.u32 %r0, %tid.x; shr.u32 %r0, %r0, 5;"
                       "st.global.u32 [%rd0], %r0;",
                       4, &result, {128, 1, 1}, 0, seed),
              "");
    last.insert(result[0]);
  }
  EXPECT_EQ(last.size(), 4u);
}

TEST(PtxBlocks, run_for_as_long_as_they_are_told) {
  const Module module = parsed(kernel_text("LOOP: add.s32 %r0, %r0, 1; bra LOOP;"));
  TestMemory memory;
  const Launch launch = small_launch(module, {0}, {64, 1, 1});
  Block block(launch, {}, memory, 1);
  EXPECT_EQ(block.run(12345, true), BlockState::kGoesOn);
  EXPECT_EQ(block.warp_instructions(), 12345u);
  EXPECT_FALSE(block.lets_next_begin());
}

TEST(PtxBlocks, launches_that_the_kernel_does_not_allow_are_refused) {
  const Module module = parsed(
      ".version 9.0\n.target sm_90a\n"
      ".entry k(.param .u32 a, .param .u64 b)\n.maxntid 64, 1, 1\n.minnctapersm 2\n{ ret; }");
  EXPECT_EQ(module.find("k")->threads_max(), 64u);
  EXPECT_EQ(module.find("k")->blocks_at_once(), 2u);
  EXPECT_EQ(module.find("k")->parameter_bytes(), 16u);
  TestMemory memory;
  EXPECT_EQ(run_block(small_launch(module, {0, 0}, {64, 1, 1}), memory), "");
  EXPECT_THAT(run_block(small_launch(module, {0, 0}, {65, 1, 1}), memory), HasSubstr("65 threads"));
  EXPECT_THAT(run_block(small_launch(module, {0}, {64, 1, 1}), memory), HasSubstr("8 bytes of"));
}

// One block gives a value, the other waits for it.
constexpr const char* kMessage = R"(
    ld.param.u64 %rd0, [p0];
    mov.u32 %r0, %ctaid.x;
    setp.ne.s32 %p0, %r0, 0;
    @%p0 bra RECEIVE;
    st.global.u32 [%rd0+4], 42;
    st.release.sys.global.u32 [%rd0], 1;
    bra DONE;
    RECEIVE:
    ld.acquire.sys.global.u32 %r1, [%rd0];
    setp.ne.s32 %p1, %r1, 0;
    @%p1 bra READ;
    nanosleep.u32 40;
    bra RECEIVE;
    READ:
    ld.global.u32 %r2, [%rd0+4];
    st.global.u32 [%rd0+8], %r2;
    DONE:
)";

TEST(PtxBlocks, rest_where_they_would_sleep) {
  const Module module = parsed(kernel_text(kMessage));
  TestMemory memory;
  const uint64_t address = memory.add(12);
  const Launch launch = small_launch(module, {address}, {64, 1, 1});
  Block receiver(launch, {1, 0, 0}, memory, 1);
  EXPECT_EQ(receiver.run(kEnough, true), BlockState::kRests);
  EXPECT_EQ(receiver.run(kEnough, true), BlockState::kRests);
  EXPECT_EQ(run_block(launch, memory, {0, 0, 0}), "");
  EXPECT_EQ(receiver.run(kEnough, true), BlockState::kDone);
  EXPECT_EQ(memory.at<uint32_t>(address)[2], 42u);
}

TEST(PtxBlocks, on_two_threads_see_what_was_released) {
  const Module module = parsed(kernel_text(kMessage));
  for (uint64_t seed = 0; seed < 50; ++seed) {
    TestMemory memory;
    const uint64_t address = memory.add(12);
    const Launch launch = small_launch(module, {address});
    const auto run_to_end = [&](uint32_t index) {
      Block block(launch, {index, 0, 0}, memory, seed);
      BlockState state = BlockState::kRests;
      while (state == BlockState::kRests || state == BlockState::kGoesOn) {
        state = block.run(10, true);
        std::this_thread::yield();
      }
      EXPECT_EQ(state, BlockState::kDone) << block.failure();
    };
    std::thread other([&] { run_to_end(0); });
    run_to_end(1);
    other.join();
    ASSERT_EQ(memory.at<uint32_t>(address)[2], 42u);
  }
}

TEST(PtxBlocks, on_several_threads_add_one_after_the_other) {
  const Module module = parsed(kernel_text(R"(
    ld.param.u64 %rd0, [p0];
    atom.acq_rel.gpu.global.add.u32 %r1, [%rd0], 1;
    mul.wide.u32 %rd1, %r1, 4;
    add.s64 %rd0, %rd0, %rd1;
    st.global.u32 [%rd0+4], %r1;
  )"));
  TestMemory memory;
  constexpr uint32_t kThreads = 4;
  constexpr uint32_t kLanesEach = 256;
  const uint64_t address = memory.add(4 + kThreads * kLanesEach * 4);
  const Launch launch = small_launch(module, {address}, {kLanesEach, 1, 1});
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] { EXPECT_EQ(run_block(launch, memory, {i, 0, 0}), ""); });
  }
  for (std::thread& thread : threads) thread.join();
  // Every number was given once.
  const auto* const values = memory.at<uint32_t>(address);
  EXPECT_EQ(values[0], kThreads * kLanesEach);
  for (uint32_t i = 0; i < kThreads * kLanesEach; ++i) EXPECT_EQ(values[i + 1], i);
}

TEST(PtxBlocks, registers_that_nobody_has_written_depend_on_the_seed) {
  std::set<uint32_t> seen;
  for (uint64_t seed = 0; seed < 4; ++seed) {
    std::vector<uint32_t> result;
    EXPECT_EQ(run_body(std::string(kOwnPlace) + "st.global.u32 [%rd0], %r9;", 128, &result,
                       {32, 1, 1}, 0, seed),
              "");
    seen.insert(result.begin(), result.end());
  }
  EXPECT_GT(seen.size(), 32u);
}

// More barriers than the numbers of touches can count.
TEST(SharedTouches, are_known_until_the_next_barrier_however_many_there_were) {
  const auto touches = SharedTouches::take(64);
  for (size_t barrier = 0; barrier < 3000; ++barrier) {
    ASSERT_EQ(touches->read(0, 32, 1), nullptr) << barrier;
    ASSERT_EQ(touches->write(32, 5, 2), nullptr) << barrier;
    ASSERT_STREQ(touches->write(3, 4, 2), "read") << barrier;
    ASSERT_STREQ(touches->read(16, 32, 1), "written") << barrier;
    touches->pass_barrier();
  }
}

}  // namespace
}  // namespace lockstep::ptx
