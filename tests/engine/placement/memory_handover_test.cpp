// Weights and KV memory from one engine to the next: what is taken over, what is refused and why.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/machine/kept_memory.h"
#include "engine/placement/memory_fit.h"
#include "engine/placement/memory_identity.h"
#include "tests/engine/placement/place_model.h"
#include "tests/paths.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

const fs::path kModel = fs::path(source_dir()) / "tests/fixtures/logits/llama-gqa-f16.gguf";

class MemoryHandoverTest : public ::testing::Test {
 protected:
  MemoryHandoverTest() : before_(spdlog::default_logger()) {
    folder_ = fs::temp_directory_path() / fmt::format("lockstep-handover-{}", ::getpid());
    fs::create_directories(folder_);
    options_.model = folder_ / "model.gguf";
    fs::copy_file(kModel, options_.model, fs::copy_options::overwrite_existing);
    options_.worker_count = 1;
    options_.context_tokens = 128;
    options_.keep_memory = MemoryKeeping::kAlways;
    spdlog::set_default_logger(std::make_shared<spdlog::logger>(
        "test", std::make_shared<spdlog::sinks::ostream_sink_mt>(log_)));
  }
  ~MemoryHandoverTest() override {
    spdlog::set_default_logger(before_);
    fs::remove_all(folder_);
  }

  // The engine before is gone when the next one starts, as a process is.
  void start(std::vector<KeptDescriptor> kept = {}) {
    engine_.reset();
    log_.str("");
    auto opened = Engine::open(options_, std::move(kept));
    if (!opened) throw std::runtime_error(opened.error().message);
    engine_ = std::move(*opened);
    if (auto loaded = engine_->load(); !loaded) throw std::runtime_error(loaded.error().message);
  }

  // As the service manager keeps them: descriptors of its own.
  std::vector<KeptDescriptor> stored() const {
    std::vector<KeptDescriptor> kept;
    for (const auto& [name, descriptor] : engine_->memory_to_keep().entries) {
      kept.push_back({name, Descriptor(::dup(descriptor))});
    }
    return kept;
  }
  static KeptDescriptor& named(std::vector<KeptDescriptor>& kept, std::string_view name) {
    return *std::ranges::find(kept, name, &KeptDescriptor::name);
  }

  std::vector<float> logits() {
    const std::vector<TokenId> tokens = {1, 5, 9, 3, 7, 2, 8};
    std::vector<float> all;
    const auto computed = engine_->compute_logits({.sequences = {tokens}},
                                                  [&](size_t, size_t, std::span<const float> row) {
                                                    all.insert(all.end(), row.begin(), row.end());
                                                  });
    EXPECT_TRUE(computed.has_value());
    return all;
  }

  LoadProgress load() const { return engine_->statistics().load; }
  bool took_over() const { return load().bytes_kept > 0 && load().bytes_done == 0; }

  // A change of the world between two starts, after which the weights are read again and the old
  // memory is free.
  void expect_refused(const std::function<void(std::vector<KeptDescriptor>&)>& change,
                      const std::string& reason) {
    SCOPED_TRACE(reason);
    start();
    auto kept = stored();
    const int watched = ::dup(named(kept, "lockstep-weights-0").descriptor.number());
    change(kept);
    start(std::move(kept));
    EXPECT_EQ(load().bytes_kept, 0U);
    EXPECT_GT(load().bytes_done, 0U);
    EXPECT_FALSE(engine_->memory_to_keep().is_kept_already);
    EXPECT_FALSE(engine_->memory_to_keep().entries.empty());
    EXPECT_THAT(log_.str(), HasSubstr("not used"));
    EXPECT_THAT(log_.str(), HasSubstr(reason));
    EXPECT_EQ(examine_memfd(watched)->bytes, 0U);
    ::close(watched);
  }

  // The description, rewritten.
  static void edit(std::vector<KeptDescriptor>& kept, const std::function<void(Json&)>& change) {
    Descriptor& description = named(kept, "lockstep-weights").descriptor;
    Json described = Json::parse(*read_sealed_text(description.number(), 1U << 20U));
    change(described);
    description = std::move(*make_sealed_text("a test", described.dump()));
  }

  fs::path folder_;
  EngineOptions options_;
  std::unique_ptr<Engine> engine_;
  std::ostringstream log_;
  std::shared_ptr<spdlog::logger> before_;
};

TEST_F(MemoryHandoverTest, the_next_engine_reads_nothing_and_computes_the_same_bits) {
  for (const uint32_t ranks : {1U, 2U}) {
    options_.rank_count = ranks;
    start();
    EXPECT_EQ(load().bytes_kept, 0U);
    EXPECT_EQ(engine_->memory_to_keep().entries.size(), 2 * ranks + 1);
    const auto expected = logits();
    for (int round = 0; round < 2; ++round) {
      start(stored());
      EXPECT_TRUE(took_over()) << log_.str();
      EXPECT_TRUE(engine_->memory_to_keep().is_kept_already);
      EXPECT_EQ(logits(), expected);
    }
  }
}

