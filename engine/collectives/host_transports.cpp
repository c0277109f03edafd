#include "engine/collectives/host_transports.h"

#include <array>

#include "engine/collectives/mpi_link.h"
#include "engine/collectives/ucx_link.h"

namespace lockstep {
namespace {

constexpr size_t kBufferedBytes = 16U << 10U;

class TcpLink : public HostLink {
 public:
  explicit TcpLink(std::unique_ptr<HostStream> stream) : stream_(std::move(stream)) {}

  Result<void> exchange(std::span<const std::byte> out, std::span<std::byte> in) override {
    return stream_->exchange(out, in);
  }
  // A connection's buffers have 64 KiB at least, in which two exchanges may lie.
  bool buffers(size_t bytes) const override { return bytes <= kBufferedBytes; }
  BytePieces& pieces() override { return *stream_; }
  void shut_down() noexcept override { stream_->shut_down(); }
  std::string_view transport() const override { return "tcp"; }

 private:
  const std::unique_ptr<HostStream> stream_;
};

std::string no_obstacle() {
  return {};
}

Result<std::unique_ptr<HostLink>> make_tcp_link(std::unique_ptr<HostStream> stream, size_t,
                                                HostLink*) {
  return std::make_unique<TcpLink>(std::move(stream));
}

constexpr HostTransport kTcp = {.name = "tcp",
                                .obstacle = no_obstacle,
                                .encrypts = true,
                                .outlives_group = true,
                                .joins_gpus = false,
                                .make = make_tcp_link};
constexpr HostTransport kUcx = {.name = "ucx",
                                .obstacle = ucx_obstacle,
                                .encrypts = false,
                                .outlives_group = true,
                                .joins_gpus = false,
                                .make = make_ucx_link};
constexpr HostTransport kMpi = {.name = "mpi",
                                .obstacle = mpi_obstacle,
                                .encrypts = false,
                                .outlives_group = false,
                                .joins_gpus = false,
                                .make = make_mpi_link};
constexpr HostTransport kNccl = {.name = kGpuTransport,
                                 .obstacle = no_obstacle,
                                 .encrypts = false,
                                 .outlives_group = true,
                                 .joins_gpus = true,
                                 .make = nullptr};

constexpr std::array kTransports = {kTcp, kUcx, kMpi, kNccl};

}  // namespace

// UCX over TCP has the kernel's latency and its own beside it, encrypts nothing, and changes the
// process that loads it: who has RDMA asks for it. So does MPI, which a launcher must have begun.
std::span<const HostTransport> host_transports() {
  return kTransports;
}

Result<const HostTransport*> find_host_transport(std::string_view name) {
  std::string names;
  for (const HostTransport& row : host_transports()) {
    if (row.name == name) {
      const std::string obstacle = row.obstacle();
      if (obstacle.empty()) return &row;
      return invalid_input("hosts cannot exchange over '{}': {}", name, obstacle);
    }
    names += fmt::format("{}{}", names.empty() ? "" : ", ", row.name);
  }
  return invalid_input("there is no transport '{}' between hosts: there are {}", name, names);
}

}  // namespace lockstep
