#include "engine/hosts/greetings.h"

#include <algorithm>
#include <utility>

#include "engine/base/log.h"

namespace lockstep {

namespace {

constexpr size_t kMostNewcomers = 2 * kMostHosts;  // more than a group's hosts are strangers
constexpr size_t kHelloBytesMost = 1024;           // hellos and pings are shorter

template <typename Decoded>
std::optional<std::variant<Hello, LinkHello>> in_our_version(ControlStream& stream,
                                                             const Result<Decoded>& hello) {
  if (!hello) {
    refuse(stream, hello.error().message);
    return std::nullopt;
  }
  if (hello->protocol != kHostProtocol) {
    refuse(stream, fmt::format("version {} of the hosts' protocol came, and {} is known: all hosts "
                               "run the same version of this program",
                               hello->protocol, kHostProtocol));
    return std::nullopt;
  }
  return *hello;
}

std::optional<std::variant<Hello, LinkHello>> read_hello(ControlStream& stream,
                                                         const Frame& frame) {
  if (frame.kind == FrameKind::kHello) return in_our_version(stream, decode_hello(frame.payload));
  if (frame.kind == FrameKind::kLinkHello) {
    return in_our_version(stream, decode_link_hello(frame.payload));
  }
  refuse(stream, "the first frame is no hello");
  return std::nullopt;
}

}  // namespace

void refuse(ControlStream& stream, std::string_view reason) {
  spdlog::warn("A connection from {} is refused: {}.", stream.peer(), reason);
  std::vector<std::byte> frame;
  append_text_frame(FrameKind::kRefusal, reason, frame);
  if (!stream.try_send(frame)) spdlog::debug("{} has gone without the reason.", stream.peer());
}

Result<std::optional<Greeted>> Greetings::next(std::chrono::milliseconds most) {
  auto accepted = listener_.accept(most);
  if (!accepted) return std::unexpected(accepted.error());
  if (*accepted) {
    if (newcomers_.size() == kMostNewcomers) newcomers_.erase(newcomers_.begin());
    auto stream = std::make_unique<ControlStream>(std::move(*accepted));
    stream->bound_payloads(kHelloBytesMost);
    newcomers_.push_back({std::move(stream), ControlStream::Clock::now()});
  }
  for (auto newcomer = newcomers_.begin(); newcomer != newcomers_.end();) {
    const auto frame = newcomer->stream->receive();
    if (frame && !*frame && ControlStream::Clock::now() - newcomer->came_at < patience_) {
      ++newcomer;
      continue;
    }
    std::unique_ptr<ControlStream> stream = std::move(newcomer->stream);
    newcomer = newcomers_.erase(newcomer);
    if (!frame || !*frame) {
      spdlog::debug("{} has said nothing: {}", stream->peer(),
                    frame ? "not in time" : frame.error().message);
      continue;
    }
    if (auto hello = read_hello(*stream, **frame)) {
      return Greeted{std::move(stream), std::move(*hello)};
    }
  }
  return std::nullopt;
}

}  // namespace lockstep
