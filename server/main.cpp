// lockstepd: picks the command; "serve" when none is named.
#include <fcntl.h>

#include <cerrno>
#include <cstdio>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include "server/commands/commands.h"

namespace {

struct Command {
  std::string_view name;
  int (*run)(const std::vector<std::string>& arguments);
};

constexpr Command kCommands[] = {
    {"serve", lockstep::run_serve},       {"generate", lockstep::run_generate},
    {"bench", lockstep::run_bench},       {"bench-machine", lockstep::run_bench_machine},
    {"evaluate", lockstep::run_evaluate}, {"plan", lockstep::run_plan},
    {"simulate", lockstep::run_simulate}, {"inspect", lockstep::run_inspect},
    {"hash-key", lockstep::run_hash_key}, {"check-health", lockstep::run_check_health},
};

int run(std::vector<std::string> arguments) {
  for (const Command& command : kCommands) {
    if (arguments.empty() || arguments.front() != command.name) continue;
    arguments.erase(arguments.begin());
    return command.run(arguments);
  }
  return lockstep::run_serve(arguments);
}

// A caller that starts a program with standard input, output or error closed would otherwise have
// its log written into the first file or connection that is opened.
void open_standard_descriptors() {
  for (const int number : {0, 1, 2}) {
    if (fcntl(number, F_GETFD) < 0 && errno == EBADF) open("/dev/null", O_RDWR);
  }
}

}  // namespace

int main(int count, char** values) {
  open_standard_descriptors();
  try {
    return run(std::vector<std::string>(values + 1, values + count));
  } catch (const std::exception& exception) {  // memory that ran out, for one
    std::fprintf(stderr, "lockstepd: %s\n", exception.what());
    return 1;
  }
}
