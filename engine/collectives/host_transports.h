// The ways for hosts to exchange, in one table; one whose library is not there says so.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "engine/base/result.h"
#include "engine/collectives/host_link.h"
#include "engine/collectives/host_stream.h"

namespace lockstep {

struct HostTransport {
  std::string_view name;      // "tcp", "ucx", "mpi", "nccl"
  std::string (*obstacle)();  // why it cannot be used here; empty: it can
  bool encrypts;              // where the stream does
  bool outlives_group;        // a host that was started again can be linked as well
  // Ranks on GPUs exchange by it, and no others. It has no links: `make` is null, and whether it is
  // there the GPUs' platform says.
  bool joins_gpus;
  // Both hosts call it, with the two ends of one stream, which is the link's from then on.
  // `bytes_most`: of one exchange in either direction. `beside`: a link that this has made for the
  // same host and group, if there is one; links may share what moves them.
  Result<std::unique_ptr<HostLink>> (*make)(std::unique_ptr<HostStream> stream, size_t bytes_most,
                                            HostLink* beside);
};

// In the order in which "auto" tries those that join no GPUs.
std::span<const HostTransport> host_transports();

// The name of the one by which ranks exchange that are GPUs.
inline constexpr std::string_view kGpuTransport = "nccl";

// The row of this name. Fails with kInvalidInput, naming those that there are, or the obstacle.
Result<const HostTransport*> find_host_transport(std::string_view name);

}  // namespace lockstep
