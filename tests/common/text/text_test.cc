// Checks the Chinese catalog against the texts in the sources.
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "common/cli/command_line.h"
#include "common/text/peer_text.h"
#include "common/text/suggestions.h"
#include "common/text/translate.h"
#include "common/text/units.h"

namespace psring {
namespace {

namespace fs = std::filesystem;

std::string Read(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// The string literals of `source` and the text before each. Adjacent literals are joined.
struct Literal {
  std::string text, before;
};
std::vector<Literal> LiteralsOf(const std::string& source, char quote = '"') {
  std::vector<Literal> literals;
  std::string between;
  for (size_t i = 0; i < source.size(); ++i) {
    if (source.compare(i, 2, "//") == 0) {
      while (i < source.size() && source[i] != '\n') ++i;
      continue;
    }
    if (quote == '"' && (source.compare(i, 3, "'\"'") == 0 || source.compare(i, 4, "'\\\"'") == 0)) {
      i += source[i + 1] == '\\' ? 3 : 2;  // a character, not a literal's begin
      continue;
    }
    if (source[i] != quote) {
      if (std::isspace(static_cast<unsigned char>(source[i])) == 0) between += source[i];
      continue;
    }
    std::string text;
    for (++i; i < source.size() && source[i] != quote; ++i) {
      if (source[i] == '\\' && source[i + 1] != 'n') ++i;
      text += source[i];
    }
    if (between.empty() && !literals.empty()) {
      literals.back().text += text;
    } else {
      literals.push_back({text, between});
    }
    between.clear();
  }
  return literals;
}

struct Entry {
  std::string context, english, chinese;
};
std::vector<Entry> Catalog() {
  std::vector<Entry> entries;
  Entry entry;
  for (const Literal& literal : LiteralsOf(Read(PSRING_SOURCE_DIR "/common/text/zh_CN.po"))) {
    if (absl::EndsWith(literal.before, "msgctxt")) entry.context = literal.text;
    if (absl::EndsWith(literal.before, "msgid")) entry.english = literal.text;
    if (literal.before != "msgstr") continue;
    entry.chinese = literal.text;
    if (!entry.english.empty()) entries.push_back(entry);  // else: the header
    entry = {};
  }
  return entries;
}

// The programs' sources, without the tests.
std::vector<fs::path> Sources() {
  std::vector<fs::path> sources;
  for (const char* folder : {"common", "experiments", "ps_server", "ring_worker", "trainer"}) {
    for (const auto& entry : fs::recursive_directory_iterator(fs::path(PSRING_SOURCE_DIR) / folder)) {
      const std::string extension = entry.path().extension();
      if (extension == ".cc" || extension == ".h" || extension == ".cu") sources.push_back(entry.path());
    }
  }
  return sources;
}

// The texts of the page by key.
std::map<std::string, std::string> PageTexts() {
  std::map<std::string, std::string> texts;
  for (const auto& entry : fs::directory_iterator(PSRING_SOURCE_DIR "/experiments/page/web")) {
    if (!absl::StartsWith(entry.path().filename().string(), "texts")) continue;
    for (const Literal& literal : LiteralsOf(Read(entry.path()), '\'')) {
      if (!absl::EndsWith(literal.before, ":")) continue;
      const size_t from = literal.before.find_last_of(",{") + 1;
      const std::string key = literal.before.substr(from, literal.before.size() - 1 - from);
      if (!key.empty()) texts[key] = literal.text;
    }
  }
  return texts;
}

// "$0", "{0}", "{unit}".
std::set<std::string> Placeholders(const std::string& text) {
  std::set<std::string> found;
  for (size_t i = 0; i + 1 < text.size(); ++i) {
    if (text[i] == '$') found.insert(text.substr(i, 2));
    if (text[i] == '{') found.insert(text.substr(i, text.find('}', i) + 1 - i));
  }
  return found;
}

bool HoldsChinese(const std::string& text) {
  for (size_t i = 0; i + 2 < text.size(); ++i) {
    const auto lead = static_cast<unsigned char>(text[i]);
    if (lead >= 0xe4 && lead <= 0xe9) return true;  // U+4000 to U+9FFF
  }
  return false;
}

int Words(const std::string& text) {
  int words = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool letter = std::islower(static_cast<unsigned char>(text[i])) != 0;
    words += letter && (i == 0 || text[i - 1] == ' ') ? 1 : 0;
  }
  return words;
}

TEST(Catalog, TranslatesEveryTextOfTheSources) {
  std::set<std::string> translated, literals;
  for (const Entry& entry : Catalog()) {
    if (!entry.context.empty()) continue;
    EXPECT_TRUE(translated.insert(entry.english).second) << entry.english;
  }
  int texts = 0;
  for (const fs::path& path : Sources()) {
    for (const Literal& literal : LiteralsOf(Read(path))) {
      literals.insert(literal.text);
      if (!absl::EndsWith(literal.before, "Tr(") && !absl::EndsWith(literal.before, "TrNoop(")) continue;
      ++texts;
      EXPECT_TRUE(literal.text.empty() || translated.contains(literal.text)) << path << ": " << literal.text;
    }
  }
  EXPECT_GT(texts, 700);
  const std::set<std::string> of_the_system = {"No such file or directory", "Permission denied"};
  for (const std::string& text : translated)
    EXPECT_TRUE(literals.contains(text) || of_the_system.contains(text)) << "no longer used: " << text;
}

TEST(Catalog, TranslatesEveryTextOfThePage) {
  std::map<std::string, std::string> translated;
  for (const Entry& entry : Catalog()) {
    absl::string_view key = entry.context;
    if (absl::ConsumePrefix(&key, "page.")) translated[std::string(key)] = entry.english;
  }
  EXPECT_GT(translated.size(), 400u);
  EXPECT_EQ(translated, PageTexts());
}

TEST(Catalog, UsesThePlaceholdersOfTheEnglishText) {
  for (const Entry& entry : Catalog()) {
    SCOPED_TRACE(entry.english);
    for (const std::string& placeholder : Placeholders(entry.chinese))  // only English has plurals
      EXPECT_TRUE(Placeholders(entry.english).contains(placeholder)) << placeholder;
    if (entry.context == "page.other_language") continue;
    EXPECT_FALSE(HoldsChinese(entry.english));
    EXPECT_TRUE(Words(entry.english) <= 3 || HoldsChinese(entry.chinese)) << entry.chinese;
  }
}

TEST(Catalog, EntriesNeedNoEmptyLineBetweenThem) {
  EXPECT_EQ(
      ParseCatalog("msgid \"\"\nmsgstr \"header\"\n# of a count\nmsgid \"a\"\nmsgstr \"1\"\nmsgctxt "
                   "\"c\"\nmsgid \"a\"\nmsgstr \"\"\n\"2\"\n\"\\n\"\nmsgid \"\"\n\"b\"\nmsgstr \"3\"\nmsgid "
                   "\"untranslated\"\nmsgstr \"\""),
      (TextCatalog{{"a", "1"}, {"c\4a", "2\n"}, {"b", "3"}}));
}

TEST(Catalog, IsTheOnlyPlaceWithChinese) {
  for (const fs::path& path : Sources()) EXPECT_FALSE(HoldsChinese(Read(path))) << path;
}

TEST(Tr, TranslatesAndFillsIn) {
  EXPECT_EQ(Tr("$0 of $1 machines; other programs disturbed the others", 2, "3"),
            "2 of 3 machines; other programs disturbed the others");
  const ScopedLanguage chinese(Language::kChinese);
  EXPECT_EQ(Tr("$0 rounds", 2), "2 轮");
  EXPECT_EQ(Tr("not in the catalog: $0", 2), "not in the catalog: 2");
  EXPECT_EQ(ChineseByContext("page.").at("table"), "表格");
  EXPECT_STREQ(SentenceGap(), "");
  {
    const ScopedLanguage english(Language::kEnglish);
    EXPECT_EQ(Tr("$0 rounds", 2), "2 rounds");
    std::thread([] { EXPECT_EQ(Tr("$0 rounds", 2), "2 rounds") << "not another thread's"; }).join();
  }
  EXPECT_EQ(Tr("$0 rounds", 2), "2 轮");
}

TEST(Tr, ReachesErrorsWhereTheyOccur) {
  const ScopedLanguage chinese(Language::kChinese);
  EXPECT_EQ(WholeNumber(1, 9)("abc"), "'abc' 不是数");
  EXPECT_EQ(UnknownName("strategy", "rign", std::vector<std::string>{"single", "ring"}).message(),
            "没有名为 'rign' 的策略；是否指 'ring'？可用：single, ring");
}

TEST(Language, IsThatOfTheLocaleUnlessAProgramPassedOnItsOwn) {
  const auto with = [](const std::map<std::string, const char*>& variables) {
    return LanguageOf([&](const char* name) {
      const auto found = variables.find(name);
      return found == variables.end() ? nullptr : found->second;
    });
  };
  EXPECT_EQ(with({}), Language::kEnglish);
  EXPECT_EQ(with({{"LANG", "zh_CN.UTF-8"}}), Language::kChinese);
  EXPECT_EQ(with({{"LANG", "zh_CN.UTF-8"}, {"LC_ALL", ""}, {"LC_MESSAGES", "zh_TW"}}), Language::kChinese);
  EXPECT_EQ(with({{"LANG", "zh_CN.UTF-8"}, {"LC_ALL", "C"}}), Language::kEnglish);
  EXPECT_EQ(with({{"LC_ALL", "C"}, {kLanguageVariable, "zh"}}), Language::kChinese);
}

TEST(BitRate, UnitsAreDecimalBitsPerSecond) {
  for (const auto& [text, bits_per_s] : {std::pair("1gbit", 1e9),
                                         {"200mbit", 2e8},
                                         {"2.5Gbit", 2.5e9},
                                         {"512kbit", 512e3},
                                         {"100tbit", 1e14}}) {
    EXPECT_EQ(*ParseBitRate(text), bits_per_s) << text;
  }
}

TEST(BitRate, UsualSpellingsAreAccepted) {
  for (const char* text :
       {"25Gbps", "25gbps", "25Gb/s", "25Gbit/s", "25Gbits/s", "25GbE", "25gbit", "25000Mbps", "25g", "25G",
        "25gb", "25Gb", "25000M", "25 gbit", "25 Gbit/s", "0.025T"}) {
    EXPECT_EQ(ParseBitRate(text).value(), 25e9) << text;
  }
  EXPECT_EQ(*ParseBitRate("9600b/s"), 9600);
}

TEST(BitRate, BytesAreNotTakenForBits) {
  const struct {
    const char *text, *bits;
  } cases[] = {{"25GB/s", "200gbit"},   {"25GBps", "200gbit"},    {"1GB", "8gbit"},
               {"1 GB", "8gbit"},       {"0.5MB/s", "4mbit"},     {"25Mbytes/s", "200mbit"},
               {"512B/s", "4.096kbit"}, {"1MiB/s", "8.38861mbit"}};
  for (const auto& [text, bits] : cases)
    EXPECT_EQ(ParseBitRate(text).status().message(),
              absl::StrCat("'", text, "' is in bytes, but a rate is in bits; write ", bits));
}

TEST(BitRate, AnInvalidRateIsAnErrorWithAnExample) {
  for (const char* text : {"", "1", "1000", "gbit", "1x", "1gibit", "1gbitps", "1 g bit", "1e9bit", "-1gbit",
                           "1..2gbit", "fast", "1bit", "10be", "0gbit", "101tbit", "nan", "inf"}) {
    const auto rate = ParseBitRate(text);
    EXPECT_EQ(rate.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_TRUE(absl::StrContains(rate.status().message(), text)) << rate.status();
  }
  EXPECT_TRUE(absl::StrContains(ParseBitRate("1000").status().message(), "no unit"));
}

TEST(BitRate, IsShownInTheLargestUnitThatFits) {
  EXPECT_EQ(BitRateText(1e9), "1 Gbit/s");
  EXPECT_EQ(BitRateText(2.5e9), "2.5 Gbit/s");
  EXPECT_EQ(BitRateText(2e8), "200 Mbit/s");
  EXPECT_EQ(BitRateText(5e5), "500 kbit/s");
}

TEST(ByteSize, UsualSpellingsAreAccepted) {
  const struct {
    const char* text;
    uint64_t bytes;
  } cases[] = {{"4096", 4096}, {"4K", 4096},       {"4k", 4096},  {"4KB", 4096},      {"4kb", 4096},
               {"4KiB", 4096}, {"4 KiB", 4096},    {"4Ki", 4096}, {"1.5M", 3 << 19},  {"2G", 2ull << 30},
               {"7B", 7},      {"1T", 1ull << 40}, {"0", 0},      {"2GB", 2ull << 30}};
  for (const auto& [text, bytes] : cases) EXPECT_EQ(ParseByteSize(text).value(), bytes) << text;
  for (const char* text : {"", "B", "K", "iB", "4i", "44i", "4KKB", "4 5", "1gbit", "2T", "-1K", "4K,8K",
                           "4X", "1e3", "inf", "4Xi", "0.1", "2000G", "1.2.3"})
    EXPECT_FALSE(ParseByteSize(text).ok()) << text;
}

TEST(Units, NumbersAreShortenedToThreeDigits) {
  EXPECT_EQ(ThreeDigits(0.12345), "0.123");
  EXPECT_EQ(ThreeDigits(12.0), "12");
  EXPECT_EQ(ThreeDigits(1234), "1.23e+03");
}

TEST(ByteSize, TextIsShortAndRoundTrips) {
  EXPECT_EQ(ByteSizeText(4096), "4K");
  EXPECT_EQ(ByteSizeText(3 << 19), "1.5M");
  EXPECT_EQ(ByteSizeText(1000), "1000");
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{4095}, uint64_t{25} << 20, uint64_t{3} << 29})
    EXPECT_EQ(*ParseByteSize(ByteSizeText(bytes)), bytes);
}

TEST(DurationText, UsualSpellingsAreAccepted) {
  const struct {
    const char* text;
    absl::Duration duration;
  } cases[] = {{"90s", absl::Seconds(90)},
               {"90 sec", absl::Seconds(90)},
               {"10min", absl::Minutes(10)},
               {"10 Minutes", absl::Minutes(10)},
               {"1h30m", absl::Minutes(90)},
               {"1h 30 min", absl::Minutes(90)},
               {"2hours", absl::Hours(2)},
               {"0.5 ms", absl::Microseconds(500)},
               {"100usec", absl::Microseconds(100)},
               {"100µs", absl::Microseconds(100)},
               {"1.5d", absl::Hours(36)}};
  for (const auto& [text, duration] : cases) EXPECT_EQ(ParseDurationText(text), duration) << text;
  for (const char* text :
       {"", "10", "s", "1x", "1h30", "-1s", "1..5s", "1e3s", "inf", "1s,2s", "10 parsecs"}) {
    EXPECT_EQ(ParseDurationText(text), std::nullopt) << text;
  }
}

using WordList = std::vector<std::string>;

// `cases`: "TYPED=MEANT; ...".
void ExpectSuggestions(const std::string& cases, std::string (*nearest)(const std::string&, const WordList&),
                       const WordList& known) {
  for (const absl::string_view one : absl::StrSplit(cases, "; ")) {
    const std::pair<std::string, std::string> words = absl::StrSplit(one, '=');
    EXPECT_EQ(nearest(words.first, known), words.second) << words.first;
  }
}

TEST(NearestWord, IsTheOneWithATypingErrorAPartOfItOrItsWords) {
  const WordList known = {"workers",      "worker_timeout", "time_budget", "steps",
                          "warmup_steps", "max_restarts",   "batch",       "out"};
  ExpectSuggestions(
      "worker=workers; wrokers=workers; workers_timeout=worker_timeout; Worker-Timeuot=worker_timeout; "
      "budget=time_budget; batch_size=batch; my_workers=workers; max_steps=steps; "
      "my_warmup_steps=warmup_steps; warm=warmup_steps; max_restart=max_restarts; out_dir=out; zzz=; x=; =",
      NearestWord, known);
}

TEST(NearestFlag, IsTheFirstOfTheCommandThatHasThatNameElsewhere) {
  const WordList compare = {"batch",       "global_batch", "workers",        "strategies", "link",
                            "time_budget", "nnodes",       "nproc_per_node", "lr",         "out",
                            "wire",        "precision",    "model"};
  const WordList bench = {"workers", "minbytes", "datatype", "nnodes", "iters", "out"};
  const WordList predict = {"workers", "gpus_per_node", "workload", "intra", "link", "wire"};
  ExpectSuggestions(
      "batch-size=batch; per_device_train_batch_size=batch; global_batch_size=global_batch; bandwidth=link; "
      "gpus=workers; n=workers; np=workers; world-size=workers; learning_rate=lr; fp16=wire; "
      "algorithm=strategies; duration=time_budget; gpus_per_node=nproc_per_node; arch=model",
      NearestFlag, compare);
  ExpectSuggestions("g=workers; t=workers; dtype=datatype; iterations=iters; bandwidth=", NearestFlag, bench);
  ExpectSuggestions("model=workload; nvlink=intra; gpus_per_machine=gpus_per_node; wrokers=workers",
                    NearestFlag, predict);
}

TEST(NearestWord, OfStrategiesMayDifferInCaseAndSeparators) {
  const WordList words = {"none", "single", "star", "ring", "ps-sync", "ps-async"};
  ExpectSuggestions(
      "rnig=ring; rings=ring; Ring=ring; ps_sync=ps-sync; pssync=ps-sync; ps-asinc=ps-async; sing=single; "
      "horovod=; =",
      NearestWord, words);
  EXPECT_EQ(NearestWord("ring", {}), "");
}

TEST(IsOneOf, FindsTheWholeNameInAnySpelling) {
  EXPECT_TRUE(IsOneOf("ddp", "ddp,all-reduce"));
  EXPECT_TRUE(IsOneOf("All_Reduce", "ddp,all-reduce"));
  EXPECT_FALSE(IsOneOf("dd", "ddp,all-reduce"));
  EXPECT_FALSE(IsOneOf("", "ddp"));
  EXPECT_FALSE(IsOneOf("ddp", ""));
}

TEST(PeerText, KeepsPrintableUtf8) {
  const std::string text = "rank 1: caf\xc3\xa9 \xe6\xaf\x94 \xf0\x9f\x9a\x80 'a' \\";
  EXPECT_EQ(PeerText(text), text);
  EXPECT_EQ(PeerText(""), "");
}

TEST(PeerText, EscapesControlCharactersAndLines) {
  EXPECT_EQ(PeerText("a\nb\tc\r\x1b[2J\x7f"), "a\\x0ab\\x09c\\x0d\\x1b[2J\\x7f");
  EXPECT_EQ(PeerText(std::string("a\0b", 3)), "a\\x00b");
  EXPECT_EQ(PeerText("\xc2\x9b[2J"), "\\xc2\\x9b[2J");
  for (const std::string text :
       {"\xe2\x80\xae", "\xe2\x81\xa7", "\xe2\x80\x8f", "\xd8\x9c", "\xe2\x80\xa8", "\xe2\x80\xa9",
        "\xc2\x85", "\xe2\x80\x8b", "\xef\xbb\xbf", "\xf3\xa0\x81\x81"}) {
    std::string escaped;
    for (const char byte : text) absl::StrAppendFormat(&escaped, "\\x%02x", static_cast<unsigned char>(byte));
    EXPECT_EQ(PeerText(text), escaped) << "it changes lines or the direction of writing, or is invisible";
    EXPECT_EQ(OneLine(text), escaped);
    EXPECT_EQ(OneLine(text, "\n\t"), escaped);
  }
}

TEST(PeerText, OnlyTextsOfPsringHaveSeveralLines) {
  const std::string lines = "two lines\n  | \tof plain text";
  EXPECT_EQ(OneLine(lines, "\n\t"), lines);
  EXPECT_EQ(OneLine(lines), "two lines\\x0a  | \\x09of plain text");
  EXPECT_EQ(MessageText("it failed\n  | the log\x1b\n  | of it\n--resume it continues\npsring: done"),
            "it failed\n  | the log\\x1b\n  | of it\n--resume it continues\\x0apsring: done");
  EXPECT_EQ(OneLine(std::string(100'000, 'x')), std::string(100'000, 'x'));
}

TEST(PeerText, EscapesWhatIsNotUtf8) {
  EXPECT_EQ(PeerText("caf\xe9"), "caf\\xe9");
  EXPECT_EQ(PeerText("\xc2"), "\\xc2") << "truncated";
  EXPECT_EQ(PeerText("\xc0\xaf"), "\\xc0\\xaf") << "too long";
  EXPECT_EQ(PeerText("\xe0\x80\xaf"), "\\xe0\\x80\\xaf");
  EXPECT_EQ(PeerText("\xed\xa0\x80"), "\\xed\\xa0\\x80") << "a surrogate";
  EXPECT_EQ(PeerText("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80") << "above U+10FFFF";
  EXPECT_EQ(PeerText("\xff\xc3\xa9"), "\\xff\xc3\xa9");
}

TEST(PeerText, IsBoundedAndEndsAtACharacter) {
  EXPECT_EQ(PeerText(std::string(kMaxPeerTextBytes, 'x')), std::string(kMaxPeerTextBytes, 'x'));
  EXPECT_EQ(PeerText(std::string(1 << 20, 'x')), std::string(kMaxPeerTextBytes - 3, 'x') + "...");
  EXPECT_EQ(PeerText("abcdef", 5), "ab...");
  EXPECT_EQ(PeerText("a\xc3\xa9\xc3\xa9\xc3\xa9", 5), "a...");
  EXPECT_EQ(PeerText("\x1b\x1b", 7), "\\x1b...");
  EXPECT_EQ(PeerText("\x1b\x1b", 6), "...");
}

}  // namespace
}  // namespace psring
