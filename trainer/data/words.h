// Pairs of words of a text for skip-grams with negative sampling (Mikolov et al. 2013).
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "trainer/data/dataset.h"

namespace psring {

struct WordPairs {
  static constexpr int kWindow = 5;     // words on each side of a word that count as near
  static constexpr int kNegatives = 5;  // words drawn for each pair
  static constexpr int kTargets = 1 + kNegatives;
};

// Two inputs, "word" and "targets", and a label for each target: 1 for the near word, which is the first, 0
// for those that were drawn.
SampleSpec WordSpec(int words);

// Words are runs of letters, in lower case; those that occur once are left out. A sample is a word and one of
// the words near it, at a random distance of at most kWindow; negatives are drawn with probabilities
// proportional to the 3/4 power of the words' frequency. The last 2% of the text are the test data. `path`
// empty: the King James Bible. Errors as for ReadText.
absl::StatusOr<DataSplits> ReadWords(const std::string& path, uint64_t seed);

}  // namespace psring
