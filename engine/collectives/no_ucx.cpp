#include "engine/collectives/ucx_link.h"

namespace lockstep {

std::string ucx_obstacle() {
  return "this program was built without UCX: build it where libucx-dev is installed";
}

Result<std::unique_ptr<HostLink>> make_ucx_link(std::unique_ptr<HostStream> stream, size_t,
                                                HostLink*) {
  return machine_refused("no link to host {}: {}", stream->peer(), ucx_obstacle());
}

}  // namespace lockstep
