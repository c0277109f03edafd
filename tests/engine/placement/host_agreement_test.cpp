// The layout that hosts come to: whose ranks follow whose, the shortest context, and refusals.
#include "engine/placement/host_agreement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/kernels/attention.h"
#include "engine/measure/planned_model.h"
#include "engine/placement/memory_fit.h"
#include "engine/placement/memory_remedies.h"
#include "tests/engine/decoder_shape.h"
#include "tests/engine/placement/machine_of.h"
#include "tests/engine/placement/place_model.h"
#include "tests/engine/placement/scripted_group.h"
#include "tests/paths.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

constexpr uint64_t kGiB = 1U << 30U;

// One node of four processors.
Machine some_machine() {
  Topology topology;
  for (int id = 0; id < 4; ++id) {
    topology.cpus.push_back({.id = id, .package = 0, .core = id, .node = 0});
  }
  Node node;
  node.memory_bytes = 16 * kGiB;
  node.free_bytes = 8 * kGiB;
  node.cpu_count = 4;
  node.distances = {10};
  topology.nodes.push_back(node);
  Machine machine = machine_of(topology);
  machine.memory.available_bytes = 8 * kGiB;
  return machine;
}

// A host's part in an agreement on the model of a file, which the other hosts have as well.
class Agreement : public testing::Test {
 protected:
  void open(const std::string& path) {
    options_.model = path;
    options_.devices = "cpu";
    options_.instruction_set = "scalar";
    options_.context_tokens = 512;
    auto opened = open_planned_model(options_, machine_);
    ASSERT_TRUE(opened) << opened.error().message;
    planned_.emplace(std::move(*opened));
    auto layout = Placer(planned_->model, planned_->settings, machine_).place();
    ASSERT_TRUE(layout) << layout.error().message;
    layout_ = std::move(*layout);
  }
  void open_demo() { open(source_dir() + "/config/demo.gguf"); }

  Result<void> agree_on_ranks(HostGroup& group) {
    return lockstep::agree_on_ranks(group, planned_->file, planned_->model, options_,
                                    *planned_->settings.kernels, layout_);
  }
  // The others say the same as this host, or what `change` makes of it.
  using Change = std::function<void(Json&)>;
  std::string ranks_refusal(const Change& change) {
    open_demo();
    ScriptedGroup group(2, 0, [&](size_t, size_t, const Json& own) {
      Json theirs = own;
      change(theirs);
      return theirs;
    });
    const auto agreed = agree_on_ranks(group);
    return agreed ? "" : agreed.error().message;
  }

  // Hosts 0 and 1, of which this is the first, with their ranks agreed on; of the context the other
  // says what `change` makes of this host's, and whether it `has_space` for what is held.
  Result<void> agree_on_context(const Change& change, HostContext own = {}, bool has_space = true) {
    ScriptedGroup ranks(2, 0, [](size_t, size_t, const Json& document) { return document; });
    auto agreed = agree_on_ranks(ranks);
    if (!agreed) return agreed;
    if (own.sized) own.sized = size_context(planned_->model, planned_->settings, machine_, layout_);
    own_ = layout_;
    ScriptedGroup group(2, 0, [&](size_t gathering, size_t, const Json& document) {
      Json theirs = document;
      if (gathering == 0) change(theirs);
      if (document.contains("has space")) theirs["has space"] = has_space;
      return theirs;
    });
    agreed = lockstep::agree_on_context(group, planned_->model, own, layout_);
    gatherings_ = group.gathered.size();
    return agreed;
  }
  // The other host has so many pages of the cache more, and holds them or not.
  static Change with_more_pages(int more, bool held) {
    return [=](Json& theirs) {
      theirs["pages"] = theirs["pages"].get<size_t>() + static_cast<size_t>(more);
      theirs["held"] = held;
    };
  }

  Machine machine_ = some_machine();
  EngineOptions options_;
  std::optional<PlannedModel> planned_;
  ModelLayout layout_;
  ModelLayout own_;        // before the context was agreed on
  size_t gatherings_ = 0;  // in which it was
};

