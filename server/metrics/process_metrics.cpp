#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <string>

#include "server/http/descriptor_shares.h"
#include "server/metrics/families.h"

namespace lockstep {
namespace {

struct Stat {  // fields of /proc/self/stat that are used (proc(5))
  double user_ticks = 0;
  double system_ticks = 0;
  double start_ticks = 0;  // after boot
  double virtual_bytes = 0;
  double resident_pages = 0;
};

std::optional<Stat> read_stat() {
  std::ifstream file("/proc/self/stat");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  // The second field is the program's name in brackets and may hold anything.
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream fields(text.substr(name_end + 1));
  Stat stat;
  std::string field;
  for (int number = 3; fields >> field; ++number) {
    if (number == 14) stat.user_ticks = std::stod(field);
    if (number == 15) stat.system_ticks = std::stod(field);
    if (number == 22) stat.start_ticks = std::stod(field);
    if (number == 23) stat.virtual_bytes = std::stod(field);
    if (number == 24) {
      stat.resident_pages = std::stod(field);
      return stat;
    }
  }
  return std::nullopt;
}

std::optional<double> boot_time_seconds() {
  std::ifstream file("/proc/stat");
  std::string word;
  while (file >> word) {
    double seconds = 0;
    if (word == "btime" && file >> seconds) return seconds;
  }
  return std::nullopt;
}

}  // namespace

std::vector<prometheus::MetricFamily> process_families() {
  std::vector<prometheus::MetricFamily> families;
  const auto ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  if (const auto stat = read_stat()) {
    families.push_back(counter_family("process_cpu_seconds_total",
                                      "Total user and system CPU time spent in seconds.",
                                      {{(stat->user_ticks + stat->system_ticks) / ticks}}));
    families.push_back(gauge_family("process_virtual_memory_bytes", "Virtual memory size in bytes.",
                                    {{stat->virtual_bytes}}));
    families.push_back(
        gauge_family("process_resident_memory_bytes", "Resident memory size in bytes.",
                     {{stat->resident_pages * static_cast<double>(sysconf(_SC_PAGESIZE))}}));
    if (const auto boot = boot_time_seconds()) {
      families.push_back(gauge_family("process_start_time_seconds",
                                      "Start time of the process since unix epoch in seconds.",
                                      {{*boot + stat->start_ticks / ticks}}));
    }
  }
  if (const size_t count = open_descriptors(); count > 0) {
    families.push_back(gauge_family("process_open_fds", "Number of open file descriptors.",
                                    {{static_cast<double>(count)}}));
  }
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    families.push_back(gauge_family("process_max_fds", "Maximum number of open file descriptors.",
                                    {{static_cast<double>(limit.rlim_cur)}}));
  }
  return families;
}

}  // namespace lockstep
