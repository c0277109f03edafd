#include "server/http/request_head.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "engine/base/ascii.h"

namespace lockstep {
namespace {

constexpr char kDelete = 0x7f;

bool is_control(char c) {
  return (c >= 0 && c < ' ') || c == kDelete;
}

bool is_visible_ascii(char c) {
  return c > ' ' && c < kDelete;
}

constexpr std::string_view kLineEnd = "\r\n";
constexpr std::string_view kVersionPrefix = "HTTP/";
constexpr size_t kVersionBytes = 8;  // "HTTP/1.1"
constexpr size_t kMethodBytesMax = 32;
constexpr std::array<std::string_view, 9> kMethods = {
    "GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "CONNECT", "TRACE"};

std::unexpected<HttpRefusal> refuse(int status, std::string message) {
  return std::unexpected(HttpRefusal{status, std::move(message)});
}

// RFC 9110 section 5.6.2.
bool is_token_character(char c) {
  return is_ascii_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
         std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
}

bool is_token(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), is_token_character);
}

// Visible ASCII, space, tab, and bytes above ASCII (RFC 9110 section 5.5).
bool is_value_character(char c) {
  return c == '\t' || c < 0 || (c >= ' ' && c != 0x7f);
}

// Whether a comma-separated list of tokens holds `token` (lower case).
bool list_holds(std::string_view list, std::string_view token) {
  for (;;) {
    const size_t comma = list.find(',');
    if (ascii_lower(trimmed(list.substr(0, comma))) == token) return true;
    if (comma == std::string_view::npos) return false;
    list.remove_prefix(comma + 1);
  }
}

struct RequestLine {
  std::string_view method;
  std::string_view target;
  int minor_version = 1;
};

// "1.1" and "1.0" are served; a higher version is 505; anything else is no HTTP.
std::expected<int, HttpRefusal> parse_version(std::string_view text) {
  const bool has_form = text.size() == kVersionBytes && text.starts_with(kVersionPrefix) &&
                        is_ascii_digit(text[5]) && text[6] == '.' && is_ascii_digit(text[7]);
  if (!has_form) return refuse(400, "the request line does not end with an HTTP version");
  if (text[5] != '1' || text[7] > '1') {
    return refuse(505, "only HTTP/1.0 and HTTP/1.1 are served");
  }
  return text[7] - '0';
}

std::expected<RequestLine, HttpRefusal> split_request_line(std::string_view line,
                                                           const HttpLimits& limits) {
  const size_t first_space = line.find(' ');
  const size_t last_space = line.rfind(' ');
  if (first_space == std::string_view::npos || first_space == last_space) {
    return refuse(400, "the request line is not 'METHOD TARGET HTTP/1.1'");
  }
  RequestLine result;
  result.method = line.substr(0, first_space);
  result.target = line.substr(first_space + 1, last_space - first_space - 1);
  if (!is_token(result.method)) return refuse(400, "the request's method is not a token");
  const auto version = parse_version(line.substr(last_space + 1));
  if (!version) return std::unexpected(version.error());
  result.minor_version = *version;
  if (result.target.size() > limits.target_bytes) {
    return refuse(414, "the request's target is longer than " +
                           std::to_string(limits.target_bytes) + " bytes");
  }
  if (std::find(kMethods.begin(), kMethods.end(), result.method) == kMethods.end()) {
    return refuse(501, "the request's method is not implemented");
  }
  return result;
}

std::expected<void, HttpRefusal> parse_field(std::string_view line, RequestHead& head) {
  if (line.front() == ' ' || line.front() == '\t') {
    return refuse(400, "a header field is continued on a second line");
  }
  const size_t colon = line.find(':');
  if (colon == std::string_view::npos) return refuse(400, "a header field has no colon");
  const std::string_view name = line.substr(0, colon);
  if (!is_token(name)) return refuse(400, "a header field's name is not a token");
  const std::string_view value = trimmed(line.substr(colon + 1));
  if (!std::all_of(value.begin(), value.end(), is_value_character)) {
    return refuse(
        400, "the value of the header field '" + std::string(name) + "' holds a control character");
  }
  head.fields.emplace(ascii_lower(name), value);
  return {};
}

std::expected<void, HttpRefusal> read_content_length(RequestHead& head) {
  const std::string_view text = head.field("content-length");
  if (text.empty() || !std::all_of(text.begin(), text.end(), is_ascii_digit)) {
    return refuse(400, "Content-Length is not a decimal number");
  }
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), head.content_length);
  if (error != std::errc()) return refuse(413, "Content-Length is out of range");
  return {};
}

