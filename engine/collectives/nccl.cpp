#include "engine/collectives/nccl.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <future>
#include <optional>
#include <system_error>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/base/mutex.h"
#include "engine/collectives/nccl_library.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;

// A call is done within some tens of microseconds once the ranks are connected: for so long its
// thread only yields, and sleeps between looks after that. Neither was measured.
constexpr std::chrono::milliseconds kYielding{1};
constexpr std::chrono::microseconds kBetweenLooks{20};
constexpr std::chrono::milliseconds kAbortDeadline{500};

// Between two questions for the time spent: four calls for each of 128 layers, and the embedding's.
constexpr size_t kTimedCalls = 514;

// Blocks, and so multiprocessors and buffers (kNcclBytes), that NCCL may take. A guess.
constexpr int kChannelsMax = 16;

// Loads it once; from where the loader looks, or else from the toolkit's usual folder.
const Result<NcclLibrary>& library() {
  static const Result<NcclLibrary> loaded =
      load_nccl({"libnccl.so.2", "/usr/local/cuda/lib64/libnccl.so.2"});
  return loaded;
}

const char* remedy(ncclResult_t result) {
  switch (result) {
    case ncclInvalidUsage:
      return "check that no GPU is named twice (or set NCCL_MULTI_RANK_GPU_ENABLE=1)";
    case ncclUnhandledCudaError:
    case ncclSystemError:
      return "look for Xid messages in the kernel's log, and set NCCL_DEBUG=WARN to hear more";
    default:
      return "set NCCL_DEBUG=WARN to hear more";
  }
}

