// The remedies in the planner's refusals work: each is done as its message says, on a grid of
// models, machines and options, and ends in a layout.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <regex>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/collectives/nccl.h"
#include "engine/kernels/kernel_choice.h"
#include "engine/kernels/kernel_table.h"
#include "engine/machine/device_choice.h"
#include "engine/model/gguf_file.h"
#include "engine/placement/model_layout.h"
#include "engine/runtime/gpu/gpu_platform.h"
#include "tests/engine/machine/simulated_gpus.h"
#include "tests/engine/placement/machine_of.h"
#include "tests/engine/placement/place_model.h"
#include "tests/engine/runtime/logits_rows.h"
#include "tests/engine/runtime/random_family.h"
#include "tests/engine/runtime/random_model.h"
#include "tests/engine/runtime/reference_model.h"
#include "tests/paths.h"

namespace lockstep {
namespace {

Result<double> read_speed(const GpuPlatform&, const Gpu& gpu) {
  return gpu.bytes_per_second;
}

const GpuPlatform kWithoutNccl = {.measure_read = &read_speed};
const GpuPlatform kWithNccl = {.join = &NcclRanks::create, .measure_read = &read_speed};

// A request of the grid: what it asks for, of which model and machine.
struct Request {
  const Model* model = nullptr;
  const Topology* topology = nullptr;
  EngineOptions options;
  const GpuPlatform* platform = &kWithoutNccl;

  Result<ModelLayout> lay_out() const {
    EngineOptions asked = options;
    // Shares that follow speeds would be measured, on this machine instead of the simulated one.
    if (is_mixed() && asked.shares.empty() && topology->gpus.front().bytes_per_second > 0) {
      asked.shares.assign(asked.rank_count > 0 ? asked.rank_count : devices().size(), 1.0);
    }
    Machine machine = machine_of(*topology, platform);
    machine.meter.read_speeds = [](std::span<const RankPlace> places) {
      return std::vector<double>(places.size(), 1e11);
    };
    return place_model(*model, asked, machine);
  }
  std::vector<std::string> devices() const {
    const auto chosen = choose_devices(options.devices, *topology, 0);
    std::vector<std::string> names;
    if (!chosen) return names;
    for (const int gpu : chosen->gpus) names.push_back(fmt::format("gpu{}", gpu));
    for (const int node : chosen->nodes) names.push_back(fmt::format("node{}", node));
    return names;
  }
  // Whether the options name GPUs. Refusals of `auto` are not about GPUs.
  bool on_gpus() const {
    return options.devices != "auto" && !devices().empty() && devices().front().starts_with("gpu");
  }

  bool is_mixed() const { return on_gpus() && devices().back().starts_with("node"); }

  std::string text() const {
    return fmt::format("devices {}, ranks {}, shares {}, strategy {}, KV {}, GPU layers {}",
                       options.devices, options.rank_count, fmt::join(options.shares, ":"),
                       options.strategy, options.kv_format, options.gpu_expert_layers.value_or(0));
  }
};

// A change that was made, and the refusal that asked for it.
struct Done {
  std::string why;
  bool narrows = false;
};

// One way out: which option it changes, and how.
struct Remedy {
  std::string option;
  std::function<void(Request&)> apply;
  // It takes some away, of which another remedy may take more; or it is one
  // share per rank, which have to be given anew with other ranks.
  bool narrows = false;

