#include "engine/collectives/nccl_library.h"

#include "engine/base/dynamic_library.h"

namespace lockstep {

Result<NcclLibrary> load_nccl(std::initializer_list<std::string> names) {
  const auto library = DynamicLibrary::open(names);
  if (!library) return std::unexpected(library.error());
  NcclLibrary calls;
  FunctionTaker take(*library);
  take("ncclGetVersion", calls.get_version);
  take("ncclGetErrorString", calls.error_string);
  take("ncclGetLastError", calls.last_error);
  take("ncclGetUniqueId", calls.unique_id);
  take("ncclCommInitRankConfig", calls.init_rank);
  take("ncclCommGetAsyncError", calls.async_error);
  take("ncclCommAbort", calls.abort);
  take("ncclGroupStart", calls.group_start);
  take("ncclGroupEnd", calls.group_end);
  take("ncclAllReduce", calls.all_reduce);
  take("ncclSend", calls.send);
  take("ncclRecv", calls.receive);
  if (take.missing() != nullptr)
    return machine_refused("{} has no {}", *names.begin(), take.missing());
  if (calls.get_version(&calls.version) != ncclSuccess) {
    return machine_refused("{} does not say its version", *names.begin());
  }
  return calls;
}

}  // namespace lockstep
