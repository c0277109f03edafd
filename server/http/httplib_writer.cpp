#include "server/http/httplib_writer.h"

#include <httplib.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "engine/base/check.h"

namespace lockstep {
namespace {

// Gives the library a request line and collects what it answers.
class StringStream final : public httplib::Stream {
 public:
  explicit StringStream(std::string input) : input_(std::move(input)) {}

  bool is_readable() const override { return offset_ < input_.size(); }
  bool wait_readable() const override { return true; }
  bool wait_writable() const override { return true; }
  ssize_t read(char* bytes, size_t size) override {
    const size_t count = input_.copy(bytes, size, offset_);
    offset_ += count;
    return static_cast<ssize_t>(count);
  }
  ssize_t write(const char* bytes, size_t size) override {
    output_.append(bytes, size);
    return static_cast<ssize_t>(size);
  }
  void get_remote_ip_and_port(std::string&, int&) const override {}
  void get_local_ip_and_port(std::string&, int&) const override {}
  socket_t socket() const override { return INVALID_SOCKET; }
  time_t duration() const override { return 0; }

  std::string take_output() { return std::move(output_); }

 private:
  std::string input_;
  size_t offset_ = 0;
  std::string output_;
};

}  // namespace

class HttplibWriter::Server : public httplib::Server {
 public:
  Server() {
    set_pre_routing_handler([this](const httplib::Request&, httplib::Response& response) {
      response.status = answer_.status;
      if (!answer_.is_streamed) {
        response.set_content(std::move(answer_.body), answer_.content_type);
      } else if (!answer_.content_type.empty()) {
        response.set_header("Content-Type", answer_.content_type);
      }
      return HandlerResponse::Handled;
    });
    set_exception_handler([this](const httplib::Request&, httplib::Response&,
                                 std::exception_ptr thrown) { thrown_ = std::move(thrown); });
    // The last word on the fields: whether the connection stays open is the gate's to say.
    set_post_routing_handler([this](const httplib::Request&, httplib::Response& response) {
      for (const char* name : {"Connection", "Keep-Alive", "Accept-Ranges"}) {
        response.headers.erase(name);
      }
      // Neither has a body: a 204 must not state a length (RFC 9110, 8.6), and that which a 304
      // could state is not that of none.
      const bool has_none = answer_.status == 204 || answer_.status == 304;
      if (answer_.is_streamed || has_none) response.headers.erase("Content-Length");
      if (answer_.content_type.empty()) response.headers.erase("Content-Type");
      for (const auto& [name, value] : answer_.headers) response.set_header(name, value);
    });
  }

  std::string bytes(std::string_view method, HttpAnswer answer) {
    answer_ = std::move(answer);
    thrown_ = nullptr;
    // The library writes no body for HEAD, so that this gives the head of a streamed answer.
    const bool head_only = method == "HEAD" || answer_.is_streamed;
    StringStream stream(head_only ? "HEAD / HTTP/1.1\r\n\r\n" : "GET / HTTP/1.1\r\n\r\n");
    bool connection_closed = false;
    process_request(stream, "", 0, "", 0, false, connection_closed, nullptr);
    if (thrown_) std::rethrow_exception(std::exchange(thrown_, nullptr));
    std::string output = stream.take_output();
    CHECK(!output.empty(), "cpp-httplib wrote no answer with status {}", answer_.status);
    return output;
  }

 private:
  HttpAnswer answer_;
  std::exception_ptr thrown_;
};

HttplibWriter::HttplibWriter() : server_(std::make_unique<Server>()) {}

HttplibWriter::~HttplibWriter() = default;

std::string HttplibWriter::bytes(std::string_view method, HttpAnswer answer) {
  return server_->bytes(method, std::move(answer));
}

}  // namespace lockstep
