#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tests/emulators/gpu/small_kernels.h"

namespace lockstep::ptx {
namespace {

using testing::HasSubstr;

// Runs `body` by one thread; %rd0 has the address of 64 bytes, %r0 that of 64 bytes of shared
// memory.
std::string run_one(const std::string& body, std::vector<uint32_t>* result = nullptr) {
  return run_body("ld.param.u64 %rd0, [p0]; mov.u32 %r0, bytes;\n" + body, 64, result, {1, 1, 1},
                  64);
}

Fault fault_of(const std::string& body) {
  TestMemory memory;
  const uint64_t address = memory.add(64);
  const Module module =
      parsed(kernel_text("ld.param.u64 %rd0, [p0]; mov.u32 %r0, bytes;\n" + body));
  const Launch launch = small_launch(module, {address}, {1, 1, 1}, 64);
  Block block(launch, {}, memory, 1);
  EXPECT_EQ(block.run(1000, true), BlockState::kFailed) << body;
  return block.fault();
}

TEST(PtxAccesses, small_elements_are_extended_and_cut_off) {
  std::vector<uint32_t> result;
  EXPECT_EQ(run_one(R"(
    st.global.u32 [%rd0], 0x80ff7f81;
    ld.global.u8 %r1, [%rd0+3]; ld.global.s8 %r2, [%rd0+3];
    ld.global.u16 %r3, [%rd0+2]; ld.global.s16 %r4, [%rd0+2];
    ld.global.s8 %rs1, [%rd0]; cvt.u32.u16 %r5, %rs1;
    ld.global.u32 %rd1, [%rd0]; ld.global.s32 %rd2, [%rd0];
    st.global.u32 [%rd0+4], %r1; st.global.u32 [%rd0+8], %r2; st.global.u32 [%rd0+12], %r3;
    st.global.u32 [%rd0+16], %r4; st.global.u32 [%rd0+20], %r5;
    st.global.u64 [%rd0+24], %rd1; st.global.u64 [%rd0+32], %rd2;
    st.global.u8 [%rd0+41], %r2; st.global.u16 [%rd0+42], %r1;
  )",
                    &result),
            "");
  EXPECT_EQ((std::vector(result.begin() + 1, result.begin() + 11)),
            (std::vector<uint32_t>{0x80, 0xffffff80, 0x80ff, 0xffff80ff, 0xff81, 0x80ff7f81, 0,
                                   0x80ff7f81, 0xffffffff, 0x00808000}));
}

TEST(PtxAccesses, vectors_lie_one_element_after_the_other) {
  std::vector<uint32_t> result;
  EXPECT_EQ(run_one(R"(
    st.shared.v4.u32 [%r0], {1, 2, 3, 4};
    ld.shared.v2.u32 {%r1, %r2}, [%r0+8];
    ld.shared.v4.f32 {%f1, %f2, %f3, %f4}, [%r0];
    ld.shared.v2.f64 {%fd1, %fd2}, [%r0];
    ld.shared.u64 %rd1, [bytes+8];
    st.global.v2.u32 [%rd0], {%r2, %r1};
    st.global.v4.f32 [%rd0+16], {%f4, %f3, %f2, %f1};
    st.global.v2.f64 [%rd0+32], {%fd2, %fd1};
    st.global.u64 [%rd0+48], %rd1;
  )",
                    &result),
            "");
  EXPECT_EQ(result, (std::vector<uint32_t>{4, 3, 0, 0, 4, 3, 2, 1, 3, 4, 1, 2, 3, 4, 0, 0}));
}

