#include "server/http/body_reader.h"

#include <algorithm>

#include "engine/base/ascii.h"

namespace lockstep {
namespace {

constexpr int kSizeDigitsMax = 8;  // more than any body may have; no overflow in 64 bits

std::unexpected<HttpRefusal> too_large(size_t bytes_max) {
  return std::unexpected(HttpRefusal{
      413, "the request's body is longer than " + std::to_string(bytes_max) + " bytes"});
}

std::unexpected<HttpRefusal> malformed(const char* message) {
  return std::unexpected(HttpRefusal{400, message});
}

}  // namespace

std::expected<void, HttpRefusal> BodyReader::begin(const RequestHead& head, size_t bytes_max) {
  bytes_max_ = bytes_max;
  body_.clear();
  size_digits_ = 0;
  is_chunked_ = head.is_chunked;
  remaining_ = head.is_chunked ? 0 : head.content_length;
  if (remaining_ > bytes_max_) return too_large(bytes_max_);
  if (is_chunked_) {
    state_ = State::kSize;
  } else {
    state_ = remaining_ > 0 ? State::kData : State::kWhole;
  }
  return {};
}

std::expected<size_t, HttpRefusal> BodyReader::consume(std::string_view input) {
  size_t used = 0;
  while (used < input.size() && state_ != State::kWhole) {
    if (state_ == State::kData) {
      used += take_data(input.substr(used));
    } else {
      if (auto taken = take_framing(input[used]); !taken) {
        return std::unexpected(std::move(taken.error()));
      }
      ++used;
    }
  }
  return used;
}

size_t BodyReader::take_data(std::string_view input) {
  const size_t taken = static_cast<size_t>(std::min<uint64_t>(remaining_, input.size()));
  body_.append(input.substr(0, taken));
  remaining_ -= taken;
  if (remaining_ == 0) state_ = is_chunked_ ? State::kDataReturn : State::kWhole;
  return taken;
}

std::expected<void, HttpRefusal> BodyReader::take_framing(char c) {
  switch (state_) {
    case State::kSize:
      return take_size_character(c);
    case State::kSizeLineFeed:
      return expect(c, '\n', remaining_ > 0 ? State::kData : State::kLastReturn);
    case State::kDataReturn:
      return expect(c, '\r', State::kDataLineFeed);
    case State::kDataLineFeed:
      return expect(c, '\n', State::kSize);
    case State::kLastReturn:
      return expect(c, '\r', State::kLastLineFeed);
    case State::kLastLineFeed:
      return expect(c, '\n', State::kWhole);
    case State::kData:
    case State::kWhole:
      break;
  }
  return {};
}

std::expected<void, HttpRefusal> BodyReader::take_size_character(char c) {
  if (c == '\r' && size_digits_ > 0) {
    size_digits_ = 0;
    if (remaining_ > bytes_max_ - body_.size()) return too_large(bytes_max_);
    state_ = State::kSizeLineFeed;
    return {};
  }
  const auto digit = hex_digit(c);
  if (!digit) return malformed("a chunk's size is not a hexadecimal number and nothing else");
  if (++size_digits_ > kSizeDigitsMax) return malformed("a chunk's size has too many digits");
  remaining_ = remaining_ * 16 + *digit;
  return {};
}

std::expected<void, HttpRefusal> BodyReader::expect(char c, char wanted, State next) {
  if (c != wanted) {
    return malformed(state_ == State::kLastReturn ? "trailers after the last chunk are not taken"
                                                  : "a chunk does not end where its size says");
  }
  state_ = next;
  return {};
}

}  // namespace lockstep
