// Feeds arbitrary bytes to what reads requests from the network: head, target and body framing.
// Beside crashes it looks for heads that are accepted although two parties could read them
// differently.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "engine/base/check.h"
#include "server/http/body_reader.h"
#include "server/http/request_head.h"

namespace lockstep {
namespace {

void check_head(const RequestHead& head, const HttpLimits& limits) {
  CHECK(head.fields.size() <= limits.head_fields, "{} fields", head.fields.size());
  CHECK(head.fields.count("content-length") + head.fields.count("transfer-encoding") <= 1,
        "two body lengths");
  CHECK(head.target.raw_path.starts_with('/'), "path '{}'", head.target.raw_path);
  for (const char c : head.target.path) {
    CHECK(c < 0 || (c >= ' ' && c != 0x7f), "control character {} in the path", int{c});
  }
  for (const auto& [name, value] : head.fields) {
    CHECK(value.find_first_of(std::string_view("\r\n\0", 3)) == std::string::npos,
          "line break in the value of {}", name);
  }
}

// The same bytes in two pieces and at once must be read alike.
void check_in_pieces(std::string_view input, size_t cut, const HttpLimits& limits) {
  HeadScanner at_once(limits);
  HeadScanner in_pieces(limits);
  const auto whole = at_once.scan(input);
  const auto first = in_pieces.scan(input.substr(0, cut));
  const auto second = first && !*first ? in_pieces.scan(input) : first;
  CHECK(whole.has_value() == second.has_value(), "cut at {} changes the verdict", cut);
  if (whole) CHECK(*whole == *second, "cut at {} changes the head's size", cut);
}

void read_request(std::string_view input) {
  HttpLimits limits;
  limits.head_bytes = 2048;
  limits.head_fields = 8;
  limits.body_bytes = 512;
  if (!input.empty()) check_in_pieces(input, static_cast<uint8_t>(input[0]) % input.size(), limits);
  HeadScanner scanner(limits);
  const auto size = scanner.scan(input);
  if (!size || !*size) return;
  CHECK(**size <= limits.head_bytes, "a head of {} bytes", **size);
  const auto head = parse_request_head(input.substr(0, **size), limits);
  if (!head) return;
  check_head(*head, limits);
  BodyReader body;
  if (!body.begin(*head, limits.body_bytes)) return;
  const auto used = body.consume(input.substr(**size));
  CHECK(body.collected_bytes() <= limits.body_bytes, "a body of {} bytes", body.collected_bytes());
  CHECK(!used || *used <= input.size() - **size, "more bytes used than given");
}

}  // namespace
}  // namespace lockstep

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(bytes), size);
  lockstep::read_request(input);
  // The parser must not rely on the scanner having looked first.
  (void)lockstep::parse_request_head(input, lockstep::HttpLimits());
  return 0;
}