TEST(PtxAccesses, loads_may_overwrite_their_own_address) {
  std::vector<uint32_t> result;
  EXPECT_EQ(run_one(R"(
    add.s64 %rd2, %rd0, 32;
    st.global.u64 [%rd0], %rd2; st.global.u64 [%rd0+8], 7; st.global.u32 [%rd0+32], 5;
    mov.u64 %rd1, %rd0;
    ld.global.v2.f64 {%rd1, %rd2}, [%rd1];
    ld.global.u32 %r1, [%rd1];
    st.global.u32 [%rd0+40], %r1;
    mov.u64 %rd3, %rd0;
    ld.global.u64 %rd3, [%rd3];
    st.global.u64 [%rd0+48], %rd3;
  )",
                    &result),
            "");
  EXPECT_EQ(result[10], 5u);
  EXPECT_EQ(result[12], result[0]);
}

TEST(PtxAccesses, misaligned_addresses_are_refused) {
  for (const auto& [access, bytes] : std::vector<std::pair<std::string, uint32_t>>{
           {"ld.global.u16 %rs1, [%rd0+A]", 2},
           {"ld.global.u32 %r1, [%rd0+A]", 4},
           {"st.global.u64 [%rd0+A], %rd0", 8},
           {"ld.global.v2.u32 {%r1, %r2}, [%rd0+A]", 8},
           {"ld.global.nc.L1::no_allocate.v4.u32 {%r1, %r2, %r3, %r4}, [%rd0+A]", 16},
           {"st.shared.v4.f32 [%r0+A], {%f1, %f2, %f3, %f4}", 16},
           {"st.shared.u32 [%r0+A], %r1", 4},
           {"ld.global.cg.u32 %r1, [%rd0+A]", 4},
           {"ld.acquire.sys.global.u32 %r1, [%rd0+A]", 4},
           {"st.release.sys.global.u32 [%rd0+A], %r1", 4},
           {"atom.acq_rel.gpu.global.add.u32 %r1, [%rd0+A], 1", 4},
           {"cp.async.cg.shared.global [%r0+A], [%rd0], 16", 16},
           {"cp.async.cg.shared.global [%r0], [%rd0+A], 16", 16},
           {"cp.async.ca.shared.global [%r0], [%rd0+A], 8", 8},
           {"cp.async.ca.shared.global [%r0+A], [%rd0], 4", 4}}) {
    const auto at = [&](uint32_t offset) {
      std::string text = access + ";";
      return text.replace(text.find('A' + std::string("]")), 1, std::to_string(offset));
    };
    EXPECT_EQ(run_one(at(bytes)), "") << access;
    EXPECT_THAT(run_one(at(bytes / 2)), HasSubstr("misaligned")) << access;
    EXPECT_EQ(fault_of(at(bytes / 2)), Fault::kMisaligned) << access;
  }
}

TEST(PtxAccesses, outside_of_allocations_is_refused_to_the_byte) {
  for (const std::string access :
       {"ld.global.u8 %r1, [%rd0+A]", "st.global.u32 [%rd0+A], %r1",
        "ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%rd0+A]", "st.shared.u16 [%r0+A], %r1",
        "st.shared.u8 [%r0+A], %r1", "st.shared.v4.u32 [%r0+A], {%r1, %r2, %r3, %r4}",
        "ld.acquire.sys.global.u32 %r1, [%rd0+A]",
        "atom.acq_rel.gpu.global.add.u32 %r1, [%rd0+A], 1",
        "cp.async.cg.shared.global [%r0], [%rd0+A], 16",
        "cp.async.cg.shared.global [%r0+A], [%rd0], 16"}) {
    const auto at = [&](int offset) {
      std::string text = access + ";";
      return text.replace(text.find("A]"), 1, std::to_string(offset));
    };
    EXPECT_EQ(run_one(at(0)), "");
    EXPECT_EQ(run_one(at(48)), "");
    EXPECT_EQ(fault_of(at(64)), Fault::kNoMemory) << access;
    EXPECT_EQ(fault_of(at(-16)), Fault::kNoMemory) << access;
  }
  EXPECT_THAT(run_one("mov.u64 %rd1, 0; ld.global.u32 %r1, [%rd1+8];"),
              HasSubstr("reads 4 bytes at 0x8, where this GPU has no memory"));
  EXPECT_THAT(run_one("mov.u32 %r1, 0; st.shared.u32 [%r1], %r1;"),
              HasSubstr("writes 4 bytes at 0x0, outside of shared memory"));
}

