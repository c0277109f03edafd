// How NCCL joins the GPUs of several hosts: the id that the leader hands out, and refusals.
#include "engine/runtime/hosts/nccl_among_hosts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "tests/engine/collectives/cuda/host_nccl.h"
#include "tests/engine/hosts/test_hosts.h"
#include "tests/engine/placement/scripted_group.h"
#include "tests/engine/runtime/test_gpus.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::chrono::seconds kDeadline{20};
constexpr auto kShort = std::chrono::milliseconds(100);

HostRanks two_hosts(size_t host) {
  return {.of_host = {{0, 1}, {1, 2}}, .host = host};
}

// The refusal of a follower, to which the leader says what a right one does but for a change.
std::string refusal_of(const std::function<void(Json&)>& change) {
  const GpuPlatform platform = test_gpus_by_nccl();
  ScriptedGroup group(2, 1, [&](size_t, size_t, const Json& own) {
    Json leaders = own;
    leaders["id"] = nccl_id_text({});
    change(leaders);
    return leaders;
  });
  NcclAmongHosts nccl(platform, {0}, two_hosts(1));
  const auto joined = nccl.join(group, kShort);
  return joined ? "" : joined.error().message;
}

TEST(HostNcclJoin, an_id_is_read_as_it_was_written) {
  const auto id = make_host_nccl_id();
  ASSERT_TRUE(id.has_value());
  const auto read = read_nccl_id(nccl_id_text(*id));
  ASSERT_TRUE(read.has_value()) << read.error().message;
  EXPECT_EQ(*read, *id);
}

TEST(HostNcclJoin, what_is_no_id_is_refused_with_the_leaders_name) {
  host_nccl().reset();
  const std::string whole = nccl_id_text({});
  for (const Json& sent : {Json(""), Json(whole.substr(2)), Json(whole + "00"), Json(7), Json(),
                           Json("zz" + whole.substr(2)), Json("-1" + whole.substr(2))}) {
    SCOPED_TRACE(to_text(sent));
    EXPECT_THAT(refusal_of([&](Json& document) { document["id"] = sent; }),
                AllOf(HasSubstr("host 0 (h0:7070): an id for NCCL"), HasSubstr("came")));
  }
  EXPECT_THAT(refusal_of([](Json& document) { document.erase("id"); }), HasSubstr("of 0 digits"));
  EXPECT_EQ(host_nccl().counts().joined, 0U);
}

TEST(HostNcclJoin, other_versions_refusals_and_nonsense_are_told_with_the_hosts_name) {
  EXPECT_THAT(refusal_of([](Json& document) { document["nccl"] = "2.19.3"; }),
              AllOf(HasSubstr("host 0 (h0:7070) has NCCL 2.19.3"),
                    HasSubstr("host 1 (h1:7070) has"), HasSubstr("of tests")));
  EXPECT_THAT(refusal_of([](Json& document) { document["refusal"] = "without NCCL"; }),
              HasSubstr("host 0 (h0:7070): without NCCL"));
  for (const Json& sent : {Json(7), Json::object(), Json({{"nccl", 1}, {"refusal", ""}})}) {
    EXPECT_THAT(refusal_of([&](Json& document) { document = sent; }),
                HasSubstr("host 0 (h0:7070) sends what this version does not understand"));
  }
}

TEST(HostNcclJoin, a_host_that_does_not_come_is_named_and_ends_the_group) {
  host_nccl().reset();
  const GpuPlatform platform = test_gpus_by_nccl();
  ScriptedGroup group(2, 0, [](size_t, size_t, const Json& own) { return own; });
  NcclAmongHosts nccl(platform, {0}, two_hosts(0));
  const auto joined = nccl.join(group, kShort);
  ASSERT_FALSE(joined.has_value());
  EXPECT_THAT(joined.error().message,
              AllOf(HasSubstr("with those of host 1 (h1:7070)"), HasSubstr("NCCL_SOCKET_IFNAME")));
  EXPECT_EQ(group.failure()->message, joined.error().message);
}

TEST(HostNcclJoin, a_wait_for_ranks_ends_with_the_group) {
  host_nccl().reset();
  const GpuPlatform platform = test_gpus_by_nccl();
  auto groups = test::form_group(2);
  const auto begin = std::chrono::steady_clock::now();
  std::thread other([&] {
    // It says all that is asked, and ends before it has joined.
    const auto all = groups[1]->gather({{"nccl", "of tests"}, {"refusal", ""}, {"id", ""}});
    EXPECT_TRUE(all.has_value());
    groups[1].reset();
  });
  NcclAmongHosts nccl(platform, {0}, two_hosts(0));
  const auto joined = nccl.join(*groups[0], kDeadline);
  other.join();
  ASSERT_FALSE(joined.has_value());
  EXPECT_THAT(joined.error().message, AllOf(HasSubstr("host 1"), HasSubstr("has left")));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, kDeadline / 2);
}

// Two hosts' ranks as one communicator, and a new one for a second group.
TEST(HostNcclJoin, a_group_that_fails_aborts_what_waits_and_the_next_has_another) {
  host_nccl().reset();
  const GpuPlatform platform = test_gpus_by_nccl();
  NcclAmongHosts nccl[] = {{platform, {0}, two_hosts(0)}, {platform, {1}, two_hosts(1)}};
  for (int round = 0; round < 2; ++round) {
    auto groups = test::form_group(2);
    const auto on_both = [&](const std::function<void(size_t)>& work) {
      std::thread other([&] { work(1); });
      work(0);
      other.join();
    };
    on_both([&](size_t host) {
      const auto joined = nccl[host].join(*groups[host], kDeadline);
      ASSERT_TRUE(joined.has_value()) << joined.error().message;
    });
    float values[] = {1, 2};
    float sums[] = {0, 0};
    on_both(
        [&](size_t host) { nccl[host].all_reduce(host, nullptr, &values[host], &sums[host], 1); });
    EXPECT_EQ(sums[0], 3);
    EXPECT_EQ(sums[1], 3);
    ASSERT_TRUE(nccl[0].check(0).has_value());
    // Host 1 does not come to the next sum: host 0 waits until the group fails.
    const auto begin = std::chrono::steady_clock::now();
    std::thread waiting([&] { nccl[0].all_reduce(0, nullptr, &values[0], &sums[0], 1); });
    groups[1]->fail({ErrorKind::kMachineRefused, "it does not like this"});
    waiting.join();
    EXPECT_LT(std::chrono::steady_clock::now() - begin, kDeadline / 2);
    const auto checked = nccl[0].check(0);
    ASSERT_FALSE(checked.has_value());
    EXPECT_THAT(checked.error().message, AllOf(HasSubstr("host 1"), HasSubstr("does not like")));
  }
  EXPECT_EQ(host_nccl().counts().joined, 4U);
}

}  // namespace
}  // namespace lockstep
