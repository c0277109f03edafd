#include "engine/collectives/nccl.h"

#include <cuda_runtime_api.h>
#include <nccl.h>
#include <stdlib.h>

#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;

// Between two looks at a call that is under way. Not measured.
constexpr std::chrono::microseconds kBetweenLooks{20};

const char* remedy(ncclResult_t result) {
  switch (result) {
    case ncclInvalidUsage:
      return "check that no GPU is named twice (or set NCCL_MULTI_RANK_GPU_ENABLE=1, from NCCL "
             "2.30 "
             "on)";
    case ncclUnhandledCudaError:
    case ncclSystemError:
      return "look for Xid messages in the kernel's log, and set NCCL_DEBUG=WARN to hear more";
    default:
      return "set NCCL_DEBUG=WARN to hear more";
  }
}

// Puts the thread's current device back.
class CurrentDevice {
 public:
  CurrentDevice() { known_ = cudaGetDevice(&device_) == cudaSuccess; }
  ~CurrentDevice() {
    if (known_) cudaSetDevice(device_);
  }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  int device_ = 0;
  bool known_ = false;
};

class Communicators final : public NcclRanks {
 public:
  Communicators(std::span<const int> gpus, std::chrono::nanoseconds deadline)
      : gpus_(gpus.begin(), gpus.end()), deadline_(deadline), handles_(gpus.size()) {}
  // Nothing is under way any more, or nobody will miss it; ncclCommDestroy() would wait for peers.
  ~Communicators() override { abort(); }
  Communicators(const Communicators&) = delete;
  Communicators& operator=(const Communicators&) = delete;

  Result<void> connect();
  Result<void> all_reduce(size_t rank, void* stream, float* values, size_t count) override;
  Result<void> wait(size_t rank, void* stream) override;
  void abort() override;

 private:
  // Another rank's thread may abort all; no NCCL call waits, so none holds its lock for long.
  struct Handle {
    std::mutex mutex;
    ncclComm_t communicator = nullptr;  // GUARDED_BY(mutex), once connect() is done
  };

  // What `call` returns, given the rank's communicator; ncclInvalidUsage once it is aborted.
  template <typename Call>
  ncclResult_t with_handle(size_t rank, Call call) {
    const std::scoped_lock lock(handles_[rank].mutex);
    ncclComm_t communicator = handles_[rank].communicator;
    return communicator == nullptr ? ncclInvalidUsage : call(communicator);
  }

  Result<void> check_gpus() const;
  Result<void> begin_all(const ncclUniqueId& id);
  // Until what the rank's communicator was last asked for is done.
  Result<void> poll(size_t rank, const char* call, Clock::time_point deadline);
  std::unexpected<Error> failed(size_t rank, const char* call, ncclResult_t result);
  std::unexpected<Error> expired(size_t rank, const char* call);
  std::unexpected<Error> aborted(size_t rank, const char* call);

  std::vector<int> gpus_;
  std::chrono::nanoseconds deadline_;
  std::vector<Handle> handles_;
  std::atomic<bool> aborted_ = false;  // set before any communicator is aborted
};

std::unexpected<Error> Communicators::failed(size_t rank, const char* call, ncclResult_t result) {
  auto error =
      machine_refused("rank {} (GPU {}): {} failed: {} ({}); {}", rank, gpus_[rank], call,
                      ncclGetErrorString(result), ncclGetLastError(nullptr), remedy(result));
  abort();
  return error;
}

std::unexpected<Error> Communicators::expired(size_t rank, const char* call) {
  auto error = machine_refused(
      "rank {} (GPU {}): {} was not done within {} ms: a GPU does not answer; look for Xid "
      "messages "
      "in the kernel's log, and start again without it",
      rank, gpus_[rank], call,
      std::chrono::duration_cast<std::chrono::milliseconds>(deadline_).count());
  abort();
  return error;
}

std::unexpected<Error> Communicators::aborted(size_t rank, const char* call) {
  return machine_refused(
      "rank {} (GPU {}): no {} after NCCL has been aborted; start the process again", rank,
      gpus_[rank], call);
}

Result<void> Communicators::poll(size_t rank, const char* call, Clock::time_point deadline) {
  while (true) {
    ncclResult_t state = ncclSuccess;
    const ncclResult_t asked =
        with_handle(rank, [&](ncclComm_t handle) { return ncclCommGetAsyncError(handle, &state); });
    if (aborted_.load()) return aborted(rank, call);
    if (asked != ncclSuccess) return failed(rank, "ncclCommGetAsyncError", asked);
    if (state == ncclSuccess) return {};
    if (state != ncclInProgress) return failed(rank, call, state);
    if (Clock::now() > deadline) return expired(rank, call);
    std::this_thread::sleep_for(kBetweenLooks);
  }
}

