// A module: the PTX that nvcc made of one .cu file. PTX is NVIDIA's instruction set of a virtual
// GPU ("PTX ISA", the document that comes with the CUDA toolkit). Module reads the text and decodes
// every entry, so that blocks of its kernels can be run on the host (block.h). An instruction that
// the interpreter does not know is refused here, with its line, not when it is met.
#pragma once

#include <cstddef>
#include <cstdint>
#include <expected>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::ptx {

struct Program;  // program.h: the decoded instructions

// The place of a kernel's parameter in the bytes that a launch gives it.
struct Parameter {
  uint32_t offset = 0;
  uint32_t bytes = 0;
  uint32_t alignment = 1;
};

// An entry of a module. Immutable; any number of blocks on any threads may run it at once.
class Kernel {
 public:
  explicit Kernel(std::unique_ptr<const Program> program);
  ~Kernel();

  const std::string& name() const;  // as the compiler mangled it
  const std::vector<Parameter>& parameters() const;
  uint32_t parameter_bytes() const;      // up to the end of the last parameter
  uint32_t static_shared_bytes() const;  // of a block, beside what its launch asks for
  uint32_t local_bytes() const;          // of a thread
  uint32_t threads_max() const;          // .maxntid's product; without one, the 1024 of every GPU
  // .minnctapersm: its registers are to leave space for so many blocks on a multiprocessor.
  uint32_t blocks_at_once() const;
  const Program& program() const { return *program_; }

 private:
  std::unique_ptr<const Program> program_;
};

class Module {
 public:
  // The error names the line and the instruction.
  static std::expected<Module, std::string> parse(std::string_view ptx);
  Module(Module&&) noexcept;
  Module& operator=(Module&&) noexcept;
  ~Module();

  // Null: there is none of that name. Lives as long as the module.
  const Kernel* find(std::string_view entry_name) const;
  std::vector<std::string> names() const;  // of the entries, in the text's order
  // .version and .target, such as "9.0" and "sm_90a".
  const std::string& isa_version() const { return isa_version_; }
  const std::string& target() const { return target_; }

 private:
  Module() = default;

  std::string isa_version_;
  std::string target_;
  std::vector<std::unique_ptr<Kernel>> kernels_;
};

}  // namespace lockstep::ptx