TEST(PtxAccesses, lanes_may_reach_several_allocations_but_none_that_is_not_there) {
  const Module module = parsed(kernel_text(R"(
    ld.param.u64 %rd0, [p0]; ld.param.u64 %rd1, [p1]; ld.param.u64 %rd2, [p2];
    mov.u32 %r0, %tid.x;
    and.b32 %r1, %r0, 1;
    setp.eq.s32 %p0, %r1, 0;
    selp.b64 %rd3, %rd0, %rd1, %p0;
    setp.eq.s32 %p0, %r0, 17;
    selp.b64 %rd3, %rd2, %rd3, %p0;
    mul.wide.u32 %rd4, %r0, 4;
    add.s64 %rd3, %rd3, %rd4;
    st.global.u32 [%rd3], %r0;
  )",
                                           3));
  TestMemory memory;
  const uint64_t even = memory.add(128);
  const uint64_t odd = memory.add(128);
  ASSERT_EQ(run_block(small_launch(module, {even, odd, odd}), memory), "");
  for (uint32_t lane = 0; lane < 32; ++lane) {
    EXPECT_EQ(memory.at<uint32_t>(even)[lane], lane % 2 == 0 ? lane : 0);
    EXPECT_EQ(memory.at<uint32_t>(odd)[lane], lane % 2 == 1 ? lane : 0);
  }
  // Thread 17 alone goes astray, between the two.
  const std::string failure = run_block(small_launch(module, {even, odd, even + 128}), memory);
  EXPECT_THAT(failure, HasSubstr("thread (17, 0, 0)"));
  EXPECT_THAT(failure, HasSubstr(fmt::format("writes 4 bytes at {:#x}, where", even + 128 + 68)));
}

TEST(PtxAccesses, lanes_may_lie_in_any_order) {
  for (const uint32_t mask : {0u, 1u, 2u, 16u, 31u}) {
    for (const char* space : {"global", "shared"}) {
      const bool shared = space == std::string("shared");
      const std::string body =
          fmt::format(R"(
        ld.param.u64 %rd0, [p0];
        mov.u32 %r0, %tid.x; xor.b32 %r1, %r0, {0};
        mul.wide.u32 %rd1, %r0, 4; add.s64 %rd1, %rd1, %rd0;
        mul.wide.u32 %rd2, %r1, 4; add.s64 %rd2, %rd2, %rd0;
        shl.b32 %r2, %r0, 2; add.s32 %r2, %r2, bytes;
        shl.b32 %r3, %r1, 2; add.s32 %r3, %r3, bytes;
        add.s32 %r4, %r0, 100;
        st.{1}.u32 [{2}], %r4;
        bar.sync 0;
        ld.{1}.u32 %r5, [{3}];
        bar.sync 0;
        shl.b32 %r5, %r5, 8;
        st.{1}.u32 [{3}], %r5;
        bar.sync 0;
        ld.{1}.u32 %r6, [{3}];
        or.b32 %r6, %r6, %r0;
        st.global.u32 [%rd1], %r6;
      )",
                      mask, space, shared ? "%r2" : "%rd1", shared ? "%r3" : "%rd2");
      std::vector<uint32_t> result;
      ASSERT_EQ(run_body(body, 128, &result, {32, 1, 1}, 128), "");
      for (uint32_t lane = 0; lane < 32; ++lane) {
        ASSERT_EQ(result[lane], ((lane ^ mask) + 100) << 8 | lane) << space << " " << mask;
      }
    }
  }
}

