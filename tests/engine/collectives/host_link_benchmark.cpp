// One exchange between two hosts, both directions at once, over each transport: medians.
//
//   host_link_benchmark LISTEN           one host: "10.0.0.1:7070" or ":7070"
//   host_link_benchmark connect ADDRESS  the other host, which prints
//   host_link_benchmark                  both in one process, over its loopback
//
// LOCKSTEP_LINKS="tcp tls" runs those alone; UCX's own environment says over what UCX goes. MPI is
// among them where mpirun starts both:
//
//   mpirun -n 1 host_link_benchmark LISTEN : -n 1 host_link_benchmark connect ADDRESS
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/check.h"
#include "engine/collectives/host_transports.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kSizes[] = {1U << 10U, 16U << 10U, 64U << 10U, 256U << 10U, 1U << 20U};
constexpr size_t kLargest = 1U << 20U;
constexpr size_t kRounds = 5;  // over all links, in turns
constexpr size_t kWarmUps = 50;

struct Row {
  std::string name;
  std::string transport;
  bool encrypted;
};

std::vector<Row> rows() {
  const char* const only = std::getenv("LOCKSTEP_LINKS");
  std::vector<Row> chosen;
  for (const Row& row : {Row{"tcp", "tcp", false}, Row{"tls", "tcp", true},
                         Row{"ucx", "ucx", false}, Row{"mpi", "mpi", false}}) {
    const auto found = find_host_transport(row.transport);
    if (!found) std::fprintf(stderr, "%s\n", found.error().message.c_str());
    if (found && (only == nullptr || std::string(only).find(row.name) != std::string::npos)) {
      chosen.push_back(row);
    }
  }
  return chosen;
}

HostStreamOptions options_of(const Row& row) {
  HostStreamOptions options;
  options.patience = std::chrono::seconds(60);
  if (row.encrypted) options.secret = SecretKey{};
  return options;
}

size_t count_of(size_t bytes) {
  return bytes <= (64U << 10U) ? 2000 : 300;
}

// Median time of an exchange, in microseconds.
double time_exchanges(HostLink& link, size_t bytes) {
  const std::vector<std::byte> out(bytes, std::byte{1});
  std::vector<std::byte> in(bytes);
  std::vector<double> times;
  for (size_t index = 0; index < kWarmUps + count_of(bytes); ++index) {
    const auto before = Clock::now();
    const auto done = link.exchange(out, in);
    CHECK(done.has_value(), "an exchange failed");
    const std::chrono::duration<double, std::micro> time = Clock::now() - before;
    if (index >= kWarmUps) times.push_back(time.count());
  }
  std::ranges::nth_element(times, times.begin() + static_cast<ptrdiff_t>(times.size() / 2));
  return times[times.size() / 2];
}

// Each link has a port of its own, counted from the given one.
std::string address_of(const std::string& first, size_t index) {
  const size_t colon = first.rfind(':');
  CHECK(colon != std::string::npos, "an address is name:port");
  return first.substr(0, colon + 1) + std::to_string(std::stoul(first.substr(colon + 1)) + index);
}

using Links = std::vector<std::unique_ptr<HostLink>>;

void link(Links& links, const Row& row, std::unique_ptr<HostStream> stream) {
  auto made = (*find_host_transport(row.transport))->make(std::move(stream), kLargest, nullptr);
  CHECK(made.has_value(), "no link");
  links.push_back(std::move(*made));
}

Links listen(const std::string& address) {
  Links links;
  for (const Row& row : rows()) {
    auto listener = HostListener::open(address_of(address, links.size()), options_of(row));
    CHECK(listener.has_value(), "cannot listen");
    auto stream = (*listener)->accept(std::chrono::minutes(1));
    CHECK(stream && *stream, "nobody has connected");
    link(links, row, std::move(*stream));
  }
  return links;
}

Links connect(const std::string& address) {
  Links links;
  for (const Row& row : rows()) {
    const std::string at = address_of(address, links.size());
    auto stream = connect_host(at, options_of(row));
    while (!stream && stream.error().kind == ErrorKind::kUnavailable) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      stream = connect_host(at, options_of(row));
    }
    CHECK(stream.has_value(), "cannot connect");
    link(links, row, std::move(*stream));
  }
  return links;
}

void run(const Links& links, bool prints) {
  const auto names = rows();
  for (const size_t bytes : kSizes) {
    std::vector<std::vector<double>> medians(links.size());
    for (size_t round = 0; round < kRounds; ++round) {
      for (size_t index = 0; index < links.size(); ++index) {
        medians[index].push_back(time_exchanges(*links[index], bytes));
      }
    }
    for (size_t index = 0; prints && index < links.size(); ++index) {
      std::ranges::sort(medians[index]);
      fmt::print("{:5} {:5} KiB {:9.1f} us (medians of {} rounds: {:.1f} to {:.1f})\n",
                 names[index].name, bytes >> 10U, medians[index][kRounds / 2], kRounds,
                 medians[index].front(), medians[index].back());
      std::fflush(stdout);
    }
  }
}

}  // namespace
}  // namespace lockstep

int main(int count, char** words) {
  using namespace lockstep;
  if (count == 3) {
    run(connect(words[2]), true);
  } else if (count == 2) {
    run(listen(words[1]), false);
  } else {
    const std::string address = "127.0.0.1:17070";
    std::thread other([&] { run(listen(address), false); });
    run(connect(address), true);
    other.join();
  }
  return 0;
}
