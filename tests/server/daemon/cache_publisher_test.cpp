// KV events as subscribers get them, without a network.
#include "server/daemon/cache_publisher.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace lockstep {
namespace {

struct Sent {
  std::string topic;
  std::string number;
  Json batch;
};

// Keeps what is sent; refuses messages while `refuses`.
class KeptMessages final : public EventSocket {
 public:
  KeptMessages(std::vector<Sent>& sent, bool refuses) : sent_(sent), refuses_(refuses) {}
  bool send(std::string_view topic, std::string_view number, std::string_view payload) override {
    if (refuses_) return false;
    sent_.push_back({std::string(topic), std::string(number), Json::from_msgpack(payload)});
    return true;
  }
  std::string endpoint() const override { return "tcp://127.0.0.1:1"; }

 private:
  std::vector<Sent>& sent_;
  const bool refuses_;
};

struct Published {
  std::vector<Sent> sent;
  uint64_t dropped = 0;
};

// Publishes the events that `tell` makes, all of them queued at once.
template <typename Tell>
Published publish(const Tell& tell, size_t queued_most = 1000, bool refuses = false) {
  Published published;
  CachePublisher publisher(std::make_unique<KeptMessages>(published.sent, refuses), "kv@pod@model",
                           2, queued_most);
  tell(publisher.events());
  publisher.finish();
  published.dropped = publisher.dropped_count();
  return published;
}

Json all_events(const Published& published) {
  Json events = Json::array();
  for (const Sent& one : published.sent) {
    for (const Json& event : one.batch[1]) events.push_back(event);
  }
  return events;
}

std::string bytes(std::initializer_list<int> values) {
  return {values.begin(), values.end()};
}

TEST(CachePublisher, writes_events_in_the_published_shape) {
  constexpr uint64_t kLarge = 0xfedcba9876543210U;
  const std::vector<int32_t> tokens = {5, 128'255};
  const Published published = publish([&](CacheEvents& events) {
    events.store(kLarge, {}, tokens, "salt");
    events.store(2, kLarge, tokens, "");
    events.clear();
  });
  const Json expected = {
      {"BlockStored",
       Json::array({kLarge}),
       nullptr,
       {5, 128'255},
       2,
       nullptr,
       nullptr,
       nullptr,
       Json::array({Json::array({"salt"})})},
      {"BlockStored", Json::array({2}), kLarge, {5, 128'255}, 2, nullptr, nullptr, nullptr},
      Json::array({"AllBlocksCleared"})};
  EXPECT_EQ(all_events(published), expected);
  for (const Sent& one : published.sent) {
    EXPECT_EQ(one.topic, "kv@pod@model");
    ASSERT_EQ(one.batch.size(), 3U);
    EXPECT_GT(one.batch[0].get<double>(), 1.7e9);  // seconds since 1970
    EXPECT_EQ(one.batch[2], 0);
  }
}

TEST(CachePublisher, numbers_messages_from_0_and_bounds_them) {
  constexpr size_t kCount = 10 * CachePublisher::kMessageEventsMost;
  const Published published = publish([](CacheEvents& events) {
    for (uint64_t block = 1; block <= kCount; ++block) events.store(block, {}, {}, "");
  });
  EXPECT_EQ(all_events(published).size(), kCount);
  EXPECT_GE(published.sent.size(), 10U);
  for (size_t index = 0; index < published.sent.size(); ++index) {
    EXPECT_LE(published.sent[index].batch[1].size(), CachePublisher::kMessageEventsMost);
    EXPECT_EQ(published.sent[index].number, bytes({0, 0, 0, 0, 0, 0, 0, static_cast<int>(index)}));
  }
}

TEST(CachePublisher, a_message_that_was_not_sent_is_counted) {
  const Published published =
      publish([](CacheEvents& events) { events.remove(1); }, 1000, /*refuses=*/true);
  EXPECT_EQ(published.dropped, 1U);
  EXPECT_TRUE(published.sent.empty());
}

TEST(CachePublisher, events_that_were_dropped_take_a_number) {
  std::vector<CacheEvent> events(5);
  for (CacheEvent& event : events) event.kind = CacheEvent::Kind::kRemoved;
  events[2].is_after_gap = true;
  const std::vector<NumberedEvents> messages = number_messages(events, 300);
  ASSERT_EQ(messages.size(), 2U);
  EXPECT_EQ(messages[0].number, 300U);
  EXPECT_EQ(messages[0].events.size(), 2U);
  EXPECT_EQ(messages[1].number, 302U);
  EXPECT_EQ(messages[1].events.size(), 3U);
  events[0].is_after_gap = true;
  EXPECT_EQ(number_messages(events, 7).front().number, 8U);
  EXPECT_TRUE(number_messages({}, 7).empty());
}

TEST(CachePublisher, removals_that_follow_one_another_are_one_event) {
  const std::vector<int32_t> tokens = {1, 2};
  std::vector<CacheEvent> events(4);
  for (uint64_t block = 0; block < 4; ++block) {
    events[block].kind = CacheEvent::Kind::kRemoved;
    events[block].block = block + 1;
  }
  events[2] = {.kind = CacheEvent::Kind::kStored, .block = 9, .tokens = tokens};
  const Json expected = {
      {"BlockRemoved", {1, 2}},
      {"BlockStored", Json::array({9}), nullptr, {1, 2}, 2, nullptr, nullptr, nullptr},
      {"BlockRemoved", Json::array({4})}};
  EXPECT_EQ(event_list(events, 2), expected);
}

TEST(CachePublisher, the_topic_names_the_pod_and_the_model) {
  EXPECT_EQ(kv_topic("10.0.0.1:8080", "org/model"), "kv@10.0.0.1:8080@org/model");
  const std::string topic = kv_topic("", "m");
  EXPECT_TRUE(topic.starts_with("kv@") && topic.ends_with("@m") && topic.size() > 5) << topic;
}

}  // namespace
}  // namespace lockstep
