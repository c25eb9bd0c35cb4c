// A run's manifest and a launch's, as --resume, --plan_of and replay read them.
#include "experiments/design/launches.h"
#include "experiments/run_folder/recorded_run.h"
#include "tests/fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text = psring::TextOf(data, size);
  const auto run = psring::RecordedRunFromJson(text);
  if (run.ok()) {
    (void)psring::MakeAgain(*run, "/run");
    (void)psring::ConfigOf(*run, "/run");
    (void)psring::Differences(*run, text);
  }
  (void)psring::RecordedPlanFromJson(text);
  (void)psring::LaunchNoteFromJson(text);
  return 0;
}
