// The remedies in refusals for want of memory are enough: each is read from the message and done,
// on machines, models and options that leave too little space for weights, for the cache or for
// activations.
#include "engine/placement/memory_remedies.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <regex>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "engine/kernels/kernel_choice.h"
#include "engine/placement/memory_fit.h"
#include "engine/runtime/gpu/gpu_platform.h"
#include "tests/engine/decoder_shape.h"
#include "tests/engine/machine/simulated_gpus.h"
#include "tests/engine/placement/machine_of.h"
#include "tests/engine/placement/place_model.h"

namespace lockstep {
namespace {

constexpr uint64_t kMiB = 1U << 20U;

const PaperShape kTiny = {"tiny", 1, 256, 256, 8, 4, 32, 512};
const PaperShape kSmall = {"small", 4, 1024, 2816, 16, 8, 64, 32000};
// Its weights are small and its cache is large.
const PaperShape kWide = {"wide", 3, 512, 512, 16, 16, 64, 2000};
// Its heads cannot be of q8_0.
const PaperShape kOdd = {"odd", 2, 512, 1024, 32, 8, 40, 4000};

size_t measured_gpus = 0;

Result<double> measure_read(const GpuPlatform&, const Gpu& gpu) {
  ++measured_gpus;
  return gpu.bytes_per_second;
}

const GpuPlatform kPlatform = {.measure_read = &measure_read};

// A machine with nothing on it yet.
Topology empty_machine(int node_count, int gpu_count) {
  Topology topology;
  for (int id = 0; id < node_count; ++id) {
    for (int core = 0; core < 2; ++core) {
      topology.cpus.push_back({.id = 2 * id + core, .package = id, .core = core, .node = id});
    }
    Node node;
    node.id = id;
    node.cpu_count = 2;
    node.memory_bytes = node.free_bytes = 1024 * kGiB;
    for (int other = 0; other < node_count; ++other) {
      node.distances.push_back(other == id ? 10 : 20);
    }
    topology.nodes.push_back(node);
  }
  for (int gpu = 0; gpu < gpu_count; ++gpu) topology.gpus.push_back(simulated_gpu(gpu, 0));
  for (Gpu& gpu : topology.gpus) {
    gpu.links.assign(topology.gpus.size(), GpuLink::kNvlink);
    gpu.memory_bytes = gpu.free_bytes = 1024 * kGiB;
  }
  return topology;
}

MemoryLimits limits_of(const Topology& topology) {
  MemoryLimits limits;
  for (const Node& node : topology.nodes) limits.available_bytes += node.free_bytes;
  return limits;
}

// How much of what the ranks need there is, on the first place and on the others.
struct Shortage {
  double first = 1;
  double others = 1;
  bool is_full = false;  // the rest of the memory is there, but not free
};

struct Request {
  const Model* model = nullptr;
  Topology topology;
  EngineOptions options;

