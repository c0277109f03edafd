// The functions of MPI that are called, by the names that mpi.h gives them, and this process's part
// in the job that mpirun or srun has started. The library is loaded when hosts are to be joined by
// it: a daemon starts where it is missing. In builds that have found Open MPI's header.
#pragma once

#define OMPI_SKIP_MPICXX 1  // its C++ bindings refer to symbols of a library that is not linked
#include <mpi.h>

#include <array>
#include <atomic>
#include <cstddef>

#include "engine/base/result.h"

namespace lockstep {

struct MpiLibrary {
  decltype(&MPI_Init_thread) init = nullptr;
  decltype(&MPI_Finalize) finalize = nullptr;
  decltype(&MPI_Comm_rank) comm_rank = nullptr;
  decltype(&MPI_Comm_size) comm_size = nullptr;
  decltype(&MPI_Comm_set_errhandler) set_error_handler = nullptr;
  decltype(&MPI_Bcast) broadcast = nullptr;
  decltype(&MPI_Isend) send = nullptr;
  decltype(&MPI_Improbe) probe = nullptr;
  decltype(&MPI_Imrecv) receive = nullptr;
  decltype(&MPI_Test) test = nullptr;
  decltype(&MPI_Get_count) get_count = nullptr;
  decltype(&MPI_Error_string) error_text = nullptr;
  // Open MPI's objects behind MPI_COMM_WORLD, MPI_BYTE and MPI_ERRORS_RETURN.
  MPI_Comm world = nullptr;
  MPI_Datatype byte = nullptr;
  MPI_Errhandler errors_return = nullptr;
};

// Loads it by the first call, in the process. Fails with kMachineRefused: why.
const Result<MpiLibrary>& mpi_library();

// This process's place among those that were started together. There is one, from the first call
// until the process ends.
class MpiJob {
 public:
  // Begins MPI by the first call, for all threads, and waits for it at most a minute: until all
  // processes of the job do so. Loading and beginning leave the process's signals as they are.
  // Fails with kMachineRefused.
  static const Result<MpiJob*>& join();

  const MpiLibrary& mpi() const { return mpi_; }
  int rank() const { return rank_; }
  // A random number by which the job is told from others.
  const std::array<std::byte, 16>& nonce() const { return nonce_; }
  // Another tag for messages to this process; negative: there are no more. Any thread.
  int take_tag();
  // An operation in progress could not be ended: its memory may be written to by whatever MPI does
  // from now on, and the process ends without MPI's end. Any thread.
  void leave_unfinished() { has_unfinished_ = true; }

 private:
  explicit MpiJob(const MpiLibrary& mpi) : mpi_(mpi) {}
  static Result<MpiJob*> begin();
  Result<void> init();
  // Called by exit(). MPI's own end waits for all processes of the job, so it has a thread of its
  // own and is given up after a time.
  static void end(int status, void* job);

  const MpiLibrary mpi_;
  int rank_ = 0;
  std::array<std::byte, 16> nonce_ = {};
  std::atomic<int> next_tag_ = 1;
  std::atomic<bool> has_unfinished_ = false;
};

}  // namespace lockstep
