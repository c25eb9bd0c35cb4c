// The words of a text. Pure.
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace psring {

// Calls `word` with each word of `text`, in lower case. A word consists of letters of any script, as Unicode
// defines them, with their combining marks; each Chinese or Japanese character is a word, because no spaces
// separate words there. InvalidArgument: the text is not UTF-8. It may end within a character, which is left
// out.
absl::Status ForEachWord(absl::string_view text, const std::function<void(std::string word)>& word);

}  // namespace psring
