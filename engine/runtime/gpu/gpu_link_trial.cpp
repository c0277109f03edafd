#include "engine/runtime/gpu/gpu_link_trial.h"

#include <array>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "engine/machine/node_memory.h"

namespace lockstep {
namespace {

using Words = std::array<uint32_t, 64>;

// A GPU with memory of its own and the host's, through which words go to and from it.
class Station {
 public:
  static Result<std::unique_ptr<Station>> open(GpuDevice& device,
                                               std::chrono::nanoseconds deadline) {
    if (auto used = device.use(); !used) return std::unexpected(used.error());
    constexpr std::string_view kWhat = "words that GPUs send one another to try their links";
    auto stream = device.make_stream();
    if (!stream) return std::unexpected(stream.error());
    auto memory = device.allocate(sizeof(Words), kWhat);
    if (!memory) return std::unexpected(memory.error());
    auto host = NodeMemory::allocate({.bytes = sizeof(Words), .what = kWhat});
    if (!host) return std::unexpected(host.error());
    auto pinned = device.pin({host->data(), host->size_bytes()});
    if (!pinned) return std::unexpected(pinned.error());
    return std::unique_ptr<Station>(new Station(device, deadline, std::move(*stream),
                                                std::move(*memory), std::move(*host),
                                                std::move(*pinned)));
  }

  int gpu() const { return device_.index(); }

  Result<void> send(const Words& words, const Station& other) {
    *in_host() = words;
    if (auto own = copy(memory_.data(), host_.data()); !own) return own;
    return copy(other.memory_.data(), memory_.data());
  }
  Result<Words> receive() {
    if (auto got = copy(host_.data(), memory_.data()); !got) return std::unexpected(got.error());
    return *in_host();
  }

 private:
  Station(GpuDevice& device, std::chrono::nanoseconds deadline, std::unique_ptr<GpuStream> stream,
          GpuMemory memory, NodeMemory host, GpuMemory pinned)
      : device_(device),
        deadline_(deadline),
        stream_(std::move(stream)),
        memory_(std::move(memory)),
        host_(std::move(host)),
        pinned_(std::move(pinned)) {}

  Words* in_host() { return reinterpret_cast<Words*>(host_.data()); }

  Result<void> copy(void* to, const void* from) {
    if (auto used = device_.use(); !used) return used;
    auto copied = stream_->copy(to, from, sizeof(Words));
    return copied ? stream_->wait(deadline_) : copied;
  }

  GpuDevice& device_;
  std::chrono::nanoseconds deadline_;
  std::unique_ptr<GpuStream> stream_;
  GpuMemory memory_;
  NodeMemory host_;
  GpuMemory pinned_;
};

}  // namespace

Result<void> try_gpu_links(std::span<GpuDevice* const> devices, std::chrono::nanoseconds deadline) {
  std::vector<std::unique_ptr<Station>> stations;
  for (GpuDevice* device : devices) {
    auto station = Station::open(*device, deadline);
    if (!station) return std::unexpected(station.error());
    stations.push_back(std::move(*station));
  }
  uint32_t link = 0;
  for (const auto& writer : stations) {
    for (const auto& reader : stations) {
      if (reader == writer) continue;
      Words words;
      words.fill(0xA5000000U | ++link);
      if (auto sent = writer->send(words, *reader); !sent) return sent;
      const auto received = reader->receive();
      if (!received) return std::unexpected(received.error());
      if (*received == words) continue;
      return machine_refused(
          "gpu{} does not reach gpu{}'s memory, although the driver says so: an IOMMU or PCIe's "
          "access control (ACS) is in the way; turn it off in the firmware or boot with iommu=pt, "
          "or use --nccl-peer-access false, for sums by NCCL without it",
          writer->gpu(), reader->gpu());
    }
  }
  return {};
}

}  // namespace lockstep
