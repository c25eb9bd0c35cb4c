#include "trainer/programs/pipeline_flags.h"

#include <gtest/gtest.h>

#include <climits>
#include <functional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/has.h"

namespace psring {
namespace {

using Change = std::function<void(TrainingOptions&)>;

TrainingOptions Two(const Change& change = [](TrainingOptions&) {}) {
  TrainingOptions options{.pp = 2};
  change(options);
  return options;
}

std::string Refusal(const TrainingOptions& options, const std::string& strategy = "ring", int workers = 4) {
  const absl::Status status = CheckPipelineFlags(options, FindStrategy(strategy).value(), workers);
  EXPECT_THAT(std::string(status.message()), Lacks("\n"));
  return std::string(status.message());
}

TEST(CheckPipelineFlags, AllReduceStrategiesAndOneReplicaAreAccepted) {
  for (const char* strategy : {"ring", "direct", "zero1", "none"}) EXPECT_EQ(Refusal(Two(), strategy), "");
  EXPECT_EQ(Refusal(Two(), "single", /*workers=*/2), "");
  EXPECT_EQ(Refusal(Two([](auto& o) { o.backend = "gloo"; })), "");
  for (const char* strategy : {"gloo", "mpi", "nccl"}) EXPECT_EQ(Refusal(Two(), strategy), "");
  EXPECT_EQ(Refusal(Two([](auto& o) { o.copy_streams = 1; })), "");
  EXPECT_EQ(Refusal(Two([](auto& o) { o.program = "interleaved:2", o.cuts = "1,2,3"; })), "");
  EXPECT_EQ(Refusal(Two([](auto& o) { o.wire = "bfloat16"; })), "");
  for (const char* strategy : {"ps-sync", "ps-ssp:2", "ps-async"}) {
    EXPECT_EQ(Refusal(Two([](auto& o) { o.servers = 2, o.max_restarts = 1; }), strategy), "");
  }
  EXPECT_EQ(Refusal(Two([](auto& o) { o.checkpoint_every = 5; }), "ps-sync"), "");
  EXPECT_EQ(Refusal(TrainingOptions(), "ps-sync", 3), "");
  for (const char* strategy : {"zero1", "zero2", "fsdp"}) {
    EXPECT_EQ(Refusal(Two([](auto& o) { o.program = "zb-h1", o.clip_norm = 1; }), strategy, 8), "");
    EXPECT_EQ(Refusal(TrainingOptions(), strategy), "");
  }
}

TEST(CheckPipelineFlags, FlagsOfPipelinesNeedOne) {
  for (const auto& [flag, change] :
       {std::pair<const char*, Change>{"--program", [](auto& o) { o.program = "gpipe"; }},
        {"--cuts", [](auto& o) { o.cuts = "3"; }},
        {"--copy_streams", [](auto& o) { o.copy_streams = 1; }}}) {
    TrainingOptions options;
    change(options);
    EXPECT_EQ(Refusal(options), absl::StrCat(flag, " needs --pp, the number of a pipeline's stages"));
  }
  TrainingOptions ordered;
  ordered.rank_order = "pp,dp";
  EXPECT_THAT(Refusal(ordered), Has("--rank_order needs --pp, --tp or --cp"));
}

TEST(CheckPipelineFlags, TheRuleOfUpdatesIsThatOfTheStrategyOrOfProgramsWithoutAFlush) {
  EXPECT_EQ(UpdateRuleOf(Two(), "ring"), "ring");
  const TrainingOptions stale = WithoutFlush(TrainingOptions());
  EXPECT_TRUE(UpdatesWithoutFlush(stale));
  EXPECT_EQ(UpdateRuleOf(stale, "ring"), kWithoutFlush);
  const TrainingOptions own = Two([](auto& o) { o.program = "pipedream-2bw"; });
  EXPECT_TRUE(WithoutFlush(own) == own);
}

TEST(CheckPipelineFlags, WhatOnlyWholeModelsHaveIsNamed) {
  for (const auto& [flag, change] :
       {std::pair<const char*, Change>{"--cuda_graph", [](auto& o) { o.cuda_graph = true; }},
        {"--clock virtual", [](auto& o) { o.clock = "virtual"; }},
        {"--local_aggregation", [](auto& o) { o.local_aggregation = true; }},
        {"--sync_batch_norm", [](auto& o) { o.sync_batch_norm = true; }},
        {"--reference_workers", [](auto& o) { o.reference_workers = 2; }},
        {"--straggler", [](auto& o) { o.straggler = "0:2"; }},
        {"--jitter_ms", [](auto& o) { o.jitter_ms = "1"; }},
        {"--wire bfloat16 with checkpoints", [](auto& o) { o.wire = "bfloat16", o.checkpoint_dir = "a"; }},
        {"--wire float16 with checkpoints", [](auto& o) { o.wire = "float16", o.resume = "a"; }}}) {
    EXPECT_EQ(Refusal(Two(change)), absl::StrCat("--pp and ", flag, " exclude each other; omit one of them"));
  }
}

TEST(CheckPipelineFlags, OtherStrategiesBackendsAndModelsAreRejectedByName) {
  for (const char* strategy : {"ps-backup:1", "hybrid", "data-parallel"}) {
    EXPECT_THAT(
        Refusal(Two(), strategy),
        testing::AllOf(Has(absl::StrCat("--strategy ", FindStrategy(strategy)->name)),
                       Has("use an all-reduce strategy such as ring, or ps-sync, ps-ssp:K or ps-async")));
  }
  EXPECT_THAT(Refusal(Two([](auto& o) { o.model = "dlrm-small"; }), "ps-sync"),
              Has("the tables of dlrm-small"));
  EXPECT_THAT(Refusal(Two([](auto& o) { o.backend = "mpi"; })),
              Has("--pp with --backend mpi and --strategy ring", "use --strategy mpi"));
  EXPECT_THAT(Refusal(Two([](auto& o) { o.model = "dlrm-small"; })), Has("the tables of dlrm-small"));
}

TEST(CheckPipelineFlags, ServersThatDoNotWaitNeedOneReplicaOfATransformer) {
  for (const char* strategy : {"ps-async", "ps-ssp:2"}) {
    const TrainingOptions gpt = Two([](auto& o) { o.model = "gpt-nano"; });
    EXPECT_THAT(Refusal(gpt, strategy),
                Has(absl::StrCat("--strategy ", strategy, " for gpt-nano"), "use ps-sync"));
    EXPECT_EQ(Refusal(gpt, strategy, /*workers=*/2), "");
  }
  EXPECT_EQ(Refusal(Two([](auto& o) { o.model = "gpt-nano"; }), "ps-sync"), "");
}

TEST(CheckPipelineFlags, WhatServersOfAStageCannotDoIsNamed) {
  for (const auto& [strategy, what, change] :
       {std::tuple<const char*, const char*, Change>{"ps-sync", "ps-sync with --clip_norm",
                                                     [](auto& o) { o.clip_norm = 1; }},
        {"ps-sync", "--on_worker_loss continue", [](auto& o) { o.on_worker_loss = "continue"; }},
        {"ps-ssp:2", "ps-ssp:2 with checkpoints", [](auto& o) { o.checkpoint_every = 5; }},
        {"ps-async", "ps-async with checkpoints", [](auto& o) { o.checkpoint_every = 5; }}}) {
    EXPECT_EQ(Refusal(Two(change), strategy),
              absl::StrCat("--pp and ", what, " exclude each other; omit one of them"));
  }
}

TEST(CheckPipelineFlags, WhatNeedsAFlushIsNamedForProgramsWithoutOne) {
  for (const char* program : {"pipedream", "pipedream-2bw"}) {
    EXPECT_EQ(Refusal(Two([&](auto& o) { o.program = program, o.model = "gpt-nano"; })), "");
    const auto with = [&](const Change& change) {
      return Two([&](auto& o) { o.program = program, change(o); });
    };
    for (const char* strategy : {"ring", "direct", "none"}) {
      EXPECT_EQ(Refusal(with([](auto& o) { o.recompute = true, o.checkpoint_every = 5; }), strategy), "");
    }
    for (const auto& [what, strategy, change] :
         {std::tuple<const char*, const char*, Change>{"--strategy zero1", "zero1", [](auto&) {}},
          {"--strategy ps-sync", "ps-sync", [](auto&) {}},
          {"--strategy ps-async", "ps-async", [](auto&) {}},
          {"--clip_norm", "ring", [](auto& o) { o.clip_norm = 1; }},
          {"--wire", "ring", [](auto& o) { o.wire = "bfloat16"; }}}) {
      EXPECT_THAT(Refusal(with(change), strategy),
                  Has(absl::StrCat("--program ", program,
                                   " updates each stage on its own and does not support ", what, "; use")));
    }
  }
}

TEST(CheckPipelineFlags, TransformersShareATensor) {
  const auto every = [](const char* model, const char* program) {
    return TiedEvery(Two([&](auto& o) { o.model = model, o.program = program, o.pp = 4; }));
  };
  EXPECT_EQ(every("gpt-nano", "pipedream"), 1);
  EXPECT_EQ(every("gpt-nano", "pipedream-2bw"), 4);
  EXPECT_EQ(every("gpt-nano", "1f1b"), 0);
  EXPECT_EQ(every("cnn", "pipedream"), 0);
}

TEST(CheckPipelineFlags, LayoutsMustFitTheWorkers) {
  EXPECT_THAT(Refusal(Two(), "ring", 5), Has("--pp 2 does not divide 5 workers"));
  EXPECT_THAT(Refusal(Two([](auto& o) { o.pp = 4; }), "ring", 2), Has("or --pp 2"));
  EXPECT_EQ(
      Refusal(Two(), "single", 8),
      "--strategy single has one replica of the model, but 8 workers with --pp 2 have 4; use --workers 2, or "
      "an all-reduce strategy such as ring");
}

TEST(CheckPipelineFlags, AStepOfTooManyMicroBatchesIsRejectedBeforeItIsPlanned) {
  EXPECT_EQ(Refusal(Two([](auto& o) { o.micro_batches = 1 << 19; })), "");
  EXPECT_THAT(Refusal(Two([](auto& o) { o.micro_batches = (1 << 19) + 1; })), Has("--micro_batches 524289"));
  EXPECT_THAT(Refusal(Two([](auto& o) { o.micro_batches = INT_MAX, o.program = "interleaved:1024"; })),
              Has("use fewer micro-batches"));
}

TEST(CheckPipelineFlags, ProgramsAndCutsMustFitEachOther) {
  EXPECT_THAT(Refusal(Two([](auto& o) { o.program = "1f1"; })),
              testing::AllOf(Has("--program: "), Has("did you mean '1f1b'")));
  EXPECT_THAT(Refusal(Two([](auto& o) { o.program = "single_stage"; })), Has("does not cut the model"));
  EXPECT_EQ(Refusal(Two([](auto& o) { o.program = "zb-h1"; })), "");
  EXPECT_EQ(Refusal(Two([](auto& o) { o.recompute = true; })), "");
  EXPECT_THAT(Refusal(Two([](auto& o) { o.program = "zb-h1", o.recompute = true; })),
              Has("--recompute and --program zb-h1 exclude each other", "use 1f1b"));
  for (const char* cuts : {"3,6", "0"}) {
    EXPECT_NE(Refusal(Two([&](auto& o) { o.cuts = cuts; })), "") << cuts;
  }
  EXPECT_EQ(Refusal(Two([](auto& o) { o.program = "interleaved:2", o.cuts = "6,3,9"; })),
            "--cuts 6,3,9: 4 stages need 3 cuts, in ascending order");
  EXPECT_NE(Refusal(Two([](auto& o) { o.program = "interleaved:2", o.cuts = "3,3,9"; })), "");
}

TrainingOptions Divided(const Change& change = [](TrainingOptions&) {}) {
  TrainingOptions options{.model = "gpt-nano"};
  options.tp = 2;
  change(options);
  return options;
}

TEST(CheckTensorFlags, AllReduceStrategiesAndOneReplicaAreAccepted) {
  for (const char* strategy : {"ring", "direct", "zero1", "zero2", "fsdp", "none", "ps-sync"})
    EXPECT_EQ(Refusal(Divided(), strategy), "");
  EXPECT_EQ(Refusal(Divided(), "single", /*workers=*/2), "");
  EXPECT_EQ(Refusal(Divided([](auto& o) { o.backend = "gloo", o.recompute = true, o.dropout = .1; })), "");
  EXPECT_EQ(Refusal(Divided([](auto& o) { o.rank_order = "dp,tp", o.checkpoint_every = 5; })), "");
  for (const char* strategy : {"ring", "zero2", "fsdp"}) {
    EXPECT_EQ(Refusal(Divided([](auto& o) { o.precision = "bfloat16", o.recompute = true; }), strategy), "");
    EXPECT_EQ(Refusal(Divided([](auto& o) { o.sequence_parallel = true; }), strategy), "");
  }
}

TEST(CheckTensorFlags, WhatOnlyWholeModelsHaveIsNamed) {
  for (const auto& [flag, change] :
       {std::pair<const char*, Change>{"--program zb-h1", [](auto& o) { o.pp = 2, o.program = "zb-h1"; }},
        {"--cuda_graph", [](auto& o) { o.cuda_graph = true; }},
        {"--clock virtual", [](auto& o) { o.clock = "virtual"; }},
        {"--reference_workers", [](auto& o) { o.reference_workers = 2; }},
        {"--straggler", [](auto& o) { o.straggler = "0:2"; }},
        {"--wire bfloat16 with checkpoints", [](auto& o) { o.wire = "bfloat16", o.checkpoint_dir = "a"; }}}) {
    EXPECT_EQ(Refusal(Divided(change)),
              absl::StrCat("--tp and ", flag, " exclude each other; omit one of them"));
  }
  EXPECT_THAT(Refusal(Divided([](auto& o) { o.program = "gpipe"; })), Has("--program needs --pp"));
  EXPECT_EQ(Refusal(Divided([](auto& o) { o.clip_norm = 1; }), "ps-sync"),
            "--tp and ps-sync with --clip_norm exclude each other; omit one of them");
}

TEST(CheckTensorFlags, OtherStrategiesBackendsAndModelsAreRejectedByName) {
  for (const char* strategy : {"ps-ssp:1", "ps-async", "ps-backup:1", "hybrid", "data-parallel"}) {
    EXPECT_THAT(Refusal(Divided(), strategy),
                Has("--tp does not support --strategy", "such as ring or zero1, ps-sync, or"));
  }
  for (const char* backend : {"mpi", "nccl"}) {
    EXPECT_THAT(Refusal(Divided(), backend), Has(absl::StrCat("--tp does not support ", backend)));
  }
  EXPECT_THAT(Refusal(Divided([](auto& o) { o.model = "cnn"; })),
              Has("--tp divides the matrices of transformers (gpt-nano, ", "omit it for cnn"));
}

TEST(CheckTensorFlags, StagesCanBeDividedToo) {
  EXPECT_EQ(Refusal(Divided([](auto& o) { o.pp = 2, o.rank_order = "pp,tp,dp"; }), "ring", 8), "");
  EXPECT_EQ(Refusal(Divided([](auto& o) { o.pp = 2, o.program = "interleaved:2"; }), "single", 4), "");
  EXPECT_THAT(Refusal(Divided([](auto& o) { o.pp = 2; }), "ring", 6), Has("--pp 2 times --tp 2"));
  EXPECT_THAT(Refusal(Divided([](auto& o) { o.pp = 2; }), "single", 8), Has("with --pp 2 --tp 2 have 2"));
  EXPECT_EQ(Refusal(Divided([](auto& o) { o.pp = 2; }), "ps-sync", 8), "");
}

TEST(CheckTensorFlags, RanksMustDivideTheHeadsAndTheWorkers) {
  EXPECT_EQ(Refusal(Divided([](auto& o) { o.tp = 3; }), "ring", 6),
            "--tp 3 does not divide the 4 heads of gpt-nano; use --tp 2 or 4, or other --heads");
  EXPECT_EQ(Refusal(Divided([](auto& o) { o.tp = 3, o.heads = 6; }), "ring", 6), "");
  EXPECT_THAT(Refusal(Divided(), "ring", 5), Has("--tp 2 does not divide 5 workers"));
  EXPECT_EQ(
      Refusal(Divided(), "single", 8),
      "--strategy single has one replica of the model, but 8 workers with --tp 2 have 4; use --workers 2, or "
      "an all-reduce strategy such as ring");
}

TrainingOptions OfSequences(const Change& change = [](TrainingOptions&) {}) {
  TrainingOptions options{.model = "gpt-nano"};
  options.cp = 2;
  change(options);
  return options;
}

TEST(CheckSequenceFlags, AllReduceStrategiesAreAccepted) {
  for (const char* strategy : {"ring", "direct", "zero1", "zero2", "fsdp", "gloo"})
    EXPECT_EQ(Refusal(OfSequences(), strategy), "");
  EXPECT_EQ(Refusal(OfSequences([](auto& o) { o.recompute = true, o.dropout = .1; })), "");
  EXPECT_EQ(Refusal(OfSequences([](auto& o) { o.precision = "bfloat16"; })), "");
  EXPECT_EQ(Refusal(OfSequences([](auto& o) { o.rank_order = "dp,cp", o.checkpoint_every = 5; })), "");
  EXPECT_EQ(Refusal(OfSequences([](auto& o) { o.context_parallel = "contiguous"; })), "");
  EXPECT_EQ(Refusal(OfSequences([](auto& o) { o.pp = 2, o.tp = 2; }), "ring", 8), "");
  EXPECT_EQ(Refusal(OfSequences([](auto& o) { o.pp = 2, o.rank_order = "pp,cp,dp"; }), "ring", 8), "");
}

TEST(CheckSequenceFlags, WhatDoesNotSuitThemIsNamed) {
  for (const auto& [flag, change] :
       {std::pair<const char*, Change>{"--sequence_parallel",
                                       [](auto& o) { o.tp = 2, o.sequence_parallel = true; }},
        {"--cuda_graph", [](auto& o) { o.cuda_graph = true; }},
        {"--clock virtual", [](auto& o) { o.clock = "virtual"; }},
        {"--straggler", [](auto& o) { o.straggler = "0:2"; }}}) {
    EXPECT_EQ(Refusal(OfSequences(change)),
              absl::StrCat("--cp and ", flag, " exclude each other; omit one of them"));
  }
  for (const char* strategy : {"single", "none", "ps-sync", "ps-async", "hybrid", "data-parallel"}) {
    EXPECT_THAT(Refusal(OfSequences(), strategy),
                Has("--cp does not support --strategy", "such as ring, zero1 or fsdp"));
  }
  for (const char* backend : {"mpi", "nccl"}) {
    EXPECT_THAT(Refusal(OfSequences(), backend), Has(absl::StrCat("--cp does not support ", backend)));
  }
  EXPECT_THAT(Refusal(OfSequences([](auto& o) { o.model = "cnn"; })),
              Has("--cp divides the sequences of transformers (gpt-nano, ", "omit it for cnn"));
  EXPECT_EQ(Refusal(TrainingOptions{.model = "gpt-nano", .context_parallel = "contiguous"}),
            "--context_parallel needs --cp, the ranks that divide a sequence");
  EXPECT_THAT(Refusal(OfSequences(), "ring", 5), Has("--cp 2 does not divide 5 workers"));
}

TEST(CheckSequenceFlags, UlyssesDividesTheHeadsOfEachWorker) {
  const auto ulysses = [](int cp, int tp) {
    return OfSequences([=](auto& o) { o.context_parallel = "ulysses", o.cp = cp, o.tp = tp; });
  };
  EXPECT_EQ(Refusal(ulysses(4, 1)), "");
  EXPECT_EQ(Refusal(ulysses(2, 2)), "");
  EXPECT_EQ(Refusal(ulysses(8, 1), "ring", 8),
            "--context_parallel ulysses: --cp 8 does not divide the 4 heads of each worker; use "
            "--context_parallel ring, or other --heads");
  EXPECT_THAT(Refusal(ulysses(4, 2), "ring", 8), Has("--cp 4 does not divide the 2 heads of each worker"));
}

TEST(CheckSequenceFlags, ContextsThatChunksDoNotDivideAreRejectedWithOnesThatWork) {
  EXPECT_EQ(Refusal(OfSequences([](auto& o) { o.cp = 3; }), "ring", 6),
            "--cp 3 cuts a sequence into 6 equal chunks, but --context is 64; use --context 66, or --cp 2");
  EXPECT_EQ(Refusal(OfSequences([](auto& o) { o.context = 10; })),
            "--cp 2 cuts a sequence into 4 equal chunks, but --context is 10; use --context 12, or --cp 5");
  EXPECT_EQ(Refusal(OfSequences([](auto& o) { o.context = 10, o.context_parallel = "contiguous"; })), "");
  EXPECT_EQ(Refusal(OfSequences([](auto& o) { o.context = 7; })),
            "--cp 2 cuts a sequence into 4 equal chunks, but --context is 7; use --context 8");
}

TEST(CheckTensorFlags, RanksMustDivideTheContextToDivideTokens) {
  const auto tokens = [](const Change& change) {
    TrainingOptions options = Divided(change);
    options.sequence_parallel = true;
    return options;
  };
  EXPECT_EQ(Refusal(tokens([](auto&) {})), "");
  EXPECT_EQ(Refusal(tokens([](auto& o) { o.pp = 2, o.dropout = .1; }), "zero1", 8), "");
  EXPECT_EQ(Refusal(tokens([](auto& o) { o.tp = 4, o.context = 10; })),
            "--sequence_parallel: --tp 4 does not divide the context of 10 tokens; use --tp 2, another "
            "--context, or omit --sequence_parallel");
  EXPECT_THAT(Refusal(tokens([](auto& o) { o.context = 31; })), Has("use --tp 1, another --context"));
  EXPECT_EQ(Refusal(tokens([](auto& o) { o.backend = "gloo"; })),
            "--sequence_parallel does not support gloo, which has no reduce-scatter; choose native");
  EXPECT_EQ(Refusal(tokens([](auto& o) { o.tp = 1; })),
            "--sequence_parallel needs --tp, the number of workers that divide matrices and tokens");
}

TEST(ParseCuts, AreLayers) {
  EXPECT_TRUE(ParseCuts("", 4)->empty());
  EXPECT_EQ(ParseCuts("3,6,10", 4).value(), (std::vector<size_t>{3, 6, 10}));
  EXPECT_FALSE(ParseCuts("3,x", 3).ok());
}

TEST(AddPrograms, TheHelpOfProgramNamesThoseThatCutTheModel) {
  CLI::App app;
  std::string program;
  app.add_option("--program", program, "What runs:");
  AddPrograms(app);
  const std::string help = app.get_option("--program")->get_description();
  for (const ProgramRow& row : ProgramRows()) {
    EXPECT_EQ(absl::StrContains(help, row.display_name()), !row.one_rank) << row.name;
  }
}

}  // namespace
}  // namespace psring
