// Who is let in, in which order. Nothing here depends on time: threads are waited for.
#include "server/api/body_room.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "server/api/json_fields.h"

namespace lockstep {
namespace {

void wait_for(const BodyRoom& room, size_t waiting) {
  while (room.waiting() != waiting) std::this_thread::yield();
}

TEST(BodyRoom, what_fits_is_in_at_once_and_what_does_not_waits) {
  BodyRoom room(100);
  EXPECT_EQ(room.enter(60), 60U);
  EXPECT_EQ(room.enter(40), 40U);
  std::thread late([&] { room.enter(50); });
  wait_for(room, 1);
  EXPECT_EQ(room.taken_bytes(), 100U);
  room.leave(40);  // 40 are free: still not enough
  EXPECT_EQ(room.waiting(), 1U);
  room.leave(60);
  late.join();
  EXPECT_EQ(room.taken_bytes(), 50U);
}

TEST(BodyRoom, nobody_overtakes_whoever_has_come_before) {
  BodyRoom room(100);
  room.enter(60);
  std::thread large([&] { room.enter(80); });
  wait_for(room, 1);
  std::thread small([&] { room.enter(10); });  // it would fit
  wait_for(room, 2);
  EXPECT_EQ(room.taken_bytes(), 60U);
  room.leave(60);
  large.join();
  small.join();
  EXPECT_EQ(room.taken_bytes(), 90U);
}

TEST(BodyRoom, what_is_larger_than_the_room_is_in_it_alone) {
  BodyRoom room(100);
  room.enter(1);
  std::thread huge([&] { EXPECT_EQ(room.enter(1'000'000), 100U); });
  wait_for(room, 1);
  room.leave(1);
  huge.join();
  EXPECT_EQ(room.taken_bytes(), 100U);
  room.leave(100);
  EXPECT_EQ(room.taken_bytes(), 0U);
}

TEST(BodyRoom, the_last_to_leave_tells_how_much_was_in) {
  std::vector<size_t> told;
  BodyRoom room(100, [&](size_t most_bytes) { told.push_back(most_bytes); });
  room.enter(30);
  room.enter(50);
  room.leave(30);
  EXPECT_TRUE(told.empty());
  room.leave(50);
  room.enter(10);
  room.leave(10);
  EXPECT_EQ(told, (std::vector<size_t>{80, 10}));
}

TEST(RequestRoom, is_held_from_the_parsing_on_until_it_is_given_back) {
  HttpRequest request;
  request.headers.emplace("content-type", "application/json");
  request.body = R"({"a":[1,2,3]})";
  EXPECT_EQ(RequestRoom::held_bytes(), 0U);
  {
    const RequestRoom room;
    const auto body = parse_body(request);
    ASSERT_TRUE(body);
    EXPECT_EQ(RequestRoom::held_bytes(), request.body.size());
    EXPECT_TRUE(parse_body(request));  // instead of what was held
    EXPECT_EQ(RequestRoom::held_bytes(), request.body.size());
    RequestRoom::give_back();
    EXPECT_EQ(RequestRoom::held_bytes(), 0U);
    request.body = "no json";
    EXPECT_FALSE(parse_body(request));
  }
  EXPECT_EQ(RequestRoom::held_bytes(), 0U);
}

TEST(RequestRoom, small_bodies_do_not_queue_behind_large_ones) {
  RequestRoom::take(SIZE_MAX);  // all the room for large ones
  std::thread small([] { RequestRoom::take(1000); });
  small.join();
  RequestRoom::give_back();
}

}  // namespace
}  // namespace lockstep