TEST_F(Agreement, ranks_follow_one_another_the_leaders_first) {
  for (const size_t index : {0U, 1U, 2U}) {
    open_demo();
    const Json two = {{{"workers", 3}, {"share", 1.0}}, {{"workers", 1}, {"share", 0.5}}};
    ScriptedGroup group(3, index, [&](size_t, size_t host, const Json& own) {
      Json theirs = own;
      if (host != 1) theirs["places"] = two;
      return theirs;
    });
    const auto agreed = agree_on_ranks(group);
    ASSERT_TRUE(agreed) << agreed.error().message;
    ASSERT_TRUE(layout_.hosts.has_value());
    // Ranks of this host: one; of hosts 0 and 2, where they are others: two.
    const size_t first = index == 0 ? 1 : 2;
    const size_t second = first + (index == 1 ? layout_.places.size() : 1);
    ASSERT_EQ(layout_.hosts->of_host.size(), 3U);
    EXPECT_EQ(layout_.hosts->host, index);
    EXPECT_EQ(layout_.hosts->of_host[0].begin, 0U);
    EXPECT_EQ(layout_.hosts->of_host[0].end, first);
    EXPECT_EQ(layout_.hosts->of_host[1].end, second);
    EXPECT_EQ(layout_.hosts->of_host[2].end, layout_.places_of_hosts.size());
    EXPECT_EQ(layout_.places.size(), 1U);
    EXPECT_EQ(layout_.sizes.size(), 1U);  // its own rank's
    // Its own place stands among them as it is here, the others' without processors.
    EXPECT_EQ(layout_.places_of_hosts[layout_.first_rank()].cpus, layout_.places[0].cpus);
    if (index != 0) {
      EXPECT_EQ(layout_.places_of_hosts[0].cpus, std::vector<int>({-1, -1, -1}));
      EXPECT_EQ(layout_.places_of_hosts[1].share, 0.5);
    }
  }
}

TEST_F(Agreement, every_difference_is_named_with_both_values) {
  for (const std::string key :
       {"devices", "packing", "isa", "arithmetic", "kv-format", "context", "kv-pages", "sequences",
        "batch-tokens", "logit-rows", "measured shares", "rows kept for the draft model"}) {
    SCOPED_TRACE(key);
    const std::string refusal =
        ranks_refusal([&](Json& theirs) { theirs["common"][key] = "other"; });
    EXPECT_THAT(refusal, HasSubstr("host 1 (h1:7070) cannot compute one model with host 0"));
    EXPECT_THAT(refusal, HasSubstr(fmt::format("{} is \"other\" there and ", key)));
  }
  for (const std::string key : {"bytes", "header_sha256", "samples_sha256"}) {
    SCOPED_TRACE(key);
    EXPECT_THAT(ranks_refusal([&](Json& theirs) { theirs["common"]["model"][0][key] = 7; }),
                HasSubstr(key + "\":7"));
  }
  EXPECT_THAT(ranks_refusal([](Json& theirs) { theirs["common"].erase("isa"); }),
              HasSubstr("isa is null there"));
}

TEST_F(Agreement, what_exchanges_without_encryption_needs_a_word_of_its_own) {
  open_demo();
  options_.hosts.addresses = {"10.77.0.1:7070", "10.77.0.2:7070"};
  options_.hosts.secret.emplace();
  const auto refusal = [&] {
    const auto checked = check_host_options(options_, layout_);
    return checked ? "" : checked.error().message;
  };
  EXPECT_EQ(refusal(), "");
  for (const std::string transport : {"ucx", "mpi"}) {
    options_.hosts.transport = transport;
    options_.hosts.may_be_insecure = false;
    EXPECT_THAT(refusal(), HasSubstr(fmt::format("exchange by {} during a pass", transport)));
    EXPECT_THAT(refusal(), HasSubstr("--insecure-hosts true"));
    options_.hosts.may_be_insecure = true;
    EXPECT_EQ(refusal(), "");
  }
  options_.hosts.may_be_insecure = false;
  options_.hosts.addresses = {"127.0.0.1:7070", "localhost:7071"};
  EXPECT_EQ(refusal(), "");
  options_.hosts.transport = "nccl";
  EXPECT_THAT(refusal(), HasSubstr("joins GPUs, and processors are to compute"));
}

// A host with GPUs beside one without: neither is wrong by itself.
TEST_F(Agreement, ranks_on_gpus_and_on_processors_are_no_ranks_of_one_split) {
  EXPECT_THAT(ranks_refusal([](Json& theirs) { theirs["places"][0]["gpu"] = true; }),
              HasSubstr("some ranks of the hosts are GPUs and others processors"));
}

