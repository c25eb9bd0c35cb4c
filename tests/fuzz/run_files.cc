// The files of a run that the report shows, and pages that it reads back.
#include <vector>

#include "common/text/translate.h"
#include "experiments/page/digests.h"
#include "experiments/page/page.h"
#include "experiments/page/run_data.h"
#include "experiments/pool/pool.h"
#include "tests/fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text = psring::TextOf(data, size);
  (void)psring::DigestSteps(text);
  (void)psring::DigestTrace(text);
  (void)psring::DigestArrivals("ps-async x 2", text);
  (void)psring::ThinCsv(text, 100);
  (void)psring::KinetoTraces(text);
  // A page with this data, pooled with itself.
  const std::string page = "<script type=\"application/json\" id=\"data\">" + text + "</script>";
  if (const auto runs = psring::RunsOfPage("page.html", page); runs.ok()) {
    std::vector<psring::PoolInput> inputs;
    for (const psring::RunData& run : *runs) inputs.push_back({run.name, run.json});
    const psring::Pool pool = psring::PoolRuns(inputs);
    const psring::ScopedLanguage chinese(psring::Language::kChinese);
    (void)psring::PoolTable(pool);
    (void)psring::PoolJson(pool);
  }
  return 0;
}
