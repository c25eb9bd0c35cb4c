// The makers behind the rows of schedule.cc, one algorithm a file. Null: the collective is not offered.
#pragma once

#include <memory>

#include "ring_worker/schedule.h"

namespace psring {

std::unique_ptr<Schedule> MakeRing(Collective collective, const ScheduleShape& shape);
std::unique_ptr<Schedule> MakeStar(Collective collective, const ScheduleShape& shape);

}  // namespace psring