TEST_F(Agreement, places_that_are_none_are_refused) {
  const std::pair<const char*, Json> faults[] = {
      {"has no ranks", Json::array()},
      {"a rank of 0 workers", {{{"workers", 0}, {"share", 1.0}}}},
      {"a rank of 4097 workers", {{{"workers", 4097}, {"share", 1.0}}}},
      {"with a share of 0", {{{"workers", 1}, {"share", 0.0}}}},
      {"with a share of -1", {{{"workers", 1}, {"share", -1.0}}}},
      {"does not understand", {{{"workers", "two"}, {"share", 1.0}}}},
      {"does not understand", 7},
      {"more than", Json(std::vector<Json>(1000, {{"workers", 1}, {"share", 1.0}}))},
  };
  for (const auto& [words, places] : faults) {
    SCOPED_TRACE(words);
    const std::string refusal = ranks_refusal([&](Json& theirs) { theirs["places"] = places; });
    EXPECT_THAT(refusal, HasSubstr(words));
  }
  EXPECT_THAT(ranks_refusal([](Json& theirs) { theirs = Json::array(); }),
              HasSubstr("host 1 (h1:7070) sends what this version does not understand"));
  EXPECT_EQ(ranks_refusal([](Json&) {}), "");
}

TEST_F(Agreement, the_context_is_the_shortest) {
  open_demo();
  ASSERT_TRUE(agree_on_context([](Json& theirs) {
    theirs["pages"] = theirs["pages"].get<size_t>() - 3;
    theirs["context"] = theirs["context"].get<size_t>() - 64;
  }));
  EXPECT_EQ(layout_.plan_options.kv_pages, own_.plan_options.kv_pages - 3);
  EXPECT_EQ(layout_.context_tokens, own_.context_tokens - 64);
  EXPECT_LT(layout_.sizes[0].kv_bytes, own_.sizes[0].kv_bytes);
  EXPECT_FALSE(layout_.plans_digest.empty());
  // Another host that has more changes nothing.
  open_demo();
  ASSERT_TRUE(agree_on_context([](Json& theirs) {
    theirs["pages"] = theirs["pages"].get<size_t>() + 3;
    theirs["context"] = theirs["context"].get<size_t>() + 64;
  }));
  EXPECT_EQ(layout_.plan_options.kv_pages, own_.plan_options.kv_pages);
  EXPECT_EQ(layout_.context_tokens, own_.context_tokens);
}

// Exchanged rows lie in memory that is taken of the memory that its context may take.
TEST_F(Agreement, buffers_of_exchanges_are_counted) {
  open_demo();
  EXPECT_EQ(layout_.host_buffer_bytes, 0U);
  ASSERT_TRUE(agree_on_context([](Json&) {}));
  const HostRanks& ranks = *layout_.hosts;
  const std::vector<Plan> plans = plans_of_hosts(planned_->model, layout_);
  ScriptedGroup group(2, 0, {});
  const HostExchange exchange(group, ranks, plans);
  EXPECT_GT(exchange.bytes_most(), 0U);
  const HostRounds rounds(exchange.plans(), exchange.ranks());
  EXPECT_GT(rounds.token_bytes_most(), 0U);
  EXPECT_EQ(layout_.host_buffer_bytes,  // out and in, and a block from the other host
            2 * exchange.bytes_most() + kExchangedBlockRows * rounds.token_bytes_most());
  EXPECT_EQ(layout_.sizes[0].host_buffer_bytes, layout_.host_buffer_bytes);
  EXPECT_EQ(layout_.sizes[0].own_bytes(),
            layout_.sizes[0].total_bytes() + layout_.host_buffer_bytes);
  // Exactly enough memory is enough, and a byte less is not.
  Machine machine = machine_;
  machine.memory.available_bytes = layout_.sizes[0].own_bytes();
  while (first_misfit(layout_, machine)) machine.memory.available_bytes += 1U << 20U;
  ModelLayout more = layout_;
  more.sizes[0].host_buffer_bytes += 2U << 20U;
  EXPECT_TRUE(first_misfit(more, machine));
  more.sizes[0].host_buffer_bytes = 0;
  machine.memory.available_bytes -= layout_.host_buffer_bytes;
  EXPECT_FALSE(first_misfit(more, machine));
}

// The number of slots says nothing of a model without states, on whichever host.
TEST_F(Agreement, slots_are_of_hosts_with_states) {
  open_demo();
  ASSERT_TRUE(agree_on_context([](Json& theirs) { theirs["slots"] = 1; }));
  EXPECT_EQ(layout_.plan_options.state_slots, 1U);
  open_demo();
  ASSERT_TRUE(agree_on_context([](Json&) {}));
  EXPECT_EQ(layout_.plan_options.state_slots, own_.plan_options.state_slots);
}

TEST_F(Agreement, states_have_as_many_slots_as_the_host_with_the_fewest) {
  open(source_dir() + "/tests/fixtures/families/mamba.gguf");
  ASSERT_TRUE(
      agree_on_context([](Json& theirs) { theirs["slots"] = theirs["slots"].get<size_t>() - 1; }));
  EXPECT_GT(own_.sizes[0].state_bytes, 0U);
  EXPECT_EQ(layout_.plan_options.state_slots, own_.plan_options.state_slots - 1);
  EXPECT_LT(layout_.sizes[0].state_bytes, own_.sizes[0].state_bytes);
}

