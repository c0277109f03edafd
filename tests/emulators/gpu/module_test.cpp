#include "tests/emulators/gpu/module.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/emulators/gpu/small_kernels.h"

namespace lockstep::ptx {
namespace {

using testing::HasSubstr;

// The error of a module whose one kernel has this body, from line 9 on.
std::string error_of(const std::string& body) {
  const auto module = Module::parse(kernel_text(body));
  return module ? "" : module.error();
}

TEST(PtxModules, have_their_entries_version_and_target) {
  const Module module = parsed(
      "// a comment\n.version 9.0\n.target sm_90a\n.address_size 64\n"
      ".visible .entry first(.param .u32 x) { ret; } /* and\n another */\n"
      ".weak .entry second() .maxntid 128, 2, 1 { ret; }\n");
  EXPECT_EQ(module.isa_version(), "9.0");
  EXPECT_EQ(module.target(), "sm_90a");
  EXPECT_EQ(module.names(), (std::vector<std::string>{"first", "second"}));
  ASSERT_NE(module.find("second"), nullptr);
  EXPECT_EQ(module.find("second")->threads_max(), 256u);
  EXPECT_EQ(module.find("first")->threads_max(), 1024u);
  EXPECT_EQ(module.find("third"), nullptr);
}

TEST(PtxModules, unknown_instructions_are_refused_with_their_lines) {
  EXPECT_EQ(error_of("\nadd.s32 %r1, %r2, %r3;\nfma.ru.f32 %f1, %f2, %f3, %f4;"),
            "line 11: `fma.ru.f32 %f1, %f2, %f3, %f4`: unknown instruction");
  for (const char* instruction :
       {"ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r1, %r2, %r3, %r4}, [%r5]",
        "ld.volatile.global.u32 %r1, [%rd1]", "ld.relaxed.sys.global.u32 %r1, [%rd1]",
        "ld.u32 %r1, [%rd1]", "st.param.u32 [%rd1], %r1", "ld.acquire.cta.global.u32 %r1, [%rd1]",
        "atom.relaxed.gpu.global.add.u32 %r1, [%rd1], 1", "red.global.add.u32 [%rd1], 1",
        "mov.u8 %rs1, 1", "add.f16 %rs1, %rs2, %rs3",
        "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%f1, %f2, %f3, %f4}, {%r1, %r2},"
        "{%r3}, {%f1, %f2, %f3, %f4}",
        "cp.async.wait_all", "bar.arrive 0, 64", "cvt.rz.f32.f64 %f1, %fd1", "trap"}) {
    const std::string error = error_of(std::string(instruction) + ";");
    EXPECT_THAT(error, HasSubstr("unknown instruction")) << instruction;
    EXPECT_THAT(error, HasSubstr(fmt::format("line 9: `{}`", instruction)));
  }
}

TEST(PtxModules, operands_that_do_not_fit_are_refused) {
  EXPECT_THAT(error_of("add.s32 %r1, %r2;"), HasSubstr("it has 3 operands, not 2"));
  EXPECT_THAT(error_of("add.s32 %r1, %rd2, %r3;"), HasSubstr("%rd2 has 8 bytes, not 4"));
  EXPECT_THAT(error_of("add.s64 %r1, %rd2, %rd3;"), HasSubstr("%r1 has 4 bytes, not 8"));
  EXPECT_THAT(error_of("add.s32 %r64, %r2, %r3;"), HasSubstr("'%r64' is no register"));
  EXPECT_THAT(error_of("add.s32 5, %r2, %r3;"), HasSubstr("is no register"));
  EXPECT_THAT(error_of("mov.u32 %r1, nothing;"), HasSubstr("'nothing' is no value"));
  EXPECT_THAT(error_of("mov.f64 %fd1, 0f3F800000;"), HasSubstr("is no number of 8 bytes"));
  EXPECT_THAT(error_of("bra NOWHERE;"), HasSubstr("no label NOWHERE"));
  EXPECT_THAT(error_of("ld.global.v2.u32 %r1, [%rd1];"), HasSubstr("2 elements"));
  EXPECT_THAT(error_of("ld.global.v2.u32 {%r1, %rd1}, [%rd1];"), HasSubstr("several sizes"));
  EXPECT_THAT(error_of("ld.global.u64 %r1, [%rd1];"), HasSubstr("unknown instruction"));
  EXPECT_THAT(error_of("ld.global.u32 %r1, [bytes];"), HasSubstr("bytes is in shared memory"));
  EXPECT_THAT(error_of("ld.global.u32 %r1, %rd1;"), HasSubstr("an address was expected"));
  EXPECT_THAT(error_of("bar.sync 1;"), HasSubstr("only barrier 0"));
  EXPECT_THAT(error_of("cp.async.cg.shared.global [%r1], [%rd1], 8;"), HasSubstr("so many bytes"));
  EXPECT_THAT(error_of("addc.u32 %r1, %r2, %r3;"), HasSubstr("leaves a carry"));
  EXPECT_THAT(error_of("call.uni (x), f, (y);"), HasSubstr("no function f"));
}

TEST(PtxModules, text_that_is_no_ptx_is_refused_with_its_line) {
  EXPECT_THAT(error_of("add.s32 %r1, %r2, %r3"), HasSubstr("';' was expected"));
  EXPECT_THAT(error_of("add.s32 %r1, {%r2, %r3;"), HasSubstr("'}' was expected"));
  EXPECT_THAT(error_of("add.s32 %r1, [;"), HasSubstr("is no operand"));
  EXPECT_THAT(error_of(".reg .x7 %y;"), HasSubstr(".x7 is no type"));
  EXPECT_THAT(Module::parse(".version 9.0\nnonsense").error(), HasSubstr("line 2: `nonsense`"));
  EXPECT_THAT(Module::parse(".entry k() { ret; ").error(), HasSubstr("was expected"));
  EXPECT_THAT(Module::parse(".entry k(").error(), HasSubstr("was expected"));
  EXPECT_THAT(Module::parse(".section .debug_str {").error(), HasSubstr("was expected"));
}

TEST(PtxModules, names_within_braces_hide_those_outside) {
  std::vector<uint32_t> result;
  EXPECT_EQ(run_body(R"(
    ld.param.u64 %rd0, [p0];
    mov.u32 %r1, 5;
    { .reg .b32 %r<4>; .reg .u32 %other; mov.u32 %r1, 6; mov.u32 %other, 7;
      st.global.u32 [%rd0], %r1; st.global.u32 [%rd0+4], %other; }
    st.global.u32 [%rd0+8], %r1;
  )",
                     12, &result),
            "");
  EXPECT_EQ(result, (std::vector<uint32_t>{6, 7, 5}));
}

// Calls a function that gives back sixteen bytes, and stores twelve of them.
constexpr char kCall[] = R"(
.version 9.0
.target sm_90a
.func (.param .align 8 .b8 result[16]) divide
(
  .param .b64 divide_param_0
)
;
.global .align 4 .b8 table[8] = {10, 0, 0, 0, 3};
.entry k(.param .u64 to)
{
  .reg .b32 %r<8>; .reg .b64 %rd<8>; .reg .pred %p<2>;
  ld.param.u64 %rd0, [to];
  mov.u32 %r0, %tid.x;
  mul.wide.u32 %rd1, %r0, 8;
  add.s64 %rd0, %rd0, %rd1;
  setp.eq.s32 %p0, %r0, 2;
  @%p0 bra DONE;
  cvt.u64.u32 %rd2, %r0;
  { // callseq 0, 0
  .reg .b32 temp_param_reg;
  .param .b64 param0;
  st.param.b64 [param0+0], %rd2;
  .param .align 8 .b8 retval0[16];
  call.uni (retval0),
  divide,
  (
  param0
  );
  ld.param.b64 %rd3, [retval0+0];
  ld.param.b32 %r1, [retval0+8];
  } // callseq 0
  cvt.u32.u64 %r2, %rd3;
  st.global.v2.u32 [%rd0], {%r2, %r1};
DONE:
  ret;
}
.func (.param .align 8 .b8 result[16]) divide(
  .param .b64 divide_param_0
)
{
  .local .align 8 .b8 depot[8];
  .reg .b32 %r<8>; .reg .b64 %rd<8>; .reg .pred %p<2>;
  ld.param.b64 %rd0, [divide_param_0];
  mov.u64 %rd5, depot;
  st.local.u64 [%rd5], %rd0;
  mov.u64 %rd1, table;
  ld.global.nc.u32 %r0, [%rd1];
  ld.global.nc.u32 %r1, [%rd1+4];
  setp.eq.s64 %p0, %rd0, 5;
  mov.u32 %r2, 77;
  @%p0 bra DONE;
  mov.u32 %r2, 88;
  ld.local.u64 %rd0, [%rd5];
  cvt.u32.u64 %r3, %rd0;
  mad.lo.s32 %r1, %r3, %r0, %r1;
DONE:
  cvt.u64.u32 %rd3, %r1;
  st.param.b64 [result+0], %rd3;
  st.param.b32 [result+8], %r2;
  ret;
}
)";

