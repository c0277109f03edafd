// lockstepd plan --hosts: what each host would hold, how fast they exchange and would generate.
#include <iostream>

#include "engine/base/json.h"
#include "server/commands/command_line.h"
#include "server/commands/commands.h"

namespace lockstep {
namespace {

double mebibytes(uint64_t bytes) {
  return static_cast<double>(bytes) / (1U << 20U);
}

Json to_json(const HostsPlan& plan) {
  Json hosts = Json::array();
  for (const HostsPlan::Host& host : plan.hosts) {
    hosts.push_back({{"name", host.name},
                     {"ranks", host.rank_count},
                     {"workers", host.worker_count},
                     {"weight_bytes", host.weight_bytes},
                     {"kv_bytes", host.kv_bytes},
                     {"scratch_bytes", host.scratch_bytes},
                     {"buffer_bytes", host.buffer_bytes},
                     {"read_bytes_per_token", host.read_bytes},
                     {"bytes_per_second", host.bytes_per_second},
                     {"read_seconds", host.read_seconds},
                     {"tokens_per_second_alone", host.tokens_per_second_alone}});
  }
  return {{"model", plan.model},
          {"context_tokens", plan.context_tokens},
          {"kv_pages", plan.kv_pages},
          {"hosts", hosts},
          {"exchanges_per_token", plan.exchanges_per_token},
          {"exchange_bytes", plan.exchange_bytes},
          {"exchange_seconds", plan.exchange_seconds},
          {"link_bytes_per_second", plan.link_bytes_per_second},
          {"read_seconds", plan.read_seconds},
          {"tokens_per_second", plan.tokens_per_second},
          {"verdict", plan.verdict}};
}

void print(const HostsPlan& plan) {
  std::cout << fmt::format("{} on {} hosts, context {} tokens\n", plan.model, plan.hosts.size(),
                           plan.context_tokens);
  std::cout << fmt::format("  {:<30} {:>5} {:>7} {:>11} {:>9} {:>11} {:>11} {:>9} {:>13}\n", "host",
                           "ranks", "workers", "weights MiB", "KV MiB", "scratch MiB",
                           "buffers MiB", "GB/s", "ms to read");
  for (const HostsPlan::Host& host : plan.hosts) {
    std::cout << fmt::format(
        "  {:<30} {:>5} {:>7} {:>11.1f} {:>9.1f} {:>11.1f} {:>11.1f} {:>9.1f} {:>13.3f}\n",
        host.name, host.rank_count, host.worker_count, mebibytes(host.weight_bytes),
        mebibytes(host.kv_bytes), mebibytes(host.scratch_bytes), mebibytes(host.buffer_bytes),
        host.bytes_per_second / 1e9, host.read_seconds * 1e3);
  }
  std::cout << fmt::format(
      "\nspeed to expect: the slowest host reads its weights in {:.3f} ms, {} exchanges of {} "
      "bytes "
      "take {:.3f} ms ({:.1f} us each, measured; {:.2f} GB/s in large ones): {:.1f} tokens/s of "
      "one "
      "stream\n",
      plan.read_seconds * 1e3, plan.exchanges_per_token, plan.exchange_bytes,
      plan.exchanges_per_token * plan.exchange_seconds * 1e3, plan.exchange_seconds * 1e6,
      plan.link_bytes_per_second / 1e9, plan.tokens_per_second);
  for (const HostsPlan::Host& host : plan.hosts) {
    if (host.tokens_per_second_alone == 0) continue;
    std::cout << fmt::format("  {} alone: {:.1f} tokens/s\n", host.name,
                             host.tokens_per_second_alone);
  }
  std::cout << plan.verdict << '\n';
}

}  // namespace

int print_hosts_plan(const EngineOptions& options, bool json) {
  const auto plan = plan_hosts(options);
  if (!plan) return report(plan.error());
  if (json) {
    std::cout << to_indented_text(to_json(*plan)) << '\n';
  } else {
    print(*plan);
  }
  return 0;
}

}  // namespace lockstep
