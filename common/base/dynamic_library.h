// A library that is loaded when it is first needed: programs start on machines that lack it, and report that
// only to users of its functions.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace psring {

class DynamicLibrary {
 public:
  // Loads the first of `names` that the dynamic linker finds: file names are searched in LD_LIBRARY_PATH and
  // the system's folders, paths are not. The library stays loaded until the process ends. NotFound contains
  // the linker's message for each name.
  static absl::StatusOr<DynamicLibrary> Open(const std::vector<std::string>& names);

  // NotFound if the library has no such function.
  template <typename Function>
  absl::Status Bind(const char* symbol, Function*& function) const {
    void* address = nullptr;
    absl::Status found = Find(symbol, address);
    function = reinterpret_cast<Function*>(address);
    return found;
  }

 private:
  DynamicLibrary(std::string name, void* handle) : name_(std::move(name)), handle_(handle) {}
  absl::Status Find(const char* symbol, void*& address) const;

  std::string name_;
  void* handle_;
};

}  // namespace psring
