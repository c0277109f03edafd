// The functions of NVIDIA's NCCL that are called, by the names that nccl.h gives them. The library
// is loaded when GPUs are to be joined by it: a daemon starts where it is missing. In builds that
// have found its header.
#pragma once

#include <nccl.h>

#include <initializer_list>
#include <string>

#include "engine/base/result.h"

namespace lockstep {

struct NcclLibrary {
  decltype(&ncclGetVersion) get_version = nullptr;
  decltype(&ncclGetErrorString) error_string = nullptr;
  decltype(&ncclGetLastError) last_error = nullptr;
  decltype(&ncclGetUniqueId) unique_id = nullptr;
  decltype(&ncclCommInitRankConfig) init_rank = nullptr;
  decltype(&ncclCommGetAsyncError) async_error = nullptr;
  decltype(&ncclCommAbort) abort = nullptr;
  decltype(&ncclGroupStart) group_start = nullptr;
  decltype(&ncclGroupEnd) group_end = nullptr;
  decltype(&ncclAllReduce) all_reduce = nullptr;
  decltype(&ncclSend) send = nullptr;
  decltype(&ncclRecv) receive = nullptr;
  int version = 0;  // NCCL_VERSION() of the library
};

// Loads the first of these that can be, names or paths. Fails with kMachineRefused: why.
Result<NcclLibrary> load_nccl(std::initializer_list<std::string> names);

}  // namespace lockstep
