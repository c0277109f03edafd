#include "tests/emulators/gpu/module.h"

#include <cstring>
#include <utility>

#include "tests/emulators/gpu/decoder.h"
#include "tests/emulators/gpu/program.h"
#include "tests/emulators/gpu/syntax.h"

namespace lockstep::ptx {
namespace {

// The initial bytes of the module's variables, placed as the decoder places them.
std::vector<std::byte> bytes_of_variables(const Text& text) {
  std::vector<std::byte> bytes;
  for (const Variable& variable : text.variables) {
    if (variable.space != "global") continue;
    const size_t begin =
        (bytes.size() + variable.alignment - 1) / variable.alignment * variable.alignment;
    bytes.resize(begin + variable.bytes);
    if (!variable.values.empty()) {
      std::memcpy(&bytes[begin], variable.values.data(), variable.values.size());
    }
  }
  return bytes;
}

}  // namespace

Kernel::Kernel(std::unique_ptr<const Program> program) : program_(std::move(program)) {}
Kernel::~Kernel() = default;

const std::string& Kernel::name() const {
  return program_->name;
}
const std::vector<Parameter>& Kernel::parameters() const {
  return program_->parameters;
}
uint32_t Kernel::parameter_bytes() const {
  return program_->parameter_bytes;
}
uint32_t Kernel::static_shared_bytes() const {
  return program_->shared_bytes;
}
uint32_t Kernel::local_bytes() const {
  return program_->local_bytes;
}
uint32_t Kernel::threads_max() const {
  return program_->threads_max;
}
uint32_t Kernel::blocks_at_once() const {
  return program_->blocks_at_once;
}

Module::Module(Module&&) noexcept = default;
Module& Module::operator=(Module&&) noexcept = default;
Module::~Module() = default;

std::expected<Module, std::string> Module::parse(std::string_view ptx) {
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) {
    return std::unexpected("the interpreter of PTX needs a processor with AVX2 and FMA");
  }
  ModuleText module{.text = std::make_shared<const std::string>(ptx)};
  auto text = read_text(*module.text);
  if (!text) return std::unexpected(text.error());
  module.parts = std::move(*text);
  module.variables =
      std::make_shared<const std::vector<std::byte>>(bytes_of_variables(module.parts));
  Module result;
  result.isa_version_ = module.parts.isa_version;
  result.target_ = module.parts.target;
  for (const Function& function : module.parts.functions) {
    if (!function.is_entry) continue;
    auto program = decode(module, function);
    if (!program) return std::unexpected(program.error());
    result.kernels_.push_back(std::make_unique<Kernel>(std::move(*program)));
  }
  return result;
}

const Kernel* Module::find(std::string_view entry_name) const {
  for (const auto& kernel : kernels_) {
    if (kernel->name() == entry_name) return kernel.get();
  }
  return nullptr;
}

std::vector<std::string> Module::names() const {
  std::vector<std::string> names;
  for (const auto& kernel : kernels_) names.push_back(kernel->name());
  return names;
}

}  // namespace lockstep::ptx
