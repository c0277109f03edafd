// Exchanges between GPUs, of one process or of several, by NVIDIA's NCCL: where they do not reach
// one another's memory, or where there is too much for every rank to send it to every other. NCCL
// is loaded when it is first asked for; a build that has not found its header says so then.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "engine/base/result.h"

namespace lockstep {

// Between this rank and another, in the GPUs' memory.
struct NcclTransfer {
  size_t peer = 0;
  const float* send = nullptr;
  size_t send_count = 0;  // what the peer's receive_count is
  float* receive = nullptr;
  size_t receive_count = 0;
};

// By which ranks of several processes find one another: one of them makes it, and all have it
// before they are joined. All who have it can join as well.
inline constexpr size_t kNcclIdBytes = 128;
using NcclId = std::array<std::byte, kNcclIdBytes>;

// The ranks of one process among those of several.
struct NcclPlace {
  NcclId id = {};
  size_t first = 0;  // the process's first rank
  size_t count = 0;  // of all processes' ranks
  // Why to give up while the ranks are joined; empty: there is no reason.
  std::function<std::optional<Error>()> failure = {};
};

// One communicator per rank, created once and never blocking: every operation is watched
// until it is done, at most until a deadline. A rank's calls come from one thread at a time,
// whose current GPU is the rank's, except for abort(). What is enqueued runs when all ranks have
// enqueued the same; a rank that does not come keeps the others' GPUs waiting until abort().
//
// A call that fails says so in check(). All communicators are aborted then: kernels that wait on
// the GPUs end, and what is called later does nothing.
class NcclRanks {
 public:
  // `gpus`: the CUDA device of each rank. Leaves the current device as it was. The deadline is that
  // of creating them, and of each call until set_deadline(). Fails with kInvalidInput for GPUs that
  // are not there, with kMachineRefused; of a GPU that is two ranks' where NCCL's version does not
  // let it.
  static Result<std::unique_ptr<NcclRanks>> create(std::span<const int> gpus,
                                                   std::chrono::nanoseconds deadline);

  // Makes the id of one more group of processes. Blocks as long as NCCL takes to look for the
  // network. Fails with kMachineRefused.
  static Result<NcclId> make_id();
  // The same where other processes have some of the ranks, which call it at the same time: `gpus`
  // are those of this process, of the ranks from `place.first` on. Fails with the reason that
  // `place.failure` tells, too.
  static Result<std::unique_ptr<NcclRanks>> create_among(std::span<const int> gpus,
                                                         const NcclPlace& place,
                                                         std::chrono::nanoseconds deadline);

  virtual ~NcclRanks() = default;

  // The first calls connect the ranks, which takes longer than any later one.
  virtual void set_deadline(std::chrono::nanoseconds deadline) = 0;

  // sums[i] = the sum over all ranks of their values[i], f32, enqueued on `stream` (a
  // cudaStream_t). Both may be the same. In which order it is formed is NCCL's affair, and depends
  // on the count and on i: between two ranks there is one order only.
  virtual void all_reduce(size_t rank, void* stream, const float* values, float* sums,
                          size_t count) = 0;

  // All transfers at the same time, enqueued on `stream`. Of several with one peer the first is
  // what the peer has first with this rank, and so on.
  virtual void exchange(size_t rank, void* stream, std::span<const NcclTransfer> transfers) = 0;

  // How long what this rank's calls have enqueued has taken on its GPU so far, waiting for others
  // included; asked once the stream is done.
  virtual std::chrono::nanoseconds time_spent(size_t rank) = 0;

  // The first failure of any rank so far, if there is one.
  virtual Result<void> check(size_t rank) = 0;

  // As after a call that has failed for this reason. From any thread, however often. Takes half a
  // second at most: a GPU that does not answer is left to the end of the process.
  virtual void abort(const Error& reason) = 0;
};

// Why there is none to use, to go on with after what cannot be done ("without NCCL (...): install
// it"), in this build or on this machine, of which it is loaded by the first call; empty: there is.
std::string nccl_absence();
// The version that is loaded, as "2.28.9"; what nccl_absence() says where there is none. Processes
// whose GPUs are joined have the same.
std::string nccl_version();
// Why no two ranks can be joined that are on one GPU, by the version that is loaded; empty: they
// can.
std::string no_shared_gpus();

// The memory that communicators take of a GPU. A guess, not measured: buffers of 4 MiB per channel
// and connection, of which create() allows 16 channels.
inline constexpr size_t kNcclBytes = size_t{512} << 20U;

}  // namespace lockstep
