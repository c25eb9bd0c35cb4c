// Names that a job's processes and their launcher share.
#pragma once

namespace psring {

// Files of step records, before "N.jsonl": of the last attempt of a job, and of one before its restart.
inline constexpr char kSteps[] = "steps-rank", kEarlierSteps[] = "steps-earlier-rank";

// At the end of a job, a server prints this and the numbers of the workers that the job has ended without.
inline constexpr char kEndedWithout[] = "ps_server: the job has ended without workers ";

}  // namespace psring
