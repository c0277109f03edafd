#include "engine/collectives/mpi_link.h"

namespace lockstep {

std::string mpi_obstacle() {
  return "this program was built without MPI: build it where libopenmpi-dev is installed";
}

Result<std::unique_ptr<HostLink>> make_mpi_link(std::unique_ptr<HostStream> stream, size_t,
                                                HostLink*) {
  return machine_refused("no link to host {}: {}", stream->peer(), mpi_obstacle());
}

}  // namespace lockstep
