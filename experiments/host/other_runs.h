// Finds other psrings that measure on this machine at the same time.
#pragma once

#include <string>
#include <vector>

#include "common/base/file_descriptor.h"

namespace psring {

// From construction on, others find this process. It has a socket with an abstract name, which all users and
// all containers with this network see, and which the kernel removes when the process ends, however it ends.
// A container with its own network is not found; its use of the processors is (ForeignCpu).
class MeasuringNow {
 public:
  MeasuringNow();

  // Process IDs of the others, ascending, as they see themselves.
  std::vector<int> Others() const;

 private:
  std::string own_;        // the name of socket_
  FileDescriptor socket_;  // not valid if the system permits none
  FileDescriptor names_;   // /proc/net/unix of the network in which this process started
};

// The process IDs in the names of MeasuringNow's sockets, except `own`, from the text of /proc/net/unix,
// ascending and distinct. Pure.
std::vector<int> MeasuringProcesses(const std::string& proc_net_unix, const std::string& own);

}  // namespace psring
