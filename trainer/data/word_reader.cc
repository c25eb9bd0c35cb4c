#include <array>
#include <clocale>
#include <cwchar>
#include <cwctype>
#include <utility>

#include "absl/strings/ascii.h"
#include "common/base/errors.h"
#include "trainer/data/sources.h"

namespace psring {
namespace {

// In its lifetime, the C library's functions for characters use Unicode on this thread.
class UnicodeLocale {
 public:
  UnicodeLocale() : locale_(newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr)) {
    if (locale_ != nullptr) before_ = uselocale(locale_);
  }
  ~UnicodeLocale() {
    if (locale_ == nullptr) return;
    uselocale(before_);
    freelocale(locale_);
  }
  UnicodeLocale(const UnicodeLocale&) = delete;
  UnicodeLocale& operator=(const UnicodeLocale&) = delete;

  bool ok() const { return locale_ != nullptr; }

 private:
  const locale_t locale_;
  locale_t before_ = nullptr;
};

// Ideographs, and syllables of Hiragana and Katakana.
bool IsWordByItself(wchar_t c) {
  return (c >= 0x3041 && c <= 0x30ff) || (c >= 0x3400 && c <= 0x4dbf) || (c >= 0x4e00 && c <= 0x9fff) ||
         (c >= 0xf900 && c <= 0xfaff) || (c >= 0x20000 && c <= 0x3ffff);
}

// Of a word in which it is not the first: a mark, a joiner, or a soft hyphen.
bool ContinuesWord(wchar_t c, wctype_t combining) {
  return iswctype(static_cast<wint_t>(c), combining) != 0 || c == 0xad || c == 0x200c || c == 0x200d;
}

}  // namespace

absl::Status ForEachWord(absl::string_view text, const std::function<void(std::string word)>& word) {
  const UnicodeLocale unicode;
  const wctype_t combining = wctype("combining");
  std::string letters;
  const auto end_word = [&] {
    if (!letters.empty()) word(std::exchange(letters, {}));
  };
  std::mbstate_t state = {};
  for (size_t at = 0; at < text.size();) {
    const auto first = static_cast<unsigned char>(text[at]);
    if (first < 0x80) {
      absl::ascii_isalpha(first) ? letters.push_back(absl::ascii_tolower(first)) : end_word();
      ++at;
      continue;
    }
    if (!unicode.ok()) {
      return Unimplemented("byte ", at,
                           " is not ASCII, and this system lacks the locale C.UTF-8, which tells letters");
    }
    wchar_t c = 0;
    const size_t bytes = std::mbrtowc(&c, text.data() + at, text.size() - at, &state);
    if (bytes == static_cast<size_t>(-2)) break;  // the text ends here
    if (bytes == static_cast<size_t>(-1)) {
      return InvalidArgument("byte ", at,
                             " is not UTF-8; convert the text, for example by iconv -f latin1 -t utf-8");
    }
    at += bytes;
    if (IsWordByItself(c)) end_word();
    if (iswalpha(static_cast<wint_t>(c)) != 0) {
      std::array<char, MB_LEN_MAX> encoded;
      std::mbstate_t whole = {};
      letters.append(
          encoded.data(),
          std::wcrtomb(encoded.data(), static_cast<wchar_t>(towlower(static_cast<wint_t>(c))), &whole));
      if (IsWordByItself(c)) end_word();
    } else if (letters.empty() || !ContinuesWord(c, combining)) {
      end_word();
    } else if (c != 0xad) {
      letters.append(text.data() + at - bytes, bytes);
    }
  }
  end_word();
  return absl::OkStatus();
}

}  // namespace psring
