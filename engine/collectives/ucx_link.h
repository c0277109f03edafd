// Links between hosts by UCX, which takes shared memory, TCP or RDMA as it finds them. A build that
// has not found its header has no_ucx.cpp instead, which says so.
#pragma once

#include <memory>
#include <string>

#include "engine/collectives/host_link.h"
#include "engine/collectives/host_stream.h"

namespace lockstep {

// As HostTransport's members. The stream stays open, to show that the other host is there, and for
// the last words of passes.
std::string ucx_obstacle();
Result<std::unique_ptr<HostLink>> make_ucx_link(std::unique_ptr<HostStream> stream,
                                                size_t bytes_most, HostLink* beside);

}  // namespace lockstep