Result<void> Communicators::check_gpus() const {
  const CurrentDevice before;
  for (size_t rank = 0; rank < gpus_.size(); ++rank) {
    const cudaError_t chosen = cudaSetDevice(gpus_[rank]);
    if (chosen == cudaSuccess) continue;
    return machine_refused("rank {}: GPU {} cannot be used ({}); name GPUs that nvidia-smi lists",
                           rank, gpus_[rank], cudaGetErrorString(chosen));
  }
  return {};
}

// In a group, since each would wait for the others.
Result<void> Communicators::begin_all(const ncclUniqueId& id) {
  const CurrentDevice before;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  const ncclResult_t started = ncclGroupStart();
  if (started != ncclSuccess) return failed(0, "ncclGroupStart", started);
  size_t refused_rank = 0;
  ncclResult_t refused = ncclSuccess;
  for (size_t rank = 0; rank < gpus_.size() && refused == ncclSuccess; ++rank) {
    cudaSetDevice(gpus_[rank]);
    const ncclResult_t result =
        ncclCommInitRankConfig(&handles_[rank].communicator, static_cast<int>(gpus_.size()), id,
                               static_cast<int>(rank), &config);
    if (result == ncclSuccess || result == ncclInProgress) continue;
    refused_rank = rank;
    refused = result;
  }
  const ncclResult_t ended = ncclGroupEnd();
  if (refused != ncclSuccess) return failed(refused_rank, "ncclCommInitRankConfig", refused);
  if (ended != ncclSuccess && ended != ncclInProgress) return failed(0, "ncclGroupEnd", ended);
  return {};
}

Result<void> Communicators::connect() {
  const Clock::time_point deadline = Clock::now() + deadline_;
  if (auto usable = check_gpus(); !usable) return usable;
  ncclUniqueId id;
  const ncclResult_t named = ncclGetUniqueId(&id);
  if (named != ncclSuccess) return failed(0, "ncclGetUniqueId", named);
  if (auto begun = begin_all(id); !begun) return begun;
  for (size_t rank = 0; rank < gpus_.size(); ++rank) {
    if (auto done = poll(rank, "ncclCommInitRankConfig", deadline); !done) return done;
  }
  return {};
}

Result<void> Communicators::all_reduce(size_t rank, void* stream, float* values, size_t count) {
  const Clock::time_point deadline = Clock::now() + deadline_;
  const ncclResult_t result = with_handle(rank, [&](ncclComm_t handle) {
    return ncclAllReduce(values, values, count, ncclFloat32, ncclSum, handle,
                         static_cast<cudaStream_t>(stream));
  });
  if (aborted_.load()) return aborted(rank, "ncclAllReduce");
  if (result != ncclSuccess && result != ncclInProgress) {
    return failed(rank, "ncclAllReduce", result);
  }
  return poll(rank, "ncclAllReduce", deadline);
}

Result<void> Communicators::wait(size_t rank, void* stream) {
  const Clock::time_point deadline = Clock::now() + deadline_;
  while (true) {
    const cudaError_t state = cudaStreamQuery(static_cast<cudaStream_t>(stream));
    if (state == cudaSuccess) return {};
    if (state != cudaErrorNotReady) {
      auto error = machine_refused(
          "rank {} (GPU {}): its stream failed: {}; look for Xid messages in the kernel's log",
          rank, gpus_[rank], cudaGetErrorString(state));
      abort();
      return error;
    }
    // Another rank's errors show here first.
    if (auto sound = poll(rank, "ncclAllReduce", deadline); !sound) return sound;
    if (Clock::now() > deadline) return expired(rank, "the stream's work");
    std::this_thread::sleep_for(kBetweenLooks);
  }
}

void Communicators::abort() {
  aborted_.store(true);
  for (Handle& handle : handles_) {
    const std::scoped_lock lock(handle.mutex);
    if (handle.communicator != nullptr) ncclCommAbort(handle.communicator);
    handle.communicator = nullptr;
  }
}

void set_unless_set(const char* name, const char* value) {
  setenv(name, value, 0);
}

}  // namespace

void fix_nccl_order() {
  set_unless_set("NCCL_ALGO", "Ring");
  set_unless_set("NCCL_PROTO", "Simple");
  set_unless_set("NCCL_NVLS_ENABLE", "0");
}

Result<std::unique_ptr<NcclRanks>> NcclRanks::create(std::span<const int> gpus,
                                                     std::chrono::nanoseconds deadline) {
  if (gpus.empty()) return invalid_input("NCCL joins no GPUs; name one at least");
  auto ranks = std::make_unique<Communicators>(gpus, deadline);
  if (auto connected = ranks->connect(); !connected) {
    return std::unexpected(std::move(connected).error());
  }
  return ranks;
}

}  // namespace lockstep
