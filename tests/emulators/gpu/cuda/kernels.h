// The kernels of the program, as nvcc's code for the host registers them before main().
#pragma once

#include <expected>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tests/emulators/gpu/module.h"

namespace lockstep::ptx {

class RegisteredKernel;

// One .cu file's.
class FatBinary {
 public:
  explicit FatBinary(const void* wrapper) : wrapper_(wrapper) {}

  // Complete before main().
  std::vector<RegisteredKernel*>& kernels() { return kernels_; }

  // Read when one of its kernels is first asked for; the error says what is wrong with all of them.
  const std::expected<Module, std::string>& module();

 private:
  const void* wrapper_;
  std::vector<RegisteredKernel*> kernels_;
  std::once_flag once_;
  std::optional<std::expected<Module, std::string>> module_;
};

class RegisteredKernel {
 public:
  RegisteredKernel(FatBinary& binary, std::string name) : binary_(binary), name_(std::move(name)) {}

  const std::string& name() const { return name_; }
  FatBinary& binary() { return binary_; }

  // Whether the GPU has its code: since it was asked for, or first launched there.
  bool is_on(int gpu);
  void bring_to(int gpu);

  // Null: its PTX is not there or cannot be run, which has been said.
  const Kernel* load();

  // The compute capability that its PTX is for: 90 for compute_90 and compute_90a.
  int ptx_version();

  // How many bytes of shared memory a launch on the GPU may ask for.
  uint32_t dynamic_shared_max(int gpu);
  void set_dynamic_shared_max(int gpu, uint32_t bytes);

 private:
  FatBinary& binary_;
  std::string name_;
  std::mutex mutex_;
  std::vector<std::optional<uint32_t>> dynamic_shared_max_;  // by GPU; nothing: not asked for
  std::set<int> gpus_;                                       // that have its code
};

FatBinary* register_binary(const void* wrapper);
void register_kernel(FatBinary& binary, const void* host_function, const char* name);
// By the host's function, or by what this returned before. Null: it is no kernel.
RegisteredKernel* find_kernel(const void* function);

}  // namespace lockstep::ptx
