// Tells who can reach the daemon, as the log says it at the start.
#pragma once

#include <string>
#include <vector>

namespace lockstep {

// `addresses`: as HttpServer::addresses() gives them. One line per address that is neither loopback
// nor a Unix socket and asks for no key, and one per such address without TLS; each names the
// option that changes it.
std::vector<std::string> exposure_warnings(const std::vector<std::string>& addresses,
                                           bool asks_for_keys);

// The listener for probes tells no more than health and metrics: no warning, but said. A line per
// address that is neither loopback nor a Unix socket.
std::vector<std::string> probe_exposure_notes(const std::vector<std::string>& addresses,
                                              bool metrics_ask_for_keys);

// `endpoint`: as EventSocket::endpoint() gives it. A line where it is neither loopback nor a Unix
// socket: nothing is asked of subscribers.
std::vector<std::string> event_exposure_warnings(const std::string& endpoint);

}  // namespace lockstep
