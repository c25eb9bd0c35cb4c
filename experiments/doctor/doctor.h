// psring doctor: what this machine has, what is missing, and the mend.
#pragma once

#include <string>
#include <vector>

#include "experiments/processes/interrupt.h"
#include "experiments/texts/phrase.h"

namespace psring {

struct Examination {
  std::string what;  // "GPUs"
  bool found = false;
  std::string detail;  // what was found, or why not
  std::string mend;    // for what was not found: what to type
  bool required = false;
};

std::vector<Examination> Examine(const Interrupt& interrupt, Language language = Language::kEnglish);

// A line each: "yes", "no" or "NO" (required), and the mend below a no.
std::string DescribeExaminations(const std::vector<Examination>& examinations,
                                 Language language = Language::kEnglish);

// 0 unless something required is missing.
int RunDoctor(const Interrupt& interrupt, Language language);

}  // namespace psring