TEST(PtxAccesses, one_lane_that_goes_astray_is_found_however_far) {
  // Lane 17's address is what it should be, and so much more or less.
  for (const char* far : {"128", "-128", "0x8000000000000000", "4294967296"}) {
    const std::string body = fmt::format(R"(
      ld.param.u64 %rd0, [p0];
      mov.u32 %r0, %tid.x; mul.wide.u32 %rd1, %r0, 4; add.s64 %rd0, %rd0, %rd1;
      mov.u32 %r1, bytes; shl.b32 %r2, %r0, 2; add.s32 %r1, %r1, %r2;
      st.global.u32 [%rd0], %r0;
      setp.eq.s32 %p0, %r0, 17; selp.b64 %rd2, {}, 0, %p0;
      add.s64 %rd3, %rd0, %rd2; st.global.u32 [%rd3], %r0;
    )",
                                         far);
    EXPECT_THAT(run_body(body, 128), HasSubstr("thread (17, 0, 0)")) << far;
  }
  for (const char* far : {"128", "-128", "0x80000000", "0xffffff00"}) {
    const std::string body = fmt::format(R"(
      mov.u32 %r0, %tid.x; mov.u32 %r1, bytes; shl.b32 %r2, %r0, 2; add.s32 %r1, %r1, %r2;
      setp.eq.s32 %p0, %r0, 17; selp.b32 %r3, {}, 0, %p0;
      add.s32 %r3, %r3, %r1; st.shared.u32 [%r3], %r0;
    )",
                                         far);
    EXPECT_THAT(run_body(body, 128, nullptr, {32, 1, 1}, 128), HasSubstr("thread (17, 0, 0)"))
        << far;
  }
}

TEST(PtxAccesses, only_active_lanes_are_asked_for_their_addresses) {
  std::vector<uint32_t> result;
  EXPECT_EQ(run_body(R"(
    ld.param.u64 %rd0, [p0];
    mov.u32 %r0, %tid.x;
    mul.wide.u32 %rd1, %r0, 4096; add.s64 %rd1, %rd1, 2; add.s64 %rd2, %rd0, 4;
    setp.eq.s32 %p0, %r0, 9;
    selp.b64 %rd1, %rd2, %rd1, %p0;
    @!%p0 bra DONE;
    ld.global.u32 %r1, [%rd1]; add.s32 %r1, %r1, 6; st.global.u32 [%rd1], %r1;
    DONE:
  )",
                     8, &result),
            "");
  EXPECT_EQ(result[1], 6u);
}

TEST(PtxAccesses, unwritten_shared_memory_is_refused_or_holds_anything) {
  EXPECT_THAT(run_one("st.shared.u16 [%r0+6], 1; ld.shared.u32 %r1, [%r0+4];"),
              HasSubstr("reads 4 bytes at 0x404, shared memory that nobody has written"));
  EXPECT_EQ(run_one("st.shared.u32 [%r0+4], 1; ld.shared.u16 %rs1, [%r0+6];"), "");
  TestMemory memory;
  const uint64_t address = memory.add(4);
  const Module module = parsed(kernel_text(
      "ld.param.u64 %rd0, [p0]; ld.shared.u32 %r1, [bytes]; st.global.u32 [%rd0], %r1;"));
  Launch launch = small_launch(module, {address}, {1, 1, 1}, 64);
  launch.refuses_unwritten_shared = false;
  std::vector<uint32_t> seen;
  for (uint64_t seed = 0; seed < 3; ++seed) {
    EXPECT_EQ(run_block(launch, memory, {}, seed), "");
    seen.push_back(*memory.at<uint32_t>(address));
  }
  EXPECT_FALSE(seen[0] == seen[1] && seen[1] == seen[2]);
}

