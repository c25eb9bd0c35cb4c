#include "common/base/own_program.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "common/base/check.h"
#include "common/text/translate.h"

namespace psring {

absl::StatusOr<std::string> OwnProgram() {
  if (const char* const started = std::getenv("PSRING_PROGRAM"); started != nullptr) return started;
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return absl::InternalError(Tr("cannot read /proc/self/exe: $0", Translation(error.message())));
  return self.string();
}

absl::StatusOr<std::string> FindProgram(const std::string& name) {
  PSRING_ASSIGN_OR_RETURN(const std::string self, OwnProgram());
  const std::string path = (std::filesystem::path(self).parent_path() / name).string();
  if (access(path.c_str(), X_OK) == 0) return path;
  return absl::NotFoundError(Tr("$0 is missing; build it: ./run build", path));
}

}  // namespace psring