// The leader was started again and found less memory than before.
TEST_F(Agreement, a_context_that_is_held_is_kept_where_there_is_space) {
  open_demo();
  size_t asked_of_pages = 0;
  const HostContext own = {.fits = [&](const ModelLayout& planned) {
    asked_of_pages = planned.plan_options.kv_pages;
    EXPECT_EQ(planned.sizes[0].kv_bytes / planned.plan_options.kv_pages,
              own_.sizes[0].kv_bytes / own_.plan_options.kv_pages);
    return true;
  }};
  ASSERT_TRUE(agree_on_context(with_more_pages(5, /*held=*/true), own));
  EXPECT_EQ(asked_of_pages, own_.plan_options.kv_pages + 5);
  EXPECT_EQ(layout_.plan_options.kv_pages, own_.plan_options.kv_pages + 5);
  EXPECT_EQ(gatherings_, 3U);
}

TEST_F(Agreement, a_context_that_is_held_goes_where_a_host_has_no_space_for_it) {
  const HostContext has = {.fits = [](const ModelLayout&) { return true; }};
  const HostContext lacks = {.fits = [](const ModelLayout&) { return false; }};
  open_demo();
  ASSERT_TRUE(agree_on_context(with_more_pages(5, true), lacks));
  EXPECT_EQ(layout_.plan_options.kv_pages, own_.plan_options.kv_pages);
  open_demo();
  ASSERT_TRUE(agree_on_context(with_more_pages(5, true), has, /*has_space=*/false));
  EXPECT_EQ(layout_.plan_options.kv_pages, own_.plan_options.kv_pages);
  // The follower's side of both: it holds, and the leader has found less.
  for (const bool has_space : {true, false}) {
    open_demo();
    ASSERT_TRUE(agree_on_context(with_more_pages(-5, false), {.is_held = true}, has_space));
    EXPECT_EQ(layout_.plan_options.kv_pages, own_.plan_options.kv_pages - (has_space ? 0 : 5));
  }
}

// Nobody is asked for space: it is the shortest that counts.
TEST_F(Agreement, contexts_that_no_host_holds_or_that_differ_are_not_kept) {
  const HostContext own = {.fits = [](const ModelLayout&) -> bool { throw "not asked"; }};
  open_demo();
  ASSERT_TRUE(agree_on_context(with_more_pages(5, /*held=*/false), own));
  EXPECT_EQ(layout_.plan_options.kv_pages, own_.plan_options.kv_pages);
  open_demo();
  ASSERT_TRUE(agree_on_context(with_more_pages(5, true), {.is_held = true, .fits = own.fits}));
  EXPECT_EQ(layout_.plan_options.kv_pages, own_.plan_options.kv_pages);
  open_demo();
  ASSERT_TRUE(agree_on_context(with_more_pages(0, true), own));
  EXPECT_EQ(gatherings_, 2U);
}

TEST_F(Agreement, one_hosts_refusal_is_every_hosts) {
  open_demo();
  const auto theirs = agree_on_context([](Json& document) { document["refusal"] = "it is full"; });
  ASSERT_FALSE(theirs);
  EXPECT_EQ(theirs.error().message, "host 1 (h1:7070): it is full");
  open_demo();
  const auto own = agree_on_context([](Json&) {}, {.sized = machine_refused("this one is full")});
  ASSERT_FALSE(own);
  EXPECT_THAT(own.error().message, HasSubstr("this one is full"));
}

TEST_F(Agreement, no_space_at_all_is_a_refusal) {
  for (const char* const key : {"pages", "slots", "context"}) {
    for (const Json& none : {Json(0), Json(-1), Json(uint64_t{1} << 60U), Json(0.5)}) {
      open_demo();
      const auto agreed = agree_on_context([&](Json& theirs) { theirs[key] = none; });
      ASSERT_FALSE(agreed) << key;
      EXPECT_THAT(agreed.error().message, HasSubstr("host 1 (h1:7070) has no space for a context"));
    }
    open_demo();
    const auto odd = agree_on_context([&](Json& theirs) { theirs[key] = "many"; });
    ASSERT_FALSE(odd) << key;
    EXPECT_THAT(odd.error().message, HasSubstr("does not understand"));
  }
}

