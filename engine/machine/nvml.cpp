#include "engine/machine/nvml.h"

#include <utility>

#include "engine/base/dynamic_library.h"

namespace lockstep {
namespace {

// The library's interface, as far as it is used: it keeps its functions and numbers for good, and
// its header is no part of every toolkit.
using Status = int;
constexpr Status kSuccess = 0;
constexpr int kPeerOverNvlink = 2;  // NVML_P2P_CAPS_INDEX_NVLINK
constexpr int kPeerOk = 0;          // NVML_P2P_STATUS_OK

using Device = void*;

struct MemoryUse {
  unsigned long long total = 0;  // bytes, as the two below
  unsigned long long free = 0;
  unsigned long long used = 0;
};

}  // namespace

struct Nvml::Calls {
  Status (*init)() = nullptr;
  Status (*shutdown)() = nullptr;
  Status (*device_by_uuid)(const char* uuid, Device* device) = nullptr;
  Status (*memory_info)(Device device, MemoryUse* use) = nullptr;
  Status (*peer_status)(Device device, Device other, int what, int* status) = nullptr;

  bool find_in(const DynamicLibrary& library) {
    return library.find("nvmlInit_v2", init) && library.find("nvmlShutdown", shutdown) &&
           library.find("nvmlDeviceGetHandleByUUID", device_by_uuid) &&
           library.find("nvmlDeviceGetMemoryInfo", memory_info) &&
           library.find("nvmlDeviceGetP2PStatus", peer_status);
  }

  Device find_device(const std::string& uuid) const {
    Device device = nullptr;
    return device_by_uuid(uuid.c_str(), &device) == kSuccess ? device : nullptr;
  }
};

std::unique_ptr<Nvml> Nvml::open() {
  const auto library = DynamicLibrary::open({"libnvidia-ml.so.1"});
  if (!library) return nullptr;
  auto calls = std::make_unique<Calls>();
  if (!calls->find_in(*library) || calls->init() != kSuccess) return nullptr;
  return std::unique_ptr<Nvml>(new Nvml(std::move(calls)));
}

Nvml::Nvml(std::unique_ptr<Calls> calls) : calls_(std::move(calls)) {}

Nvml::~Nvml() {
  calls_->shutdown();
}

std::optional<uint64_t> Nvml::free_bytes(const std::string& uuid) const {
  const Device device = calls_->find_device(uuid);
  MemoryUse use;
  if (device == nullptr || calls_->memory_info(device, &use) != kSuccess) return std::nullopt;
  return use.free;
}

bool Nvml::are_linked_by_nvlink(const std::string& uuid, const std::string& other_uuid) const {
  const Device device = calls_->find_device(uuid);
  const Device other = calls_->find_device(other_uuid);
  int status = kPeerOk + 1;
  return device != nullptr && other != nullptr &&
         calls_->peer_status(device, other, kPeerOverNvlink, &status) == kSuccess &&
         status == kPeerOk;
}

}  // namespace lockstep
