#include "common/text/suggestions.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/text/translate.h"

namespace psring {
namespace {

constexpr size_t kTypingErrors = 2;
constexpr size_t kFewestLetters = 3;  // of a part that suggests the whole

// Optimal string alignment: insertions, deletions, replacements and swaps of adjacent characters count 1.
size_t EditDistance(const std::string& a, const std::string& b) {
  std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        d[i][j] = i + j;
        continue;
      }
      const size_t replaced = d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, replaced});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
      }
    }
  }
  return d[a.size()][b.size()];
}

// Whether `part` is the first or the last of the words in `whole`, which "_" separates.
bool IsAtAnEnd(const std::string& part, const std::string& whole) {
  return part.size() >= kFewestLetters &&
         (absl::StartsWith(whole, part + "_") || absl::EndsWith(whole, "_" + part));
}

}  // namespace

std::string CanonicalWord(std::string word) {
  absl::AsciiStrToLower(&word);
  std::replace(word.begin(), word.end(), '-', '_');
  return word;
}

std::string NearestWord(const std::string& word, const std::vector<std::string>& known) {
  const std::string typed = CanonicalWord(word);
  if (typed.size() >= kFewestLetters) {
    for (const std::string& candidate : known) {
      if (absl::StartsWith(CanonicalWord(candidate), typed)) return candidate;
    }
  }
  std::string nearest, longest;
  size_t least = SIZE_MAX;
  for (const std::string& candidate : known) {
    const std::string name = CanonicalWord(candidate);
    const size_t distance = EditDistance(typed, name);
    if (3 * distance <= std::max(typed.size(), name.size()) && distance < least) {
      least = distance;
      nearest = candidate;
    }
    const bool shares = IsAtAnEnd(name, typed) || IsAtAnEnd(typed, name);
    if (shares && candidate.size() > longest.size()) longest = candidate;
  }
  return longest.empty() || least <= kTypingErrors ? nearest : longest;
}

absl::Status UnknownName(const std::string& kind, const std::string& name,
                         const std::vector<KnownName>& known) {
  const std::string base = name.substr(0, name.find(':'));  // without a strategy's number
  std::vector<std::string> names, unused;
  for (const KnownName& one : known) {
    names.push_back(one.name);
    if (!one.given) unused.push_back(one.name);
  }
  const auto unknown = [&](const std::string& meant) {
    return absl::NotFoundError(Tr("unknown $0 '$1'; $2", Tr(kind), name, meant));
  };
  const std::string all = absl::StrJoin(names, ", ");
  for (const KnownName& one : known) {
    const bool is_it = IsOneOf(base, one.also_called);
    if (!is_it && !IsOneOf(base, one.resembles)) continue;
    const std::string meant =
        Tr(is_it ? TrNoop("psring calls it '$0'") : TrNoop("psring has nothing like it; the nearest is '$0'"),
           one.name);
    return unknown(one.given ? Tr("$0, which is given, too; omit '$1'", meant, name)
                             : Tr("$0. Use one of $1", meant, all));
  }
  const std::string nearest = NearestWord(name, unused);
  return unknown(nearest.empty() ? Tr("use one of $0", all)
                                 : Tr("did you mean '$0'? Use one of $1", nearest, all));
}

absl::Status UnknownName(const std::string& kind, const std::string& name,
                         const std::vector<std::string>& known) {
  std::vector<KnownName> names;
  for (const std::string& one : known) names.push_back({.name = one});
  return UnknownName(kind, name, names);
}

bool IsOneOf(const std::string& word, const std::string& names) {
  const std::vector<std::string> all = absl::StrSplit(names, ',', absl::SkipEmpty());
  return std::ranges::any_of(
      all, [&](const std::string& name) { return CanonicalWord(name) == CanonicalWord(word); });
}

}  // namespace psring
