#include "common/text/peer_text.h"

#include <cstdint>

#include "absl/strings/str_format.h"

namespace psring {
namespace {

bool IsControl(uint32_t character) {
  const auto between = [&](uint32_t low, uint32_t high) { return character >= low && character <= high; };
  return between(0, 0x1f) || between(0x7f, 0x9f) || character == 0xad || character == 0x61c ||
         between(0x200b, 0x200f) || between(0x2028, 0x202e) || between(0x2060, 0x206f) ||
         character == 0xfeff || between(0xfff9, 0xfffb) || between(0xe0000, 0xe007f);
}

// The bytes of the UTF-8 character at the beginning of `text`; 0: its first byte begins none.
size_t CharacterBytes(std::string_view text, uint32_t& character) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  character = byte(0);
  if (character < 0x80) return 1;
  const size_t bytes = character >= 0xf0 ? 4 : character >= 0xe0 ? 3 : 2;
  if (character < 0xc2 || character > 0xf4 || bytes > text.size()) return 0;
  character &= 0xff >> (bytes + 1);
  for (size_t i = 1; i < bytes; ++i) {
    if (byte(i) >> 6 != 2) return 0;
    character = character << 6 | (byte(i) & 0x3f);
  }
  const bool too_long = (bytes == 3 && character < 0x800) || (bytes == 4 && character < 0x10000);
  const bool is_surrogate = character >= 0xd800 && character < 0xe000;
  return too_long || is_surrogate || character > 0x10ffff ? 0 : bytes;
}

constexpr size_t kUnlimited = SIZE_MAX;

std::string Escaped(std::string_view text, size_t most_bytes, std::string_view kept) {
  constexpr std::string_view kCut = "...";
  std::string line;
  size_t before_cut = 0;  // bytes of `line` after which `kCut` fits
  while (!text.empty()) {
    uint32_t character = 0;
    size_t bytes = CharacterBytes(text, character);
    const bool is_kept = bytes == 1 && kept.find(text.front()) != std::string_view::npos;
    if (bytes == 0 || (IsControl(character) && !is_kept)) {
      bytes = bytes == 0 ? 1 : bytes;
      for (const char escaped : text.substr(0, bytes)) {
        absl::StrAppendFormat(&line, "\\x%02x", static_cast<unsigned char>(escaped));
      }
    } else {
      line += text.substr(0, bytes);
    }
    text.remove_prefix(bytes);
    if (line.size() > most_bytes) {
      line.resize(before_cut);
      line += kCut;
      return line;
    }
    if (line.size() <= most_bytes - kCut.size()) before_cut = line.size();
  }
  return line;
}

}  // namespace

std::string PeerText(std::string_view text, size_t most_bytes) { return Escaped(text, most_bytes, ""); }

std::string OneLine(std::string_view text, std::string_view kept) { return Escaped(text, kUnlimited, kept); }

std::string MessageText(std::string_view text) {
  std::string message;
  while (true) {
    const size_t end = text.find('\n');
    message += OneLine(text.substr(0, end));
    if (end == std::string_view::npos) return message;
    text.remove_prefix(end + 1);
    message += text.starts_with("  | ") || text.starts_with("--resume ") ? "\n" : OneLine("\n");
  }
}

}  // namespace psring