TEST(PtxModules, functions_are_called_with_values_and_give_some_back) {
  const Module module = parsed(kCall);
  TestMemory memory;
  const uint64_t to = memory.add(64);
  ASSERT_EQ(run_block(small_launch(module, {to}, {8, 1, 1}), memory), "");
  const auto* const values = memory.at<uint32_t>(to);
  for (uint32_t t = 0; t < 8; ++t) {
    EXPECT_EQ(values[2 * t], t == 2 ? 0 : (t == 5 ? 3 : 10 * t + 3)) << t;
    EXPECT_EQ(values[2 * t + 1], t == 2 ? 0u : (t == 5 ? 77u : 88u)) << t;
  }
}

TEST(PtxModules, a_modules_constants_are_not_written) {
  const Module module = parsed(
      ".version 9.0\n.target sm_90a\n.global .align 4 .b8 table[8] = {1};\n"
      ".entry k() { .reg .b64 %rd<2>; mov.u64 %rd1, table; st.global.u32 [%rd1], 5; ret; }");
  TestMemory memory;
  EXPECT_THAT(run_block(small_launch(module, {}), memory), HasSubstr("a constant of the module"));
}

TEST(PtxModules, shared_variables_lie_before_what_the_launch_gives) {
  const Module module = parsed(
      ".version 9.0\n.target sm_90a\n.extern .shared .align 16 .b8 bytes[];\n"
      ".entry k(.param .u64 to) { .reg .b32 %r<4>; .reg .b64 %rd<4>;\n"
      ".shared .align 4 .b8 own[20];\n"
      "ld.param.u64 %rd0, [to]; mov.u32 %r0, own; mov.u32 %r1, bytes;\n"
      "st.global.v2.u32 [%rd0], {%r0, %r1}; st.shared.u32 [own+16], %r0; st.shared.u32 [bytes], "
      "%r0;"
      "ret; }");
  EXPECT_EQ(module.find("k")->static_shared_bytes(), 32u);
  TestMemory memory;
  const uint64_t to = memory.add(8);
  EXPECT_EQ(run_block(small_launch(module, {to}, {1, 1, 1}, 4), memory), "");
  EXPECT_EQ(memory.at<uint32_t>(to)[1] - memory.at<uint32_t>(to)[0], 32u);
  EXPECT_THAT(run_block(small_launch(module, {to}, {1, 1, 1}, 0), memory), HasSubstr("outside"));
}

TEST(PtxModules, failures_name_the_source_where_the_text_does) {
  const Module module = parsed(
      ".version 9.0\n.target sm_90a\n.entry k() {\n.loc\t1 19 0\n.reg .b32 %r<4>;\n"
      ".loc\t2 78 3, function_name $L__info_string0, inlined_at 1 20 3\n"
      "bar.warp.sync 0;\n.loc\t1 21 3\nret;\n}\n"
      ".file\t1 \"/somewhere/rows.inl.h\"\n.file\t2 \"/somewhere/gpu_code.h\"\n"
      ".section\t.debug_str\n{\n$L__info_string0:\n.b8 95,90,0\n}\n.section\t.debug_loc { }\n");
  TestMemory memory;
  EXPECT_THAT(run_block(small_launch(module, {}), memory),
              HasSubstr("line 7: `bar.warp.sync 0` (gpu_code.h:78): thread"));
}

}  // namespace
}  // namespace lockstep::ptx
