#include "engine/base/dynamic_library.h"

#include <dlfcn.h>

namespace lockstep {

Result<DynamicLibrary> DynamicLibrary::open(std::initializer_list<std::string> names) {
  std::string first;
  for (const std::string& name : names) {
    if (void* const handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) {
      return DynamicLibrary(handle);
    }
    const char* const words = dlerror();
    if (first.empty()) first = words == nullptr ? name : words;
  }
  return machine_refused("{}", first);
}

void* DynamicLibrary::address_of(const char* name) const {
  return dlsym(handle_, name);
}

}  // namespace lockstep
