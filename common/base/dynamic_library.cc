#include "common/base/dynamic_library.h"

#include <dlfcn.h>

#include "common/base/errors.h"

namespace psring {

absl::StatusOr<DynamicLibrary> DynamicLibrary::Open(const std::vector<std::string>& names) {
  std::string said;
  for (const std::string& name : names) {
    if (void* const handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL); handle != nullptr) {
      return DynamicLibrary(name, handle);
    }
    const char* const error = dlerror();
    absl::StrAppend(&said, said.empty() ? "" : "; ", error != nullptr ? error : name.c_str());
  }
  return NotFound(said);
}

absl::Status DynamicLibrary::Find(const char* symbol, void*& address) const {
  address = dlsym(handle_, symbol);
  if (address != nullptr) return absl::OkStatus();
  return NotFound(name_, " has no function ", symbol);
}

}  // namespace psring
