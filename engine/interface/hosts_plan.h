// How a model would lie on several hosts and how fast they would generate, before anything is
// loaded: what `lockstepd plan --hosts` prints. Part of the engine's door.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep {

struct HostsPlan {
  struct Host {
    std::string name;  // "host 1 (10.0.0.2:7070)"
    uint32_t rank_count = 0;
    uint32_t worker_count = 0;
    uint64_t weight_bytes = 0;
    uint64_t kv_bytes = 0;
    uint64_t scratch_bytes = 0;
    uint64_t buffer_bytes = 0;    // for what it exchanges with the other hosts
    uint64_t read_bytes = 0;      // of weights per generated token
    double bytes_per_second = 0;  // that its ranks read of their memory together
    double read_seconds = 0;      // until its slowest rank has read its part
    // This host alone, with the whole model, by what it reads; 0: it has no space for it.
    double tokens_per_second_alone = 0;
  };
  std::vector<Host> hosts;
  std::string model;  // its name
  uint32_t context_tokens = 0;
  uint64_t kv_pages = 0;
  uint32_t exchanges_per_token = 0;
  uint64_t exchange_bytes = 0;  // of one generated token, sent by the host that sends most
  // Measured over the links, all hosts at once: the median of one exchange of so many bytes, and
  // the rate of one of 1 MiB in both directions together, by the slowest host.
  double exchange_seconds = 0;
  double link_bytes_per_second = 0;
  double read_seconds = 0;  // the slowest host's
  double tokens_per_second = 0;
  std::string verdict;
};

}  // namespace lockstep
