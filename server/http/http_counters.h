// Counts what the gate has cut and refused by itself since it started, by reason. Any thread reads.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string_view>

namespace lockstep {

// Why a connection was ended before its client wanted.
enum class HttpCut {
  kHead,     // the head (or the TLS handshake) did not come in time
  kBody,     // the body did not
  kRate,     // the body came slower than it must
  kWrite,    // the client took nothing of its answer for too long, or too little of it
  kUnsent,   // it owed too much of a stream for too long
  kIdle,     // no request came
  kSlow,     // more of a stream was made for it than may wait
  kRecords,  // it sent TLS records without a byte of a request: new keys, renegotiation
};
inline constexpr std::array<std::string_view, 8> kHttpCutNames = {
    "head", "body", "rate", "write", "unsent", "idle", "slow", "records"};

// Why a request or a connection was refused without a handler.
enum class HttpRejection {
  kConnections,  // too many are open
  kAddress,      // too many from this address
  kHandshake,    // no TLS came about
  kMalformed,    // 400
  kProtocol,     // 417, 501, 505
  kTooLarge,     // 413, 414, 431
  kEncoding,     // 415
  kUnknown,      // 404, 405
  kKey,          // 401, 403
  kLimit,        // 429
  kBusy,         // 503: bytes of bodies
  kMemory,       // the machine gave none
};
inline constexpr std::array<std::string_view, 12> kHttpRejectionNames = {
    "connections", "address", "handshake", "malformed", "protocol", "too_large",
    "encoding",    "unknown", "key",       "limit",     "busy",     "memory"};

struct HttpCounters {
  std::array<std::atomic<uint64_t>, kHttpCutNames.size()> cuts = {};
  std::array<std::atomic<uint64_t>, kHttpRejectionNames.size()> rejections = {};

  // The gate's thread.
  void add(HttpCut reason) { count(cuts[static_cast<size_t>(reason)]); }
  void add(HttpRejection reason) { count(rejections[static_cast<size_t>(reason)]); }

 private:
  static void count(std::atomic<uint64_t>& counter) {
    counter.fetch_add(1, std::memory_order_relaxed);
  }
};

}  // namespace lockstep
