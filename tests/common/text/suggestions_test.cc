#include "common/text/suggestions.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace psring {
namespace {

TEST(NearestWord, IsTheOneWithATypingErrorAPartOfItOrItsWords) {
  const std::vector<std::string> known = {"workers",      "worker_timeout", "time_budget", "steps",
                                          "warmup_steps", "max_restarts",   "batch",       "out"};
  const struct {
    const char *typed, *meant;
  } cases[] = {{"worker", "workers"},
               {"wrokers", "workers"},
               {"workers_timeout", "worker_timeout"},
               {"Worker-Timeuot", "worker_timeout"},
               {"budget", "time_budget"},
               {"batch_size", "batch"},
               {"my_workers", "workers"},
               {"max_steps", "steps"},
               {"my_warmup_steps", "warmup_steps"},
               {"warm", "warmup_steps"},
               {"max_restart", "max_restarts"},
               {"out_dir", "out"},
               {"zzz", ""},
               {"x", ""},
               {"", ""}};
  for (const auto& [typed, meant] : cases) EXPECT_EQ(NearestWord(typed, known), meant) << typed;
}

TEST(NearestFlag, IsTheFirstOfTheCommandThatHasThatNameElsewhere) {
  const std::vector<std::string> compare = {
      "batch",          "global_batch", "workers", "strategies", "link",      "time_budget", "nnodes",
      "nproc_per_node", "lr",           "out",     "wire",       "precision", "model"};
  const std::vector<std::string> bench = {"workers", "minbytes", "datatype", "nnodes", "iters", "out"};
  const std::vector<std::string> predict = {"workers", "gpus_per_node", "workload", "intra", "link", "wire"};
  const struct {
    const std::vector<std::string>& known;
    const char *typed, *meant;
  } cases[] = {{compare, "batch-size", "batch"},
               {compare, "per_device_train_batch_size", "batch"},
               {compare, "global_batch_size", "global_batch"},
               {compare, "bandwidth", "link"},
               {compare, "gpus", "workers"},
               {compare, "n", "workers"},
               {compare, "np", "workers"},
               {compare, "world-size", "workers"},
               {compare, "learning_rate", "lr"},
               {compare, "fp16", "wire"},
               {compare, "algorithm", "strategies"},
               {compare, "duration", "time_budget"},
               {compare, "gpus_per_node", "nproc_per_node"},
               {compare, "arch", "model"},
               {bench, "g", "workers"},
               {bench, "t", "workers"},
               {bench, "dtype", "datatype"},
               {bench, "iterations", "iters"},
               {bench, "bandwidth", ""},
               {predict, "model", "workload"},
               {predict, "nvlink", "intra"},
               {predict, "gpus_per_machine", "gpus_per_node"},
               {predict, "wrokers", "workers"}};
  for (const auto& [known, typed, meant] : cases) EXPECT_EQ(NearestFlag(typed, known), meant) << typed;
}

}  // namespace
}  // namespace psring
