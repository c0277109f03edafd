// The functions of UCX (openucx.org) that are called, by the names that ucp.h gives them. The
// library is loaded when hosts are to be joined by it: a daemon starts where it is missing. In
// builds that have found its header.
#pragma once

#include <ucp/api/ucp.h>

#include "engine/base/result.h"

namespace lockstep {

struct UcxLibrary {
  decltype(&ucp_config_read) config_read = nullptr;
  decltype(&ucp_config_modify) config_modify = nullptr;
  decltype(&ucp_config_release) config_release = nullptr;
  decltype(&ucp_init_version) init = nullptr;
  decltype(&ucp_cleanup) cleanup = nullptr;
  decltype(&ucp_worker_create) worker_create = nullptr;
  decltype(&ucp_worker_destroy) worker_destroy = nullptr;
  decltype(&ucp_worker_get_address) worker_address = nullptr;
  decltype(&ucp_worker_release_address) release_address = nullptr;
  decltype(&ucp_worker_get_efd) worker_descriptor = nullptr;
  decltype(&ucp_worker_arm) worker_arm = nullptr;
  decltype(&ucp_worker_progress) worker_progress = nullptr;
  decltype(&ucp_ep_create) endpoint_create = nullptr;
  decltype(&ucp_ep_close_nbx) endpoint_close = nullptr;
  decltype(&ucp_tag_send_nbx) tag_send = nullptr;
  decltype(&ucp_tag_recv_nbx) tag_receive = nullptr;
  decltype(&ucp_tag_recv_request_test) receive_status = nullptr;
  decltype(&ucp_request_check_status) request_status = nullptr;
  decltype(&ucp_request_cancel) request_cancel = nullptr;
  decltype(&ucp_request_free) request_free = nullptr;
  decltype(&ucs_status_string) status_text = nullptr;
};

// Loads it by the first call, in the process. Loading leaves the process's signals as they are. UCX
// writes no errors of its own: they are in what calls return.
// Fails with kMachineRefused: why.
const Result<UcxLibrary>& ucx_library();

}  // namespace lockstep
