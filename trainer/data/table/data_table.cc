#include "trainer/data/table/data_table.h"

#include "common/base/check.h"
#include "common/text/suggestions.h"
#include "common/text/translate.h"
#include "common/workloads/zipf.h"

namespace psring {

const DataTable& DataRows() {
  static const auto& rows = *new DataTable{
      {"fashion-mnist", "60,000 images of clothes; Debian's dataset-fashion-mnist, or from --data_dir"},
      {"mnist", "handwritten digits, or any other four idx files, from --data_dir"},
      {"synthetic", "a noisy pattern per class; needs no files"},
      {"text", "the bytes of --text FILE, else of the King James Bible (Debian's bible-kjv)",
       /*takes_text=*/true},
      {"words", "pairs of near words of --text FILE, else of the King James Bible, for skipgram",
       /*takes_text=*/true},
      {"zipf:ROWS:ALPHA", "generated clicks; rows of each table follow Zipf's distribution; needs no files",
       /*takes_text=*/false, [](const std::string& name) { return ParseZipf(name).status(); }},
      {"tokens", "train.bin and val.bin of nanoGPT or llm.c, 16-bit tokens, from --data_dir"},
  };
  return rows;
}

std::vector<std::string> DataNames(const DataTable& rows) {
  std::vector<std::string> names;
  for (const DataRow& row : rows) names.push_back(row.name);
  return names;
}

absl::StatusOr<const DataRow*> FindData(const std::string& name, const DataTable& rows) {
  for (const DataRow& row : rows) {
    const std::string known = row.name;
    const size_t colon = known.find(':');
    if (colon == std::string::npos ? name != known : !name.starts_with(known.substr(0, colon + 1))) continue;
    if (row.check != nullptr) PSRING_RETURN_IF_ERROR(row.check(name));
    return &row;
  }
  return UnknownName(TrNoop("data"), name, DataNames(rows));
}

}  // namespace psring
