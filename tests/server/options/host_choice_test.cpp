// A host's place among several: from options, and from what a LeaderWorkerSet says.
#include "server/options/host_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/temporary_folder.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Environment = std::vector<std::pair<std::string, std::string>>;

const Environment kSet = {{"HOME", "/"},
                          {"LWS_LEADER_ADDRESS", "set-0.set.default"},
                          {"LWS_GROUP_SIZE", "3"},
                          {"LWS_WORKER_INDEX", "2"}};

HostOptions chosen(const GivenHosts& given, const Environment& environment = {}) {
  auto hosts = choose_hosts(given, environment);
  EXPECT_TRUE(hosts) << hosts.error().message;
  return hosts ? *std::move(hosts) : HostOptions();
}

std::string refusal(const GivenHosts& given, const Environment& environment = {}) {
  const auto hosts = choose_hosts(given, environment);
  if (hosts) return "";
  EXPECT_EQ(hosts.error().kind, ErrorKind::kInvalidInput);
  return hosts.error().message;
}

GivenHosts two_hosts() {
  return {.addresses = {"a:1", "b:2"}, .index = 1};
}

TEST(HostChoice, a_host_is_alone_unless_told_otherwise) {
  for (const GivenHosts& given :
       {GivenHosts{}, GivenHosts{.count = 1}, GivenHosts{.addresses = {"a:1"}, .index = 0},
        // An index, a secret or a leader alone makes no group.
        GivenHosts{.leader = "a:1", .index = 4, .secret_file = "/nowhere"}}) {
    const HostOptions hosts = chosen(given);
    EXPECT_EQ(hosts.count, 1U);
    EXPECT_TRUE(hosts.leads());
    EXPECT_FALSE(hosts.secret.has_value());
    EXPECT_THAT(hosts.addresses, ElementsAre());
  }
  EXPECT_EQ(chosen({}, {{"LWS_GROUP_SIZE", "1"}}).count, 1U);
}

TEST(HostChoice, all_addresses_say_how_many_there_are) {
  GivenHosts given = two_hosts();
  given.silent_seconds = 1.5;
  const HostOptions hosts = chosen(given);
  EXPECT_EQ(hosts.count, 2U);
  EXPECT_EQ(hosts.index, 1U);
  EXPECT_THAT(hosts.addresses, ElementsAre("a:1", "b:2"));
  EXPECT_EQ(hosts.patience, std::chrono::milliseconds(1500));
  EXPECT_FALSE(hosts.version.empty());
  EXPECT_EQ(hosts.transport, "tcp");
  EXPECT_FALSE(hosts.may_be_insecure);
  given.count = 2;
  EXPECT_EQ(chosen(given).count, 2U);
  given.count = 3;
  EXPECT_THAT(refusal(given), HasSubstr("--host-count is 3, but --hosts names 2"));
}

TEST(HostChoice, a_count_needs_the_leaders_address) {
  EXPECT_THAT(refusal({.count = 2, .index = 0}), HasSubstr("--leader NAME:PORT"));
  const HostOptions hosts = chosen({.count = 4, .leader = "a:1", .index = 3});
  EXPECT_EQ(hosts.count, 4U);
  EXPECT_EQ(hosts.index, 3U);
  EXPECT_THAT(hosts.addresses, ElementsAre("a:1"));
}

TEST(HostChoice, an_index_is_one_of_the_hosts) {
  GivenHosts given = two_hosts();
  given.index.reset();
  EXPECT_THAT(refusal(given), HasSubstr("Give --host-index 0 (the leader) to 1"));
  given.index = 2;
  EXPECT_THAT(refusal(given), HasSubstr("--host-index is 2, but there are 2 hosts: 0 to 1"));
}

TEST(HostChoice, a_leader_worker_set_says_all_of_it) {
  const HostOptions hosts = chosen({}, kSet);
  EXPECT_EQ(hosts.count, 3U);
  EXPECT_EQ(hosts.index, 2U);
  EXPECT_THAT(hosts.addresses, ElementsAre("set-0.set.default:7070"));
}

TEST(HostChoice, options_go_before_a_leader_worker_set) {
  const HostOptions hosts = chosen({.count = 2, .leader = "a:1", .index = 1}, kSet);
  EXPECT_EQ(hosts.count, 2U);
  EXPECT_EQ(hosts.index, 1U);
  EXPECT_THAT(hosts.addresses, ElementsAre("a:1"));
  EXPECT_THAT(chosen(two_hosts(), kSet).addresses, ElementsAre("a:1", "b:2"));
  EXPECT_EQ(chosen({.count = 1}, kSet).count, 1U);
}

TEST(HostChoice, what_a_leader_worker_set_says_is_checked) {
  for (const std::string number : {"", "-1", "3 ", "three", "99999999999999999999"}) {
    SCOPED_TRACE(number);
    EXPECT_THAT(refusal({}, {{"LWS_GROUP_SIZE", number}}),
                HasSubstr("LWS_GROUP_SIZE is no number"));
    Environment set = kSet;
    set.back().second = number;
    EXPECT_THAT(refusal({}, set), HasSubstr("LWS_WORKER_INDEX is no number"));
  }
  Environment set = kSet;
  set.back().second = "3";
  EXPECT_THAT(refusal({}, set), HasSubstr("--host-index is 3"));
  EXPECT_THAT(refusal({}, {{"LWS_GROUP_SIZE", "2"}}), HasSubstr("--leader"));
  EXPECT_THAT(refusal({}, {{"LWS_GROUP_SIZE", "2"}, {"LWS_LEADER_ADDRESS", "a"}}),
              HasSubstr("--host-index"));
}

