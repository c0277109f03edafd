// The state that the connections of one gate share. Used by the gate's thread; `is_draining` by
// all.
#pragma once

#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "server/http/answer_memory.h"
#include "server/http/browser_rules.h"
#include "server/http/http_counters.h"
#include "server/http/http_limits.h"
#include "server/http/http_options.h"
#include "server/http/http_route.h"
#include "server/http/httplib_writer.h"
#include "server/http/mailbox.h"
#include "server/http/networks.h"
#include "server/http/serving_threads.h"
#include "server/http/tls.h"

namespace lockstep {

struct Edge {
  Edge(HttpOptions options_given, std::vector<HttpRoute> routes_given,
       std::unique_ptr<TlsIdentity> tls_given)
      : options(std::move(options_given)),
        limits(options.limits),
        routes(std::move(routes_given)),
        tls(std::move(tls_given)),
        no_memory_answer(writer.bytes("GET", lockstep::no_memory_answer(options))) {}

  // "X-Request-Id" of a request that came without one: 128 random bits.
  std::string make_request_id();

  const HttpOptions options;  // its limits are those of the start
  HttpLimits limits;          // for requests and connections that begin; the gate's thread
  const RouteTable routes;
  const Cors cors{options.cors_origins};
  const std::unique_ptr<TlsIdentity> tls;  // none: no TLS
  HttpCounters counters;
  std::atomic<bool> is_draining = false;  // no connection is kept for another request
  Mailbox mailbox;
  HttplibWriter writer;                // for refusals
  const std::string no_memory_answer;  // where there is none for another
  Networks networks;
  Networks sites;
  AnswerMemory answer_memory;
  ServingThreads ordinary_threads{options, answer_memory};
  ServingThreads reserved_threads{options, answer_memory};  // for routes that are served always
  std::vector<char> receive_buffer = std::vector<char>(64 * 1024);
  size_t bodies_bytes = 0;    // held by all requests together
  std::random_device random;  // of the system: 32 bits at a time, none of them from another
};

}  // namespace lockstep