TEST_F(MemoryHandoverTest, without_keeping_nothing_is_kept_and_what_was_is_freed) {
  start();
  auto kept = stored();
  const int watched = ::dup(named(kept, "lockstep-kv-0").descriptor.number());
  options_.keep_memory = MemoryKeeping::kNo;
  start(std::move(kept));
  EXPECT_TRUE(engine_->memory_to_keep().entries.empty());
  EXPECT_GT(load().bytes_done, 0U);
  EXPECT_EQ(examine_memfd(watched)->bytes, 0U);
  ::close(watched);
}

TEST_F(MemoryHandoverTest, another_cache_takes_the_weights_over_and_frees_the_caches_memory) {
  start();
  auto kept = stored();
  const int watched = ::dup(named(kept, "lockstep-kv-0").descriptor.number());
  options_.context_tokens = 192;
  start(std::move(kept));
  EXPECT_TRUE(took_over()) << log_.str();
  EXPECT_FALSE(engine_->memory_to_keep().is_kept_already);
  EXPECT_EQ(engine_->memory_to_keep().entries.size(), 3U);
  EXPECT_EQ(engine_->model().context_tokens, 192U);
  EXPECT_EQ(examine_memfd(watched)->bytes, 0U);
  ::close(watched);
}

TEST_F(MemoryHandoverTest, an_automatic_context_stays_what_it_was) {
  options_.context_tokens = 0;
  options_.sequence_count = 1;
  start();
  const uint32_t context = engine_->model().context_tokens;
  start(stored());
  EXPECT_TRUE(took_over()) << log_.str();
  EXPECT_TRUE(engine_->memory_to_keep().is_kept_already);
  EXPECT_EQ(engine_->model().context_tokens, context);
}

TEST_F(MemoryHandoverTest, another_file_under_the_name_is_read) {
  const auto rewrite = [&](bool keep_time, const std::function<void()>& change) {
    struct stat status {};
    ASSERT_EQ(::stat(options_.model.c_str(), &status), 0);
    change();
    const timespec times[2] = {status.st_atim, status.st_mtim};
    if (keep_time) {
      ASSERT_EQ(::utimensat(AT_FDCWD, options_.model.c_str(), times, 0), 0);
    }
  };
  expect_refused(
      [&](auto&) {
        const timespec times[2] = {{.tv_sec = 5, .tv_nsec = 0}, {.tv_sec = 6, .tv_nsec = 7}};
        ASSERT_EQ(::utimensat(AT_FDCWD, options_.model.c_str(), times, 0), 0);
      },
      "files/0/modified_ns was ");
  expect_refused(
      [&](auto&) {
        rewrite(true, [&] {
          fs::copy_file(options_.model, folder_ / "other.gguf");
          fs::rename(folder_ / "other.gguf", options_.model);
        });
      },
      "files/0/inode was ");
  expect_refused(
      [&](auto&) {
        rewrite(true, [&] { std::ofstream(options_.model, std::ios::app) << "more"; });
      },
      "files/0/bytes was ");
  // A letter of the metadata, in place, and the clock turned back.
  expect_refused(
      [&](auto&) {
        rewrite(true, [&] {
          std::fstream file(options_.model, std::ios::in | std::ios::out | std::ios::binary);
          std::string head(4096, '\0');
          file.read(head.data(), static_cast<std::streamsize>(head.size()));
          const size_t key = head.find("general.name");
          ASSERT_NE(key, std::string::npos);
          // The key, its value's type and length.
          file.seekp(static_cast<std::streamoff>(key + 12 + 4 + 8));
          file.put('Z');
        });
      },
      "files/0/header_sha256 was ");
}

TEST_F(MemoryHandoverTest, another_plan_or_instruction_set_is_read) {
  expect_refused([&](auto&) { options_.rank_count = 2; }, "ranks had 1 entries and has 2");
  expect_refused([&](auto&) { options_.shares = {3, 1}; }, "ranks/0/bytes was ");
  options_.rank_count = 0;
  options_.shares = {};
  expect_refused([&](auto&) { options_.instruction_set = "scalar"; }, "instruction_set was ");
}

