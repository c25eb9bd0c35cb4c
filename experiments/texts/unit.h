// What speeds and budgets count: samples, or the tokens of texts.
#pragma once

#include "experiments/texts/phrase.h"

namespace psring {

inline constexpr Phrase kSamplesUnit = {"samples", "样本"};
inline constexpr Phrase kTokensUnit = {"tokens", " token"};
inline const char* UnitOf(bool reads_text, Language language) {
  return In(language, reads_text ? kTokensUnit : kSamplesUnit);
}

}  // namespace psring