// NCCL_VERSION(2, 28, 9) is 22809.
constexpr int kSharedGpusFrom = 23000;
std::string version_text(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

bool has_repeated(std::span<const int> gpus) {
  std::vector<int> sorted(gpus.begin(), gpus.end());
  std::ranges::sort(sorted);
  return std::ranges::adjacent_find(sorted) != sorted.end();
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

static_assert(sizeof(ncclUniqueId) == kNcclIdBytes);

// Ranks have their numbers among all processes' outside, and from 0 on in the members.
class Communicators final : public NcclRanks {
 public:
  Communicators(const NcclLibrary& nccl, std::span<const int> gpus, NcclPlace place,
                std::chrono::nanoseconds deadline)
      : nccl_(nccl),
        gpus_(gpus.begin(), gpus.end()),
        place_(std::move(place)),
        deadline_(deadline),
        handles_(gpus.size()),
        times_(gpus.size()) {}
  // Nothing is under way any more, or nobody will miss it; ncclCommDestroy() would wait for peers.
  ~Communicators() override { abort_now(); }
  Communicators(const Communicators&) = delete;
  Communicators& operator=(const Communicators&) = delete;

  Result<void> connect();
  void set_deadline(std::chrono::nanoseconds deadline) override { deadline_.store(deadline); }
  void all_reduce(size_t rank, void* stream, const float* values, float* sums,
                  size_t count) override;
  void exchange(size_t rank, void* stream, std::span<const NcclTransfer> transfers) override;
  std::chrono::nanoseconds time_spent(size_t rank) override;
  Result<void> check(size_t rank) override;
  void abort(const Error& reason) override { std::ignore = keep(reason); }

 private:
  // Another rank's thread may abort all; no NCCL call waits, so none holds its lock for long.
  struct Handle {
    Mutex mutex;
    ncclComm_t communicator LOCKSTEP_GUARDED_BY(mutex) = nullptr;
  };

  // When calls began and ended on the GPU, until they are counted. A rank's thread alone uses its.
  struct Times {
    std::vector<cudaEvent_t> events;  // two for each call; none where they could not be made
    size_t used = 0;
    std::chrono::nanoseconds counted{0};
  };

  // Returns the result of `call`, given the rank's communicator; ncclInvalidUsage once it is
  // aborted.
  template <typename Call>
  ncclResult_t with_handle(size_t rank, Call call) {
    Handle& handle = handles_[rank - place_.first];
    const MutexLock lock(handle.mutex);
    return handle.communicator == nullptr ? ncclInvalidUsage : call(handle.communicator);
  }
  // The same, until what was asked for is done; a failure is what check() tells from then on.
  template <typename Call>
  void enqueue(size_t rank, void* stream, const char* name, Call call);

  Result<void> check_gpus() const;
  Result<void> begin_all(const ncclUniqueId& id);
  void make_events();
  // Until what the rank's communicator was last asked for is done.
  Result<void> poll(size_t rank, const char* call, Clock::time_point begin);
  std::unexpected<Error> failed(size_t rank, const char* call, ncclResult_t result);
  std::unexpected<Error> expired(size_t rank, const char* call);
  // The first one is kept; all is aborted.
  std::unexpected<Error> keep(Error error);
  std::unexpected<Error> kept();
  void abort_now();

  const NcclLibrary& nccl_;
  int gpu_of(size_t rank) const { return gpus_[rank - place_.first]; }

  std::vector<int> gpus_;
  NcclPlace place_;  // its failure until connect() has returned
  std::atomic<std::chrono::nanoseconds> deadline_;
  std::vector<Handle> handles_;
  std::vector<Times> times_;           // by rank
  std::atomic<bool> aborted_ = false;  // set before any communicator is aborted
  Mutex failure_mutex_;
  std::optional<Error> failure_ LOCKSTEP_GUARDED_BY(failure_mutex_);
};

std::unexpected<Error> Communicators::keep(Error error) {
  {
    const MutexLock lock(failure_mutex_);
    if (!failure_) failure_ = error;
  }
  abort_now();
  return std::unexpected(std::move(error));
}

std::unexpected<Error> Communicators::kept() {
  const MutexLock lock(failure_mutex_);
  return std::unexpected(*failure_);
}

std::unexpected<Error> Communicators::failed(size_t rank, const char* call, ncclResult_t result) {
  return keep(machine_refused("rank {} (GPU {}): {} failed: {} ({}); {}", rank, gpu_of(rank), call,
                              nccl_.error_string(result), nccl_.last_error(nullptr), remedy(result))
                  .error());
}

std::unexpected<Error> Communicators::expired(size_t rank, const char* call) {
  const std::chrono::nanoseconds deadline = deadline_.load();
  return keep(
      machine_refused(
          "rank {} (GPU {}): {} was not done within {} ms: {}", rank, gpu_of(rank), call,
          std::chrono::duration_cast<std::chrono::milliseconds>(deadline).count(),
          gpus_.size() < place_.count
              ? "a GPU of this process or of another does not answer"
              : "a GPU does not answer; look for Xid messages in the kernel's log, and start "
                "again without it")
          .error());
}

Result<void> Communicators::poll(size_t rank, const char* call, Clock::time_point begin) {
  while (true) {
    ncclResult_t state = ncclSuccess;
    const ncclResult_t asked =
        with_handle(rank, [&](ncclComm_t handle) { return nccl_.async_error(handle, &state); });
    if (aborted_.load()) return kept();
    if (asked != ncclSuccess) return failed(rank, "ncclCommGetAsyncError", asked);
    if (state == ncclSuccess) return {};
    if (state != ncclInProgress) return failed(rank, call, state);
    if (place_.failure) {
      if (auto reason = place_.failure()) return keep(*std::move(reason));
    }
    const Clock::duration waited = Clock::now() - begin;
    if (waited > deadline_.load()) return expired(rank, call);
    if (waited < kYielding) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kBetweenLooks);
    }
  }
}

Result<void> Communicators::check_gpus() const {
  const CurrentDevice before;
  for (size_t index = 0; index < gpus_.size(); ++index) {
    const cudaError_t chosen = cudaSetDevice(gpus_[index]);
    if (chosen == cudaSuccess) continue;
    return machine_refused("rank {}: GPU {} cannot be used ({}); name GPUs that nvidia-smi lists",
                           place_.first + index, gpus_[index], cudaGetErrorString(chosen));
  }
  return {};
}

// In a group, since each would wait for the others.
Result<void> Communicators::begin_all(const ncclUniqueId& id) {
  const CurrentDevice before;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  config.maxCTAs = kChannelsMax;
  const ncclResult_t started = nccl_.group_start();
  if (started != ncclSuccess) return failed(place_.first, "ncclGroupStart", started);
  size_t refused_rank = place_.first;
  ncclResult_t refused = ncclSuccess;
  for (size_t index = 0; index < gpus_.size() && refused == ncclSuccess; ++index) {
    const size_t rank = place_.first + index;
    cudaSetDevice(gpus_[index]);
    Handle& handle = handles_[index];
    const MutexLock lock(handle.mutex);
    const ncclResult_t result = nccl_.init_rank(
        &handle.communicator, static_cast<int>(place_.count), id, static_cast<int>(rank), &config);
    if (result == ncclSuccess || result == ncclInProgress) continue;
    refused_rank = rank;
    refused = result;
  }
  const ncclResult_t ended = nccl_.group_end();
  if (refused != ncclSuccess) return failed(refused_rank, "ncclCommInitRankConfig", refused);
  if (ended != ncclSuccess && ended != ncclInProgress) {
    return failed(place_.first, "ncclGroupEnd", ended);
  }
  return {};
}

