// The job secret of all tests. test_program.cc also puts it into the environment, for the processes that they
// start.
#pragma once

#include "common/net/job_secret.h"

namespace psring {

inline constexpr char kTestSecret[] = "00112233445566778899aabbccddeeff";

inline JobSecret TestSecret() { return *JobSecret::FromHex(kTestSecret); }
inline JobSecret OtherSecret() { return *JobSecret::FromHex("ffeeddccbbaa99887766554433221100"); }

}  // namespace psring
