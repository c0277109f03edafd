#include "tests/emulators/gpu/cuda/kernels.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <shared_mutex>

#include "tests/emulators/gpu/cuda/fat_binary.h"
#include "tests/emulators/gpu/cuda/multiprocessors.h"

namespace lockstep::ptx {
namespace {

// Never destroyed: kernels may run while the process ends.
struct Registry {
  std::shared_mutex mutex;
  std::map<const void*, RegisteredKernel*> kernels;  // by host's function and by itself
};

Registry& registry() {
  static Registry& all = *new Registry;
  return all;
}

}  // namespace

const std::expected<Module, std::string>& FatBinary::module() {
  std::call_once(once_, [this] {
    const auto ptx = find_ptx(wrapper_);
    module_.emplace(ptx ? Module::parse(*ptx) : std::unexpected(ptx.error()));
  });
  return *module_;
}

const Kernel* RegisteredKernel::load() {
  const auto& module = binary_.module();
  const Kernel* const kernel = module ? module->find(name_) : nullptr;
  if (kernel == nullptr) {
    fmt::print(stderr, "emulated CUDA: kernel {}: {}\n", name_,
               module ? "is not in its file's PTX" : module.error());
  }
  return kernel;
}

int RegisteredKernel::ptx_version() {
  const auto& module = binary_.module();
  int version = 0;
  constexpr std::string_view kPrefix = "sm_";
  if (module && module->target().starts_with(kPrefix)) {
    const std::string& target = module->target();
    std::from_chars(target.data() + kPrefix.size(), target.data() + target.size(), version);
  }
  return version;
}

bool RegisteredKernel::is_on(int gpu) {
  const std::lock_guard lock(mutex_);
  return gpus_.contains(gpu);
}

void RegisteredKernel::bring_to(int gpu) {
  const std::lock_guard lock(mutex_);
  gpus_.insert(gpu);
}

uint32_t RegisteredKernel::dynamic_shared_max(int gpu) {
  const Kernel* const kernel = load();
  const uint32_t fixed = kernel == nullptr ? 0 : kernel->static_shared_bytes();
  const std::lock_guard lock(mutex_);
  const auto index = static_cast<size_t>(gpu);
  const uint32_t unasked = kSharedBytesWithoutAsking - std::min(fixed, kSharedBytesWithoutAsking);
  return index < dynamic_shared_max_.size() ? dynamic_shared_max_[index].value_or(unasked)
                                            : unasked;
}

void RegisteredKernel::set_dynamic_shared_max(int gpu, uint32_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto index = static_cast<size_t>(gpu);
  if (index >= dynamic_shared_max_.size()) dynamic_shared_max_.resize(index + 1);
  dynamic_shared_max_[index] = bytes;
}

FatBinary* register_binary(const void* wrapper) {
  return new FatBinary(wrapper);
}

void register_kernel(FatBinary& binary, const void* host_function, const char* name) {
  const std::unique_lock lock(registry().mutex);
  auto* const kernel = new RegisteredKernel(binary, name);
  binary.kernels().push_back(kernel);
  registry().kernels[host_function] = kernel;
  registry().kernels[kernel] = kernel;
}

RegisteredKernel* find_kernel(const void* function) {
  const std::shared_lock lock(registry().mutex);
  const auto found = registry().kernels.find(function);
  return found == registry().kernels.end() ? nullptr : found->second;
}

}  // namespace lockstep::ptx
