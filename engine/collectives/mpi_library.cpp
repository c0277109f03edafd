#include "engine/collectives/mpi_library.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <memory>
#include <thread>
#include <utility>

#include "engine/base/dynamic_library.h"
#include "engine/base/kept_signals.h"
#include "engine/base/secret.h"

namespace lockstep {
namespace {

constexpr std::chrono::seconds kBeginsWithin{60};
constexpr std::chrono::seconds kEndsWithin{2};
constexpr int kTagsMost = 32767;  // as many as every MPI has

Result<MpiLibrary> load() {
  const KeptSignals signals;
  // Otherwise it writes its own code over mmap() and the like, in the whole process, to know of
  // memory that goes. UCX, by which it may go, does so as well.
  ::setenv("OMPI_MCA_memory", "^patcher", /*replace=*/0);     // NOLINT(concurrency-mt-unsafe)
  ::setenv("UCX_MEM_MMAP_HOOK_MODE", "none", /*replace=*/0);  // NOLINT(concurrency-mt-unsafe)
  // A process that no launcher has started is a job of its own, without another process for that.
  ::setenv("OMPI_MCA_ess_singleton_isolated", "1", 0);  // NOLINT(concurrency-mt-unsafe)
  const auto library = DynamicLibrary::open({"libmpi.so.40"});
  if (!library) return machine_refused("Open MPI is not installed: {}", library.error().message);
  MpiLibrary calls;
  FunctionTaker take(*library);
  take("MPI_Init_thread", calls.init);
  take("MPI_Finalize", calls.finalize);
  take("MPI_Comm_rank", calls.comm_rank);
  take("MPI_Comm_size", calls.comm_size);
  take("MPI_Comm_set_errhandler", calls.set_error_handler);
  take("MPI_Bcast", calls.broadcast);
  take("MPI_Isend", calls.send);
  take("MPI_Improbe", calls.probe);
  take("MPI_Imrecv", calls.receive);
  take("MPI_Test", calls.test);
  take("MPI_Get_count", calls.get_count);
  take("MPI_Error_string", calls.error_text);
  take("ompi_mpi_comm_world", calls.world);
  take("ompi_mpi_byte", calls.byte);
  take("ompi_mpi_errors_return", calls.errors_return);
  if (take.missing() != nullptr)
    return machine_refused("this machine's MPI has no {}", take.missing());
  return calls;
}

}  // namespace

const Result<MpiLibrary>& mpi_library() {
  static const Result<MpiLibrary> library = load();
  return library;
}

int MpiJob::take_tag() {
  const int tag = next_tag_.fetch_add(1);
  return tag <= kTagsMost ? tag : -1;
}

Result<void> MpiJob::init() {
  const KeptSignals signals;
  int provided = MPI_THREAD_SINGLE;
  const int status = mpi_.init(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
  if (status != MPI_SUCCESS) return machine_refused("MPI does not begin: error {}", status);
  if (provided < MPI_THREAD_MULTIPLE) {
    return machine_refused("this MPI cannot be used by several threads (MPI_THREAD_MULTIPLE)");
  }
  mpi_.set_error_handler(mpi_.world, mpi_.errors_return);
  mpi_.comm_rank(mpi_.world, &rank_);
  fill_random(nonce_);
  const auto bytes = static_cast<int>(nonce_.size());
  if (mpi_.broadcast(nonce_.data(), bytes, mpi_.byte, 0, mpi_.world) != MPI_SUCCESS) {
    return machine_refused("MPI does not reach all processes of its job");
  }
  return {};
}

Result<MpiJob*> MpiJob::begin() {
  const auto& library = mpi_library();
  if (!library) return std::unexpected(library.error());
  // MPI's own threads may use it as long as the process lives.
  static MpiJob* const job = new MpiJob(*library);
  const auto begun = std::make_shared<std::promise<Result<void>>>();
  std::future<Result<void>> result = begun->get_future();
  std::thread([begun] { begun->set_value(job->init()); }).detach();
  if (result.wait_for(kBeginsWithin) != std::future_status::ready) {
    return machine_refused(
        "MPI has not begun within {} s: all processes that mpirun or srun has started are to be "
        "hosts of the group",
        kBeginsWithin.count());
  }
  if (auto begins = result.get(); !begins) return std::unexpected(begins.error());
  ::on_exit(end, job);
  return job;
}

const Result<MpiJob*>& MpiJob::join() {
  static const Result<MpiJob*> job = begin();
  return job;
}

void MpiJob::end(int status, void* job) {
  auto& self = *static_cast<MpiJob*>(job);
  if (!self.has_unfinished_) {
    const auto ended = std::make_shared<std::promise<void>>();
    const std::future<void> result = ended->get_future();
    std::thread([&self, ended] {
      self.mpi_.finalize();
      ended->set_value();
    }).detach();
    if (result.wait_for(kEndsWithin) == std::future_status::ready) return;
  }
  std::fflush(nullptr);
  ::_exit(status);
}

}  // namespace lockstep
