#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/base/read_file.h"
#include "common/io/hash.h"
#include "trainer/data/sources.h"

namespace psring {
namespace {

constexpr size_t kMaxTextFile = size_t{1} << 30, kMaxTokenFile = size_t{4} << 30;

using Tokens = std::vector<uint16_t>;

class WindowSource : public SampleSource {
 public:
  // The windows in tokens [first, end).
  WindowSource(std::shared_ptr<const Tokens> tokens, size_t first, size_t end, int context)
      : tokens_(std::move(tokens)), first_(first), end_(end), context_(static_cast<size_t>(context)) {}

  int64_t count() const override {
    return end_ - first_ <= context_ ? 0 : static_cast<int64_t>((end_ - first_ - 1) / context_);
  }
  void Read(int64_t index, absl::Span<void* const> inputs, int32_t* labels) const override {
    const uint16_t* const from = tokens_->data() + first_ + static_cast<size_t>(index) * context_;
    std::copy(from, from + context_, static_cast<int32_t*>(inputs[0]));
    std::copy(from + 1, from + 1 + context_, labels);
  }
  std::string Hash() const override {
    return absl::StrCat(HashBytes(tokens_->data() + first_, (end_ - first_) * sizeof(uint16_t)), context_);
  }

 private:
  const std::shared_ptr<const Tokens> tokens_;
  const size_t first_, end_, context_;
};

absl::StatusOr<Dataset> Windows(std::shared_ptr<const Tokens> tokens, size_t first, size_t end, int context,
                                int classes, const std::string& where) {
  auto source = std::make_shared<const WindowSource>(std::move(tokens), first, end, context);
  if (source->count() == 0) {
    return InvalidArgument(where, ": ", end - first, " tokens are too few for --context ", context,
                           ", which needs ", context + 1);
  }
  return Dataset(TextSpec(context, classes), std::move(source));
}

absl::StatusOr<std::string> KingJamesBible() {
  constexpr char kCommand[] = "timeout 60 bible -f 'gen1:1-rev22:21' 2>/dev/null";
  const std::unique_ptr<FILE, int (*)(FILE*)> output(popen(kCommand, "r"), pclose);
  std::string text;
  std::array<char, 1 << 16> block;
  while (output != nullptr) {
    const size_t got = fread(block.data(), 1, block.size(), output.get());
    if (got == 0 || text.size() > kMaxTextFile) break;
    text.append(block.data(), got);
  }
  if (!text.empty()) return text;
  return absl::NotFoundError(
      "the default text is the King James Bible, which is not installed (apt-get install bible-kjv "
      "bible-kjv-text; or name a text: --text FILE)");
}

static_assert(std::endian::native == std::endian::little);

// The header of llm.c's token files (dev/data/data_common.py): 256 numbers of 32 bits, of which the first
// three are these.
struct LlmcHeader {
  static constexpr size_t kBytes = 256 * sizeof(int32_t);
  static constexpr int32_t kGpt2 = 20240520, kLlama3 = 20240801;
  int32_t magic = 0, version = 0, tokens = 0;
};
constexpr int kGpt2Vocabulary = 50257;

// Of 32 bits, in little-endian order, of a vocabulary below 2^20: every second 16-bit number is below 16, but
// not the others.
bool LookLike32Bits(absl::string_view bytes) {
  constexpr size_t kFewest = 512;  // bytes, below which 16-bit tokens may look like that
  constexpr uint16_t kMaxHighHalves = 16;
  if (bytes.size() < kFewest || bytes.size() % sizeof(uint32_t) != 0) return false;
  uint16_t highest[2] = {0, 0};
  for (size_t at = 0; at < bytes.size(); at += sizeof(uint16_t)) {
    uint16_t half;
    std::memcpy(&half, bytes.data() + at, sizeof(half));
    uint16_t& of_parity = highest[at / sizeof(half) % 2];
    of_parity = std::max(of_parity, half);
  }
  return highest[1] < kMaxHighHalves && highest[0] >= kMaxHighHalves;
}

// The tokens of a file, without its header. `vocabulary`: of the header; 0: unknown.
absl::StatusOr<absl::string_view> TokensIn(absl::string_view bytes, int& vocabulary) {
  vocabulary = 0;
  for (const auto& [magic, format] :
       {std::pair{absl::string_view("\x93NUMPY"), "a NumPy array (.npy); write its values with .tofile()"},
        {"PK\x03\x04", "a zip archive, such as .npz or PyTorch's .pt"},
        {"\x1f\x8b\x08", "compressed by gzip; decompress it"},
        {"\x28\xb5\x2f\xfd", "compressed by zstd; decompress it"},
        {"PAR1", "a Parquet file"}}) {
    if (absl::StartsWith(bytes, magic)) return InvalidArgument("it is ", format);
  }
  LlmcHeader header;
  if (bytes.size() >= LlmcHeader::kBytes) std::memcpy(&header, bytes.data(), sizeof(header));
  if (header.magic == LlmcHeader::kLlama3) {
    return absl::InvalidArgumentError("it has llm.c's header of 32-bit tokens (Llama 3)");
  }
  if (header.magic == LlmcHeader::kGpt2) {
    bytes.remove_prefix(LlmcHeader::kBytes);
    const size_t count = bytes.size() / sizeof(uint16_t);
    if (header.version != 1 || header.tokens < 0 || static_cast<size_t>(header.tokens) != count ||
        bytes.size() % sizeof(uint16_t) != 0) {
      return InvalidArgument("it has llm.c's header of version ", header.version, " and ", header.tokens,
                             " tokens, but ", bytes.size(), " bytes follow; psring reads version 1");
    }
    vocabulary = kGpt2Vocabulary;
    return bytes;
  }
  if (bytes.size() % sizeof(uint16_t) != 0) {
    return InvalidArgument("its size, ", bytes.size(), " bytes, is odd");
  }
  if (LookLike32Bits(bytes)) {
    return absl::InvalidArgumentError(
        "its tokens seem to have 32 or 64 bits, because every second 16-bit number is below 16");
  }
  return bytes;
}

absl::StatusOr<Tokens> ReadTokenFile(const std::string& path) {
  PSRING_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(path, kMaxTokenFile));
  int vocabulary = 0;
  const absl::StatusOr<absl::string_view> stored = TokensIn(bytes, vocabulary);
  if (!stored.ok()) {
    return InvalidArgument(path, ": not a file of 16-bit tokens: ", stored.status().message());
  }
  Tokens tokens(stored->size() / sizeof(uint16_t));
  std::memcpy(tokens.data(), stored->data(), stored->size());
  const auto outside = std::ranges::find_if(
      tokens, [vocabulary](uint16_t token) { return vocabulary > 0 && token >= vocabulary; });
  if (outside == tokens.end()) return tokens;
  return InvalidArgument(path, ": token ", *outside, " at position ", outside - tokens.begin(),
                         " is outside the vocabulary of ", vocabulary, " that its header implies (GPT-2)");
}

}  // namespace