TEST(PtxAccesses, a_copy_is_there_when_it_was_waited_for_and_not_before) {
  const std::string copies =
      "st.shared.u32 [%r0], 1; st.global.u32 [%rd0], 5; st.global.u32 [%rd0+4], 6;"
      "cp.async.ca.shared.global [%r0], [%rd0], 4; cp.async.commit_group;"
      "cp.async.ca.shared.global [%r0+4], [%rd0+4], 4; cp.async.commit_group;";
  const std::string store = "st.global.u32 [%rd0+8], %r1;";
  std::vector<uint32_t> result;
  EXPECT_EQ(run_one(copies + "cp.async.wait_group 1; ld.shared.u32 %r1, [%r0];" + store, &result),
            "");
  EXPECT_EQ(result[2], 5u);
  EXPECT_THAT(run_one(copies + "cp.async.wait_group 1; ld.shared.u32 %r1, [%r0+4];"),
              HasSubstr("that a cp.async has yet to write"));
  EXPECT_THAT(run_one(copies + "cp.async.wait_group 2; ld.shared.u32 %r1, [%r0];"),
              HasSubstr("that a cp.async has yet to write"));
  EXPECT_EQ(run_one(copies + "cp.async.wait_group 0; ld.shared.u32 %r1, [%r0+4];" + store, &result),
            "");
  EXPECT_EQ(result[2], 6u);
  // A copy in no group is not waited for.
  EXPECT_THAT(run_one("cp.async.ca.shared.global [%r0], [%rd0], 4; cp.async.wait_group 0;"
                      "ld.shared.u32 %r1, [%r0];"),
              HasSubstr("that a cp.async has yet to write"));
  // The source is read as late as can be.
  EXPECT_EQ(run_one(copies +
                        "st.global.u32 [%rd0], 9; cp.async.wait_group 0;"
                        "ld.shared.u32 %r1, [%r0];" +
                        store,
                    &result),
            "");
  EXPECT_EQ(result[2], 9u);
}

TEST(PtxAccesses, lanes_count_their_groups_of_copies_on_their_own) {
  // Lane n commits n % 3 empty groups behind its copy, and waits for all but one.
  const std::string body = R"(
    ld.param.u64 %rd0, [p0];
    mov.u32 %r0, %tid.x; mul.wide.u32 %rd1, %r0, 4; add.s64 %rd0, %rd0, %rd1;
    mov.u32 %r1, bytes; shl.b32 %r2, %r0, 2; add.s32 %r1, %r1, %r2;
    st.global.u32 [%rd0], %r0;
    cp.async.ca.shared.global [%r1], [%rd0], 4;
    cp.async.commit_group;
    rem.u32 %r3, %r0, 3;
    LOOP:
    setp.eq.s32 %p0, %r3, 0;
    @%p0 bra BEHIND;
    cp.async.commit_group;
    add.s32 %r3, %r3, -1;
    bra LOOP;
    BEHIND:
    cp.async.wait_group 1;
    rem.u32 %r3, %r0, 3;
    setp.eq.s32 %p0, %r3, FREE;
    @%p0 bra DONE;
    ld.shared.u32 %r4, [%r1];
    DONE:
  )";
  const auto passing_over = [&](const char* lanes) {
    std::string text = body;
    text.replace(text.find("FREE"), 4, lanes);
    return run_body(text, 128, nullptr, {32, 1, 1}, 128);
  };
  EXPECT_EQ(passing_over("0"), "");
  const std::string failure = passing_over("1");
  EXPECT_THAT(failure, HasSubstr("thread (0, 0, 0)"));
  EXPECT_THAT(failure, HasSubstr("that a cp.async has yet to write"));
}

