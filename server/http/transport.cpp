#include "server/http/transport.h"

#include <sys/socket.h>

#include <cerrno>

namespace lockstep {
namespace {

Transport::Outcome outcome_of_error(bool wants_write) {
  const bool blocked = errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
  return {blocked ? Transport::Status::kBlocked : Transport::Status::kFailed, 0, wants_write};
}

}  // namespace

Transport::Outcome PlainTransport::receive(char* bytes, size_t size) {
  const ssize_t count = recv(socket_, bytes, size, 0);
  if (count < 0) return outcome_of_error(false);
  if (count == 0) return {Status::kEnded};
  return {Status::kDone, static_cast<size_t>(count)};
}

Transport::Outcome PlainTransport::send(const char* bytes, size_t size) {
  ssize_t sent = 0;
  do {
    sent = ::send(socket_, bytes, size, MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  if (sent < 0) return outcome_of_error(true);
  return {Status::kDone, static_cast<size_t>(sent)};
}

void PlainTransport::end_sending() {
  shutdown(socket_, SHUT_WR);
}

}  // namespace lockstep
