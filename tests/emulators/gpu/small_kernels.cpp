#include "tests/emulators/gpu/small_kernels.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <span>
#include <utility>

namespace lockstep::ptx {

uint64_t TestMemory::add(size_t bytes) {
  const uint64_t address = next_;
  allocations_[address] = std::vector<uint64_t>((bytes + 7) / 8);
  next_ += (bytes + 4096) / 4096 * 4096 + 4096;
  return address;
}

MemoryRange TestMemory::find(uint64_t address) {
  const auto after = allocations_.upper_bound(address);
  if (after == allocations_.begin()) return {};
  auto& [begin, words] = *std::prev(after);
  const uint64_t end = begin + words.size() * sizeof(uint64_t);
  if (address >= end) return {};
  return {begin, end, reinterpret_cast<std::byte*>(words.data())};
}

std::string kernel_text(std::string_view body, size_t parameters) {
  std::string list;
  for (size_t i = 0; i < parameters; ++i) {
    list += fmt::format("{}.param .u64 p{}", i == 0 ? "" : ", ", i);
  }
  return fmt::format(
      ".version 9.0\n.target sm_90a\n.address_size 64\n"
      ".extern .shared .align 16 .b8 bytes[];\n"
      ".entry k({})\n{{\n"
      ".reg .pred %p<32>; .reg .b16 %rs<32>; .reg .b32 %r<64>; .reg .b64 %rd<32>;\n"
      ".reg .f32 %f<32>; .reg .f64 %fd<32>;\n{}\nret;\n}}\n",
      list, body);
}

Module parsed(std::string_view text) {
  auto module = Module::parse(text);
  if (!module) {
    ADD_FAILURE() << module.error();
    module = Module::parse(".version 9.0\n.target sm_90a\n.entry k() { ret; }");
  }
  return std::move(*module);
}

Launch small_launch(const Module& module, const std::vector<uint64_t>& parameters, Size3 block,
                    uint32_t dynamic_shared_bytes) {
  Launch launch{.kernel = module.find("k"),
                .parameters = std::vector<std::byte>(parameters.size() * sizeof(uint64_t)),
                .grid = {},
                .block = block,
                .dynamic_shared_bytes = dynamic_shared_bytes,
                .refuses_unwritten_shared = true};
  std::ranges::copy(std::as_bytes(std::span(parameters)), launch.parameters.begin());
  return launch;
}

std::string run_block(const Launch& launch, Memory& memory, Size3 index, uint64_t seed) {
  Block block(launch, index, memory, seed);
  constexpr uint64_t kEnough = 1000000;
  const BlockState state = block.run(kEnough, true);
  if (state == BlockState::kFailed) return block.failure();
  return state == BlockState::kDone ? "" : "it did not end";
}

std::string run_body(std::string_view body, size_t bytes, std::vector<uint32_t>* result,
                     Size3 block, uint32_t dynamic_shared_bytes, uint64_t seed) {
  TestMemory memory;
  const uint64_t address = memory.add(bytes);
  const Module module = parsed(kernel_text(body));
  const Launch launch = small_launch(module, {address}, block, dynamic_shared_bytes);
  std::string wrong = run_block(launch, memory, {}, seed);
  if (result != nullptr) {
    const auto* const values = memory.at<uint32_t>(address);
    result->assign(values, values + bytes / sizeof(uint32_t));
  }
  return wrong;
}

namespace {

std::string register_of(uint32_t width, size_t number) {
  switch (width) {
    case 1:
      return fmt::format("%p{}", number);
    case 2:
      return fmt::format("%rs{}", number);
    case 4:
      return fmt::format("%r{}", number);
    default:
      return fmt::format("%rd{}", number);
  }
}

}  // namespace

std::vector<uint64_t> evaluate(std::string_view instruction, std::vector<uint32_t> widths,
                               const std::vector<std::vector<uint64_t>>& operands) {
  const size_t count = operands[0].size();
  // Every value lies in 8 bytes of its own: thread t's are the t-th of each array.
  std::string body = "mov.u32 %r60, %tid.x; mul.wide.u32 %rd30, %r60, 8;\n";
  std::string statement = fmt::format("{} {}", instruction, register_of(widths[0], 0));
  std::vector<uint64_t> parameters;
  TestMemory memory;
  parameters.push_back(memory.add(count * sizeof(uint64_t)));
  for (size_t i = 0; i < operands.size(); ++i) {
    parameters.push_back(memory.add(operands[i]));
    body += fmt::format("ld.param.u64 %rd31, [p{}]; add.s64 %rd31, %rd31, %rd30;\n", i + 1);
    const uint32_t width = widths[i + 1];
    const std::string name = register_of(width, i + 1);
    if (width == 1) {
      body += fmt::format("ld.global.u32 %r61, [%rd31]; setp.ne.s32 {}, %r61, 0;\n", name);
    } else {
      body += fmt::format("ld.global.u{} {}, [%rd31];\n", 8 * width, name);
    }
    statement += ", " + name;
  }
  body += statement + ";\nld.param.u64 %rd31, [p0]; add.s64 %rd31, %rd31, %rd30;\n";
  if (widths[0] == 1) {
    body += "selp.u32 %r61, 1, 0, %p0; st.global.u32 [%rd31], %r61;\n";
  } else {
    body += fmt::format("st.global.u{} [%rd31], {};\n", 8 * widths[0], register_of(widths[0], 0));
  }
  const Module module = parsed(kernel_text(body, parameters.size()));
  const Launch launch = small_launch(module, parameters, {static_cast<uint32_t>(count), 1, 1});
  EXPECT_EQ(run_block(launch, memory), "") << instruction;
  const auto* const results = memory.at<uint64_t>(parameters[0]);
  return {results, results + count};
}

}  // namespace lockstep::ptx
