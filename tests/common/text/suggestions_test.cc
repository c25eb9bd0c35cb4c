#include "common/text/suggestions.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"

namespace psring {
namespace {

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

}  // namespace
}  // namespace psring
