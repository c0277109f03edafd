// Frames to a host that does not read them: who sends waits for nothing, or not for long.
#include "engine/hosts/control_stream.h"

#include <gtest/gtest.h>

#include "tests/engine/collectives/connected_hosts.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;

struct Ends {
  explicit Ends(bool encrypted, milliseconds patience = std::chrono::minutes(5)) {
    HostStreamOptions options = host_options(encrypted);
    options.patience = patience;
    ConnectedHosts hosts = connect_hosts(options, options);
    one = std::make_unique<ControlStream>(std::move(hosts.connected));
    other = std::make_unique<ControlStream>(std::move(hosts.accepted));
  }
  std::unique_ptr<ControlStream> one;
  std::unique_ptr<ControlStream> other;
};

std::vector<std::byte> document(uint32_t host) {
  std::vector<std::byte> frame;
  append_frame(HostDocument{host, std::string(host % 5000, 'x')}, frame);
  return frame;
}

// Sends documents, numbered, until one does not go: how many were taken.
uint32_t fill(ControlStream& stream) {
  for (uint32_t number = 0;; ++number) {
    const auto sent = stream.try_send(document(number));
    EXPECT_TRUE(sent) << sent.error().message;
    if (!sent || !*sent) return number;
  }
}

class ControlStreams : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(All, ControlStreams, testing::Bool(),
                         [](const auto& each) { return each.param ? "tls" : "plain"; });

TEST_P(ControlStreams, to_one_that_does_not_read_frames_go_whole_or_not_at_all) {
  const Ends ends(GetParam());
  uint32_t taken = fill(*ends.one);
  ASSERT_GT(taken, 0U);
  for (int more = 0; more < 100; ++more) {  // the kernel may have space again
    const auto sent = ends.one->try_send(document(taken));
    ASSERT_TRUE(sent) << sent.error().message;
    if (*sent) ++taken;
  }
  // Then it reads: all that were taken come, and what is sent after them.
  std::vector<std::byte> last;
  append_frame(FrameKind::kGoodbye, {}, last);
  std::thread sending([&] { ASSERT_TRUE(ends.one->send(last)); });
  uint32_t number = 0;
  while (true) {
    const auto frame = ends.other->receive_within(std::chrono::minutes(1));
    ASSERT_TRUE(frame) << frame.error().message;
    if (!*frame) continue;
    if ((*frame)->kind == FrameKind::kGoodbye) break;
    const auto read = decode_document((*frame)->payload);
    ASSERT_TRUE(read);
    ASSERT_EQ(read->host, number);
    ASSERT_EQ(read->text.size(), number % 5000);
    ++number;
  }
  sending.join();
  EXPECT_EQ(number, taken);
}

TEST_P(ControlStreams, what_was_left_goes_without_another_frame) {
  const Ends ends(GetParam());
  const uint32_t taken = fill(*ends.one);
  uint32_t number = 0;
  while (number < taken) {
    ASSERT_TRUE(ends.one->flush());
    const auto frame = ends.other->receive_within(milliseconds(1));
    ASSERT_TRUE(frame) << frame.error().message;
    if (*frame) ++number;
  }
  EXPECT_TRUE(*ends.one->flush());
}

TEST_P(ControlStreams, sending_waits_for_the_streams_patience_and_names_the_host) {
  const Ends ends(GetParam(), milliseconds(300));
  fill(*ends.one);
  const auto sent = ends.one->send(std::vector<std::byte>(size_t{64} << 20U));
  ASSERT_FALSE(sent);
  EXPECT_TRUE(sent.error().message.contains(ends.one->peer())) << sent.error().message;
  EXPECT_EQ(ends.one->send_time(size_t{3} << 20U), milliseconds(3300));
}

}  // namespace
}  // namespace lockstep
