// The failure that ends a job. Other processes notice only its consequence, such as a lost connection, and
// report the failure instead.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "common/rendezvous/rendezvous.h"

namespace psring {

// Tells the others why this process fails ("rank 0: cannot write F: No space left on device"). Call it before
// closing connections. Without a store to tell it to, the others report the consequence.
void PublishFailure(Rendezvous& rendezvous, const std::string& failure);

// The error of a process that failed with `status`: names the failure that another process told, if any.
// Silence (DeadlineExceeded) is never the consequence of one.
absl::Status WithReportedFailure(Rendezvous& rendezvous, const absl::Status& status);

}  // namespace psring
