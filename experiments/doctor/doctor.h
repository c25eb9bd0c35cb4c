// psring doctor: what this machine has, with a fix for each problem.
#pragma once

#include <string>
#include <vector>

#include "experiments/processes/interrupt.h"
#include "experiments/texts/phrase.h"

namespace psring {

extern const char* const kDebianPackages;  // the packages that ./run installs, separated by spaces

struct Examination {
  std::string what;  // "GPUs"
  bool found = false;
  std::string detail;  // what was found, or why not
  std::string fix;     // if not found: the command to type
  bool required = false;
};

std::vector<Examination> Examine(const Interrupt& interrupt, Language language = Language::kEnglish);

// A line each: "yes", "no" or "NO" (required), with the fix below a no.
std::string DescribeExaminations(const std::vector<Examination>& examinations,
                                 Language language = Language::kEnglish);

// 0 unless something required is missing.
int RunDoctor(const Interrupt& interrupt, Language language);

}  // namespace psring
