#include "tests/server/http/raw_client.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace lockstep {
namespace {

constexpr timeval kPatience{60, 0};  // no test waits so long; a hang becomes a failure

sockaddr_in loopback(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

std::string lower_case(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

}  // namespace

RawClient::RawClient(const std::string& path)
    : socket_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  setsockopt(socket_.number(), SOL_SOCKET, SO_RCVTIMEO, &kPatience, sizeof(kPatience));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  const int status =
      connect(socket_.number(), reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  EXPECT_EQ(status, 0) << "cannot connect to " << path << ": " << std::strerror(errno);
}

RawClient::RawClient(uint16_t port, int receive_buffer_bytes, const char* source)
    : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  if (receive_buffer_bytes > 0) {
    setsockopt(socket_.number(), SOL_SOCKET, SO_RCVBUF, &receive_buffer_bytes,
               sizeof(receive_buffer_bytes));
  }
  setsockopt(socket_.number(), SOL_SOCKET, SO_RCVTIMEO, &kPatience, sizeof(kPatience));
  setsockopt(socket_.number(), SOL_SOCKET, SO_SNDTIMEO, &kPatience, sizeof(kPatience));
  sockaddr_in own = loopback(0);
  inet_pton(AF_INET, source, &own.sin_addr);
  EXPECT_EQ(bind(socket_.number(), reinterpret_cast<const sockaddr*>(&own), sizeof(own)), 0);
  const sockaddr_in address = loopback(port);
  const int status =
      connect(socket_.number(), reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  EXPECT_EQ(status, 0) << "cannot connect to port " << port << ": " << std::strerror(errno);
}

bool RawClient::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(socket_.number(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

bool RawClient::receive_more() {
  std::array<char, 16384> bytes{};
  const ssize_t count = recv(socket_.number(), bytes.data(), bytes.size(), 0);
  EXPECT_FALSE(count < 0 && errno == EAGAIN) << "the server neither answers nor closes";
  if (count <= 0) return false;
  buffer_.append(bytes.data(), static_cast<size_t>(count));
  return true;
}

bool RawClient::receive_until(std::string_view mark) {
  while (buffer_.find(mark) == std::string::npos) {
    if (!receive_more()) return false;
  }
  return true;
}

bool RawClient::receive_bytes(size_t wanted) {
  while (buffer_.size() < wanted) {
    if (!receive_more()) return false;
  }
  buffer_.erase(0, wanted);
  return true;
}

bool RawClient::receive_chunks(std::string& body) {
  for (;;) {
    if (!receive_until("\r\n")) return false;
    const size_t size = std::strtoul(buffer_.c_str(), nullptr, 16);
    buffer_.erase(0, buffer_.find("\r\n") + 2);
    while (buffer_.size() < size + 2) {
      if (!receive_more()) return false;
    }
    EXPECT_EQ(buffer_.substr(size, 2), "\r\n");
    body += buffer_.substr(0, size);
    buffer_.erase(0, size + 2);
    if (size == 0) return true;
  }
}

std::optional<RawResponse> RawClient::receive(std::string_view method) {
  if (!receive_until("\r\n\r\n")) return std::nullopt;
  RawResponse response;
  const size_t head_end = buffer_.find("\r\n\r\n");
  const std::string head = buffer_.substr(0, head_end + 2);
  buffer_.erase(0, head_end + 4);
  EXPECT_TRUE(head.starts_with("HTTP/1.1 ")) << head;
  response.status = std::atoi(head.c_str() + 9);
  for (size_t line = head.find("\r\n") + 2; line < head.size();) {
    const size_t end = head.find("\r\n", line);
    const size_t colon = head.find(": ", line);
    const std::string name = lower_case(head.substr(line, colon - line));
    EXPECT_FALSE(response.headers.contains(name)) << name << " twice in " << head;
    response.headers[name] = head.substr(colon + 2, end - colon - 2);
    line = end + 2;
  }
  const bool has_none = response.status < 200 || response.status == 204 || response.status == 304;
  if (method == "HEAD" || has_none) {
    response.is_whole = true;
  } else if (response.headers.contains("transfer-encoding")) {
    response.is_whole = receive_chunks(response.body);
  } else if (response.headers.contains("content-length")) {
    const size_t size = std::strtoul(response.headers["content-length"].c_str(), nullptr, 10);
    while (buffer_.size() < size && receive_more()) {
    }
    response.is_whole = buffer_.size() >= size;
    response.body = buffer_.substr(0, size);
    buffer_.erase(0, size);
  } else {
    while (receive_more()) {
    }
    response.body = std::exchange(buffer_, {});
    response.is_whole = true;
  }
  return response;
}

bool RawClient::is_ended() {
  return buffer_.empty() && !receive_more();
}

void RawClient::shut_sending() {
  shutdown(socket_.number(), SHUT_WR);
}

void RawClient::reset() {
  const linger at_once{1, 0};
  setsockopt(socket_.number(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
  socket_.close();
}

Descriptor connect_to(uint16_t port) {
  Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  setsockopt(socket.number(), SOL_SOCKET, SO_RCVTIMEO, &kPatience, sizeof(kPatience));
  const sockaddr_in address = loopback(port);
  EXPECT_EQ(connect(socket.number(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)),
            0);
  return socket;
}

bool can_connect(uint16_t port) {
  const Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address = loopback(port);
  return connect(socket.number(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) ==
         0;
}

}  // namespace lockstep
