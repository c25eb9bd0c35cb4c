#include "experiments/design/layouts.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "experiments/design/launches.h"
#include "experiments/design/plan.h"
#include "tests/experiments/test_catalog.h"
#include "tests/has.h"

namespace psring {
namespace {

using testing::ElementsAre;

// `layouts` with 8 micro-batches of 128 samples.
CompareOptions Compared(const std::string& layouts) {
  CompareOptions options{
      .strategies = {"ring"}, .layouts = ParseLayouts(layouts).value(), .micro_batches = {8}};
  options.workers.clear();
  for (const Layout& layout : options.layouts) options.workers.push_back(layout.workers());
  options.training.global_batch = 8 * 128;
  options.training.evaluate = false;
  return options;
}

std::string RefusalOfLayouts(const CompareOptions& options) {
  return std::string(CheckCompareOptions(options).message());
}

// The same of a model with 4 heads.
CompareOptions ComparedGpt(const std::string& layouts) {
  CompareOptions options = Compared(layouts);
  options.training.model = "gpt-nano";
  return options;
}

// --layouts auto.
CompareOptions Tried(int workers) {
  CompareOptions options = ComparedGpt("dp2");
  options.layouts = SupportedLayouts(workers);
  options.workers = {workers};
  options.tries_layouts = true;
  return options;
}

Probe ProbeOfGpt(const std::vector<int64_t>& tensor_ranks) {
  Probe probe = TestProbe();
  probe.cuts = {1, 2, 3};
  probe.tensor_ranks = tensor_ranks;
  return probe;
}

TEST(Layouts, AreReplicasTimesStagesTimesRanksThatDivideMatrices) {
  EXPECT_THAT(
      ParseLayouts("dp2,pp2,dp2xpp4,pp2xdp3,tp4,dp2xtp3").value(),
      ElementsAre(Layout{2, 1}, Layout{1, 2}, Layout{2, 4}, Layout{3, 2}, Layout{1, 1, 4}, Layout{2, 1, 3}));
}

TEST(Layouts, AllOfANumberOfWorkersAreItsDivisors) {
  const auto names = [](int workers) {
    std::vector<std::string> names;
    for (const Layout& layout : SupportedLayouts(workers)) names.push_back(layout.name());
    return names;
  };
  EXPECT_THAT(names(4), ElementsAre("dp4", "dp2xpp2", "dp2xtp2", "dp2xcp2", "pp4", "tp4", "pp2xtp2", "cp4",
                                    "pp2xcp2", "tp2xcp2"));
  EXPECT_THAT(names(6),
              ElementsAre("dp6", "dp3xpp2", "dp3xtp2", "dp3xcp2", "dp2xpp3", "dp2xtp3", "dp2xcp3", "pp6",
                          "tp6", "pp2xtp3", "pp3xtp2", "cp6", "pp2xcp3", "pp3xcp2", "tp2xcp3", "tp3xcp2"));
  EXPECT_THAT(names(3), ElementsAre("dp3", "pp3", "tp3", "cp3"));
}

// The configurations of --layouts auto on 4 workers, if the model can be divided in every way.
std::vector<std::string> NamesOfTried(const std::string& strategy) {
  std::vector<std::string> names = {"single x 1", "none x 4", absl::StrCat(strategy, " x 4")};
  for (const char* layout : {"dp2xpp2 1f1b", "dp2xtp2", "dp2xcp2", "pp4 1f1b", "tp4", "pp2xtp2 1f1b", "cp4",
                             "pp2xcp2 1f1b", "tp2xcp2"})
    names.push_back(absl::StrCat(strategy, " x 4 (", layout, ")"));
  return names;
}

TEST(Layouts, TriedOnesDivideMatricesIfTheModelAllowsIt) {
  const CompareOptions options = Tried(4);
  EXPECT_THAT(Names(PlanFor(options, 2, ProbeOfGpt({1, 2})).cost),
              testing::Not(testing::Contains(std::string("ring x 4 (tp4)"))));
  for (const auto& [ranks, note] :
       {std::pair<std::vector<int64_t>, const char*>{{1, 2}, "tp4: this model supports only --tp 1 or 2"},
        {{1}, "dp2xtp2, tp4, pp2xtp2, tp2xcp2: this model supports only --tp 1"}})
    EXPECT_THAT(LayoutNotes(options, ProbeOfGpt(ranks)),
                testing::Contains(absl::StrCat("--layouts auto leaves out ", note)));
}

TEST(Layouts, TriedOnesSuitStrategyAndProgram) {
  CompareOptions options = Tried(4);
  const Probe probe = ProbeOfGpt({1, 2, 4});
  for (const char* strategy : {"ring", "zero2", "fsdp"}) {
    options.strategies = {strategy};
    EXPECT_EQ(RefusalOfLayouts(options), "");
    EXPECT_EQ(Names(PlanFor(options, 2, probe).cost), NamesOfTried(strategy));
    EXPECT_EQ(LayoutNotes(options, probe).size(), 1u) << "none is left out";
  }
  options = Tried(4);
  options.programs = {"1f1b", "zb-h1"};
  EXPECT_EQ(RefusalOfLayouts(options), "");
  EXPECT_THAT(LayoutNotes(options, probe)[1],
              Has("leaves out pp2xtp2 zb-h1: --tp and --program zb-h1 exclude each other"));
  EXPECT_THAT(Names(PlanFor(options, 2, probe).cost),
              testing::AllOf(testing::Contains(std::string("ring x 4 (pp2xtp2 1f1b)")),
                             testing::Not(testing::Contains(std::string("ring x 4 (pp2xtp2 zb-h1)")))));
  options.programs = {"1f2b"};
  EXPECT_THAT(RefusalOfLayouts(options), Has("'1f1b'"));
}

TEST(Layouts, TriedOnesHaveNoMoreStagesThanTheModel) {
  CompareOptions options = Compared("dp4,dp2xpp2,pp4");
  options.tries_layouts = true;
  Probe probe = TestProbe();
  probe.cuts = {1};
  Plan plan = PlanFor(options, 2, probe);
  EXPECT_THAT(Names(plan.cost), ElementsAre("single x 1", "none x 4", "ring x 4", "ring x 4 (dp2xpp2 1f1b)"));
  EXPECT_THAT(DescribePlan(plan), Has("leaves out pp4: the model can be cut into at most 2 stages"));
  options.programs = {"interleaved:2"};
  EXPECT_THAT(Names(PlanFor(options, 2, probe).cost), ElementsAre("single x 1", "none x 4", "ring x 4"));
  probe.cuts = {1, 2, 3};
  options.programs = {"1f1b"};
  plan = PlanFor(options, 2, probe);
  EXPECT_EQ(Names(plan.cost).back(), "ring x 4 (pp4 1f1b)");
  EXPECT_THAT(DescribePlan(plan), Lacks("leaves out"));
  options.tries_layouts = false;
  probe.cuts.clear();
  EXPECT_EQ(Names(PlanFor(options, 2, probe).cost).back(), "ring x 4 (pp4 1f1b)") << "the user's choice";
}

TEST(Layouts, OtherTextsAreRejectedByName) {
  const auto refusal = [](const std::string& text) {
    return std::string(ParseLayouts(text).status().message());
  };
  EXPECT_THAT(refusal("dp2,sp2"), Has("--layouts: 'sp2' is not a layout"));
  EXPECT_THAT(refusal("dp2,"), Has("'' is not a layout"));
  EXPECT_THAT(refusal("dp1"), Has("dp1 has 1 workers; use 2 to 64"));
  EXPECT_THAT(refusal("dp16xpp8"), Has("dp16xpp8 has 128 workers"));
  EXPECT_THAT(refusal("pp2,pp2"), Has("--layouts names pp2 twice"));
  EXPECT_THAT(refusal("pp2xdp2,dp2xpp2"), Has("--layouts names dp2xpp2 twice"));
}

TEST(Layouts, ByDefaultAStageHasFourMicroBatchesAndReplicasHaveEquallyMany) {
  const auto count = [](const std::string& layouts) { return DefaultMicroBatches(*ParseLayouts(layouts)); };
  EXPECT_EQ(count("pp4"), 16);
  EXPECT_EQ(count("dp2,pp2,dp2xpp2"), 8);
  EXPECT_EQ(count("dp3,pp4"), 18);
  EXPECT_EQ(count("dp2,dp6"), 6);
  EXPECT_LE(count("dp61,dp59,dp53,dp47,dp43,dp41,dp37"), 4096) << "their least common multiple is above 2^32";
}

TEST(Layouts, EachIsACaseBesideItsReferences) {
  CompareOptions options = Compared("dp2,pp2,dp2xpp2");
  EXPECT_EQ(RefusalOfLayouts(options), "");
  EXPECT_THAT(Names(PlanFor(options).cost), ElementsAre("single x 1", "none x 2", "ring x 2",
                                                        "ring x 2 (pp2 1f1b)", "ring x 4 (dp2xpp2 1f1b)"));
  options = Compared("dp2,pp2");
  options.programs = {"gpipe", "interleaved:2"};
  options.micro_batches = {4, 8};
  EXPECT_EQ(RefusalOfLayouts(options), "");
  const Plan plan = PlanFor(options);
  EXPECT_THAT(Names(plan.cost), ElementsAre("single x 1", "none x 2", "ring x 2", "ring x 2 (pp2 gpipe m4)",
                                            "ring x 2 (pp2 gpipe m8)", "ring x 2 (pp2 interleaved:2 m4)",
                                            "ring x 2 (pp2 interleaved:2 m8)"));
  std::set<std::string> folders;
  for (const Configuration& configuration : plan.cost) folders.insert(configuration.folder());
  EXPECT_EQ(folders.size(), plan.cost.size());
  EXPECT_EQ(plan.cost.back().folder(), "ring-2-pp2-interleaved-2-m8");
}

TEST(Layouts, DividedMatricesNeedNoProgramAndAreOneCase) {
  CompareOptions options = ComparedGpt("dp4,dp2xtp2,pp2xtp2");
  options.micro_batches = {4, 8};
  options.programs = {"gpipe"};
  options.rank_order = "dp,tp,pp";
  EXPECT_EQ(RefusalOfLayouts(options), "");
  const Plan plan = PlanFor(options);
  EXPECT_THAT(Names(plan.cost), ElementsAre("single x 1", "none x 4", "ring x 4", "ring x 4 (dp2xtp2)",
                                            "ring x 4 (pp2xtp2 gpipe m4)", "ring x 4 (pp2xtp2 gpipe m8)"));
  const Configuration& divided = plan.cost[3];
  EXPECT_EQ(divided.folder(), "ring-4-tp2");
  EXPECT_EQ(divided.training.micro_batches, 2);
  EXPECT_EQ(divided.replicas() * divided.step_samples(), 1024);
  const std::vector<std::string> flags = TrainingArguments(divided.training);
  for (const char* flag : {"--tp=2", "--rank_order=dp,tp,pp"})
    EXPECT_THAT(flags, testing::Contains(std::string(flag)));
  for (const std::string& flag : flags) EXPECT_THAT(flag, Lacks("--program", "--pp"));
}

TEST(Layouts, DividedSequencesAreOneCaseAndNamedByTheirWay) {
  CompareOptions options = ComparedGpt("dp2,cp2,dp2xcp2");
  options.micro_batches = {4};
  EXPECT_EQ(RefusalOfLayouts(options), "");
  const Plan plan = PlanFor(options);
  EXPECT_THAT(Names(plan.cost), testing::IsSupersetOf({"ring x 2", "ring x 2 (cp2)", "ring x 4 (dp2xcp2)"}));
  const Configuration& divided = plan.cost.back();
  EXPECT_EQ(divided.folder(), "ring-4-cp2");
  EXPECT_EQ(divided.training.micro_batches, 2);
  EXPECT_EQ(divided.replicas(), 2);
  EXPECT_EQ(divided.gradient_ranks(), 4);
  EXPECT_EQ(divided.replicas() * divided.step_samples(), 1024);
  EXPECT_THAT(TrainingArguments(divided.training), testing::Contains(std::string("--cp=2")));
  options.training.context_parallel = "ulysses";  // of those layouts that divide sequences
  EXPECT_EQ(RefusalOfLayouts(options), "");
  const Plan ulysses = PlanFor(options);
  EXPECT_THAT(Names(ulysses.cost), testing::IsSupersetOf({"ring x 2", "ring x 2 (cp2) ulysses"}));
  EXPECT_EQ(ulysses.cost.back().folder(), "ring-4-cp2-ulysses");
}

TEST(Layouts, OnlyThoseThatDivideMatricesDivideTokens) {
  CompareOptions options = ComparedGpt("dp4,dp2xtp2,pp2xtp2");
  options.training.sequence_parallel = true;
  EXPECT_EQ(RefusalOfLayouts(options), "");
  for (const Configuration& configuration : PlanFor(options).cost) {
    EXPECT_EQ(configuration.training.sequence_parallel, configuration.training.tp > 1)
        << configuration.name();
  }
  options.training.context = 31;
  EXPECT_THAT(RefusalOfLayouts(options), Has("--tp 2 does not divide the context of 31 tokens"));
}

using Change = void (*)(CompareOptions&);

// `message` is a part of the refusal of these layouts with this change; "": they are accepted.
struct RefusedLayouts {
  const char *layouts, *message;
  Change change = [](CompareOptions&) {};
};
void ExpectRefusedLayouts(CompareOptions (*make)(const std::string&),
                          const std::vector<RefusedLayouts>& all) {
  for (const auto& [layouts, message, change] : all) {
    CompareOptions options = make(layouts);
    change(options);
    const std::string refusal = RefusalOfLayouts(options);
    EXPECT_THAT(refusal, Has(message)) << layouts;
    EXPECT_EQ(refusal.empty(), *message == 0) << layouts << ": " << refusal;
  }
}

TEST(Layouts, WhatDoesNotSuitDividedMatricesIsRejectedByName) {
  const Change ulysses = [](CompareOptions& o) { o.training.context_parallel = "ulysses"; };
  ExpectRefusedLayouts(ComparedGpt,
                       {{"dp4,tp4", "", [](CompareOptions& o) { o.strategies = {"zero1"}; }},
                        {"dp2,dp4", "", [](CompareOptions& o) { o.strategies = {"fsdp"}; }},
                        {"dp2,tp2", "", [](CompareOptions& o) { o.strategies = {"zero2"}; }},
                        {"dp2,tp2", "", [](CompareOptions& o) { o.strategies = {"ps-sync"}; }},
                        {"dp2,tp2", "--tp does not support --strategy ps-ssp:1",
                         [](CompareOptions& o) { o.strategies = {"ps-ssp:1"}; }},
                        {"dp4,pp2xtp2", "--tp and --program zb-h1 exclude each other",
                         [](CompareOptions& o) { o.programs = {"zb-h1"}; }},
                        {"dp2,tp2", "--tp divides the matrices of transformers",
                         [](CompareOptions& o) { o.training.model = "cnn"; }},
                        {"dp2,tp2", "omit it for cnn", [](CompareOptions& o) { o.training.model = "cnn"; }},
                        {"dp3,tp3", "--tp 3 does not divide the 4 heads of gpt-nano",
                         [](CompareOptions& o) { o.micro_batches = {9}; }},
                        {"dp4,dp2xtp2", "--rank_order 'pp,dp' is not dp,tp or tp,dp",
                         [](CompareOptions& o) { o.rank_order = "pp,dp"; }},
                        {"dp2,cp2", "", ulysses},
                        {"dp2,tp2", "--context_parallel needs a layout that divides sequences", ulysses}});
  // Such as a vocabulary of 3 tokens.
  EXPECT_THAT(MakePlan(ComparedGpt("dp4,tp4"), ProbeOfGpt({1, 2}), 2).status().message(),
              Has("this model supports only --tp 1 or 2"));
}

TEST(Layouts, CopyStreamsAreCasesOfPipelines) {
  CompareOptions options = Compared("dp2,pp2");
  options.copy_streams = {1, 2};
  const Plan plan = PlanFor(options);
  EXPECT_THAT(Names(plan.cost), ElementsAre("single x 1", "none x 2", "ring x 2",
                                            "ring x 2 (pp2 1f1b copy 1)", "ring x 2 (pp2 1f1b)"));
  EXPECT_THAT(plan.cost[3].folder(), "ring-2-pp2-1f1b-m8-copy-1");
  for (const Configuration& configuration : plan.cost) {
    EXPECT_EQ(testing::Value(TrainingArguments(configuration.training),
                             testing::Contains(std::string("--copy_streams=1"))),
              configuration.name() == "ring x 2 (pp2 1f1b copy 1)");
  }
}

TEST(Layouts, AllCutsAreCasesAtMostTwelve) {
  CompareOptions options = Compared("dp2,pp2");
  options.cuts = kAllCuts;
  EXPECT_EQ(RefusalOfLayouts(options), "");
  Probe probe = TestProbe();
  probe.cuts = {1, 5, 8};
  Plan plan = PlanFor(options, 2, probe);
  EXPECT_THAT(Names(plan.cost), ElementsAre("single x 1", "none x 2", "ring x 2", "ring x 2 (pp2 1f1b cut 1)",
                                            "ring x 2 (pp2 1f1b cut 5)", "ring x 2 (pp2 1f1b cut 8)"));
  EXPECT_EQ(plan.cost.back().training.cuts, "8");
  EXPECT_EQ(plan.cost.back().folder(), "ring-2-pp2-1f1b-m8-cut-8");
  EXPECT_EQ(plan.cost[2].training.cuts, "");
  EXPECT_THAT(DescribePlan(plan), Has("3 of the 3 layers before which"));
  probe.cuts.clear();
  for (int64_t layer = 1; layer <= 34; ++layer) probe.cuts.push_back(layer);
  plan = PlanFor(options, 2, probe);
  std::vector<std::string> cuts;
  for (size_t i = 3; i < plan.cost.size(); ++i) cuts.push_back(plan.cost[i].training.cuts);
  EXPECT_THAT(cuts, ElementsAre("1", "4", "7", "10", "13", "16", "19", "22", "25", "28", "31", "34"));
  EXPECT_THAT(DescribePlan(plan), Has("12 of the 34 layers before which"));
  probe.cuts = {7};
  EXPECT_EQ(PlanFor(options, 2, probe).cost.back().training.cuts, "7");
  probe.cuts.clear();
  EXPECT_THAT(MakePlan(options, probe, 2).status().message(), Has("cannot be cut"));
}

TEST(Layouts, StagesAreCheckedAgainstTheModel) {
  Probe probe = TestProbe();
  probe.cut_points = {1, 2, 4};
  const auto refusal = [&](const std::string& layouts, const std::string& cuts) {
    CompareOptions options = Compared(layouts);
    options.cuts = cuts;
    return std::string(MakePlan(options, probe, 2).status().message());
  };
  EXPECT_EQ(refusal("dp2,pp2", "4"), "");
  EXPECT_EQ(refusal("pp4", ""), "");
  EXPECT_THAT(refusal("dp2,pp2", "3"), Has("--cuts 3: the model can be cut before the layers 1,2,4"));
  EXPECT_THAT(refusal("pp8", ""), Has("this model can be cut into 1 to 4 stages, not 8"));
}

TEST(Layouts, AllCutsNeedTwoStages) {
  const auto refused = [](const std::string& layouts, const std::string& program) {
    CompareOptions options = Compared(layouts);
    options.cuts = kAllCuts;
    options.programs = {program};
    return RefusalOfLayouts(options);
  };
  EXPECT_EQ(refused("pp2,dp2xpp2", "gpipe"), "");
  EXPECT_THAT(refused("pp2,pp4", "1f1b"), Has("pp4 1f1b has 4 stages"));
  EXPECT_THAT(refused("pp2", "interleaved:2"), Has("pp2 interleaved:2 has 4 stages"));
}

TEST(Layouts, AllComputeTheSameSamplesPerStep) {
  CompareOptions options = Compared("dp2,pp2,dp2xpp2");
  options.micro_batches = {8, 16};
  const Plan plan = PlanFor(options);
  for (const Configuration& configuration : plan.cost) {
    if (configuration.strategy.name == "none") continue;
    EXPECT_EQ(configuration.replicas() * configuration.step_samples(), 1024) << configuration.name();
  }
  EXPECT_THAT(DescribePlan(plan), Has("every layout computes the same 1024 samples per step"));
  // Of one replica.
  std::vector<int> micro_batches, batches;
  for (const Configuration& configuration : plan.cost) {
    micro_batches.push_back(configuration.training.micro_batches);
    batches.push_back(configuration.training.batch);
  }
  EXPECT_THAT(micro_batches, ElementsAre(8, 4, 4, 8, 16, 4, 8));
  EXPECT_THAT(batches, ElementsAre(128, 128, 128, 128, 64, 128, 64));
}

TEST(Layouts, OfServersAreComparedWithEachNumberOfThem) {
  CompareOptions options = Compared("dp2,dp2xpp2");
  options.strategies = {"ps-sync"};
  options.servers = {1, 2};
  EXPECT_EQ(RefusalOfLayouts(options), "");
  std::vector<std::string> names;
  for (const Configuration& configuration : PlanFor(options).cost) {
    if (configuration.strategy.uses_servers) names.push_back(configuration.name());
  }
  EXPECT_THAT(
      names, ElementsAre("ps-sync x 2", "ps-sync x 2 on 2 servers", "ps-sync x 4 on 2 servers (dp2xpp2 1f1b)",
                         "ps-sync x 4 on 4 servers (dp2xpp2 1f1b)"));
}

// Staleness by a server beside staleness by a pipeline.
TEST(Layouts, StrategiesAndProgramsThatSuitEachOtherAreCombined) {
  CompareOptions options = Compared("pp2,dp2xpp2");
  EXPECT_FALSE(LayoutsLearnDifferently(options));
  options.strategies = {"ring", "ps-async"};
  EXPECT_TRUE(LayoutsLearnDifferently(options));
  options.programs = {"1f1b", "pipedream"};
  options.training.evaluate = true;
  EXPECT_EQ(RefusalOfLayouts(options), "");
  const Plan plan = PlanFor(options);
  const std::vector<std::string> names = Names(plan.cost);
  EXPECT_EQ(names.size(), 1u + 3 * 2);
  for (const char* name : {"single x 1", "ring x 2 (pp2 1f1b)", "ring x 2 (pp2 pipedream)",
                           "ring x 4 (dp2xpp2 1f1b)", "ring x 4 (dp2xpp2 pipedream)"}) {
    EXPECT_THAT(names, testing::Contains(std::string(name)));
  }
  for (const Configuration& configuration : plan.cost) {
    if (configuration.strategy.uses_servers) {
      EXPECT_EQ(configuration.training.program, "1f1b") << configuration.name();
    }
  }
  EXPECT_EQ(Names(plan.accuracy), names) << "their weights differ";
  EXPECT_THAT(DescribePlan(plan),
              Has("not compared: ps-async pp2 pipedream, ps-async dp2xpp2 pipedream: --program pipedream"));
  options.strategies = {"ring"};
  EXPECT_TRUE(LayoutsLearnDifferently(options));
  EXPECT_EQ(Names(PlanFor(options).cost).size(), 1u + 2 * 2);
  options.strategies = {"ring", "ps-async"};
  options.programs = {"pipedream"};
  EXPECT_THAT(RefusalOfLayouts(options), Has("does not support --strategy ps-async"));
  // Replicas without a pipeline suit every program, which they do not have.
  options = Compared("dp2,pp2");
  options.strategies = {"ps-sync", "ps-async"};
  options.programs = {"1f1b", "pipedream"};
  EXPECT_THAT(RefusalOfLayouts(options), Has("--program pipedream", "does not support --strategy ps-sync"));
}

TEST(Layouts, OnlyPipelinesHaveTheirFlags) {
  CompareOptions options = Compared("dp2,pp2,dp2xpp2");
  options.programs = {"gpipe"};
  options.rank_order = "pp,dp";
  options.cuts = "3";
  for (const Configuration& configuration : PlanFor(options).cost) {
    const std::vector<std::string> flags = TrainingArguments(configuration.training);
    const auto given = [&](const std::string& flag) {
      return testing::Value(flags, testing::Contains(flag));
    };
    const bool is_cut = configuration.training.pp > 1;
    for (const char* flag : {"--pp=2", "--program=gpipe", "--rank_order=pp,dp", "--cuts=3"})
      EXPECT_EQ(given(flag), is_cut) << configuration.name() << " " << flag;
  }
}

TEST(Layouts, WhatDoesNotSuitThemIsRejectedByName) {
  ExpectRefusedLayouts(
      Compared,
      {{"dp2,dp3xpp2", "the 3 replicas of dp3xpp2 cannot share them equally; use a multiple of 3, such as 9"},
       {"dp3,pp2", "--micro_batches 8"},
       {"dp3,pp2", "omit dp3"},
       {"dp2xpp2", "use fewer micro-batches",
        [](CompareOptions& o) {
          o.micro_batches = {8, 1 << 22};
        }},
       {"dp2,pp2", "strategies that send gradients",
        [](CompareOptions& o) {
          o.strategies = {"single", "none"};
        }},
       {"dp2,pp2", "single, none",
        [](CompareOptions& o) {
          o.strategies = {"single", "none"};
        }},
       {"dp2,pp2", "hybrid", [](CompareOptions& o) { o.strategies = {"hybrid"}; }},
       {"dp2,pp2", "'1f1b'", [](CompareOptions& o) { o.programs = {"1f2b"}; }},
       {"dp2,pp2", "--cuts 3,6", [](CompareOptions& o) { o.cuts = "3,6"; }},
       {"dp2,dp4", "--clock virtual has no model of layouts",
        [](CompareOptions& o) { o.training.clock = "virtual"; }},
       {"dp2,pp2", "", [](CompareOptions& o) {
          o.strategies = {"single", "direct"};
        }}});
}

TEST(Layouts, MicroBatchesDivideTheSamplesOfAStep) {
  CompareOptions options = Compared("dp2,pp2");
  EXPECT_TRUE(CheckBatches(options, 60000).ok());
  EXPECT_THAT(CheckBatches(options, 1000).message(), Has("--global_batch 1024 exceeds the 1000 samples"));
  options.micro_batches = {8, 10};
  EXPECT_THAT(CheckBatches(options, 60000).message(),
              Has("--global_batch 1024 does not divide into 10 equal micro-batches; use 1030"));
}

// The plan's configurations, of which number n was recorded with --eval_every n, as if fitted.
RecordedPlan RecordOf(const Plan& plan) {
  RecordedPlan recorded{.rounds = 3};
  for (const Configuration& configuration : plan.cost) {
    recorded.cost.push_back(NoteOf(configuration));
    recorded.cost.back().trainer_flags.push_back(absl::StrCat("--eval_every=", recorded.cost.size()));
  }
  return recorded;
}

TEST(Layouts, ARecordedPlanKeepsThemApart) {
  CompareOptions cut = Compared("pp2"), counted = cut;
  cut.cuts = kAllCuts;
  counted.micro_batches = {4, 8};
  Probe probe = TestProbe();
  probe.cuts = {1, 2};
  for (const auto& [options, count] :
       {std::pair(ComparedGpt("dp4,dp2xtp2,tp4"), 5), {cut, 3}, {counted, 3}}) {
    Plan plan = PlanFor(options, 2, probe);
    ASSERT_TRUE(TakeRecordedPlan(RecordOf(plan), options, plan).ok());
    int64_t number = 0;
    for (const Configuration& configuration : plan.cost)
      EXPECT_EQ(configuration.training.eval_every, ++number) << configuration.name();
    EXPECT_EQ(number, count);
  }
  const RecordedPlan recorded = RecordOf(PlanFor(counted));
  counted.programs = {"gpipe"};
  Plan plan = PlanFor(counted);
  EXPECT_THAT(TakeRecordedPlan(recorded, counted, plan).message(), Has("has no ring x 2 (pp2 gpipe m4)"));
}

TEST(Layouts, WithoutAFlushTheUpdateIsTheTrainersForSuchPrograms) {
  Probe probe = TestProbe();
  for (StrategyUpdate& rule : probe.updates) rule.lr = rule.strategy == kWithoutFlush ? .5 : .25;
  TrainingOptions training;
  training.pp = 2;
  for (const auto& [program, lr] : {std::pair{"1f1b", .25}, {"pipedream", .5}}) {
    training.program = program;
    EXPECT_EQ(MakeConfiguration("ring", 4, training, probe, /*cores=*/64)->update.lr, lr) << program;
  }
}

}  // namespace
}  // namespace psring