  // Whether it does not take back what `done`, another change of the same option, did.
  bool follows(const Done& done) const { return narrows && (option == "shares" || done.narrows); }
};

Remedy set_devices(const std::string& devices) {
  return {"devices", [devices](Request& request) { request.options.devices = devices; }};
}
Remedy set_strategy(const std::string& strategy) {
  return {"strategy", [strategy](Request& request) { request.options.strategy = strategy; }};
}
Remedy set_ranks(uint32_t ranks) {
  return {"ranks", [ranks](Request& request) { request.options.rank_count = ranks; },
          /*narrows=*/ranks > 0};
}
Remedy set_shares(const std::vector<double>& shares, bool one_per_rank = false) {
  return {"shares", [shares](Request& request) { request.options.shares = shares; }, one_per_rank};
}
const Remedy kNoExpertLayers = {
    "gpu-expert-layers", [](Request& request) { request.options.gpu_expert_layers.reset(); }};

std::string list_of(const std::vector<std::string>& names) {
  return fmt::format("{}", fmt::join(names, ","));
}

Remedy keep_devices(const std::vector<std::string>& names) {
  Remedy remedy = set_devices(list_of(names));
  remedy.narrows = true;
  return remedy;
}

// Ranks of GPUs are as many as GPUs are named; nodes may have several.
Remedy fewer_ranks(const Request& request, uint32_t ranks) {
  const uint32_t several = request.options.rank_count;
  if (!request.on_gpus() || (several > 0 && request.is_mixed())) {
    return set_ranks(ranks > 16 ? ranks / 2 : ranks - 1);
  }
  std::vector<std::string> names = request.devices();
  const auto is_gpu = [](const std::string& name) { return name.starts_with("gpu"); };
  const auto gpus = std::ranges::count_if(names, is_gpu);
  names.erase(gpus > 1 ? names.begin() + gpus - 1 : names.end() - 1);
  return keep_devices(names);
}

// Numbers in the message behind `words`.
uint32_t number_behind(const std::string& message, const std::string& words) {
  std::smatch found;
  return std::regex_search(message, found, std::regex(words + "([0-9]+)"))
             ? static_cast<uint32_t>(std::stoul(found[1]))
             : 0;
}

bool says(const std::string& message, const std::string& words) {
  return message.find(words) != std::string::npos;
}

std::vector<Remedy> remedies_about_shares(const Request& request, const std::string& message) {
  std::vector<Remedy> remedies;
  std::smatch found;
  if (says(message, "give one share per rank")) {
    remedies.push_back(
        set_shares(std::vector<double>(number_behind(message, "but there are "), 1.0), true));
  }
  if (says(message, "every share must be a number above 0")) {
    remedies.push_back(set_shares(std::vector<double>(request.options.shares.size(), 1.0)));
  }
  if (std::regex_search(message, found, std::regex("like --shares ([0-9:]+)"))) {
    const std::string shares = found[1];
    const auto colons = static_cast<size_t>(std::ranges::count(shares, ':'));
    remedies.push_back(set_shares(std::vector<double>(colons + 1, 1.0)));
  }
  if (says(message, "or a larger share for it in --shares") && !request.options.shares.empty()) {
    std::vector<double> shares = request.options.shares;
    shares.at(number_behind(message, "rank ")) = *std::ranges::max_element(shares);
    if (shares != request.options.shares) remedies.push_back(set_shares(shares));
  }
  return remedies;
}

std::vector<Remedy> remedies_about_devices(const Request& request, const std::string& message) {
  std::vector<Remedy> remedies;
  if (says(message, "--devices cpu")) remedies.push_back(set_devices("cpu"));
  if (says(message, "use --devices all and up to ")) {
    const uint32_t most = number_behind(message, "use --devices all and up to ");
    remedies.push_back({"devices", [most](Request& each) {
                          each.options.devices = "all";
                          each.options.gpu_expert_layers =
                              std::min(most, *each.options.gpu_expert_layers);
                        }});
  } else if (says(message, "use --devices all")) {
    remedies.push_back(set_devices("all"));
  }
  if (says(message, "use a build with it")) {
    remedies.push_back({"build", [](Request& each) { each.platform = &kWithNccl; }});
    const uint32_t gpu = number_behind(message, "or --devices gpu");
    remedies.push_back(set_devices(fmt::format("gpu{}", gpu)));
    std::vector<std::string> names = request.devices();
    names.emplace_back("node0");
    remedies.push_back(set_devices(list_of(names)));
  }
  if (says(message, "name fewer in --devices")) {
    std::vector<std::string> names = request.devices();
    names.resize(number_behind(message, "at most "));
    remedies.push_back(keep_devices(names));
  }
  return remedies;
}

// All that a refusal names.
std::vector<Remedy> remedies_of(const Request& request, const std::string& message) {
  std::vector<Remedy> remedies = remedies_about_shares(request, message);
  const auto add = [&](std::vector<Remedy> more) {
    remedies.insert(remedies.end(), more.begin(), more.end());
  };
  add(remedies_about_devices(request, message));
  if (says(message, "leave --ranks out")) add({set_ranks(0)});
  if (says(message, "use --strategy auto or reduce")) {
    add({set_strategy("auto"), set_strategy("reduce")});
  }
  if (says(message, "--kv-format f16")) {
    add({{"kv-format", [](Request& each) { each.options.kv_format = "f16"; }}});
  }
  if (says(message, "use fewer ranks")) {
    add({fewer_ranks(request, number_behind(message, "rank [0-9]+ of "))});
  }
  if (says(message, "there may be at most")) {
    add({set_ranks(number_behind(message, "at most "))});
  }
  if (says(message, "gpu-expert-layers is")) {
    if (says(message, "leave it out")) add({kNoExpertLayers});
    const uint32_t most = number_behind(message, "up to ");
    if (says(message, "use up to ")) {
      add({{"gpu-expert-layers",
            [most](Request& each) { each.options.gpu_expert_layers = most; }}});
    }
  }
  return remedies;
}

class Remedies : public ::testing::Test {
 protected:
  // That each remedy of each refusal ends in a layout, and that none takes back
  // what one before it has done. Returns how many refusals there were.
  size_t follow(const Request& request, std::map<std::string, Done> done = {}) {
    const auto layout = request.lay_out();
    if (layout) return 0;
    const std::string& message = layout.error().message;
    std::string trace = fmt::format("{}: {}", request.text(), message);
    for (const auto& [option, change] : done) {
      trace += fmt::format("\n  {} is from: {}", option, change.why);
    }
    if (!checked_.insert(trace).second) return 0;
    SCOPED_TRACE(trace);
    const std::vector<Remedy> remedies = remedies_of(request, message);
    size_t refusals = 1;
    size_t ways = 0;
    for (const Remedy& remedy : remedies) {
      const auto before = done.find(remedy.option);
      if (before != done.end() && !remedy.follows(before->second)) continue;
      ++ways;
      Request next = request;
      remedy.apply(next);
      auto now_done = done;
      now_done[remedy.option] = {message, remedy.narrows};
      refusals += follow(next, std::move(now_done));
    }
    EXPECT_GT(ways, 0U) << "no remedy is left that takes back none";
    return refusals;
  }