TEST_F(MemoryHandoverTest, memory_that_is_not_as_it_was_described_is_refused) {
  const auto arena = [](Json& described) -> Json& { return described["weights"]["arenas"][0]; };
  expect_refused(
      [&](auto& kept) {
        edit(kept, [&](Json& all) { arena(all)["samples_sha256"] = std::string(64, '0'); });
      },
      "samples of lockstep-weights-0 differ");
  expect_refused([&](auto& kept) { edit(kept, [&](Json& all) { arena(all)["bytes"] = 4096; }); },
                 "which is not what was kept");
  expect_refused(
      [&](auto& kept) {
        edit(kept, [&](Json& all) { all["weights"]["identity"]["packing_version"] = 0; });
      },
      "packing_version was 0 and is ");
  expect_refused([&](auto& kept) { edit(kept, [&](Json& all) {
                                     all = {{"weights", 5}};
                                   }); },
                 "damaged");
  expect_refused([&](auto& kept) { edit(kept, [&](Json& all) { all = Json::array(); }); },
                 "damaged");
  expect_refused(
      [&](auto& kept) {  // deeper than any stack
        const std::string deep = std::string(400'000, '[') + std::string(400'000, ']');
        named(kept, "lockstep-weights").descriptor =
            std::move(*make_sealed_text("a test", "{\"weights\": " + deep + "}"));
      },
      "damaged");
  expect_refused([&](auto& kept) { std::swap(kept[0].descriptor, kept[1].descriptor); },
                 "another file");
  expect_refused(
      [&](auto& kept) {
        std::erase_if(kept, [](const auto& it) { return it.name == "lockstep-weights"; });
      },
      "nothing describes it");
  expect_refused(
      [&](auto& kept) {
        Descriptor& description = named(kept, "lockstep-weights").descriptor;
        description = Descriptor(::memfd_create("a test", MFD_ALLOW_SEALING));
      },
      "not a sealed memfd");
}

TEST_F(MemoryHandoverTest, a_store_without_an_arena_is_refused_and_the_rest_is_freed) {
  options_.rank_count = 2;
  expect_refused(
      [&](auto& kept) {
        std::erase_if(kept, [](const auto& it) { return it.name == "lockstep-weights-1"; });
      },
      "lockstep-weights-1 is missing");
}

TEST(MemoryIdentity, every_field_counts_and_is_named) {
  const Json wanted = {{"a", 1}, {"list", {{{"b", 2}, {"c", "x"}}, {{"b", 3}, {"c", "y"}}}}};
  EXPECT_FALSE(first_difference(wanted, wanted).has_value());
  Json kept = wanted;
  kept["a"] = 2;
  EXPECT_EQ(first_difference(kept, wanted), "a was 2 and is 1");
  kept = wanted;
  kept["list"][1]["c"] = "z";
  EXPECT_EQ(first_difference(kept, wanted), "list/1/c was \"z\" and is \"y\"");
  kept = wanted;
  kept["list"].erase(0);
  EXPECT_EQ(first_difference(kept, wanted), "list had 1 entries and has 2");
  kept = wanted;
  kept["more"] = 1;
  EXPECT_TRUE(first_difference(kept, wanted).has_value());
  kept.erase("more");
  kept.erase("a");
  EXPECT_EQ(first_difference(kept, wanted), "a was absent and is 1");
  EXPECT_TRUE(first_difference(nullptr, wanted).has_value());
}

// Memory that is there already is not asked for twice: a node that has space for the activations
// alone takes the model if an earlier process's weights and cache lie there.
TEST(ModelLayout, what_is_held_needs_no_space) {
  auto file = GgufFile::open(kModel);
  ASSERT_TRUE(file.has_value());
  auto model = build_model({.file = *file});
  ASSERT_TRUE(model.has_value());
  EngineOptions options;
  options.context_tokens = 256;
  options.rank_count = 1;
  const Machine machine = Machine::read(/*with_gpus=*/false);
  auto layout = place_model(*model, options, machine);
  ASSERT_TRUE(layout.has_value()) << layout.error().message;
  Machine full = machine;
  std::vector<Node>& nodes = full.topology.nodes;
  Node other = nodes.front();
  other.id = 77;
  other.free_bytes = 0;
  nodes.push_back(other);  // of several nodes their own figures count
  const auto& sizes = layout->sizes.front();
  const uint64_t space = sizes.activation_bytes() + (16U << 20U);
  layout->sizes.front().weight_bytes = space + (64U << 20U);
  nodes.front().free_bytes = nodes.front().memory_bytes / 256 + (64U << 20U) + space;
  for (Node& node : nodes) node.pools.clear();
  if (layout->places.front().node < 0) GTEST_SKIP() << "the machine does not say its nodes";
  EXPECT_TRUE(first_misfit(*layout, full).has_value());
  layout->weights_held = true;
  EXPECT_FALSE(first_misfit(*layout, full).has_value());
  layout->sizes.front().kv_bytes = space + (64U << 20U);
  EXPECT_TRUE(first_misfit(*layout, full).has_value());
  layout->kv_pages_held = 4;
  EXPECT_FALSE(first_misfit(*layout, full).has_value());
}

}  // namespace
}  // namespace lockstep
