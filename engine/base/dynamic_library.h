// A shared library that is looked for when it is first needed. A program that can do without it
// starts where it is missing, which it would not if it were linked with it.
#pragma once

#include <initializer_list>
#include <string>

#include "engine/base/result.h"

namespace lockstep {

class DynamicLibrary {
 public:
  // Loads the first of these that can be: a name, for which the loader looks where it always does
  // (LD_LIBRARY_PATH, ldconfig's list), or a path. It stays until the process ends, as libraries
  // may have threads of their own. Fails with kMachineRefused: the loader's words on the first.
  static Result<DynamicLibrary> open(std::initializer_list<std::string> names);

  // Sets `function` to the library's function of this name, whose type is not checked. False, and
  // null, if it has none.
  template <typename Function>
  bool find(const char* name, Function*& function) const {
    function = reinterpret_cast<Function*>(address_of(name));
    return function != nullptr;
  }

 private:
  explicit DynamicLibrary(void* handle) : handle_(handle) {}
  void* address_of(const char* name) const;

  void* handle_;
};

// Takes several functions of a library, and knows the first that it does not have.
class FunctionTaker {
 public:
  explicit FunctionTaker(const DynamicLibrary& library) : library_(library) {}

  // As DynamicLibrary::find().
  template <typename Function>
  void operator()(const char* name, Function*& function) {
    if (!library_.find(name, function) && missing_ == nullptr) missing_ = name;
  }
  // The name of the first that is missing; null: all are there.
  const char* missing() const { return missing_; }

 private:
  const DynamicLibrary& library_;  // outlives this
  const char* missing_ = nullptr;
};

}  // namespace lockstep
