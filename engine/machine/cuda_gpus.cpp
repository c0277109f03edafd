// GPUs as the CUDA runtime shows them. In a build without CUDA, no_cuda_gpus.cpp is taken instead.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>

#include "engine/base/log.h"
#include "engine/machine/gpu.h"
#include "engine/machine/nvml.h"

namespace lockstep {
namespace {

// CUDA's version numbers: 13000 is 13.0.
std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

std::string absence_of(cudaError_t error) {
  if (error == cudaErrorInsufficientDriver) {
    int driver = 0;
    int runtime = 0;
    if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) {
      return "there is no NVIDIA driver (libcuda.so.1)";
    }
    if (cudaRuntimeGetVersion(&runtime) != cudaSuccess) runtime = CUDART_VERSION;
    return fmt::format("the NVIDIA driver knows CUDA {}, this program needs {}: update the driver",
                       version_text(driver), version_text(runtime));
  }
  if (error == cudaErrorNoDevice) {
    return "the NVIDIA driver shows none (does CUDA_VISIBLE_DEVICES hide them?)";
  }
  return fmt::format("CUDA says: {}", cudaGetErrorString(error));
}

// As the management library writes it. `kind` is "GPU", or "MIG" for a part of one.
std::string uuid_text(std::string_view kind, const cudaUUID_t& uuid) {
  std::string text(kind);
  for (size_t index = 0; index < sizeof(uuid.bytes); ++index) {
    if (index == 0 || index == 4 || index == 6 || index == 8 || index == 10) text += '-';
    text += fmt::format("{:02x}", static_cast<unsigned char>(uuid.bytes[index]));
  }
  return text;
}

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  return cudaDeviceGetAttribute(&value, which, device) == cudaSuccess ? value : 0;
}

// The peak bandwidth of its memory: two transfers per clock, of the bus's width.
double memory_bandwidth(int device) {
  const double kilohertz = attribute(cudaDevAttrMemoryClockRate, device);
  const double bits = attribute(cudaDevAttrGlobalMemoryBusWidth, device);
  return 2 * kilohertz * 1000 * bits / 8;
}

// Only where nobody else says it: this takes some of the memory itself, for a context.
uint64_t free_bytes_by_runtime(int device) {
  int current = 0;
  size_t free = 0;
  size_t total = 0;
  const bool known = cudaGetDevice(&current) == cudaSuccess &&
                     cudaSetDevice(device) == cudaSuccess &&
                     cudaMemGetInfo(&free, &total) == cudaSuccess;
  cudaSetDevice(current);
  return known ? free : 0;
}

std::optional<Gpu> read_gpu(int device, const Nvml* nvml, const std::filesystem::path& sysfs) {
  cudaDeviceProp properties;
  if (const cudaError_t error = cudaGetDeviceProperties(&properties, device);
      error != cudaSuccess) {
    spdlog::warn("gpu{} is left out: {}", device, cudaGetErrorString(error));
    return std::nullopt;
  }
  if (attribute(cudaDevAttrComputeMode, device) == cudaComputeModeProhibited) {
    spdlog::warn("gpu{} is left out: its compute mode is prohibited (nvidia-smi -c 0 changes it)",
                 device);
    return std::nullopt;
  }
  // Takes the generations that cuda.cmake names; 11.0 is none of them.
  if (properties.major < 8 || properties.major == 11) {
    spdlog::warn(
        "gpu{} is left out: its compute capability is {}.{}; 8.0, 9.0, 10.0, 12.0 and what "
        "comes after them are known",
        device, properties.major, properties.minor);
    return std::nullopt;
  }
  Gpu gpu;
  gpu.index = device;
  gpu.name = properties.name;
  gpu.uuid = uuid_text("GPU", properties.uuid);
  std::array<char, 32> address{};
  if (cudaDeviceGetPCIBusId(address.data(), static_cast<int>(address.size()), device) ==
      cudaSuccess) {
    gpu.pci_address = address.data();
    gpu.node = node_of_pci_device(sysfs, gpu.pci_address);
  }
  gpu.memory_bytes = properties.totalGlobalMem;
  std::optional<uint64_t> free = nvml == nullptr ? std::nullopt : nvml->free_bytes(gpu.uuid);
  if (nvml != nullptr && !free) {
    const std::string part = uuid_text("MIG", properties.uuid);
    free = nvml->free_bytes(part);
    if (free) gpu.uuid = part;
  }
  gpu.free_bytes = std::min(free ? *free : free_bytes_by_runtime(device), gpu.memory_bytes);
  gpu.capability_major = properties.major;
  gpu.capability_minor = properties.minor;
  gpu.multiprocessor_count = properties.multiProcessorCount;
  gpu.bytes_per_second = memory_bandwidth(device);
  return gpu;
}

// NVLink only where the management library says so: the runtime tells peer access, not its path.
GpuLink link_between(const Gpu& gpu, const Gpu& other, const Nvml* nvml) {
  if (gpu.index == other.index) return GpuLink::kSelf;
  int peer = 0;
  if (cudaDeviceCanAccessPeer(&peer, gpu.index, other.index) != cudaSuccess || peer == 0) {
    return GpuLink::kHost;
  }
  const bool nvlink = nvml != nullptr && nvml->are_linked_by_nvlink(gpu.uuid, other.uuid);
  return nvlink ? GpuLink::kNvlink : GpuLink::kPeer;
}

GpuReading ask_runtime(const std::filesystem::path& sysfs) {
  // Nothing is loaded with a context: of NVIDIA's libraries that would be hundreds of MiB. Ours are
  // loaded before any of them runs (kernels/gpu_kernel_load.h).
  ::setenv("CUDA_MODULE_LOADING", "LAZY", 0);
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess || count == 0) {
    return {.gpus = {}, .absence = absence_of(error == cudaSuccess ? cudaErrorNoDevice : error)};
  }
  const std::unique_ptr<Nvml> nvml = Nvml::open();
  GpuReading reading;
  for (int device = 0; device < count; ++device) {
    if (auto gpu = read_gpu(device, nvml.get(), sysfs)) reading.gpus.push_back(std::move(*gpu));
  }
  for (Gpu& gpu : reading.gpus) {
    for (const Gpu& other : reading.gpus) {
      gpu.links.push_back(link_between(gpu, other, nvml.get()));
    }
  }
  if (reading.gpus.empty()) reading.absence = "none of them can be used; see the warnings above";
  return reading;
}

}  // namespace

GpuReading read_gpus(const std::filesystem::path& sysfs) {
  GpuReading reading = ask_runtime(sysfs);
  // Else the next launch of a kernel on this thread would find the error of a question about a GPU
  // that is not even used.
  cudaGetLastError();
  return reading;
}

}  // namespace lockstep
