// A listening socket: of an IP address, of a path in the file system, or passed by the service
// manager.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/descriptor.h"
#include "engine/base/result.h"

struct addrinfo;

namespace lockstep {

using Environment = std::vector<std::pair<std::string, std::string>>;  // names and values

class Listener {
 public:
  // Listens on the first of the addresses that `host` (a name or an address) stands for on which it
  // can; the log tells which that is where there are several. kMachineRefused names host, port and
  // each address's reason; a host that stands for nothing is kInvalidInput.
  static Result<Listener> bind(const std::string& host, uint16_t port);
  // The same of addresses that are known, one or more, each with its port.
  static Result<Listener> bind_first(const std::string& host, uint16_t port,
                                     const addrinfo* addresses);
  // Makes a socket at `path` with these permissions. One that a dead process has left behind is
  // replaced; one that somebody listens on, and a file of another kind, are errors.
  static Result<Listener> bind_path(const std::string& path, uint32_t mode);
  // The listening stream sockets that the service manager has passed to this process
  // (sd_listen_fds), in their order and whatever their names; what else was passed is left alone.
  // `environment`: the process's, which says how many. Once per process.
  static std::vector<Listener> passed(const Environment& environment);

  Listener(Listener&&) = default;
  Listener& operator=(Listener&&) = default;
  ~Listener() { close(); }

  uint16_t port() const { return port_; }               // 0 for a Unix socket
  const std::string& address() const { return name_; }  // "127.0.0.1:8080", "unix:/run/x.sock"
  bool is_unix() const { return is_unix_; }
  int descriptor() const { return socket_.number(); }
  bool is_open() const { return socket_.is_open(); }

  // Any thread: refuses further clients at once, unless the socket is the service manager's: then
  // they wait for whom it gives the socket next. The descriptor stays until close().
  void shut();
  // The thread that polls the descriptor. Removes the path of a Unix socket of our own.
  void close();

 private:
  Listener() = default;
  static Result<Listener> bind_address(const std::string& host, const addrinfo& address);
  void describe(const std::string& host);

  Descriptor socket_;
  uint16_t port_ = 0;
  std::string name_;
  bool is_unix_ = false;
  bool is_passed_ = false;
  std::string path_;         // to remove; "" for none
  uint64_t path_inode_ = 0;  // so that a successor's socket is not removed
};

// Makes way for a new socket at `path`: removes one that a dead process has left. Fails with
// kMachineRefused where another process listens there, or a file of another kind lies.
Result<void> remove_stale_socket(const std::string& path);

}  // namespace lockstep
