// The built-in workloads: the files of common/workloads/, compiled into the program by CMake.
#pragma once

#include <vector>

namespace psring {

struct WorkloadTable {
  const char* name;
  const char* text;
};
const std::vector<WorkloadTable>& WorkloadTables();

}  // namespace psring
