// From a function's statements to a program.
#pragma once

#include <expected>
#include <memory>
#include <string>
#include <vector>

#include "tests/emulators/gpu/program.h"
#include "tests/emulators/gpu/syntax.h"

namespace lockstep::ptx {

// A module's text and variables, which all its kernels share.
struct ModuleText {
  std::shared_ptr<const std::string> text;
  Text parts{};  // of the text
  // The module's variables in global memory, one after the other.
  std::shared_ptr<const std::vector<std::byte>> variables{};
};

// The error names the line and the instruction.
std::expected<std::unique_ptr<const Program>, std::string> decode(const ModuleText& module,
                                                                  const Function& entry);

}  // namespace lockstep::ptx
