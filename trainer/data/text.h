// Texts as tokens. A sample is a window of `context` tokens; its labels are the tokens that follow each of
// them. Windows do not overlap, so an epoch predicts every token once.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "trainer/data/dataset.h"

namespace psring {

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

}  // namespace psring
