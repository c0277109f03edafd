// Names for addresses of code: of functions in the program's own file, as far as it was not
// stripped, and of the modules otherwise. Reads everything when it is made; finding takes no lock
// and allocates nothing.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

class ProgramSymbols {
 public:
  struct Place {
    std::string_view name;  // a function as the linker spells it, or a module: "libc.so.6"
    uint64_t offset = 0;    // from the function's start, or in the module's file as mapped
  };

  ProgramSymbols();
  ~ProgramSymbols();

  ProgramSymbols(const ProgramSymbols&) = delete;
  ProgramSymbols& operator=(const ProgramSymbols&) = delete;

  Place find(uintptr_t address) const;

 private:
  struct Module {
    std::string name;
    uintptr_t base = 0;
    uintptr_t end = 0;
  };
  struct Function {
    uintptr_t begin = 0;
    uintptr_t end = 0;
    uint32_t name = 0;  // where it begins in names_
  };

  void read_functions();

  std::vector<Module> modules_;
  std::vector<Function> functions_;  // ascending
  std::span<const char> file_;       // the program's, mapped
  std::string_view names_;           // in file_: names, each with a NUL after it
};

}  // namespace lockstep