  Machine machine() const {
    Machine machine = machine_of(topology, &kPlatform);
    machine.memory = limits_of(topology);
    return machine;
  }
  Result<ModelLayout> split() const { return place_model(*model, options, machine(), "scalar"); }
  Result<void> size(ModelLayout& layout) const {
    const auto settings = parse(options, machine(), "scalar");
    if (!settings) return std::unexpected(settings.error());
    return size_context(*model, *settings, machine(), layout);
  }
  Result<void> lay_out() const {
    auto layout = split();
    if (!layout) return std::unexpected(layout.error());
    auto sized = size(*layout);
    if (sized) return {};
    const size_t measured_before = measured_gpus;
    Error refusal = with_memory_remedies(sized.error(), *model, options,
                                         **choose_kernel_table("scalar"), machine(), *layout);
    EXPECT_EQ(measured_gpus, measured_before) << "remedies are tried on paper";
    return std::unexpected(std::move(refusal));
  }
  // Takes memory away from where these options would lie.
  bool shorten(const Shortage& shortage) {
    auto layout = split();
    if (!layout || !size(*layout)) {
      return false;
    }
    std::map<int, uint64_t> nodes;
    std::map<int, uint64_t> gpus;
    for (size_t rank = 0; rank < layout->places.size(); ++rank) {
      const RankPlace& place = layout->places[rank];
      nodes[place.node] += layout->sizes[rank].host_bytes();
      if (const auto* const gpu = std::get_if<GpuPlace>(&place.device)) {
        gpus[gpu->index] += layout->sizes[rank].gpu_bytes();
      }
    }
    const auto left = [&](uint64_t needed, int index) {
      const double part = index == 0 ? shortage.first : shortage.others;
      return static_cast<uint64_t>(part * static_cast<double>(needed));
    };
    const bool on_nodes = !layout->devices.nodes.empty();
    for (Node& node : topology.nodes) {
      const uint64_t wanted = std::max(nodes[node.id], 160 * kMiB);
      const uint64_t bytes = on_nodes ? left(wanted, node.id) : 4 * wanted;
      node.free_bytes = bytes + 100 * kMiB;
      node.memory_bytes = shortage.is_full ? 32 * node.free_bytes : node.free_bytes;
    }
    for (Gpu& gpu : topology.gpus) {
      gpu.free_bytes = left(std::max(gpus[gpu.index], 64 * kMiB), gpu.index) + 1100 * kMiB;
      gpu.memory_bytes = shortage.is_full ? 2 * gpu.free_bytes : gpu.free_bytes;
    }
    return true;
  }
  std::string text() const {
    return fmt::format(
        "{} nodes, {} GPUs, devices {}, ranks {}, shares {}, context {}, KV pages {}, sequences "
        "{}, batch {}, KV {}",
        topology.nodes.size(), topology.gpus.size(), options.devices, options.rank_count,
        fmt::join(options.shares, ":"), options.context_tokens, options.kv_pages,
        options.sequence_count, options.batch_tokens, options.kv_format);
  }
};

uint32_t count_of(const std::string& value) {
  return value == "auto" ? 0 : static_cast<uint32_t>(std::stoul(value));
}

// As the command line has them.
void set(const std::string& option, const std::string& value, EngineOptions& options) {
  if (option == "context") {
    options.context_tokens = count_of(value);
  } else if (option == "sequences") {
    options.sequence_count = count_of(value);
  } else if (option == "kv-pages") {
    options.kv_pages = count_of(value);
  } else if (option == "kv-format") {
    options.kv_format = value;
  } else if (option == "batch-tokens") {
    options.batch_tokens = count_of(value);
  } else if (option == "ranks") {
    options.rank_count = count_of(value);
  } else if (option == "devices") {
    options.devices = value;
  } else if (option == "strategy") {
    options.strategy = value;
  } else if (option == "gpu-expert-layers") {
    options.gpu_expert_layers.reset();
  } else if (option == "shares") {
    options.shares.clear();
    options.measure_shares = false;
    if (value == "even") return;
    std::istringstream parts(value);
    for (std::string part; std::getline(parts, part, ':');) {
      options.shares.push_back(std::stod(part));
    }
  } else {
    ADD_FAILURE() << "--" << option << " " << value << " is not known to this test";
  }
}

// The remedies of a message, each with the settings that it asks for.
std::vector<std::vector<std::pair<std::string, std::string>>> settings_of(
    const std::string& message) {
  const std::string remedies = message.substr(std::min(message.find(". Use "), message.size()));
  static const std::regex kRemedy("--[a-z-]+ [^ ,]+( with --[a-z-]+ [^ ,]+)*");
  static const std::regex kSetting("--([a-z-]+) ([^ ,]+)");
  std::vector<std::vector<std::pair<std::string, std::string>>> found;
  const std::sregex_iterator end;
  for (std::sregex_iterator each(remedies.begin(), remedies.end(), kRemedy); each != end; ++each) {
    const std::string remedy = each->str();
    auto& settings = found.emplace_back();
    for (std::sregex_iterator it(remedy.begin(), remedy.end(), kSetting); it != end; ++it) {
      settings.emplace_back((*it)[1], (*it)[2]);
    }
  }
  return found;
}

bool says(const std::string& message, const std::string& words) {
  return message.find(words) != std::string::npos;
}

class MemoryRemedies : public ::testing::Test {
 protected:
  // That each remedy of a refusal is enough, and that none is missing that would be. Returns
  // whether there was a refusal.
  bool follow(const Request& request) {
    const auto laid_out = request.lay_out();
    if (laid_out) return false;
    const std::string& message = laid_out.error().message;
    SCOPED_TRACE(request.text() + ": " + message);
    const auto remedies = settings_of(message);
    for (const auto& settings : remedies) {
      Request next = request;
      std::string done;
      for (const auto& [option, value] : settings) {
        set(option, value, next.options);
        done += fmt::format("--{} {} ", option, value);
        ++named_[option];
      }
      const auto mended = next.lay_out();
      EXPECT_TRUE(mended.has_value()) << done << "gives: " << mended.error().message;
    }
    expect_named(request, message, remedies.empty());
    EXPECT_TRUE(says(message, "a smaller model"));
    // Which may lack space for a cache and activations of the same size, but that is told then.
    Request smaller = request;
    smaller.model = &tiny_;
    if (const auto small = smaller.lay_out(); !small) {
      const std::string& why = small.error().message;
      EXPECT_TRUE(!settings_of(why).empty() || says(why, ", or free memory")) << why;
    }
    Request emptied = request;
    for (Node& node : emptied.topology.nodes) node.free_bytes = node.memory_bytes;
    for (Gpu& gpu : emptied.topology.gpus) gpu.free_bytes = gpu.memory_bytes;
    EXPECT_EQ(says(message, ", or free memory"), emptied.lay_out().has_value());
    return true;
  }