// A host with no part of the states takes the slots that others say, and a scheduler is made of
// them; and what a host holds is computed with before anybody looks whether there is space.
TEST_F(Agreement, what_a_host_may_say_is_bounded) {
  const std::pair<const char*, Json> faults[] = {
      {"slots", 3},  // for four sequences at once
      {"slots", (size_t{1} << 20U) + 1},
      {"slots", size_t{1} << 36U},
      {"pages", 1},  // fewer than one sequence may take
      {"pages", (size_t{1} << 28U) + 1},
      {"context", (size_t{1} << 30U) + 1},
  };
  for (const auto& [key, value] : faults) {
    for (const bool is_held : {false, true}) {
      SCOPED_TRACE(std::string(key) + " " + value.dump());
      open_demo();
      const auto agreed = agree_on_context(
          [&](Json& theirs) {
            theirs[key] = value;
            theirs["held"] = is_held;
          },
          {.slots_least = 4, .fits = [](const ModelLayout&) { return true; }});
      ASSERT_FALSE(agreed);
      EXPECT_THAT(agreed.error().message, HasSubstr("host 1 (h1:7070) has no space for a context"));
      EXPECT_THAT(agreed.error().message, HasSubstr(value.dump() + " " + key));
    }
  }
  open_demo();
  ASSERT_TRUE(agree_on_context([](Json& theirs) { theirs["slots"] = size_t{1} << 20U; },
                               {.slots_least = 4}));
  EXPECT_EQ(layout_.plan_options.state_slots, size_t{1} << 20U);
}

TEST_F(Agreement, plans_that_differ_are_refused) {
  open_demo();
  ScriptedGroup ranks(2, 0, [](size_t, size_t, const Json& own) { return own; });
  ASSERT_TRUE(agree_on_ranks(ranks));
  ASSERT_TRUE(size_context(planned_->model, planned_->settings, machine_, layout_));
  ScriptedGroup group(2, 0, [](size_t, size_t, const Json& own) {
    Json theirs = own;
    if (theirs.contains("plans")) theirs["plans"] = "others";
    return theirs;
  });
  const auto agreed = lockstep::agree_on_context(group, planned_->model, {}, layout_);
  ASSERT_FALSE(agreed);
  EXPECT_THAT(agreed.error().message, HasSubstr("plans is \"others\" there"));
}

// The second of two hosts, each with a half of a model that neither would hold alone.
class HalfOfAModel : public testing::Test {
 protected:
  HalfOfAModel() {
    machine_.topology.nodes[0].free_bytes = 4 * kGiB;
    machine_.memory.available_bytes = 4 * kGiB;
    options_.devices = "cpu";
    options_.sequence_count = 1;
    options_.context_tokens = 32768;
  }

  Result<void> size() {
    const auto settings = parse(options_, machine_, "scalar");
    EXPECT_TRUE(settings) << settings.error().message;
    auto placed = Placer(model_, *settings, machine_).place();
    EXPECT_TRUE(placed) << placed.error().message;
    layout_ = std::move(*placed);
    layout_.host_name = "host 1 (h1:7070)";
    layout_.hosts = HostRanks{.of_host = {{0, 1}, {1, 2}}, .host = 1};
    layout_.places_of_hosts.assign(2, layout_.places[0]);
    EXPECT_TRUE(split_among_hosts(model_, layout_));
    return size_context(model_, *settings, machine_, layout_);
  }

  Machine machine_ = some_machine();
  const Model model_ = make_model({"8b", 32, 4096, 14336, 32, 8, 128, 128256});
  EngineOptions options_;
  ModelLayout layout_;
};

TEST_F(HalfOfAModel, remedies_are_tried_for_its_part_and_name_the_host) {
  const auto sized = size();
  ASSERT_FALSE(sized);
  const Error error = with_memory_remedies(sized.error(), model_, options_,
                                           **choose_kernel_table("scalar"), machine_, layout_);
  EXPECT_THAT(error.message, HasSubstr("rank 1 needs"));
  EXPECT_THAT(error.message, HasSubstr("for exchanges with other hosts"));
  EXPECT_THAT(error.message, HasSubstr("Use on all hosts --context "));
  EXPECT_THAT(error.message, HasSubstr("a smaller model or more hosts"));
  EXPECT_THAT(error.message, HasSubstr("or free memory on host 1 (h1:7070)"));
  for (const char* const of_one : {"--ranks", "--shares", "--devices"}) {
    EXPECT_THAT(error.message, testing::Not(HasSubstr(of_one)));
  }
  const std::string before = "--context ";
  options_.context_tokens = static_cast<uint32_t>(
      std::stoul(error.message.substr(error.message.find(before) + before.size())));
  EXPECT_TRUE(size());
  options_.context_tokens += kPageTokens;
  EXPECT_FALSE(size());
}

}  // namespace
}  // namespace lockstep
