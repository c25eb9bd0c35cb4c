// The sources of samples: pictures, texts, pairs of words, clicks. One file each.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "trainer/data/dataset.h"

namespace psring {

// pictures.cc: pictures and labels as bytes in memory.
struct Pictures {
  int height = 0, width = 0, channels = 1, classes = 10;
  std::vector<uint8_t> pixels;  // [count][height][width][channels]
  std::vector<uint8_t> labels;  // [count], below `classes`
  // Inputs are NormalizedBytes: (byte / 255 - mean) / deviation.
  float mean = 0, deviation = 1;
};

std::array<float, 256> NormalizedBytes(float mean, float deviation);

// One input, "pictures", and one label.
SampleSpec PictureSpec(int height, int width, int channels = 1, int classes = 10);

Dataset MakePictures(Pictures pictures);

// Four idx files in `dir`, plain or .gz. Errors name the file and the problem: missing, truncated, not an idx
// file, a label that is too high, counts that differ. `mean` and `deviation`: of the training pixels.
absl::StatusOr<DataSplits> ReadPictures(const std::string& name, const std::string& dir, float mean,
                                        float deviation);

// synthetic_data.cc
struct SyntheticShape {
  int height = 28, width = 28;
  int64_t train = 60000, test = 10000;
};
// Learnable, from `seed`.
DataSplits MakeSyntheticData(const SyntheticShape& shape, uint64_t seed);

// text.cc: texts as tokens. A sample is a window of `context` tokens; its labels are the tokens that follow
// each of them. Windows do not overlap, so an epoch predicts every token once.
//
// One input, "tokens", and as many labels.
SampleSpec TextSpec(int context, int classes);

// The bytes of a file as tokens: the distinct ones, in ascending order, are numbered from 0. The last 2% are
// the test data. `path` empty: the King James Bible, from Debian's bible-kjv. Errors name the file or the
// package: missing, larger than 1 GiB, too short for two windows.
absl::StatusOr<DataSplits> ReadText(const std::string& path, int context);

// The text itself; `path` and errors as above.
absl::StatusOr<std::string> ReadTextFile(const std::string& path);

// nanoGPT's token files: train.bin and val.bin in `dir`, 16-bit numbers in little-endian order, or with
// llm.c's header of GPT-2 tokens before them. Classes: up to the highest token. Errors as above; files of at
// most 4 GiB. Other formats, and numbers of 32 bits, are InvalidArgument.
absl::StatusOr<DataSplits> ReadTokens(const std::string& dir, int context);

// words.cc: pairs of words of a text for skip-grams with negative sampling (Mikolov et al. 2013).
struct WordPairs {
  static constexpr int kWindow = 5;     // words on each side of a word that count as near
  static constexpr int kNegatives = 5;  // words drawn for each pair
  static constexpr int kTargets = 1 + kNegatives;
};

// Two inputs, "word" and "targets", and a label for each target: 1 for the near word, which is the first, 0
// for those that were drawn.
SampleSpec WordSpec(int words);

// Words are runs of letters, in lower case; those that occur once are left out. A sample is a word and one of
// the words near it, at a random distance of at most kWindow; negatives are drawn with probabilities
// proportional to the 3/4 power of the words' frequency. The last 2% of the text are the test data. `path`
// empty: the King James Bible. Errors as for ReadText.
absl::StatusOr<DataSplits> ReadWords(const std::string& path, uint64_t seed);

// word_reader.cc. Calls `word` with each word of `text`, in lower case. A word consists of letters of any
// script, as Unicode defines them, with their combining marks; each Chinese or Japanese character is a word,
// because no spaces separate words there. InvalidArgument: the text is not UTF-8. It may end within a
// character, which is left out.
absl::Status ForEachWord(absl::string_view text, const std::function<void(std::string word)>& word);

// clicks.cc: a generated log of clicks for recommendation models. A sample has 13 numbers, as Criteo's logs,
// 26 rows of 8 tables (multi-hot: 3 or 4 rows of each), and a label: 1 for a click. Rows of a table follow
// Zipf's distribution; the most frequent ones are spread over the table. Clicks are drawn with a probability
// that depends on numbers and rows, so that it can be learned.
struct ClickShape {
  static constexpr int kNumbers = 13, kTables = 8, kLookups = 26;
  int rows = 1;  // of each table
  double alpha = 1;
  int64_t train = 65536, test = 8192;
};
// Two inputs, "numbers" and "rows", and one label.
SampleSpec ClickSpec(int rows);
DataSplits MakeClicks(const ClickShape& shape, uint64_t seed);

}  // namespace psring