  // A change that would be enough by itself, whatever is lost by it, is named.
  void expect_named(const Request& request, const std::string& message, bool none) {
    std::vector<std::pair<std::string, std::string>> changes = {
        {"sequences", "1"},
        {"devices", "cpu"},
        {"ranks", std::to_string(request.topology.nodes.size())}};
    if (request.options.context_tokens > 64) changes.emplace_back("context", "64");
    if (request.options.kv_format != "q8_0") changes.emplace_back("kv-format", "q8_0");
    if (request.topology.gpus.size() == 1) changes.emplace_back("devices", "gpu");
    for (const auto& [option, value] : changes) {
      Request changed = request;
      set(option, value, changed.options);
      if (changed.options.devices == request.options.devices && option == "devices") continue;
      if (!changed.lay_out()) continue;
      EXPECT_TRUE(says(message, "--" + option)) << "--" << option << " " << value << " would do";
      EXPECT_FALSE(none);
    }
  }

  const Model tiny_ = make_model(kTiny);
  std::map<std::string, size_t> named_;  // by option: how often
};

std::vector<EngineOptions> options_on(const std::vector<std::string>& devices, size_t nodes,
                                      size_t gpus) {
  std::vector<EngineOptions> all;
  for (const std::string& device : devices) {
    for (const uint32_t context : {0U, 8192U}) {
      for (const uint32_t pages : {0U, 160U}) {
        for (const uint32_t ranks : {0U, 1U}) {
          EngineOptions options;
          options.devices = device;
          options.context_tokens = context;
          options.kv_pages = pages;
          options.rank_count = ranks;
          if (device == "all") {
            if (ranks > 0) continue;
            options.shares.assign(nodes + gpus, 1.0);
          }
          all.push_back(options);
          if (ranks > 0) continue;
          options.batch_tokens = 2048;
          options.sequence_count = 32;
          options.kv_format = "f32";
          all.push_back(options);
        }
      }
    }
  }
  return all;
}

const std::vector<Shortage> kShortages = {
    {0.1, 0.1}, {0.5, 0.5},       {0.8, 0.8}, {0.95, 0.95},     {0.5, 2},          {2, 0.6},
    {0.1, 4},   {0.7, 0.7, true}, {0.9, 3},   {0.3, 0.3, true}, {0.03, 0.03, true}};

TEST_F(MemoryRemedies, are_enough_on_nodes) {
  size_t refusals = 0;
  for (const PaperShape& shape : {kSmall, kWide, kOdd}) {
    const Model model = make_model(shape);
    for (const int nodes : {1, 2, 4}) {
      for (const EngineOptions& options : options_on({"cpu"}, static_cast<size_t>(nodes), 0)) {
        for (const Shortage& shortage : kShortages) {
          Request request{&model, empty_machine(nodes, 0), options};
          if (request.shorten(shortage)) refusals += follow(request) ? 1U : 0U;
        }
      }
    }
  }
  EXPECT_GT(refusals, 300U);
  for (const char* const option :
       {"context", "sequences", "kv-pages", "kv-format", "batch-tokens", "ranks", "shares"}) {
    EXPECT_GT(named_[option], 0U) << option;
  }
}

TEST_F(MemoryRemedies, are_settings_as_the_command_line_takes_them) {
  const Model model = make_model(kWide);
  Request request{&model, empty_machine(1, 1), {}};
  request.topology.gpus[0].memory_bytes = 80 * kGiB;
  request.topology.gpus[0].free_bytes = 3 * kGiB;
  request.options.devices = "gpu";
  request.options.context_tokens = 8192;
  const auto refused = request.lay_out();
  ASSERT_FALSE(refused.has_value());
  EXPECT_TRUE(refused.error().message.ends_with(
      ". Use --context 3520, --sequences 3, --devices cpu, --devices all with "
      "--shares 1:32 or a smaller model, or free memory"))
      << refused.error().message;
}

// The two settings of a cache that is too small for one sequence; where memory lacks then, its
// refusal's remedies are followed on.
TEST_F(MemoryRemedies, of_too_few_pages_are_enough) {
  const Model model = make_model(kWide);
  for (const uint32_t pages : {1U, 16U, 127U}) {
    for (const uint64_t free : {300 * kMiB, 8 * kGiB}) {
      Request request{&model, empty_machine(1, 0), {}};
      request.topology.nodes[0].free_bytes = free;
      request.options.devices = "cpu";
      request.options.context_tokens = 8192;
      request.options.kv_pages = pages;
      const auto refused = request.lay_out();
      ASSERT_FALSE(refused.has_value());
      ASSERT_EQ(refused.error().kind, ErrorKind::kInvalidInput) << refused.error().message;
      const auto remedies = settings_of(refused.error().message);
      EXPECT_EQ(remedies.size(), 2U) << refused.error().message;
      for (const auto& settings : remedies) {
        Request next = request;
        for (const auto& [option, value] : settings) set(option, value, next.options);
        const auto mended = next.lay_out();
        if (mended) continue;
        EXPECT_EQ(mended.error().kind, ErrorKind::kMachineRefused) << mended.error().message;
        EXPECT_TRUE(follow(next));
      }
    }
  }
}

TEST_F(MemoryRemedies, are_enough_on_gpus_and_beside_them) {
  size_t refusals = 0;
  for (const PaperShape& shape : {kSmall, kWide}) {
    const Model model = make_model(shape);
    for (const int nodes : {1, 2}) {
      for (const int gpus : {1, 2}) {
        for (const EngineOptions& options :
             options_on({"gpu", "all"}, static_cast<size_t>(nodes), static_cast<size_t>(gpus))) {
          for (const Shortage& shortage : kShortages) {
            Request request{&model, empty_machine(nodes, gpus), options};
            if (request.shorten(shortage)) refusals += follow(request) ? 1U : 0U;
          }
        }
      }
    }
  }
  EXPECT_GT(refusals, 200U);
  for (const char* const option : {"devices", "shares", "context", "batch-tokens"}) {
    EXPECT_GT(named_[option], 0U) << option;
  }
}

}  // namespace
}  // namespace lockstep
