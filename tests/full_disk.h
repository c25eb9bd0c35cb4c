// A file on a full disk.
#pragma once

#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <string>

namespace psring {

// Every write to the new file `path` fails with ENOSPC, as to /dev/full, to which records and checkpoints do
// not follow a link. False: this user may not create devices.
inline bool MakeFullFile(const std::string& path) {
  return mknod(path.c_str(), S_IFCHR | 0600, makedev(1, 7)) == 0;
}

}  // namespace psring
