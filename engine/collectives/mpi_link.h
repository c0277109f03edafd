// Links between hosts by MPI (Open MPI 4 or 5, mpi-forum.org), whose launcher has started all of
// them. A build that has not found its header has no_mpi.cpp instead, which says so.
#pragma once

#include <memory>
#include <string>

#include "engine/collectives/host_link.h"
#include "engine/collectives/host_stream.h"

namespace lockstep {

// As HostTransport's members. The stream stays open and shows that the other host is there, since
// MPI does not report a lost process; the last words of passes go over it. The first link begins
// MPI in this process, and waits until all processes that the launcher has started do the same.
std::string mpi_obstacle();
Result<std::unique_ptr<HostLink>> make_mpi_link(std::unique_ptr<HostStream> stream,
                                                size_t bytes_most, HostLink* beside);

}  // namespace lockstep
