#include "engine/machine/device_choice.h"

#include <algorithm>
#include <charconv>
#include <functional>
#include <optional>
#include <utility>

namespace lockstep {
namespace {

constexpr std::string_view kNode = "node";
constexpr std::string_view kGpu = "gpu";

// A CUDA context with its modules takes 300 to 500 MiB, as others report; the library for matrices
// brings its own, of which the kernels that are used are loaded; allocations are rounded up to 2
// MiB and the driver keeps a little for itself. Not measured: too much costs a part of the
// context's length, too little the start. Whatever ranks take for themselves is counted by
// RankSizes.
constexpr uint64_t kContextBytes = uint64_t{1} << 30U;
constexpr uint64_t kSpareDivisor = 50;  // 2 % of the GPU's memory

// The number in "node12" for the prefix "node"; none: it is no such name.
std::optional<int> number_after(std::string_view prefix, std::string_view name) {
  if (!name.starts_with(prefix)) return std::nullopt;
  name.remove_prefix(prefix.size());
  // A sign is no digit: "node-1" is no name.
  if (name.empty() || name.front() < '0' || name.front() > '9') return std::nullopt;
  int number = 0;
  const auto [rest, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (error != std::errc() || rest != name.data() + name.size()) return std::nullopt;
  return number;
}

std::vector<int> all_nodes(const Topology& topology) {
  std::vector<int> ids;
  for (const Node& node : topology.nodes) ids.push_back(node.id);
  return ids;
}

std::vector<int> all_gpus(const Topology& topology) {
  std::vector<int> indices;
  for (const Gpu& gpu : topology.gpus) indices.push_back(gpu.index);
  return indices;
}

bool has_processors(const Topology& topology, int node) {
  return std::ranges::find(topology.cpus, node, &Cpu::node) != topology.cpus.end();
}

std::string names_of(std::string_view prefix, const std::vector<int>& numbers) {
  std::vector<std::string> names;
  for (const int number : numbers) names.push_back(fmt::format("{}{}", prefix, number));
  return fmt::format("{}", fmt::join(names, ", "));
}

// The memory that is left free for the driver.
uint64_t kept_bytes(const Gpu& gpu) {
  return kContextBytes + gpu.memory_bytes / kSpareDivisor;
}

double gib(uint64_t bytes) {
  return static_cast<double>(bytes) / (1U << 30U);
}

// As far as the sum of their memory tells: how much falls to each is for the layout to say.
bool fits_on_gpus(const Topology& topology, uint64_t model_bytes, uint64_t nccl_bytes,
                  std::string& reason) {
  uint64_t space = 0;
  bool each_has_some = true;
  std::vector<std::string> spaces;
  for (const Gpu& gpu : topology.gpus) {
    const uint64_t usable = usable_bytes(gpu);
    const uint64_t own = usable - std::min(usable, nccl_bytes);
    space += own;
    each_has_some = each_has_some && own > 0;
    spaces.push_back(fmt::format("gpu{} {:.1f}", gpu.index, gib(own)));
  }
  const bool fits = each_has_some && model_bytes <= space;
  const std::string beside =
      nccl_bytes == 0 ? "" : fmt::format(" beside {:.1f} GiB each for NCCL", gib(nccl_bytes));
  reason = fmt::format(
      "the model {} on all GPUs: {:.1f} GiB of weights, cache and activations at least, space for "
      "{:.1f} GiB{} ({})",
      fits ? "fits" : "does not fit", gib(model_bytes), gib(space), beside,
      fmt::join(spaces, ", "));
  return fits;
}

DeviceChoice choose_automatically(const Topology& topology, uint64_t model_bytes,
                                  uint64_t nccl_bytes) {
  DeviceChoice choice{.nodes = {}, .gpus = {}, .automatic = true, .reason = {}};
  if (topology.gpus.empty()) {
    choice.nodes = all_nodes(topology);
    choice.reason = "there is no GPU: " + topology.no_gpus;
  } else if (fits_on_gpus(topology, model_bytes, nccl_bytes, choice.reason)) {
    choice.gpus = all_gpus(topology);
  } else {
    choice.nodes = all_nodes(topology);
  }
  return choice;
}

template <typename... Arguments>
std::unexpected<Error> wrong_devices(std::string_view request,
                                     fmt::format_string<Arguments...> format,
                                     Arguments&&... arguments) {
  return invalid_input("devices \"{}\": {}", request,
                       fmt::format(format, std::forward<Arguments>(arguments)...));
}

// A list of names, whether what they name is there or not.
Result<DeviceChoice> read_names(std::string_view request) {
  DeviceChoice choice{.nodes = {},
                      .gpus = {},
                      .automatic = false,
                      .reason = fmt::format("as asked for: --devices {}", request)};
  std::string_view rest = request;
  while (true) {
    const size_t end = std::min(rest.find(','), rest.size());
    const std::string_view name = rest.substr(0, end);
    const auto gpu = number_after(kGpu, name);
    const auto number = gpu ? gpu : number_after(kNode, name);
    if (!number) {
      return wrong_devices(
          request,
          "\"{}\" is not known; give auto, cpu, gpu, all, or a list of names like gpu0,node1",
          name);
    }
    std::vector<int>& chosen = gpu ? choice.gpus : choice.nodes;
    if (std::ranges::find(chosen, *number) != chosen.end()) {
      return wrong_devices(request, "{} is named twice", name);
    }
    chosen.push_back(*number);
    if (end == rest.size()) break;
    rest.remove_prefix(end + 1);
  }
  std::ranges::sort(choice.nodes);
  std::ranges::sort(choice.gpus);
  return choice;
}

// A rank needs processors and memory; nodes may have one of them for another that is named.
Result<void> check_nodes(std::string_view request, const Topology& topology,
                         const std::vector<int>& nodes) {
  bool have_memory = false;
  for (const int id : nodes) {
    const Node* const node = topology.find_node(id);
    if (node == nullptr) {
      return wrong_devices(request, "there is no node{}: this machine has {}", id,
                           names_of(kNode, all_nodes(topology)));
    }
    if (!has_processors(topology, id)) {
      std::vector<int> others = all_nodes(topology);
      std::erase_if(others, [&](int other) { return !has_processors(topology, other); });
      return wrong_devices(request, "node{} has no processors that this process may use; {} {}", id,
                           names_of(kNode, others), others.size() == 1 ? "has" : "have");
    }
    have_memory = have_memory || node->has_usable_memory();
  }
  if (!have_memory && !nodes.empty()) {
    return wrong_devices(request,
                         "no memory of {} may be used by this process; name a node that has some",
                         names_of(kNode, nodes));
  }
  return {};
}

// A GPU that is not there may come back, as one does whose driver is loaded anew or that is reset:
// the service manager can try again. Not so where it asks for no GPU.
std::unexpected<Error> no_gpu(std::string_view request, std::string_view name,
                              const Topology& topology) {
  const ErrorKind kind =
      topology.gpus_possible ? ErrorKind::kMachineRefused : ErrorKind::kInvalidInput;
  const std::string reason = topology.gpus.empty()
                                 ? topology.no_gpus
                                 : "this machine has " + names_of(kGpu, all_gpus(topology));
  return std::unexpected(
      Error{kind, fmt::format("devices \"{}\": there is no {}: {}", request, name, reason)});
}

// An error of the request itself comes before one that may be gone another time.
Result<DeviceChoice> choose_named(std::string_view request, const Topology& topology) {
  auto choice = read_names(request);
  if (!choice) return choice;
  if (auto checked = check_nodes(request, topology, choice->nodes); !checked) {
    return std::unexpected(checked.error());
  }
  for (const int gpu : choice->gpus) {
    if (topology.find_gpu(gpu) == nullptr)
      return no_gpu(request, fmt::format("gpu{}", gpu), topology);
  }
  return choice;
}

}  // namespace

bool may_choose_gpus(std::string_view request) {
  return request == "auto" || request == "all" || request.find(kGpu) != std::string_view::npos;
}

Result<DeviceChoice> choose_devices(std::string_view request, const Topology& topology,
                                    uint64_t model_bytes, uint64_t nccl_bytes) {
  if (request == "auto") return choose_automatically(topology, model_bytes, nccl_bytes);
  const bool every_gpu = request == "gpu" || request == "all";
  const bool every_node = request == "cpu" || request == "all";
  if (!every_gpu && !every_node) return choose_named(request, topology);
  if (every_gpu && topology.gpus.empty()) {
    return no_gpu(request, "GPU", topology);
  }
  return DeviceChoice{.nodes = every_node ? all_nodes(topology) : std::vector<int>(),
                      .gpus = every_gpu ? all_gpus(topology) : std::vector<int>(),
                      .automatic = false,
                      .reason = fmt::format("as asked for: --devices {}", request)};
}

DeviceChoice every_node(const Topology& topology, std::string reason) {
  return {.nodes = all_nodes(topology), .gpus = {}, .automatic = true, .reason = std::move(reason)};
}

std::optional<DeviceChoice> gpus_beside_nodes(const Topology& topology, std::string reason) {
  DeviceChoice choice = every_node(topology, std::move(reason));
  for (const Gpu& gpu : topology.gpus) {
    if (usable_bytes(gpu) > 0) choice.gpus.push_back(gpu.index);
  }
  return choice.gpus.empty() ? std::nullopt : std::optional(std::move(choice));
}

Result<void> check_links(const Topology& topology, const std::vector<int>& gpus,
                         std::string_view absence) {
  for (const int index : gpus) {
    const Gpu& gpu = gpu_at(topology, index);
    for (size_t other = 0; other < topology.gpus.size(); ++other) {
      const int to = topology.gpus[other].index;
      const bool chosen = to != index && std::ranges::find(gpus, to) != gpus.end();
      if (!chosen || gpu.links[other] != GpuLink::kHost) continue;
      return invalid_input(
          "gpu{} does not reach the memory of gpu{}, which ranks that are GPUs need {}, or "
          "--devices gpu{}, or add a node to them, through whose memory they exchange then",
          index, to, absence, index);
    }
  }
  return {};
}

std::vector<std::vector<int>> fewer_gpus(const Topology& topology) {
  std::vector<Gpu> by_memory = topology.gpus;
  std::erase_if(by_memory, [](const Gpu& gpu) { return usable_bytes(gpu) == 0; });
  std::ranges::stable_sort(by_memory, std::greater(), &usable_bytes);
  std::vector<int> all;
  for (const Gpu& gpu : by_memory) all.push_back(gpu.index);
  std::vector<int> linked;
  for (const int first : all) {
    std::vector<int> grown = {first};
    for (const int gpu : all) {
      if (gpu == first) continue;
      grown.push_back(gpu);
      if (!check_links(topology, grown)) grown.pop_back();
    }
    if (grown.size() > linked.size()) linked = std::move(grown);
  }
  std::vector<std::vector<int>> sets;
  for (size_t count = all.size(); count > 0; --count) {
    for (const std::vector<int>& gpus : {linked, all}) {
      if (gpus.size() < count || count == topology.gpus.size()) continue;
      std::vector<int> set(gpus.begin(), gpus.begin() + static_cast<ptrdiff_t>(count));
      std::ranges::sort(set);
      if (sets.empty() || sets.back() != set) sets.push_back(std::move(set));
    }
  }
  return sets;
}

uint64_t usable_bytes(const Gpu& gpu) {
  return gpu.free_bytes - std::min(gpu.free_bytes, kept_bytes(gpu));
}

std::string device_names(const DeviceChoice& choice) {
  std::string names = names_of(kGpu, choice.gpus);
  if (!choice.gpus.empty() && !choice.nodes.empty()) names += ", ";
  return names + names_of(kNode, choice.nodes);
}

std::string devices_option(const Topology& topology, const DeviceChoice& choice) {
  const bool all = choice.gpus == all_gpus(topology) && choice.nodes == all_nodes(topology);
  std::string names = all ? "all" : device_names(choice);
  std::erase(names, ' ');
  return "--devices " + names;
}

void set_idle(const Topology& topology, const std::string& reason, const std::string& remedy,
              DeviceChoice& choice) {
  for (const Gpu& gpu : topology.gpus) {
    const bool told =
        std::ranges::find(choice.idle, gpu.index, &IdleGpu::index) != choice.idle.end();
    if (told || std::ranges::find(choice.gpus, gpu.index) != choice.gpus.end()) continue;
    if (usable_bytes(gpu) > 0) {
      choice.idle.push_back({gpu.index, reason, remedy});
      continue;
    }
    choice.idle.push_back(
        {gpu.index,
         fmt::format(
             "{:.1f} GiB of memory are free, and {:.1f} are kept for the driver; end what takes "
             "the rest",
             gib(gpu.free_bytes), gib(kept_bytes(gpu))),
         ""});
  }
}

std::vector<std::string> idle_sentences(const DeviceChoice& choice) {
  std::vector<std::string> sentences;
  std::vector<bool> told(choice.idle.size(), false);
  for (size_t first = 0; first < choice.idle.size(); ++first) {
    if (told[first]) continue;
    const IdleGpu& idle = choice.idle[first];
    std::vector<int> alike;
    for (size_t other = first; other < choice.idle.size(); ++other) {
      const IdleGpu& also = choice.idle[other];
      if (also.reason != idle.reason || also.remedy != idle.remedy) continue;
      told[other] = true;
      alike.push_back(also.index);
    }
    const bool one = alike.size() == 1;
    const std::string give =
        idle.remedy.empty() ? ""
                            : fmt::format("; give {} to use {}", idle.remedy, one ? "it" : "them");
    sentences.push_back(fmt::format("{} {} idle: {}{}", names_of(kGpu, alike),
                                    one ? "stays" : "stay", idle.reason, give));
  }
  return sentences;
}

}  // namespace lockstep
