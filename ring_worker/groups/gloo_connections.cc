#include "ring_worker/groups/gloo_connections.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <filesystem>
#include <string_view>

#include "absl/strings/numbers.h"

namespace psring {
namespace {

// The bytes that identify an address: family, port and host. Empty: not a TCP address.
std::string_view Significant(const sockaddr_storage& address) {
  const char* const bytes = reinterpret_cast<const char*>(&address);
  if (address.ss_family == AF_INET) return {bytes, offsetof(sockaddr_in, sin_addr) + sizeof(in_addr)};
  if (address.ss_family == AF_INET6) return {bytes, offsetof(sockaddr_in6, sin6_addr) + sizeof(in6_addr)};
  return {};
}

bool StandsIn(const std::vector<std::string>& published, const sockaddr_storage& address) {
  const std::string_view bytes = Significant(address);
  if (bytes.empty()) return false;
  for (const std::string& text : published) {
    if (text.find(bytes) != std::string::npos) return true;
  }
  return false;
}

bool IsOneOf(int fd, const std::vector<std::string>& published) {
  sockaddr_storage local = {}, peer = {};
  socklen_t local_length = sizeof(local), peer_length = sizeof(peer);
  return getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &peer_length) == 0 &&
         getsockname(fd, reinterpret_cast<sockaddr*>(&local), &local_length) == 0 &&
         (StandsIn(published, local) || StandsIn(published, peer));
}

}  // namespace

int EndConnections(const std::vector<std::string>& published) {
  int ended = 0;
  std::error_code error;
  for (std::filesystem::directory_iterator entry("/proc/self/fd", error), end; !error && entry != end;
       entry.increment(error)) {
    int fd = -1;
    if (!absl::SimpleAtoi(entry->path().filename().string(), &fd) || !IsOneOf(fd, published)) continue;
    if (shutdown(fd, SHUT_RDWR) == 0) ++ended;
  }
  return ended;
}

}  // namespace psring
