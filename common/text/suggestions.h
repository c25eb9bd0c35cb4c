// What a user probably meant by an unknown name: the nearest known one, or what psring calls a thing that has
// this name in other programs. Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace psring {

// `word` in lower case, with `_` for `-`: equal for names that our commands treat as the same.
std::string CanonicalWord(std::string word);

// The known word that is `word` but for a typing error, begins with it, shares whole words with it at an end
// ("num_workers" and "workers", "budget" and "time_budget"), or else has the smallest edit distance (a swap
// of adjacent characters counts once, `-` and `_` are the same); empty if more than a third differs.
std::string NearestWord(const std::string& word, const std::vector<std::string>& known);

// Whether `word` is one of `names`, which commas separate.
bool IsOneOf(const std::string& word, const std::string& names);

struct KnownName {
  std::string name;
  std::string also_called = {};  // in other programs, separated by commas
  std::string resembles = {};    // names of what psring does not have and this is nearest to, likewise
  bool given = false;            // the user has named it, too, so it is not meant
};

// NotFound: "unknown model 'mpl'; did you mean 'mlp'? Use one of mlp, cnn", or what psring calls it.
// `kind`: TrNoop (common/text/translate.h).
absl::Status UnknownName(const std::string& kind, const std::string& name,
                         const std::vector<KnownName>& known);
absl::Status UnknownName(const std::string& kind, const std::string& name,
                         const std::vector<std::string>& known);

// The flag in `known` that `typed` means, from its names in other programs (other_flags.cc) or as
// NearestWord; empty if none. Both without dashes.
std::string NearestFlag(const std::string& typed, const std::vector<std::string>& known);

}  // namespace psring
