// The ops implemented by definition, with sums in double precision: what tests compare the fast ones with.
#pragma once

#include <memory>

#include "common/ops/ops.h"

namespace psring {

std::unique_ptr<Ops> MakeReferenceOps();

}  // namespace psring