TEST(PtxAccesses, local_memory_is_each_threads_own) {
  const std::string head = R"(
    .local .align 8 .b8 depot[24]; .reg .b64 %SPL;
    mov.u64 %SPL, depot; ld.param.u64 %rd0, [p0]; mov.u32 %r0, %tid.x;
    mul.wide.u32 %rd1, %r0, 4; add.s64 %rd0, %rd0, %rd1;
    add.u64 %rd2, %SPL, 8;
  )";
  std::vector<uint32_t> result;
  EXPECT_EQ(run_body(head + R"(
    st.local.v2.u32 [%rd2], {%r0, 3};
    bar.sync 0;
    ld.local.u32 %r1, [%rd2]; ld.local.u64 %rd3, [%rd2];
    shr.u64 %rd3, %rd3, 32; cvt.u32.u64 %r2, %rd3;
    mad.lo.s32 %r1, %r1, 10, %r2;
    st.global.u32 [%rd0], %r1;
  )",
                     256, &result, {64, 1, 1}),
            "");
  for (uint32_t t = 0; t < 64; ++t) EXPECT_EQ(result[t], 10 * t + 3);
  EXPECT_THAT(run_body(head + "ld.local.u32 %r1, [%rd2];", 256),
              HasSubstr("local memory that its thread has not written"));
  EXPECT_THAT(run_body(head + "st.local.u32 [%rd2+2], %r0;", 256),
              HasSubstr("misaligned in local"));
  EXPECT_THAT(run_body(head + "st.local.u64 [%rd2+24], %rd0;", 256), HasSubstr("outside of local"));
  EXPECT_THAT(run_body(head + "st.local.u64 [%rd2+-16], %rd0;", 256),
              HasSubstr("outside of local"));
}

TEST(PtxAccesses, parameters_are_read_by_their_names_and_by_their_addresses) {
  const Module module = parsed(
      ".version 9.0\n.target sm_90a\n"
      ".entry k(.param .u64 to, .param .align 16 .b8 s[32], .param .u8 small) {\n"
      ".reg .b64 %rd<8>; .reg .b32 %r<16>; .reg .b16 %rs<8>;\n"
      "ld.param.u64 %rd0, [to]; ld.param.v4.u32 {%r0, %r1, %r2, %r3}, [s];\n"
      "mov.u32 %r8, %tid.x; mov.b64 %rd1, s; mul.wide.u32 %rd2, %r8, 4; add.s64 %rd1, %rd1, %rd2;\n"
      "ld.param.u32 %r4, [%rd1+16]; ld.param.u8 %rs1, [small]; cvt.u32.u16 %r5, %rs1;\n"
      "ld.param.v2.u8 {%rs2, %rs3}, [s+4]; cvt.u32.u16 %r6, %rs2; cvt.u32.u16 %r7, %rs3;\n"
      "mul.wide.u32 %rd2, %r8, 32; add.s64 %rd0, %rd0, %rd2;\n"
      "st.global.v4.u32 [%rd0], {%r0, %r1, %r2, %r3};\n"
      "st.global.v4.u32 [%rd0+16], {%r4, %r5, %r6, %r7}; ret; }");
  const std::vector<Parameter>& parameters = module.find("k")->parameters();
  ASSERT_EQ(parameters.size(), 3u);
  EXPECT_EQ(parameters[1].offset, 16u);
  EXPECT_EQ(parameters[1].bytes, 32u);
  EXPECT_EQ(parameters[2].offset, 48u);
  TestMemory memory;
  const uint64_t to = memory.add(128);
  Launch launch = small_launch(module, {to, 0, 0x0000030100000001, 3, 0x1100000010, 0x1300000012});
  launch.parameters.push_back(std::byte{200});
  launch.block = {4, 1, 1};
  ASSERT_EQ(run_block(launch, memory), "");
  const auto* const values = memory.at<uint32_t>(to);
  for (uint32_t t = 0; t < 4; ++t) {
    EXPECT_EQ(std::vector(values + 8 * t, values + 8 * t + 8),
              (std::vector<uint32_t>{1, 0x301, 3, 0, 0x10 + t, 200, 1, 3}));
  }
  launch.block = {16, 1, 1};
  EXPECT_THAT(run_block(launch, memory), HasSubstr("in the parameters, or outside of them"));
}

}  // namespace
}  // namespace lockstep::ptx