TEST(HostChoice, a_group_has_a_name_that_all_its_hosts_come_to) {
  EXPECT_EQ(chosen(two_hosts()).group, "a:1,b:2");
  EXPECT_EQ(chosen({}, kSet).group, "set-0.set.default");
  EXPECT_EQ(chosen(two_hosts(), kSet).group, "set-0.set.default");
  // The leader's address alone may be another one on each host.
  EXPECT_EQ(chosen({.count = 2, .leader = "a:1", .index = 1}).group, "");
  GivenHosts given = two_hosts();
  given.group = "night\nshift";
  EXPECT_EQ(chosen(given, kSet).group, "night shift");  // as it is told in a line of a log
  std::vector<std::string> groups;
  for (const char last : {'x', 'y'}) {
    given.group = std::string(5000, 'x') + last;
    groups.push_back(chosen(given).group);
    EXPECT_LE(groups.back().size(), 256U);
  }
  EXPECT_NE(groups[0], groups[1]);
}

class HostSecret : public testing::Test {
 protected:
  GivenHosts given(const std::string& text) const {
    const auto path = folder_ / "secret";
    std::ofstream(path, std::ios::binary) << text;
    std::filesystem::permissions(path, std::filesystem::perms(0600));
    GivenHosts given = two_hosts();
    given.secret_file = path;
    return given;
  }

  const test::Folder folder_;
};

TEST_F(HostSecret, is_what_the_file_holds_without_the_ends_of_lines) {
  const auto secret = chosen(given("0123456789abcdef")).secret;
  ASSERT_TRUE(secret.has_value());
  EXPECT_EQ(chosen(given("0123456789abcdef\n")).secret, secret);
  EXPECT_EQ(chosen(given("0123456789abcdef\r\n")).secret, secret);
  EXPECT_NE(chosen(given("0123456789abcdeF")).secret, secret);
  EXPECT_NE(chosen(given(" 0123456789abcdef")).secret, secret);
  EXPECT_TRUE(chosen(given(std::string(4096, 'x'))).secret.has_value());
}

TEST_F(HostSecret, is_long_enough_and_not_too_long) {
  EXPECT_THAT(refusal(given("")), HasSubstr("has 0 bytes; it must have 16 to 4096"));
  EXPECT_THAT(refusal(given("0123456789abcde\n")), HasSubstr("has 15 bytes"));
  EXPECT_THAT(refusal(given(std::string(4097, 'x'))), HasSubstr("has 4097 bytes"));
}

TEST_F(HostSecret, is_a_file_that_others_cannot_change) {
  GivenHosts one = given("0123456789abcdef");
  std::filesystem::permissions(one.secret_file, std::filesystem::perms(0620));
  EXPECT_THAT(refusal(one), HasSubstr("--hosts-secret"));
  one.secret_file = folder_ / "none";
  EXPECT_THAT(refusal(one), HasSubstr("none"));
}

TEST(HostChoice, a_transport_is_taken_as_it_is_given) {
  for (const std::string transport : {"ucx", "mpi", "nccl"}) {
    GivenHosts given = two_hosts();
    given.transport = transport;
    EXPECT_EQ(chosen(given).transport, transport);
    EXPECT_FALSE(chosen(given).may_be_insecure);  // the engine asks for it
    given.insecure = true;
    EXPECT_TRUE(chosen(given).may_be_insecure);
  }
}

TEST(HostChoice, launchers_say_how_many_hosts_there_are_and_which_this_is) {
  const Environment launched[] = {
      {{"OMPI_COMM_WORLD_SIZE", "3"}, {"OMPI_COMM_WORLD_RANK", "2"}, {"SLURM_NTASKS", "9"}},
      {{"PMI_SIZE", "3"}, {"PMI_RANK", "2"}, {"SLURM_PROCID", "0"}},
      {{"SLURM_NTASKS", "3"}, {"SLURM_PROCID", "2"}}};
  for (const Environment& environment : launched) {
    for (const std::string transport : {"tcp", "mpi"}) {
      const HostOptions hosts =
          chosen({.leader = "a:1", .insecure = true, .transport = transport}, environment);
      EXPECT_EQ(hosts.count, 3U);
      EXPECT_EQ(hosts.index, 2U);
    }
    EXPECT_EQ(chosen({.addresses = {"a:1", "b:1", "c:1"}}, environment).index, 2U);
    // Options go before it.
    const HostOptions hosts = chosen({.count = 5, .leader = "a:1", .index = 4}, environment);
    EXPECT_EQ(hosts.count, 5U);
    EXPECT_EQ(hosts.index, 4U);
    EXPECT_THAT(refusal({.insecure = true, .transport = "mpi"}, environment),
                HasSubstr("--leader NAME:PORT"));
    // Daemons that a launcher has started and that know of no others serve by themselves.
    EXPECT_EQ(chosen({}, environment).count, 1U);
  }
  EXPECT_THAT(refusal({.leader = "a:1"}, {{"PMI_SIZE", "x"}}), HasSubstr("PMI_SIZE is no number"));
}

}  // namespace
}  // namespace lockstep