// How long the body is, from Content-Length or Transfer-Encoding: one of them at most, once.
std::expected<void, HttpRefusal> read_body_framing(RequestHead& head) {
  const size_t lengths = head.fields.count("content-length");
  const size_t encodings = head.fields.count("transfer-encoding");
  if (lengths > 1) return refuse(400, "Content-Length is given more than once");
  if (encodings > 1) return refuse(400, "Transfer-Encoding is given more than once");
  if (lengths > 0 && encodings > 0) {
    return refuse(400, "Content-Length and Transfer-Encoding are given together");
  }
  if (lengths == 1) return read_content_length(head);
  if (encodings == 1) {
    if (head.minor_version == 0) return refuse(400, "HTTP/1.0 knows no Transfer-Encoding");
    if (ascii_lower(head.field("transfer-encoding")) != "chunked") {
      return refuse(501, "the only Transfer-Encoding that is implemented is chunked");
    }
    head.is_chunked = true;
  }
  return {};
}

// Reads what the remaining fields of the protocol itself ask for.
std::expected<void, HttpRefusal> read_protocol_fields(RequestHead& head) {
  const size_t hosts = head.fields.count("host");
  if (hosts > 1) return refuse(400, "Host is given more than once");
  if (hosts == 0 && head.minor_version == 1) return refuse(400, "the Host header is missing");

  const auto [encoding, encodings_end] = head.fields.equal_range("content-encoding");
  for (auto field = encoding; field != encodings_end; ++field) {
    if (ascii_lower(field->second) != "identity") {
      return refuse(415, "a body with Content-Encoding '" + field->second +
                             "' is not taken: send it as it is");
    }
  }
  if (head.fields.contains("expect")) {
    if (ascii_lower(head.field("expect")) != "100-continue") {
      return refuse(417, "the only expectation that can be met is 100-continue");
    }
    head.expects_continue = head.minor_version == 1;
  }
  head.keep_alive = head.minor_version == 1;
  const auto [connection, connections_end] = head.fields.equal_range("connection");
  for (auto field = connection; field != connections_end; ++field) {
    if (list_holds(field->second, "keep-alive")) head.keep_alive = true;
  }
  for (auto field = connection; field != connections_end; ++field) {
    if (list_holds(field->second, "close")) head.keep_alive = false;
  }
  return {};
}

}  // namespace

std::optional<std::string> percent_decode(std::string_view text) {
  std::string decoded;
  decoded.reserve(text.size());
  for (size_t index = 0; index < text.size(); ++index) {
    char c = text[index];
    if (c == '%') {
      if (text.size() - index < 3) return std::nullopt;
      const auto high = hex_digit(text[index + 1]);
      const auto low = hex_digit(text[index + 2]);
      if (!high || !low) return std::nullopt;
      c = static_cast<char>(static_cast<unsigned char>(*high * 16 + *low));
      index += 2;
    }
    if (is_control(c)) return std::nullopt;
    decoded.push_back(c);
  }
  return decoded;
}

std::expected<RequestTarget, HttpRefusal> parse_request_target(std::string_view text) {
  if (text.empty() || text.front() != '/') {
    return std::unexpected(HttpRefusal{400, "the request's target must begin with '/'"});
  }
  if (!std::all_of(text.begin(), text.end(), is_visible_ascii) ||
      text.find('#') != std::string_view::npos) {
    return std::unexpected(
        HttpRefusal{400, "the request's target holds a character that must be percent-encoded"});
  }
  const size_t question_mark = text.find('?');
  const bool has_query = question_mark != std::string_view::npos;
  RequestTarget target;
  target.raw_path = text.substr(0, question_mark);
  if (has_query) target.query = text.substr(question_mark + 1);
  auto path = percent_decode(target.raw_path);
  if (!path || !percent_decode(target.query)) {
    return std::unexpected(
        HttpRefusal{400,
                    "the request's target holds a broken percent sequence or an encoded control "
                    "character"});
  }
  target.path = std::move(*path);
  return target;
}

