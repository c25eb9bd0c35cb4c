// A library that is looked for when it is first needed: programs start on machines that lack it, and say so
// only to those who asked for what it does.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace psring {

class DynamicLibrary {
 public:
  // The first of `names` that the dynamic linker finds: file names go through LD_LIBRARY_PATH and the
  // system's folders, paths do not. It stays loaded until the process ends. NotFound says what the linker
  // said of each.
  static absl::StatusOr<DynamicLibrary> Open(const std::vector<std::string>& names);

  // Fails where the library has no such function.
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
