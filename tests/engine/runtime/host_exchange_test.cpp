// Invariant: ranks may be on several hosts: the same bits as by one rank (gather).
#include "engine/runtime/hosts/host_exchange.h"

#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include "engine/base/json.h"
#include "tests/engine/runtime/loopback_hosts.h"
#include "tests/engine/runtime/predicting_model.h"
#include "tests/engine/runtime/quantized_copy.h"
#include "tests/engine/runtime/random_model.h"
#include "tests/engine/runtime/rank_answers.h"
#include "tests/paths.h"
#include "tests/temporary_folder.h"

namespace lockstep {
namespace {

struct Cluster {
  std::vector<double> shares;  // of all ranks
  std::vector<size_t> ranks_of_hosts;
  size_t workers = 1;
};

const Cluster kClusters[] = {
    {{1, 1}, {1, 1}},
    {{3, 1}, {1, 1}, 2},
    {{1, 3}, {1, 1}},
    {{1, 1, 2}, {2, 1}},
    {{2, 1, 1}, {1, 1, 1}, 2},
    {{1, 1, 1, 1}, {1, 3}},
    {{1, 2, 1, 1}, {1, 1, 1, 1}},
};

// Runs `work` on every host at once, and gives what the leader's returns.
using Work = std::function<LogitRows(LoadedModel&)>;
using Build = Model (*)(const std::string& path);
// `build`: makes the model, if that is not the file's.
LogitRows run_on(LoopbackHosts& hosts, const std::string& path, const Cluster& cluster,
                 LoadedModelOptions options, const Work& work, Build build = nullptr) {
  options.shares = cluster.shares;
  options.ranks_of_hosts = cluster.ranks_of_hosts;
  options.workers = cluster.workers;
  LogitRows found;
  std::vector<std::exception_ptr> thrown(cluster.ranks_of_hosts.size());
  {
    std::vector<std::jthread> threads;
    for (size_t host = 0; host < thrown.size(); ++host) {
      threads.emplace_back([&, host, own = options]() mutable {
        try {
          own.hosts = &hosts.group(host);
          const auto model = build == nullptr
                                 ? std::make_unique<LoadedModel>(path, own)
                                 : std::make_unique<LoadedModel>(path, build(path), own);
          LogitRows rows = work(*model);
          if (host == 0) found = std::move(rows);
        } catch (...) {
          thrown[host] = std::current_exception();
          hosts.cut();
        }
      });
    }
  }
  for (const std::exception_ptr& exception : thrown) {
    if (exception) std::rethrow_exception(exception);
  }
  return found;
}

LogitRows run_on_hosts(const std::string& path, const Cluster& cluster,
                       const LoadedModelOptions& options, const Work& work, Build build = nullptr) {
  LoopbackHosts hosts(cluster.ranks_of_hosts.size());
  LogitRows found = run_on(hosts, path, cluster, options, work, build);
  for (size_t host = 0; host < cluster.ranks_of_hosts.size(); ++host) {
    EXPECT_GT(hosts.sent_bytes(host), 0U);
  }
  return found;
}

LogitRows all_rows(LoadedModel& model) {
  Answers answers = compute_answers(model);
  LogitRows rows = std::move(answers.prompt);
  for (LogitRows* more : {&answers.generated, &answers.among_others}) {
    rows.insert(rows.end(), more->begin(), more->end());
  }
  return rows;
}

void expect_same_on_hosts(const std::string& path, const LoadedModelOptions& options = {}) {
  LogitRows expected;
  {
    LoadedModel alone(path, options);
    expected = all_rows(alone);
  }
  for (const Cluster& cluster : kClusters) {
    SCOPED_TRACE(fmt::format("shares {} on hosts with {} ranks", fmt::join(cluster.shares, ":"),
                             fmt::join(cluster.ranks_of_hosts, ", ")));
    expect_same_bits(run_on_hosts(path, cluster, options, all_rows), expected);
  }
}

TEST(HostExchange, gives_the_bits_of_one_rank) {
  const RandomModel dense(Format::kQ8_0, Format::kF16, /*seed=*/23);
  for (const Profile profile : {Profile::kFast, Profile::kExact}) {
    for (const bool generated : {false, true}) {
      expect_same_on_hosts(dense.path(), {.profile = profile, .generated = generated});
    }
  }
}

TEST(HostExchange, gives_them_of_a_mixture) {
  const RandomModel mixture(Format::kQ4_0, Format::kQ8_0, /*seed=*/23, {.count = 6, .used = 2});
  expect_same_on_hosts(mixture.path());
  expect_same_on_hosts(mixture.path(), {.generated = true});
}

// Rows travel in blocks while steps compute: tasks of products have 64 of them, and a block may be
// a part of one, or parts of two.
TEST(HostExchange, gives_them_in_blocks_of_any_size) {
  const RandomModel dense(Format::kQ8_0, Format::kF16, /*seed=*/23);
  const RandomModel mixture(Format::kQ4_0, Format::kQ8_0, /*seed=*/23, {.count = 6, .used = 2});
  for (const size_t block_rows : {1, 7, 33, 64, 100}) {
    SCOPED_TRACE(block_rows);
    expect_same_on_hosts(dense.path(), {.block_rows = block_rows});
  }
  expect_same_on_hosts(dense.path(), {.profile = Profile::kExact, .block_rows = 20});
  expect_same_on_hosts(mixture.path(), {.block_rows = 20});
}

// In a process of its own each: tests/server.
TEST(HostExchange, gives_them_over_every_transport) {
  const RandomModel dense(Format::kQ8_0, Format::kF16, /*seed=*/23);
  LoadedModel alone(dense.path(), {});
  const LogitRows expected = all_rows(alone);
  for (const HostTransport& transport : host_transports()) {
    if (transport.joins_gpus || transport.name == "mpi" || !transport.obstacle().empty()) continue;
    for (const Cluster& cluster : kClusters) {
      SCOPED_TRACE(fmt::format("{}, hosts with {} ranks", transport.name,
                               fmt::join(cluster.ranks_of_hosts, ", ")));
      LoopbackHosts hosts(cluster.ranks_of_hosts.size(), transport);
      expect_same_bits(run_on(hosts, dense.path(), cluster, {.block_rows = 20}, all_rows),
                       expected);
    }
  }
}

TEST(HostExchange, gives_them_where_a_pass_has_both_kinds_of_tokens) {
  const RandomModel dense(Format::kQ4_K, Format::kF32, /*seed=*/7);
  const Work work = [](LoadedModel& model) {
    const auto tokens = some_tokens(40, 2);
    auto one = model.new_sequence(40);
    auto other = model.new_sequence(40);
    LogitRows rows =
        model.compute(std::vector<LoadedModel::Piece>{{one, std::span(tokens).first(3)}}, 0);
    const std::vector<LoadedModel::Piece> mixed = {{one, std::span(tokens).subspan(3, 2)},
                                                   {other, tokens}};
    for (auto& row : model.compute(mixed, 2)) rows.push_back(std::move(row));
    return rows;
  };
  LoadedModel alone(dense.path(), {});
  const LogitRows expected = work(alone);
  for (const Cluster& cluster : kClusters) {
    expect_same_bits(run_on_hosts(dense.path(), cluster, {}, work), expected);
  }
}

TEST(HostExchange, gives_them_of_hidden_rows) {
  const RandomModel dense(Format::kQ8_0, Format::kF16, /*seed=*/5);
  const Work work = [](LoadedModel& model) {
    const auto tokens = some_tokens(20, 2);
    model.compute_alone(tokens, 128);
    LogitRows rows = model.hidden_rows(2, 17);
    rows.push_back(model.hidden_row(3));
    rows.push_back(model.hidden_row(19));
    rows.push_back(model.hidden_row(19, HiddenForm::kResidual));
    return rows;
  };
  LoadedModel alone(dense.path(), {});
  const LogitRows expected = work(alone);
  for (const Cluster& cluster : kClusters) {
    expect_same_bits(run_on_hosts(dense.path(), cluster, {}, work), expected);
  }
}

// Every family's fixture, and its copy in Q8_0, on two hosts of which one has two ranks.
class HostFamilies : public testing::TestWithParam<bool> {};

TEST_P(HostFamilies, have_the_bits_of_one_rank) {
  const std::string folder = source_dir() + "/tests/fixtures/families/";
  std::ifstream index(folder + "index.json");
  const test::Folder copies;
  const auto models = nlohmann::json::parse(index).at("models");
  ASSERT_GT(models.size(), 50U);
  for (const auto& model : models) {
    std::string path = folder + model.at("file").get<std::string>();
    const std::string name = model.at("name").get<std::string>();
    SCOPED_TRACE(name);
    if (GetParam()) {
      const std::string copy = copies / "copy.gguf";
      write_quantized_copy(path, copy);
      path = copy;
    }
    const auto tokens = model.at("sequences").back().at("tokens").get<std::vector<TokenId>>();
    const Work work = [&](LoadedModel& loaded) {
      LogitRows rows = loaded.compute_alone(tokens, 7);
      for (auto& row : loaded.compute_alone(tokens, 128)) rows.push_back(std::move(row));
      loaded.set_generated(true);
      for (auto& row : loaded.compute_alone(std::span(tokens).first(3), 1)) {
        rows.push_back(std::move(row));
      }
      loaded.set_generated(false);
      return rows;
    };
    const LoadedModelOptions options = {.context_tokens = model.value("context", size_t{0}),
                                        .block_rows = 3};
    LoadedModel alone(path, options);
    const LogitRows expected = work(alone);
    const Cluster cluster = {{2, 1, 1}, {2, 1}};
    expect_same_bits(run_on_hosts(path, cluster, options, work), expected);
  }
}

// Their batches have rows that are given with tokens.
TEST(HostExchange, gives_them_of_blocks_that_predict_further_tokens) {
  const std::string folder = source_dir() + "/tests/fixtures/predicting/";
  std::ifstream index(folder + "index.json");
  const auto tokens = some_tokens(20, 2);
  const Work work = [&](LoadedModel& block) {
    LogitRows rows = block.compute_alone(tokens, 20);
    if (block.plan().hidden.width > 0)
      rows.push_back(block.hidden_row(7, block.model().given.form));
    return rows;
  };
  const auto models = nlohmann::json::parse(index).at("models");
  ASSERT_FALSE(models.empty());
  for (const auto& model : models) {
    const std::string path = folder + model.at("file").get<std::string>();
    SCOPED_TRACE(path);
    LoadedModel alone(path, predicting_block(path), {});
    const LogitRows expected = work(alone);
    for (const Cluster& cluster : {Cluster{{2, 1, 1}, {2, 1}}, Cluster{{1, 1}, {1, 1}, 2}}) {
      expect_same_bits(run_on_hosts(path, cluster, {}, work, predicting_block), expected);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Of, HostFamilies, testing::Bool(), [](const auto& test) {
  return test.param ? "copies_in_q8_0" : "fixtures";
});

// A lost host is told, by all that were to hear from it; the pass comes to an end.
TEST(HostExchange, fails_where_a_link_is_cut) {
  const RandomModel dense(Format::kQ8_0, Format::kF16, /*seed=*/23);
  LoopbackHosts hosts(2);
  LoadedModelOptions options = {.shares = {1, 1}, .ranks_of_hosts = {1, 1}};
  options.hosts = &hosts.group(0);
  LoadedModel model(dense.path(), options);
  std::jthread other([&] { hosts.cut(); });
  const auto tokens = some_tokens(10, 2);
  EXPECT_THROW(model.compute_alone(tokens, 128), std::runtime_error);
  EXPECT_THROW(model.compute_alone(tokens, 128), std::runtime_error);  // for good
  ASSERT_TRUE(hosts.group(0).failure().has_value());
  EXPECT_EQ(hosts.group(0).failure()->message, "a host of the test is lost: the link is cut");
}

LoadedModelOptions in_blocks(LoopbackHosts& hosts, size_t host) {
  LoadedModelOptions options = {.shares = {1, 1}, .ranks_of_hosts = {1, 1}, .block_rows = 5};
  options.hosts = &hosts.group(host);
  return options;
}

// The bytes that the second of two hosts sends in a pass of a prompt, whose rows travel in blocks
// of 5.
size_t bytes_of_a_prompt(const std::string& path) {
  LoopbackHosts hosts(2);
  std::vector<std::jthread> threads;
  for (size_t host = 0; host < 2; ++host) {
    threads.emplace_back([&, host] {
      LoadedModel model(path, in_blocks(hosts, host));
      model.compute_alone(some_tokens(70, 2), 128);
    });
  }
  threads.clear();
  return hosts.sent_bytes(1);
}

// The reasons for which both hosts' passes of such a prompt fail; empty: one has not failed.
std::vector<std::string> failures_of_a_prompt(LoopbackHosts& hosts, const std::string& path) {
  std::vector<std::string> failures(2);
  std::vector<std::jthread> threads;
  for (size_t host = 0; host < 2; ++host) {
    threads.emplace_back([&, host] {
      LoadedModel model(path, in_blocks(hosts, host));
      EXPECT_THROW(model.compute_alone(some_tokens(70, 2), 128), std::runtime_error);
      if (const auto failure = hosts.group(host).failure()) failures[host] = failure->message;
    });
  }
  threads.clear();
  return failures;
}

TEST(HostExchange, fails_where_a_link_is_cut_between_two_blocks) {
  const RandomModel dense(Format::kQ8_0, Format::kF16, /*seed=*/23);
  const size_t all = bytes_of_a_prompt(dense.path());
  ASSERT_GT(all, 1000U);
  for (size_t part = 0; part < 8; ++part) {
    LoopbackHosts hosts(2);
    hosts.cut_behind(1, all * (2 * part + 1) / 16);
    for (const std::string& failure : failures_of_a_prompt(hosts, dense.path())) {
      EXPECT_EQ(failure, "a host of the test is lost: the link is cut") << part;
    }
  }
}

// Waits are bounded, and the host is named from which nothing comes.
TEST(HostExchange, fails_where_blocks_do_not_come) {
  const RandomModel dense(Format::kQ8_0, Format::kF16, /*seed=*/23);
  LoopbackHosts hosts(2, std::chrono::milliseconds(300));
  hosts.lose_pieces(1);
  const std::vector<std::string> failures = failures_of_a_prompt(hosts, dense.path());
  EXPECT_EQ(failures[0], "a host of the test is lost: no byte has moved for 300 ms");
  EXPECT_THAT(failures[1], testing::StartsWith("a host of the test is lost: "));
}

}  // namespace
}  // namespace lockstep