  // A model of a file, which lasts as long as the test.
  const Model& model(const std::string& path) {
    const auto file = GgufFile::open(path);
    auto built = build_model({.file = *file});
    EXPECT_TRUE(built.has_value()) << built.error().message;
    models_.push_back(std::make_unique<Model>(std::move(*built)));
    return *models_.back();
  }
  const Model& model(const FamilyFile& file) { return model(RandomFamily(file, 81).path()); }

  static std::vector<Topology> machines() {
    Topology linked = machine_with_gpus();
    for (Gpu& gpu : linked.gpus) gpu.links.assign(linked.gpus.size(), GpuLink::kNvlink);
    Topology one = machine_with_gpus();
    one.gpus.resize(1);
    one.gpus[0].links = {GpuLink::kSelf};
    Topology silent = linked;  // which cannot be measured either
    for (Gpu& gpu : silent.gpus) gpu.bytes_per_second = 0;
    Topology many = linked;
    for (int index = 4; index < 20; ++index) many.gpus.push_back(simulated_gpu(index, 0));
    for (Gpu& gpu : many.gpus) gpu.links.assign(many.gpus.size(), GpuLink::kNvlink);
    return {machine_with_gpus(), linked, one, silent, many};
  }

  std::vector<std::unique_ptr<Model>> models_;
  std::set<std::string> checked_;
};

TEST_F(Remedies, end_in_a_layout) {
  const std::vector<const Model*> models = {
      &model(source_dir() + "/config/demo.gguf"),
      &model(source_dir() + "/tests/fixtures/logits/mixtral-mqa-f32.gguf"),
      &model(FamilyFile{.head_dimension = 20, .rotary_dimensions = 20}),
      &model(FamilyFile{.experts = 40}),
      &model(FamilyFile{.experts = 40, .head_dimension = 20, .rotary_dimensions = 20}),
      &model(FamilyFile{.bias_format = Format::kQ8_0, .kv_heads = 6, .attention_biases = true}),
      &model(FamilyFile{.bias_format = Format::kQ8_0,
                        .kv_heads = 1,
                        .head_dimension = 32,
                        .rotary_dimensions = 32,
                        .attention_biases = true}),
  };
  const std::vector<std::vector<double>> all_shares = {
      {}, {1}, {3, 1}, {1, 0.0001}, {1, 0}, {1, 1, 1}, {1, 1, 1, 0.0001}, {1, 1, 1, 1, 1, 1}};
  size_t refusals = 0;
  for (const Topology& topology : machines()) {
    for (const Model* const each : models) {
      for (const char* const devices :
           {"auto", "cpu", "node1", "gpu", "gpu0", "gpu0,gpu1", "gpu0,node0,node1", "all"}) {
        for (const char* const strategy : {"auto", "gather", "reduce"}) {
          for (const uint32_t ranks : {0U, 1U, 2U, 3U, 6U, 40U, 5000U}) {
            for (const std::vector<double>& shares : all_shares) {
              Request request{.model = each, .topology = &topology, .options = {}};
              request.options.devices = devices;
              request.options.strategy = strategy;
              request.options.rank_count = ranks;
              request.options.shares = shares;
              if (request.devices().empty()) continue;  // the machine has them not
              refusals += follow(request);
            }
          }
        }
      }
    }
  }
  EXPECT_GT(refusals, 100U);
}

TEST_F(Remedies, end_in_a_layout_where_layers_of_experts_or_a_cache_are_asked_for) {
  const std::vector<const Model*> models = {
      &model(source_dir() + "/config/demo.gguf"),
      &model(source_dir() + "/tests/fixtures/logits/mixtral-mqa-f32.gguf"),
      &model(FamilyFile{.experts = 40}),
      &model(FamilyFile{.experts = 40, .head_dimension = 20, .rotary_dimensions = 20}),
  };
  size_t refusals = 0;
  for (const Topology& topology : machines()) {
    for (const Model* const each : models) {
      for (const char* const devices : {"auto", "cpu", "gpu", "gpu0", "gpu0,node0", "all"}) {
        for (const char* const kv_format : {"f16", "q8_0"}) {
          for (const uint32_t layers : {0U, 1U, 2U, 7U}) {
            Request request{.model = each, .topology = &topology, .options = {}};
            request.options.devices = devices;
            request.options.kv_format = kv_format;
            request.options.gpu_expert_layers = layers;
            if (request.devices().empty()) continue;
            refusals += follow(request);
          }
        }
      }
    }
  }
  EXPECT_GT(refusals, 50U);
}

// However many ranks there are and whatever their shares: no bias in blocks is in the way, if each
// has a part at all, and ranks whose heads end elsewhere then give the same bits.
TEST_F(Remedies, biases_in_blocks_are_cut_at_whole_blocks) {
  const auto tokens = some_tokens(12, 4);
  const Topology machine = machines()[1];
  for (const uint32_t kv_heads : {2U, 6U}) {
    const FamilyFile file{.bias_format = Format::kQ8_0,
                          .kv_heads = kv_heads,
                          .attention_biases = true,
                          .output_bias = true,
                          .feed_forward_biases = true};
    const RandomFamily family(file, /*seed=*/84);
    Request request{.model = &model(family.path()), .topology = &machine, .options = {}};
    for (const uint32_t ranks : {2U, 3U, 4U}) {
      request.options.rank_count = ranks;
      for (uint32_t code = 0; code < 1U << (2 * ranks); ++code) {  // shares of 1 to 4 each
        request.options.shares.clear();
        for (uint32_t rank = 0; rank < ranks; ++rank) {
          request.options.shares.push_back(static_cast<double>(1 + (code >> (2 * rank)) % 4));
        }
        for (const char* const strategy : {"gather", "reduce"}) {
          request.options.devices = "cpu";
          request.options.strategy = strategy;
          const auto layout = request.lay_out();
          if (layout) continue;
          EXPECT_TRUE(says(layout.error().message, "rounds to none")) << layout.error().message;
          EXPECT_GT(std::ranges::max(request.options.shares), 1) << request.text();
        }
      }
    }
    const LogitRows alone = LoadedModel(family.path(), {}).compute_alone(tokens, 128);
    for (const std::vector<double>& shares : {std::vector<double>{1, 1}, {2, 1, 1}, {1, 1, 1, 1}}) {
      LoadedModel loaded(family.path(), {.shares = shares});
      expect_same_bits(alone, loaded.compute_alone(tokens, 5));
    }
  }
}

// Only the GPU's search for so many experts is in the way: all else is its.
TEST_F(Remedies, what_a_gpu_cannot_route_nodes_compute_beside_it) {
  const Topology machine = machines()[1];
  Request request{.model = &model(FamilyFile{.experts = 40}), .topology = &machine, .options = {}};
  const auto layout = request.lay_out();
  ASSERT_TRUE(layout.has_value()) << layout.error().message;
  EXPECT_EQ(layout->devices.nodes.size(), 2U);
  // Nodes alone may be measured to be faster: the model is small.
  EXPECT_TRUE(says(layout->devices.reason, "since in this model a token goes to 40 experts"))
      << layout->devices.reason;
  EXPECT_TRUE(says(layout->devices.reason, "gpu0, gpu1, gpu2, gpu3, node0, node1"))
      << layout->devices.reason;
  request.options.devices = "all";
  const auto beside = request.lay_out();
  ASSERT_TRUE(beside.has_value()) << beside.error().message;
  EXPECT_EQ(beside->devices.gpus.size(), 4U);
  EXPECT_EQ(beside->devices.nodes.size(), 2U);
}

// The format is one that GPUs have no kernels for; --devices auto takes the nodes by itself and
// says why.
TEST_F(Remedies, what_gpus_cannot_hold_goes_to_nodes) {
  const RandomModel coded(Format::kQ4_0, Format::kNvfp4, /*seed=*/83);
  const Topology machine = machines()[1];
  Request request{.model = &model(coded.path()), .topology = &machine, .options = {}};
  request.options.devices = "gpu0";
  const auto refused = request.lay_out();
  ASSERT_FALSE(refused.has_value());
  EXPECT_TRUE(says(refused.error().message, "is in NVFP4, for which GPUs have no kernels"))
      << refused.error().message;
  EXPECT_TRUE(says(refused.error().message, "--devices cpu")) << refused.error().message;
  request.options.devices = "cpu";
  EXPECT_TRUE(request.lay_out().has_value());
  request.options.devices = "auto";
  const auto layout = request.lay_out();
  ASSERT_TRUE(layout.has_value()) << layout.error().message;
  EXPECT_TRUE(layout->devices.gpus.empty());
  EXPECT_TRUE(says(layout->devices.reason, "no GPU, since tensor ")) << layout->devices.reason;
  EXPECT_TRUE(says(layout->devices.reason, "NVFP4")) << layout->devices.reason;
}

// Heads of 20 dimensions, and 40 experts of a token, on one to three ranks of nodes.
TEST_F(Remedies, what_a_gpu_refuses_nodes_compute) {
  const auto tokens = some_tokens(12, 4);
  const Topology machine = machines()[1];
  for (const auto& [file, words] :
       {std::pair(FamilyFile{.head_dimension = 20, .rotary_dimensions = 20},
                  "this model's heads have 20 dimensions"),
        std::pair(FamilyFile{.experts = 40}, "in this model a token goes to 40 experts")}) {
    const RandomFamily family(file, /*seed=*/82);
    Request request{.model = &model(family.path()), .topology = &machine, .options = {}};
    request.options.devices = "gpu0";
    const auto refused = request.lay_out();
    ASSERT_FALSE(refused.has_value());
    EXPECT_TRUE(says(refused.error().message, words)) << refused.error().message;
    EXPECT_TRUE(says(refused.error().message, "--devices cpu")) << refused.error().message;
    const KernelTable& table = **choose_kernel_table(kernel_row());
    const ReferenceModel reference(family.path(), tokens);
    const double bound = reference.bound(
        joined(roundings_of(table, Profile::kFast, KvFormat::kF32),
               roundings_of(table, Profile::kFast, KvFormat::kF32, /*generated=*/true)));
    const LogitRows alone = LoadedModel(family.path(), {}).compute_alone(tokens, 128);
    EXPECT_LE(worst_difference(alone, reference.logits()), bound);
    for (const std::vector<double>& shares : {std::vector<double>{1, 1}, {2, 1, 1}}) {
      LoadedModel loaded(family.path(), {.shares = shares});
      expect_same_bits(alone, loaded.compute_alone(tokens, 5));
    }
  }
}

}  // namespace
}  // namespace lockstep