Result<void> Communicators::connect() {
  const Clock::time_point begin = Clock::now();
  if (auto usable = check_gpus(); !usable) return usable;
  ncclUniqueId id;
  std::memcpy(&id, place_.id.data(), sizeof(id));
  if (auto begun = begin_all(id); !begun) return begun;
  for (size_t index = 0; index < gpus_.size(); ++index) {
    auto done = poll(place_.first + index, "ncclCommInitRankConfig", begin);
    if (!done) return done;
  }
  place_.failure = nullptr;
  make_events();
  return {};
}

// They end with the process: nobody waits for a GPU that does not answer in order to give them
// back.
void Communicators::make_events() {
  const CurrentDevice before;
  for (size_t rank = 0; rank < gpus_.size(); ++rank) {
    cudaSetDevice(gpus_[rank]);
    std::vector<cudaEvent_t>& events = times_[rank].events;
    events.resize(2 * kTimedCalls);
    for (cudaEvent_t& event : events) {
      if (cudaEventCreate(&event) == cudaSuccess) continue;
      cudaGetLastError();  // or the next call of somebody else would report it
      events.clear();
      break;
    }
  }
}

std::chrono::nanoseconds Communicators::time_spent(size_t rank) {
  Times& times = times_[rank - place_.first];
  for (size_t event = 0; event < times.used; event += 2) {
    float milliseconds = 0;
    const cudaError_t told =
        cudaEventElapsedTime(&milliseconds, times.events[event], times.events[event + 1]);
    if (told != cudaSuccess) {
      cudaGetLastError();
      continue;
    }
    times.counted += std::chrono::nanoseconds(std::llround(double{milliseconds} * 1e6));
  }
  times.used = 0;
  return times.counted;
}

template <typename Call>
void Communicators::enqueue(size_t rank, void* stream, const char* name, Call call) {
  if (aborted_.load()) return;
  auto* const on = static_cast<cudaStream_t>(stream);
  Times& times = times_[rank - place_.first];
  const bool timed = times.used + 2 <= times.events.size();
  if (timed) cudaEventRecord(times.events[times.used], on);
  const Clock::time_point begin = Clock::now();
  const ncclResult_t result = with_handle(rank, call);
  if (aborted_.load()) return;
  if (result != ncclSuccess && result != ncclInProgress) {
    std::ignore = failed(rank, name, result);
    return;
  }
  if (!poll(rank, name, begin) || !timed) return;
  cudaEventRecord(times.events[times.used + 1], on);
  times.used += 2;
}

void Communicators::all_reduce(size_t rank, void* stream, const float* values, float* sums,
                               size_t count) {
  enqueue(rank, stream, "ncclAllReduce", [&](ncclComm_t handle) {
    return nccl_.all_reduce(values, sums, count, ncclFloat32, ncclSum, handle,
                            static_cast<cudaStream_t>(stream));
  });
}

void Communicators::exchange(size_t rank, void* stream, std::span<const NcclTransfer> transfers) {
  auto* const on = static_cast<cudaStream_t>(stream);
  enqueue(rank, stream, "ncclSend and ncclRecv", [&](ncclComm_t handle) {
    ncclResult_t result = nccl_.group_start();
    if (result != ncclSuccess) return result;
    const auto add = [&result](ncclResult_t added) {
      if (result == ncclSuccess && added != ncclInProgress) result = added;
    };
    for (const NcclTransfer& transfer : transfers) {
      const int peer = static_cast<int>(transfer.peer);
      if (transfer.send_count > 0) {
        add(nccl_.send(transfer.send, transfer.send_count, ncclFloat32, peer, handle, on));
      }
      if (transfer.receive_count > 0) {
        add(nccl_.receive(transfer.receive, transfer.receive_count, ncclFloat32, peer, handle, on));
      }
    }
    const ncclResult_t ended = nccl_.group_end();
    return result == ncclSuccess ? ended : result;
  });
}

