// The rows that a step touches, and data whose samples look rows up.
#include "trainer/tables/touched_rows.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "common/base/random.h"
#include "tests/trainer/cluster.h"
#include "trainer/data/sources.h"

namespace psring {
namespace {

// Samples whose lookups are given: [sample][3].
class GivenLookups : public SampleSource {
 public:
  explicit GivenLookups(std::vector<std::vector<int32_t>> lookups) : lookups_(std::move(lookups)) {}
  int64_t count() const override { return static_cast<int64_t>(lookups_.size()); }
  void Read(int64_t index, absl::Span<void* const> inputs, int32_t* labels) const override {
    const std::vector<int32_t>& own = lookups_[static_cast<size_t>(index)];
    std::copy(own.begin(), own.end(), static_cast<int32_t*>(inputs[0]));
    *labels = own[0] % 2;
  }
  std::string Hash() const override { return ""; }

 private:
  std::vector<std::vector<int32_t>> lookups_;
};

Dataset Given(std::vector<std::vector<int32_t>> lookups) {
  return Dataset(
      {.inputs = {{.name = "rows", .kind = TensorKind::kRows, .shape = {3}, .range = 9}}, .classes = 2},
      std::make_shared<const GivenLookups>(std::move(lookups)));
}

// One bag of two lookups of table "a", one of one lookup of table "b".
ParameterLayout TwoTables() {
  ParameterLayout layout;
  layout.AddTable({.name = "a", .rows = 9, .width = 4, .per_bag = 2});
  layout.AddTable({.name = "b", .rows = 5, .width = 4, .first_lookup = 2});
  return layout;
}

TEST(TouchedRows, AreDistinctAndEachHasItsBags) {
  const ParameterLayout layout = TwoTables();
  const Dataset data = Given({{7, 7, 0}, {2, 7, 4}, {8, 2, 0}, {1, 0, 3}});
  TouchedRows rows(layout, data.spec());
  ASSERT_TRUE(rows.Plan(data, {{0, 1}, {}, {2}}).ok());
  const std::vector<TouchedRows::OfTable>& tables = rows.of_tables();
  EXPECT_EQ(tables[0].rows, (std::vector<int32_t>{2, 7, 8}));
  EXPECT_EQ(tables[1].rows, (std::vector<int32_t>{0, 4}));
  EXPECT_EQ(tables[0].gradient, std::vector<float>(12));

  const BatchLookups& first = rows.batch(0);
  EXPECT_EQ(first.slots_at[0], (std::vector<int32_t>{1, 1, 0, 0, 1, 1}));
  EXPECT_EQ(first.tables[0].slots, (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(first.tables[0].begin, (std::vector<int32_t>{0, 1, 4}));
  // Bag 0 of sample 0 is 0, bag 1 is 1; those of sample 1 are 2 and 3. Row 7 is twice in bag 0.
  EXPECT_EQ(first.tables[0].bags, (std::vector<int32_t>{2, 0, 0, 2}));
  EXPECT_EQ(first.tables[1].bags, (std::vector<int32_t>{1, 3}));
  EXPECT_TRUE(rows.batch(1).tables[0].slots.empty());
  EXPECT_EQ(rows.batch(2).tables[0].slots, (std::vector<int32_t>{0, 2}));
  EXPECT_EQ(rows.batch(2).tables[1].bags, std::vector<int32_t>{1});

  const Batch two = rows.gathered(0);
  ASSERT_EQ(two.size, 2);
  EXPECT_EQ(std::vector<int32_t>(two.labels, two.labels + 2), (std::vector<int32_t>{1, 0}));
  EXPECT_EQ(rows.gathered(1).size, 0);
  const Batch last = rows.gathered(2);
  ASSERT_EQ(last.size, 1);
  const auto* const lookups = static_cast<const int32_t*>(last.inputs[0]);
  EXPECT_EQ(std::vector<int32_t>(lookups, lookups + 3), (std::vector<int32_t>{8, 2, 0}));
  EXPECT_EQ(*last.labels, 0);

  ASSERT_TRUE(rows.Plan(data, {{3}}).ok()) << "again, with other samples";
  EXPECT_EQ(tables[0].rows, (std::vector<int32_t>{0, 1}));
}

TEST(TouchedRows, ARowOutsideItsTableIsAnError) {
  const ParameterLayout layout = TwoTables();
  const Dataset data = Given({{7, 7, 5}});
  TouchedRows rows(layout, data.spec());
  EXPECT_EQ(rows.Plan(data, {{0}}).message(), "the data have a row 5, but b has 5 rows");
}

TEST(TouchedRows, OfManyLookupsAreSorted) {
  ParameterLayout layout;
  layout.AddTable({.name = "a", .rows = 1 << 26, .width = 1, .per_bag = 3});
  Random random(5);
  std::vector<std::vector<int32_t>> lookups(700, std::vector<int32_t>(3));
  std::map<int32_t, std::vector<int32_t>> samples_of;
  for (size_t sample = 0; sample < lookups.size(); ++sample) {
    for (int32_t& row : lookups[sample]) {
      row = static_cast<int32_t>(random.Below(random.Below(2) == 0 ? 100 : 1 << 26));
      samples_of[row].push_back(static_cast<int32_t>(sample));
    }
  }
  const Dataset data = Given(lookups);
  std::vector<int64_t> all(lookups.size());
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int64_t>(i);
  TouchedRows rows(layout, data.spec());
  ASSERT_TRUE(rows.Plan(data, {all}).ok());
  ASSERT_EQ(rows.of_tables()[0].rows.size(), samples_of.size());
  const BatchLookups::OfTable& table = rows.batch(0).tables[0];
  size_t i = 0;
  for (const auto& [row, samples] : samples_of) {
    EXPECT_EQ(rows.of_tables()[0].rows[i], row);
    EXPECT_EQ(
        std::vector<int32_t>(table.bags.begin() + table.begin[i], table.bags.begin() + table.begin[i + 1]),
        samples);
    ++i;
  }
}

TEST(Clicks, AreTheSameForASeedAndLearnable) {
  const ClickShape shape{.rows = 50, .alpha = 1, .train = 4000, .test = 10};
  const DataSplits data = MakeClicks(shape, 3);
  EXPECT_EQ(data.train.Hash(), MakeClicks(shape, 3).train.Hash());
  EXPECT_NE(data.train.Hash(), MakeClicks(shape, 4).train.Hash());
  EXPECT_EQ(data.name, "zipf:50:1");
  EXPECT_EQ(data.train.count(), 4000);
  const SampleSpec& spec = data.train.spec();
  int sum = 0;
  for (const int lookups : spec.inputs[1].lookups) sum += lookups;
  EXPECT_EQ(sum, 26);
  EXPECT_EQ(spec.inputs[1].lookups.size(), 8);
  // The most frequent row of table 0 has a share of 1 / (1 + 1/2 + ... + 1/50) = 22%, and is not row 0.
  std::map<int32_t, int> counts;
  int clicks = 0;
  for (int64_t i = 0; i < 4000; ++i) {
    float numbers[13];
    int32_t rows[26], label;
    void* const to[] = {numbers, rows};
    data.train.Gather({i}, to, &label);
    clicks += label;
    for (int k = 0; k < 4; ++k) ++counts[rows[k]];
    for (const int32_t row : rows) ASSERT_TRUE(row >= 0 && row < 50);
  }
  int most = 0;
  for (const auto& [row, count] : counts) most = std::max(most, count);
  EXPECT_NEAR(most / 16000.0, .222, .02);
  EXPECT_GT(clicks, 400);
  EXPECT_LT(clicks, 2400);
}

TEST(Words, ArePairsOfNearWordsWithNegatives) {
  std::string text;
  for (int i = 0; i < 100; ++i)
    text += i == 50 ? "One fish, two fish; red-fish once\n" : "One fish, two fish; red-fish\n";
  const DataSplits data = FromText(text, [](const std::string& path) { return ReadWords(path, /*seed=*/1); });
  EXPECT_EQ(data.train.count() + data.test.count(), 600) << "without the word that occurs once";
  EXPECT_EQ(data.train.spec().inputs[0].range, 4) << "fish, one, red, two";
  std::map<int32_t, int> negatives;
  for (int64_t i = 1; i < 500; ++i) {
    int32_t word, targets[6], labels[6];
    void* const to[] = {&word, targets};
    data.train.Gather({i}, to, labels);
    EXPECT_EQ(word, i % 2 == 1 ? 0 : i % 6 == 0 ? 1 : i % 6 == 2 ? 3 : 2) << i;
    EXPECT_EQ(std::vector<int32_t>(labels, labels + 6), (std::vector<int32_t>{1, 0, 0, 0, 0, 0}));
    for (int k = 1; k < 6; ++k) ++negatives[targets[k]];
  }
  // Proportional to 300^.75 ("fish") and 3 times 100^.75.
  EXPECT_NEAR(negatives[0] / 2495.0, .432, .04);
  for (const int word : {1, 2, 3}) EXPECT_NEAR(negatives[word] / 2495.0, .189, .03) << word;
  EXPECT_EQ(negatives.size(), 4u);
  EXPECT_FALSE(ReadWords("/nowhere/text", 1).ok());
}

// The words of a text, with a space after each; or the error.
std::string WordsOf(const std::string& text) {
  std::string words;
  const absl::Status read = ForEachWord(text, [&](const std::string& word) { words += word + " "; });
  return read.ok() ? words : std::string(read.message());
}

TEST(Words, ConsistOfLettersOfAnyScript) {
  for (const auto& [text, words] : std::vector<std::pair<std::string, std::string>>{
           {"", ""},
           {"It's 3 red-fish!\n", "it s red fish "},
           {"Мама мыла РАМУ, а папа…", "мама мыла раму а папа "},
           {"Größe ÜBER straße", "größe über straße "},
           {"«Ça» — l’été", "ça l été "},
           {"cafe\u0301 cafe", "cafe\u0301 cafe "},              // a combining accent
           {"co\u00adoperate", "cooperate "},                    // a soft hyphen
           {"\ufeffbegin \u00a0\u2003\u3000end", "begin end "},  // byte-order mark and spaces
           {"हिन्दी में क्या", "हिन्दी में क्या "},
           {"سلام، دنیا", "سلام دنیا "},
           {"שָׁלוֹם עולם", "שָׁלוֹם עולם "},
           {"한국어 문장", "한국어 문장 "},
           {"你好，世界。abc中文", "你 好 世 界 abc 中 文 "},
           {"カタカナ、ひらがな", "カ タ カ ナ ひ ら が な "},
           {"𠀀𠀁 😀 1️⃣", "𠀀 𠀁 "},
           {"a 中\xe4\xb8", "a 中 "},  // cut within a character
           {"\xe4\xb8", ""},
           {"ab\xfc"
            "cd",
            "byte 2 is not UTF-8; convert the text, for example by iconv -f latin1 -t utf-8"},
           {"a\xc0\xaf", "byte 1 is not UTF-8; convert the text, for example by iconv -f latin1 -t utf-8"},
           {"\xff\xfeh\0i\0",
            "byte 0 is not UTF-8; convert the text, for example by iconv -f latin1 -t utf-8"},
       }) {
    EXPECT_EQ(WordsOf(text), words) << text;
  }
}

}  // namespace
}  // namespace psring
