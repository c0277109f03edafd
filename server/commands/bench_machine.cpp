// lockstepd bench-machine: what this machine's memory, arithmetic, GPUs, barriers, exchanges and
// disk can do, measured. No model is needed.
#include <iostream>

#include "engine/base/json.h"
#include "server/commands/command_line.h"
#include "server/commands/commands.h"
#include "server/options/version.h"

namespace lockstep {
namespace {

double in_gigabytes(double bytes) {
  return bytes / 1e9;
}

// 1024 as "1 KiB".
std::string size_text(uint64_t bytes) {
  if (bytes >= (1U << 20U)) return fmt::format("{} MiB", bytes >> 20U);
  if (bytes >= (1U << 10U)) return fmt::format("{} KiB", bytes >> 10U);
  return fmt::format("{} B", bytes);
}

std::string time_text(double seconds) {
  if (seconds < 1e-6) return fmt::format("{:.0f} ns", seconds * 1e9);
  return seconds < 1e-3 ? fmt::format("{:.2f} us", seconds * 1e6)
                        : fmt::format("{:.2f} ms", seconds * 1e3);
}

void print_paths(const MachineMeasurement& measured) {
  std::cout << "memory, GB/s: a node's cores and a node's memory (copy: bytes copied)\n"
            << fmt::format(
                   "  {:>5} {:>6} {:>8} {:>5} {:>8} {:>8} {:>8} {:>9} {:>8} {:>8} {:>8}  {}\n",
                   "cores", "memory", "distance", "cores", "read", "write", "copy", "one: read",
                   "write", "copy", "latency", "pages");
  for (const MachineMeasurement::Path& path : measured.paths) {
    size_t cores = 0;
    for (const MachineMeasurement::Node& node : measured.nodes) {
      if (node.id == path.from_node) cores = node.cpus.size();
    }
    std::cout << fmt::format(
        "  {:>5} {:>6} {:>8} {:>5} {:>8.1f} {:>8.1f} {:>8.1f} {:>9.1f} {:>8.1f} {:>8.1f} {:>8}  "
        "{}\n",
        path.from_node, path.to_node, path.distance, cores, in_gigabytes(path.read),
        in_gigabytes(path.write), in_gigabytes(path.copy), in_gigabytes(path.one_core_read),
        in_gigabytes(path.one_core_write), in_gigabytes(path.one_core_copy),
        time_text(path.latency_seconds), path.pages);
  }
}

void print_arithmetic(const MachineMeasurement& measured) {
  std::cout << fmt::format(
      "\narithmetic on registers, Gop/s (a multiplication and an addition are "
      "two)\n  {:<8} {:<24} {:>10} {:>10}\n",
      "", "", "all cores", "one core");
  for (const MachineArithmetic& each : measured.arithmetic) {
    std::cout << fmt::format("  {:<10} {:<24} {:>10.1f} {:>10.1f}\n", each.instruction_set,
                             each.operation, each.operations_per_second / 1e9,
                             each.one_core_operations_per_second / 1e9);
  }
}

void print_gpus(const MachineMeasurement& measured) {
  if (measured.gpus.empty()) {
    std::cout << fmt::format("\nno GPU: {}\n", measured.no_gpus);
    return;
  }
  constexpr std::string_view kRow =
      "  {:>5} {:>8} {:>8} {:>8} {:>8} {:>12} {:>5} {:>9} {:>8} {:>9} {:>9}  {}\n";
  std::cout << "\nGPUs, GB/s (copy: bytes copied; host: pinned memory on the node), a product of "
               "bf16 in Top/s, and an empty kernel among many\n"
            << fmt::format(kRow, "gpu", "memory", "by clock", "read", "copy", "bf16 product",
                           "node", "from host", "to host", "launched", "recorded", "");
  const auto rate = [](double figure, double unit = 1e9) {
    return figure > 0 ? fmt::format("{:.1f}", figure / unit) : "-";
  };
  const auto time = [](double figure) { return figure > 0 ? time_text(figure) : "-"; };
  for (const MachineMeasurement::Gpu& gpu : measured.gpus) {
    std::cout << fmt::format(
        kRow, fmt::format("gpu{}", gpu.index), size_text(gpu.memory_bytes), rate(gpu.by_clock),
        rate(gpu.read), rate(gpu.copy), rate(gpu.product, 1e12),
        gpu.node < 0 ? "any" : std::to_string(gpu.node), rate(gpu.from_host), rate(gpu.to_host),
        time(gpu.launch_seconds), time(gpu.recorded_launch_seconds), gpu.name);
    if (!gpu.failure.empty()) std::cout << fmt::format("        {}\n", gpu.failure);
  }
  for (const MachineMeasurement::GpuPath& path : measured.gpu_paths) {
    std::cout << fmt::format("  gpu{} to gpu{} by {}: ", path.from_gpu, path.to_gpu, path.link)
              << (path.failure.empty() ? fmt::format("{:.1f} GB/s\n", in_gigabytes(path.copy))
                                       : fmt::format("not measured: {}\n", path.failure));
  }
}

void print_node_copies(const MachineMeasurement& measured) {
  std::cout << "\ncopies from node to node, by all cores of one of them\n";
  for (const MachineMeasurement::NodeCopy& copy : measured.node_copies) {
    std::cout << fmt::format("  node {} to node {} by node {:<4} {:>8.1f} GB/s\n", copy.from_node,
                             copy.to_node, copy.cores_of_node, in_gigabytes(copy.copy));
  }
}

void print_barriers(const MachineMeasurement& measured) {
  std::cout << "\nbarrier, one round\n";
  for (const MachineMeasurement::BarrierRound& round : measured.barriers) {
    const std::string where = round.node < 0 ? fmt::format("all {} ranks", measured.rank_count)
                                             : fmt::format("node {}", round.node);
    std::cout << fmt::format("  {:<12} {:>4} workers {:>10}\n", where, round.worker_count,
                             time_text(round.seconds));
  }
}

void print_collectives(const MachineMeasurement& measured) {
  if (measured.rank_count == 0) {
    std::cout << "\nno exchanges: with one core there is one rank\n";
    return;
  }
  std::cout << fmt::format("\nexchanges between {} ranks{}, barrier included\n",
                           measured.rank_count,
                           measured.simulated_ranks ? " simulated on one node" : ", one per node");
  for (const MachineMeasurement::Collective& collective : measured.collectives) {
    std::cout << fmt::format(
        "  {:<12} {:>8} {:>10} {:>8.1f} GB/s\n", collective.name, size_text(collective.bytes),
        time_text(collective.seconds),
        in_gigabytes(static_cast<double>(collective.bytes) / collective.seconds));
  }
}

void print_tables(const MachineMeasurement& measured, bool exchanges) {
  print_paths(measured);
  print_node_copies(measured);
  print_arithmetic(measured);
  print_gpus(measured);
  if (exchanges) {
    print_barriers(measured);
    print_collectives(measured);
  }
  for (const MachineMeasurement::FileRead& file : measured.files) {
    std::cout << fmt::format("\nfile {}: {} read {} at {:.2f} GB/s\n", file.path,
                             size_text(file.bytes),
                             file.direct ? "past the page cache" : "through the page cache",
                             in_gigabytes(file.bytes_per_second));
  }
}

Json to_json(const MachineMeasurement::Path& path) {
  return {{"from_node", path.from_node},
          {"to_node", path.to_node},
          {"distance", path.distance},
          {"read_bytes_per_second", path.read},
          {"write_bytes_per_second", path.write},
          {"copy_bytes_per_second", path.copy},
          {"one_core_read_bytes_per_second", path.one_core_read},
          {"one_core_write_bytes_per_second", path.one_core_write},
          {"one_core_copy_bytes_per_second", path.one_core_copy},
          {"latency_seconds", path.latency_seconds},
          {"pages", path.pages}};
}

Json or_null(const std::string& text) {
  return text.empty() ? Json(nullptr) : Json(text);
}

Json or_null(double figure) {
  return figure > 0 ? Json(figure) : Json(nullptr);
}

Json to_json(const MachineMeasurement::Gpu& gpu) {
  return {{"index", gpu.index},
          {"name", gpu.name},
          {"node", gpu.node < 0 ? Json(nullptr) : Json(gpu.node)},
          {"failure", or_null(gpu.failure)},
          {"memory_bytes", gpu.memory_bytes},
          {"bytes_per_second_by_clock", or_null(gpu.by_clock)},
          {"read_bytes_per_second", or_null(gpu.read)},
          {"copy_bytes_per_second", or_null(gpu.copy)},
          {"from_host_bytes_per_second", or_null(gpu.from_host)},
          {"to_host_bytes_per_second", or_null(gpu.to_host)},
          {"launch_seconds", or_null(gpu.launch_seconds)},
          {"recorded_launch_seconds", or_null(gpu.recorded_launch_seconds)},
          {"bf16_product_operations_per_second", or_null(gpu.product)}};
}

Json to_json(const MachineMeasurement::GpuPath& path) {
  return {{"from_gpu", path.from_gpu},
          {"to_gpu", path.to_gpu},
          {"link", path.link},
          {"failure", or_null(path.failure)},
          {"copy_bytes_per_second", or_null(path.copy)}};
}

void print_json(const MachineMeasurement& measured) {
  Json body = {{"version", kVersion},
               {"nodes", Json::array()},
               {"paths", Json::array()},
               {"node_copies", Json::array()},
               {"arithmetic", Json::array()},
               {"gpus", Json::array()},
               {"no_gpus", measured.no_gpus},
               {"gpu_paths", Json::array()},
               {"barriers", Json::array()},
               {"rank_count", measured.rank_count},
               {"simulated_ranks", measured.simulated_ranks},
               {"collectives", Json::array()},
               {"files", Json::array()}};
  for (const MachineMeasurement::Node& node : measured.nodes) {
    body["nodes"].push_back(
        {{"id", node.id}, {"processors", node.cpus}, {"has_memory", node.has_memory}});
  }
  for (const MachineMeasurement::Path& path : measured.paths) {
    body["paths"].push_back(to_json(path));
  }
  for (const MachineMeasurement::NodeCopy& copy : measured.node_copies) {
    body["node_copies"].push_back({{"from_node", copy.from_node},
                                   {"to_node", copy.to_node},
                                   {"cores_of_node", copy.cores_of_node},
                                   {"copy_bytes_per_second", copy.copy}});
  }
  for (const MachineArithmetic& each : measured.arithmetic) {
    body["arithmetic"].push_back(
        {{"isa", each.instruction_set},
         {"operation", each.operation},
         {"operations_per_second", each.operations_per_second},
         {"one_core_operations_per_second", each.one_core_operations_per_second}});
  }
  for (const MachineMeasurement::Gpu& gpu : measured.gpus) body["gpus"].push_back(to_json(gpu));
  for (const MachineMeasurement::GpuPath& path : measured.gpu_paths) {
    body["gpu_paths"].push_back(to_json(path));
  }
  for (const MachineMeasurement::BarrierRound& round : measured.barriers) {
    body["barriers"].push_back({{"node", round.node < 0 ? Json(nullptr) : Json(round.node)},
                                {"workers", round.worker_count},
                                {"seconds", round.seconds}});
  }
  for (const MachineMeasurement::Collective& collective : measured.collectives) {
    body["collectives"].push_back(
        {{"name", collective.name}, {"bytes", collective.bytes}, {"seconds", collective.seconds}});
  }
  for (const MachineMeasurement::FileRead& file : measured.files) {
    body["files"].push_back({{"path", file.path},
                             {"bytes", file.bytes},
                             {"bytes_per_second", file.bytes_per_second},
                             {"direct", file.direct}});
  }
  std::cout << to_indented_text(body) << '\n';
}

}  // namespace

int run_bench_machine(const std::vector<std::string>& arguments) {
  CommandLine line(
      "bench-machine",
      "Measures this machine: memory between all nodes, arithmetic, GPUs, barriers, exchanges "
      "between ranks, and a file's read rate. Takes some seconds per pair of nodes, and per GPU.",
      0);
  constexpr uint32_t kMostMib = 1U << 20U;
  MachineMeasurementOptions options;
  uint32_t size_mib = static_cast<uint32_t>(options.memory_bytes >> 20U);
  bool no_exchanges = false;
  bool json = false;
  CLI::App& app = line.app();
  app.add_option("--size-mib", size_mib,
                 "Memory to look at on each node, at most a quarter of what is free, and on each "
                 "GPU, at most what is free [512]")
      ->check(CLI::Range(64U, kMostMib));
  app.add_option("--seconds", options.seconds, "Time for each figure [0.2]")
      ->check(CLI::Range(0.0, 60.0));
  app.add_option("--file", options.file, "Read this file too, past the page cache")
      ->type_name("PATH");
  app.add_flag("--no-exchanges", no_exchanges, "Leave out barriers and exchanges");
  app.add_flag("--json", json, "As JSON");
  const auto values = line.parse(arguments);
  if (!values) return values.error();
  Options log_options;
  log_options.log_level = "warn";
  start_log(log_options);
  options.exchanges = !no_exchanges;
  options.memory_bytes = static_cast<uint64_t>(size_mib) << 20U;
  const auto measured = measure_machine(options);
  if (!measured) return report(measured.error());
  json ? print_json(*measured) : print_tables(*measured, options.exchanges);
  return 0;
}

}  // namespace lockstep
