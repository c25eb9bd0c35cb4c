#include "common/cli/finish_output.h"

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/cli/command_line.h"

namespace psring {

int FinishOutput(const std::string& program, int code) {
  errno = 0;
  const bool is_written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (is_written || code != 0) return code;
  if (errno == 0 && std::fputc('\n', stdout) != EOF) std::fflush(stdout);  // an earlier write failed: why?
  return Fail(program, absl::StrCat("cannot write to the standard output",
                                    errno != 0 ? absl::StrCat(": ", std::strerror(errno)) : ""));
}

}  // namespace psring
