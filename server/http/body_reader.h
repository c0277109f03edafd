// The body of one request, with a length or in chunks, collected as its bytes come. Chunks are read
// strictly: no extensions, no trailers, nothing that two readers could see differently.
#pragma once

#include <cstdint>
#include <expected>
#include <string>
#include <string_view>

#include "server/http/http_request.h"
#include "server/http/request_head.h"

namespace lockstep {

class BodyReader {
 public:
  // Refuses (413) a Content-Length above `bytes_max`.
  std::expected<void, HttpRefusal> begin(const RequestHead& head, size_t bytes_max);

  // Takes from `input` what belongs to the body and returns how many bytes that was.
  std::expected<size_t, HttpRefusal> consume(std::string_view input);

  bool is_whole() const { return state_ == State::kWhole; }
  size_t collected_bytes() const { return body_.size(); }
  std::string take_body() { return std::move(body_); }

 private:
  enum class State {
    kSize,  // hexadecimal digits of a chunk's size
    kSizeLineFeed,
    kData,  // remaining_ bytes of the chunk, or of the whole body
    kDataReturn,
    kDataLineFeed,
    kLastReturn,  // after the chunk of size 0
    kLastLineFeed,
    kWhole,
  };

  size_t take_data(std::string_view input);
  std::expected<void, HttpRefusal> take_framing(char c);
  std::expected<void, HttpRefusal> take_size_character(char c);
  std::expected<void, HttpRefusal> expect(char c, char wanted, State next);

  State state_ = State::kWhole;
  bool is_chunked_ = false;
  size_t bytes_max_ = 0;
  uint64_t remaining_ = 0;
  int size_digits_ = 0;
  std::string body_;
};

}  // namespace lockstep
