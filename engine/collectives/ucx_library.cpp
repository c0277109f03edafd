#include "engine/collectives/ucx_library.h"

#include <ucs/config/global_opts.h>

#include <cstdlib>

#include "engine/base/dynamic_library.h"
#include "engine/base/kept_signals.h"

namespace lockstep {
namespace {

Result<UcxLibrary> load() {
  const KeptSignals signals;  // it takes SIGHUP, SIGSEGV and others while it is loaded
  // Without it UCX writes its own code over mmap() and the like, in the whole process, to know of
  // memory that goes; sanitizers crash on that. It is read where the library is loaded.
  ::setenv("UCX_MEM_MMAP_HOOK_MODE", "none", /*replace=*/0);  // NOLINT(concurrency-mt-unsafe)
  const auto ucp = DynamicLibrary::open({"libucp.so.0"});
  if (!ucp) return machine_refused("UCX is not installed: {}", ucp.error().message);
  const auto ucs = DynamicLibrary::open({"libucs.so.0"});
  if (!ucs) return machine_refused("UCX is not installed: {}", ucs.error().message);
  UcxLibrary calls;
  FunctionTaker take(*ucp);
  take("ucp_config_read", calls.config_read);
  take("ucp_config_modify", calls.config_modify);
  take("ucp_config_release", calls.config_release);
  take("ucp_init_version", calls.init);
  take("ucp_cleanup", calls.cleanup);
  take("ucp_worker_create", calls.worker_create);
  take("ucp_worker_destroy", calls.worker_destroy);
  take("ucp_worker_get_address", calls.worker_address);
  take("ucp_worker_release_address", calls.release_address);
  take("ucp_worker_get_efd", calls.worker_descriptor);
  take("ucp_worker_arm", calls.worker_arm);
  take("ucp_worker_progress", calls.worker_progress);
  take("ucp_ep_create", calls.endpoint_create);
  take("ucp_ep_close_nbx", calls.endpoint_close);
  take("ucp_tag_send_nbx", calls.tag_send);
  take("ucp_tag_recv_nbx", calls.tag_receive);
  take("ucp_tag_recv_request_test", calls.receive_status);
  take("ucp_request_check_status", calls.request_status);
  take("ucp_request_cancel", calls.request_cancel);
  take("ucp_request_free", calls.request_free);
  FunctionTaker take_shared(*ucs);
  take_shared("ucs_status_string", calls.status_text);
  decltype(&ucs_global_opts_set_value) set_option = nullptr;
  take_shared("ucs_global_opts_set_value", set_option);
  const char* const missing = take.missing() != nullptr ? take.missing() : take_shared.missing();
  if (missing != nullptr) return machine_refused("this machine's UCX has no {}", missing);
  // It would write them to standard output. A version without the option goes on doing so.
  static_cast<void>(set_option("LOG_LEVEL", "fatal"));
  return calls;
}

}  // namespace

const Result<UcxLibrary>& ucx_library() {
  static const Result<UcxLibrary> library = load();
  return library;
}

}  // namespace lockstep