SampleSpec TextSpec(int context, int classes) {
  return {.inputs = {{.name = "tokens", .kind = TensorKind::kTokens, .shape = {context}, .range = classes}},
          .labels = context,
          .classes = classes};
}

absl::StatusOr<std::string> ReadTextFile(const std::string& path) {
  return path.empty() ? KingJamesBible() : ReadFile(path, kMaxTextFile);
}

absl::StatusOr<DataSplits> ReadText(const std::string& path, int context) {
  PSRING_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
  std::array<bool, 256> occurs = {};
  for (const char c : text) occurs[static_cast<uint8_t>(c)] = true;
  std::array<uint16_t, 256> number = {};
  int classes = 0;
  for (size_t byte = 0; byte < occurs.size(); ++byte) {
    if (occurs[byte]) number[byte] = static_cast<uint16_t>(classes++);
  }
  auto tokens = std::make_shared<Tokens>(text.size());
  std::transform(text.begin(), text.end(), tokens->begin(),
                 [&](char c) { return number[static_cast<uint8_t>(c)]; });
  const size_t middle = text.size() - text.size() / 50;
  const std::string where = path.empty() ? "the default text" : path;
  DataSplits splits{.name = "text"};
  PSRING_ASSIGN_OR_RETURN(splits.train, Windows(tokens, 0, middle, context, classes, where));
  PSRING_ASSIGN_OR_RETURN(splits.test, Windows(tokens, middle, text.size(), context, classes,
                                               absl::StrCat(where, ", its last 2%")));
  return splits;
}

absl::StatusOr<DataSplits> ReadTokens(const std::string& dir, int context) {
  const std::string train_path = dir + "/train.bin", test_path = dir + "/val.bin";
  PSRING_ASSIGN_OR_RETURN(Tokens train, ReadTokenFile(train_path));
  PSRING_ASSIGN_OR_RETURN(Tokens test, ReadTokenFile(test_path));
  int classes = 0;
  for (const Tokens* tokens : {&train, &test}) {
    for (const uint16_t token : *tokens) classes = std::max(classes, token + 1);
  }
  const size_t train_size = train.size(), test_size = test.size();
  DataSplits splits{.name = "tokens"};
  PSRING_ASSIGN_OR_RETURN(splits.train, Windows(std::make_shared<const Tokens>(std::move(train)), 0,
                                                train_size, context, classes, train_path));
  PSRING_ASSIGN_OR_RETURN(splits.test, Windows(std::make_shared<const Tokens>(std::move(test)), 0, test_size,
                                               context, classes, test_path));
  return splits;
}

}  // namespace psring