// Work in progress is no failure: the stream is waited for, and has the deadline.
Result<void> Communicators::check(size_t rank) {
  ncclResult_t state = ncclSuccess;
  const ncclResult_t asked =
      with_handle(rank, [&](ncclComm_t handle) { return nccl_.async_error(handle, &state); });
  if (aborted_.load()) return kept();
  if (asked != ncclSuccess) return failed(rank, "ncclCommGetAsyncError", asked);
  if (state == ncclSuccess || state == ncclInProgress) return {};
  return failed(rank, "what was enqueued", state);
}

// Each by a thread of its own: ranks of one process may wait for one another to be aborted, and one
// whose GPU does not answer may never come back.
void abort_all(decltype(&ncclCommAbort) abort, std::span<const ncclComm_t> communicators) {
  const Clock::time_point until = Clock::now() + kAbortDeadline;
  std::vector<std::thread> threads;
  std::vector<std::future<void>> aborted;
  threads.reserve(communicators.size());
  try {
    for (ncclComm_t communicator : communicators) {
      std::packaged_task<void()> work([abort, communicator] { abort(communicator); });
      aborted.push_back(work.get_future());
      threads.emplace_back(std::move(work));
    }
  } catch (const std::system_error&) {
    // No thread to be had: what waits on the GPUs ends with the process.
  }
  for (size_t index = 0; index < threads.size(); ++index) {
    if (aborted[index].wait_until(until) == std::future_status::ready) {
      threads[index].join();
    } else {
      threads[index].detach();
    }
  }
}

void Communicators::abort_now() {
  aborted_.store(true);
  std::vector<ncclComm_t> communicators;
  for (Handle& handle : handles_) {
    const MutexLock lock(handle.mutex);
    ncclComm_t communicator = std::exchange(handle.communicator, nullptr);
    if (communicator != nullptr) communicators.push_back(communicator);
  }
  abort_all(nccl_.abort, communicators);
}

}  // namespace

std::string nccl_absence() {
  if (library()) return "";
  return fmt::format("without NCCL ({}): install it", library().error().message);
}

std::string no_shared_gpus() {
  if (!library()) return nccl_absence();
  const int version = library()->version;
  if (version >= kSharedGpusFrom) return "";
  return fmt::format(
      "NCCL {} is loaded, and lets no two ranks be on one GPU: 2.30 is the first that can "
      "(NCCL_MULTI_RANK_GPU_ENABLE=1); install it, or give each rank a GPU of its own",
      version_text(version));
}

std::string nccl_version() {
  return library() ? version_text(library()->version) : nccl_absence();
}

Result<NcclId> NcclRanks::make_id() {
  if (!library()) return machine_refused("GPUs cannot be joined {}", nccl_absence());
  ncclUniqueId made;
  const ncclResult_t named = library()->unique_id(&made);
  if (named != ncclSuccess) {
    return machine_refused("ncclGetUniqueId failed: {} ({}); {}", library()->error_string(named),
                           library()->last_error(nullptr), remedy(named));
  }
  NcclId id;
  std::memcpy(id.data(), &made, sizeof(made));
  return id;
}

Result<std::unique_ptr<NcclRanks>> NcclRanks::create(std::span<const int> gpus,
                                                     std::chrono::nanoseconds deadline) {
  auto id = make_id();
  if (!id) return std::unexpected(std::move(id).error());
  return create_among(gpus, {.id = *id, .first = 0, .count = gpus.size()}, deadline);
}

Result<std::unique_ptr<NcclRanks>> NcclRanks::create_among(std::span<const int> gpus,
                                                           const NcclPlace& place,
                                                           std::chrono::nanoseconds deadline) {
  if (gpus.empty()) return invalid_input("NCCL joins no GPUs; name one at least");
  if (!library()) return machine_refused("GPUs cannot be joined {}", nccl_absence());
  if (const std::string absence = no_shared_gpus(); !absence.empty() && has_repeated(gpus)) {
    return machine_refused("GPUs {} are to be joined: {}", fmt::join(gpus, ", "), absence);
  }
  auto ranks = std::make_unique<Communicators>(*library(), gpus, place, deadline);
  if (auto connected = ranks->connect(); !connected) {
    return std::unexpected(std::move(connected).error());
  }
  return ranks;
}

}  // namespace lockstep
