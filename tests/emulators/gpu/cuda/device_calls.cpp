// The emulated CUDA runtime: GPUs, and errors.
#include <algorithm>
#include <cstdio>
#include <cstring>

#include "tests/emulators/gpu/cuda/runtime.h"

using namespace lockstep::ptx;

namespace {

constexpr char kName[] = "Emulated GPU";
constexpr int kMegahertz = 1000;
constexpr int kBusBits = 512;

struct ErrorName {
  cudaError_t error;
  const char* name;
  const char* words;
};

#define ERROR(name, words) \
  { name, #name, words }
// Names and texts of the errors that the emulated calls return.
constexpr ErrorName kErrors[] = {
    ERROR(cudaSuccess, "no error"),
    ERROR(cudaErrorInvalidValue, "invalid argument"),
    ERROR(cudaErrorMemoryAllocation, "out of memory"),
    ERROR(cudaErrorInvalidConfiguration, "invalid configuration argument"),
    ERROR(cudaErrorInvalidDeviceFunction, "invalid device function"),
    ERROR(cudaErrorNoDevice, "no CUDA-capable device is detected"),
    ERROR(cudaErrorInvalidDevice, "invalid device ordinal"),
    ERROR(cudaErrorInvalidKernelImage, "device kernel image is invalid"),
    ERROR(cudaErrorPeerAccessAlreadyEnabled, "peer access is already enabled"),
    ERROR(cudaErrorInvalidResourceHandle, "invalid resource handle"),
    ERROR(cudaErrorNotReady, "device not ready"),
    ERROR(cudaErrorIllegalAddress, "an illegal memory access was encountered"),
    ERROR(cudaErrorLaunchOutOfResources, "too many resources requested for launch"),
    ERROR(cudaErrorPeerAccessUnsupported, "peer access is not supported between these two devices"),
    ERROR(cudaErrorHostMemoryAlreadyRegistered,
          "part or all of the requested memory range is already mapped"),
    ERROR(cudaErrorHostMemoryNotRegistered,
          "pointer does not correspond to a registered memory region"),
    ERROR(cudaErrorMisalignedAddress, "misaligned address"),
    ERROR(cudaErrorLaunchFailure, "unspecified launch failure"),
    ERROR(cudaErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing"),
    ERROR(cudaErrorStreamCaptureInvalidated,
          "operation failed due to a previous error during capture"),
    ERROR(cudaErrorStreamCaptureWrongThread,
          "attempt to terminate a thread-local capture sequence from another thread"),
};
#undef ERROR

const ErrorName& describe(cudaError_t error) {
  static constexpr ErrorName kUnknown = {cudaErrorUnknown, "cudaErrorUnknown", "unknown error"};
  const auto* const found = std::ranges::find(kErrors, error, &ErrorName::error);
  return found == std::end(kErrors) ? kUnknown : *found;
}

}  // namespace

const char* cudaGetErrorName(cudaError_t error) {
  return describe(error).name;
}

const char* cudaGetErrorString(cudaError_t error) {
  return describe(error).words;
}

cudaError_t cudaGetLastError() {
  return take_last_error();
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = Machine::get().gpu_count();
  return *count == 0 ? told(cudaErrorNoDevice) : cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  Machine& machine = Machine::get();
  if (machine.gpu_count() == 0) return told(cudaErrorNoDevice);
  if (!machine.has(device)) return told(cudaErrorInvalidDevice);
  set_current_gpu(device);
  return told(failure_of(machine.gpu(device)));
}

cudaError_t cudaGetDevice(int* device) {
  if (Machine::get().gpu_count() == 0) return told(cudaErrorNoDevice);
  *device = current_gpu();
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (!Machine::get().has(device)) return told(cudaErrorInvalidDevice);
  *properties = {};
  std::strcpy(properties->name, kName);
  properties->uuid.bytes[0] = 'P';
  properties->uuid.bytes[15] = static_cast<char>(device + 1);
  properties->totalGlobalMem = Machine::get().allocations().total_bytes();
  properties->major = 9;
  properties->minor = 0;
  properties->multiProcessorCount = kMultiprocessors;
  properties->warpSize = 32;
  properties->maxThreadsPerBlock = kThreadsMax;
  properties->maxThreadsPerMultiProcessor = kThreadsOfEach;
  properties->sharedMemPerBlock = kSharedBytesWithoutAsking;
  properties->sharedMemPerBlockOptin = kSharedBytesMax;
  properties->sharedMemPerMultiprocessor = kSharedBytesOfEach;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (!Machine::get().has(device)) return told(cudaErrorInvalidDevice);
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor:
      *value = 9;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *value = 0;
      break;
    case cudaDevAttrComputeMode:
      *value = cudaComputeModeDefault;
      break;
    case cudaDevAttrMemoryClockRate:
      *value = kMegahertz * 1000;
      break;
    case cudaDevAttrGlobalMemoryBusWidth:
      *value = kBusBits;
      break;
    case cudaDevAttrMultiProcessorCount:
      *value = kMultiprocessors;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(kSharedBytesMax);
      break;
    case cudaDevAttrConcurrentManagedAccess:
      *value = 1;
      break;
    default:
      return told(cudaErrorInvalidValue, "cudaDeviceGetAttribute: {} is not emulated",
                  static_cast<int>(attribute));
  }
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* address, int size, int device) {
  if (!Machine::get().has(device)) return told(cudaErrorInvalidDevice);
  const int written =
      std::snprintf(address, static_cast<size_t>(size), "0000:%02X:00.0", 0x80 + device);
  return written < size ? cudaSuccess : told(cudaErrorInvalidValue);
}

// All of them are linked to all.
cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  Machine& machine = Machine::get();
  if (!machine.has(device) || !machine.has(peer)) return told(cudaErrorInvalidDevice);
  *can = device != peer ? 1 : 0;
  return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned int flags) {
  Machine& machine = Machine::get();
  if (const cudaError_t state = state_of_current(); state != cudaSuccess) return told(state);
  if (flags != 0) return told(cudaErrorInvalidValue);
  if (!machine.has(peer) || peer == current_gpu()) return told(cudaErrorInvalidDevice);
  return machine.allocations().open_peer(current_gpu(), peer)
             ? cudaSuccess
             : told(cudaErrorPeerAccessAlreadyEnabled);
}

cudaError_t cudaDeviceSynchronize() {
  if (const cudaError_t state = state_of_current(); state != cudaSuccess) return told(state);
  if (const cudaError_t no = refuse_in_captures("cudaDeviceSynchronize"); no != cudaSuccess) {
    return no;
  }
  Machine::get().gpu(current_gpu()).wait_for_all();
  return told(state_of_current());
}
