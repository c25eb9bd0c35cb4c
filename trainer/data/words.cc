#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/base/random.h"
#include "common/io/hash.h"
#include "trainer/data/sources.h"
#include "trainer/data/weighted_draw.h"

namespace psring {
namespace {

struct Corpus {
  std::vector<int32_t> words;  // of a text, by number
  WeightedDraw negatives;
};

class PairSource : public SampleSource {
 public:
  // Words [first, end) of the corpus.
  PairSource(std::shared_ptr<const Corpus> corpus, size_t first, size_t end, uint64_t seed)
      : corpus_(std::move(corpus)), first_(first), end_(end), seed_(seed) {}

  int64_t count() const override { return static_cast<int64_t>(end_ - first_); }
  void Read(int64_t index, absl::Span<void* const> inputs, int32_t* labels) const override {
    Random random(seed_, (uint64_t{1} << 61) + first_ + static_cast<uint64_t>(index));
    const int64_t last = count() - 1;
    int64_t near = index;
    while (near == index) {  // there are at least two words
      const int64_t distance = random.Below(2 * WordPairs::kWindow + 1) - int64_t{WordPairs::kWindow};
      near = std::clamp<int64_t>(index + distance, 0, last);
    }
    const int32_t* const words = corpus_->words.data() + first_;
    *static_cast<int32_t*>(inputs[0]) = words[index];
    auto* const targets = static_cast<int32_t*>(inputs[1]);
    targets[0] = words[near];
    labels[0] = 1;
    for (int i = 1; i < WordPairs::kTargets; ++i) {
      targets[i] = Draw(random);
      labels[i] = 0;
    }
  }
  std::string Hash() const override {
    return absl::StrCat(HashBytes(corpus_->words.data() + first_, (end_ - first_) * sizeof(int32_t)), seed_);
  }

 private:
  int32_t Draw(Random& random) const {
    return corpus_->negatives.At(static_cast<double>(random.Next() >> 11) * 0x1p-53);
  }

  const std::shared_ptr<const Corpus> corpus_;
  const size_t first_, end_;
  const uint64_t seed_;
};

}  // namespace

SampleSpec WordSpec(int words) {
  return {
      .inputs = {{.name = "word", .kind = TensorKind::kRows, .shape = {1}, .range = words, .lookups = {1}},
                 {.name = "targets",
                  .kind = TensorKind::kRows,
                  .shape = {WordPairs::kTargets},
                  .range = words,
                  .lookups = {WordPairs::kTargets}}},
      .labels = WordPairs::kTargets,
      .classes = 2};
}

absl::StatusOr<DataSplits> ReadWords(const std::string& path, uint64_t seed) {
  PSRING_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
  struct Word {
    int64_t count = 0;
    size_t number = 0;  // in the order of first occurrences
  };
  std::map<std::string, Word> counted;
  std::vector<int32_t> words;
  const absl::Status read = ForEachWord(text, [&](std::string word) {
    Word& entry = counted.try_emplace(std::move(word), Word{.number = counted.size()}).first->second;
    ++entry.count;
    words.push_back(static_cast<int32_t>(entry.number));
  });
  const std::string where = path.empty() ? "the default text" : path;
  if (!read.ok()) return Prefixed(read, where, ": ");
  constexpr int32_t kOnce = -1;
  std::vector<int32_t> numbers(counted.size(), kOnce);  // in alphabetical order
  std::vector<double> cumulative;                       // of the negatives' weights
  double sum = 0;
  for (const auto& [name, entry] : counted) {
    if (entry.count < 2) continue;
    numbers[entry.number] = static_cast<int32_t>(cumulative.size());
    cumulative.push_back(sum += std::pow(static_cast<double>(entry.count), .75));
  }
  for (int32_t& number : words) number = numbers[static_cast<size_t>(number)];
  std::erase(words, kOnce);
  const size_t all = words.size(), middle = all - all / 50;
  if (all - middle < 2) {
    return InvalidArgument(where, ": ", all,
                           " words that occur more than once are too few; --data words needs 100, and a word "
                           "consists of letters");
  }
  const SampleSpec spec = WordSpec(static_cast<int>(cumulative.size()));
  const auto corpus =
      std::make_shared<const Corpus>(Corpus{std::move(words), WeightedDraw(std::move(cumulative))});
  return DataSplits{.name = "words",
                    .train = Dataset(spec, std::make_shared<const PairSource>(corpus, 0, middle, seed)),
                    .test = Dataset(spec, std::make_shared<const PairSource>(corpus, middle, all, seed))};
}

}  // namespace psring