std::expected<std::optional<size_t>, HttpRefusal> HeadScanner::scan(std::string_view input) {
  if (scanned_ == 0 && !input.empty() && !is_token_character(input.front())) {
    // Most likely TLS: such bytes are never a method.
    return refuse(400, "this is not the beginning of an HTTP/1.1 request");
  }
  const size_t end = std::min(input.size(), limits_.head_bytes);
  for (; scanned_ < end; ++scanned_) {
    const char c = input[scanned_];
    const bool after_return = scanned_ > 0 && input[scanned_ - 1] == '\r';
    if ((c == '\n') != after_return) return refuse(400, "a line ends with a bare CR or LF");
    if (c == '\0') return refuse(400, "the request's head holds a NUL byte");
    if (!has_request_line_ && scanned_ == kMethodBytesMax &&
        input.substr(0, scanned_).find(' ') == std::string_view::npos) {
      return refuse(400, "the request's method is not a token");
    }
    if (c != '\n') continue;
    const std::string_view line = input.substr(line_begin_, scanned_ - 1 - line_begin_);
    line_begin_ = scanned_ + 1;
    if (!has_request_line_) {
      if (auto refusal = check_request_line(line)) return std::unexpected(std::move(*refusal));
      has_request_line_ = true;
    } else if (line.empty()) {
      return std::optional<size_t>(++scanned_);
    }
  }
  if (input.size() > limits_.head_bytes) {
    if (!has_request_line_) return refuse(414, "the request line is too long");
    return refuse(
        431, "the request's head is longer than " + std::to_string(limits_.head_bytes) + " bytes");
  }
  return std::optional<size_t>();
}

std::optional<HttpRefusal> HeadScanner::check_request_line(std::string_view line) const {
  const auto request_line = split_request_line(line, limits_);
  if (!request_line) return request_line.error();
  return std::nullopt;
}

void HeadScanner::reset() {
  scanned_ = 0;
  line_begin_ = 0;
  has_request_line_ = false;
}

std::string_view path_at_sight(std::string_view input) {
  const size_t space = input.substr(0, kMethodBytesMax + 1).find(' ');
  if (space == std::string_view::npos) return {};
  std::string_view path = input.substr(space + 1);
  return path.substr(0, path.find_first_of(" ?\r\n"));
}

std::expected<RequestHead, HttpRefusal> parse_request_head(std::string_view bytes,
                                                           const HttpLimits& limits) {
  size_t line_end = bytes.find(kLineEnd);
  if (line_end == std::string_view::npos) return refuse(400, "the request's head has no line");
  const auto request_line = split_request_line(bytes.substr(0, line_end), limits);
  if (!request_line) return std::unexpected(request_line.error());
  auto target = parse_request_target(request_line->target);
  if (!target) return std::unexpected(std::move(target.error()));

  RequestHead head;
  head.method = request_line->method;
  head.target = std::move(*target);
  head.minor_version = request_line->minor_version;
  for (;;) {
    const size_t line_begin = line_end + kLineEnd.size();
    line_end = bytes.find(kLineEnd, line_begin);
    if (line_end == std::string_view::npos) {
      return refuse(400, "the request's head does not end with an empty line");
    }
    if (line_end == line_begin) break;
    if (head.fields.size() == limits.head_fields) {
      return refuse(431, "the request's head has more than " + std::to_string(limits.head_fields) +
                             " fields");
    }
    const auto parsed = parse_field(bytes.substr(line_begin, line_end - line_begin), head);
    if (!parsed) return std::unexpected(parsed.error());
  }
  if (auto read = read_body_framing(head); !read) return std::unexpected(read.error());
  if (auto read = read_protocol_fields(head); !read) return std::unexpected(read.error());
  return head;
}

}  // namespace lockstep
