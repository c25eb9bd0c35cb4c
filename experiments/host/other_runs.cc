#include "experiments/host/other_runs.h"

#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace psring {
namespace {

constexpr char kPrefix[] = "psring-measures-";
constexpr int kMaxNamesakes = 16;  // processes of several containers with the same ID
constexpr size_t kMaxBytes = 16 << 20;

// Whether the socket got the abstract name `name`.
bool TakeName(int socket, const std::string& name) {
  sockaddr_un address{.sun_family = AF_UNIX};
  if (name.size() + 1 > sizeof(address.sun_path)) return false;
  memcpy(address.sun_path + 1, name.data(), name.size());
  const size_t size = offsetof(sockaddr_un, sun_path) + 1 + name.size();
  return bind(socket, reinterpret_cast<const sockaddr*>(&address), static_cast<socklen_t>(size)) == 0;
}

std::string ReadAgain(int file) {
  std::string text;
  if (lseek(file, 0, SEEK_SET) != 0) return text;
  char part[1 << 14];
  ssize_t count = 0;
  while (text.size() < kMaxBytes && (count = read(file, part, sizeof(part))) > 0)
    text.append(part, static_cast<size_t>(count));
  return text;
}

}  // namespace

MeasuringNow::MeasuringNow()
    : socket_(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)),
      names_(open("/proc/self/net/unix", O_RDONLY | O_CLOEXEC)) {
  for (int namesake = 0; socket_.valid() && namesake < kMaxNamesakes; ++namesake) {
    own_ = absl::StrCat(kPrefix, getpid(), ".", namesake);
    if (TakeName(socket_.get(), own_) || errno != EADDRINUSE) return;
  }
}

std::vector<int> MeasuringNow::Others() const {
  return names_.valid() ? MeasuringProcesses(ReadAgain(names_.get()), own_) : std::vector<int>();
}

std::vector<int> MeasuringProcesses(const std::string& proc_net_unix, const std::string& own) {
  std::set<int> processes;
  for (const absl::string_view line : absl::StrSplit(proc_net_unix, '\n')) {
    const size_t at = line.rfind(" @");  // marks abstract names
    absl::string_view name = at == absl::string_view::npos ? "" : line.substr(at + 2);
    if (name == own || !absl::ConsumePrefix(&name, kPrefix)) continue;
    const std::vector<absl::string_view> parts = absl::StrSplit(name, '.');
    int process = 0;
    if (parts.size() == 2 && absl::SimpleAtoi(parts[0], &process) && process > 0) processes.insert(process);
  }
  return {processes.begin(), processes.end()};
}

}  // namespace psring
