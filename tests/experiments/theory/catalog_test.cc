#include "experiments/theory/catalog.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace psring {
namespace {

constexpr char kCatalog[] = R"({
    "strategies": [{"name": "dp"},
                   {"name": "ring", "aliases": "allreduce,all-reduce", "also_called": "ddp,horovod",
                    "resembles": "fsdp"},
                   {"name": "ps-sync", "aliases": "ps", "also_called": "parameter-server"},
                   {"name": "ps-ssp", "number": "K", "number_least": 1}],
    "models": []})";

TEST(CatalogTest, AnUnknownStrategySuggestsTheOneWithThatOtherNameOrTheNearest) {
  const auto catalog = CatalogFromJson(kCatalog);
  ASSERT_TRUE(catalog.ok()) << catalog.status();
  const auto says = [&](const std::string& name, const std::vector<std::string>& given = {}) {
    return std::string(FindStrategy(*catalog, name, given).status().message());
  };
  const std::string all = "Use one of dp, ring, ps-sync, ps-ssp";
  EXPECT_EQ(says("ddp"), absl::StrCat("unknown strategy 'ddp'; psring calls it 'ring'. ", all))
      << "not dp, which is nearer";
  EXPECT_EQ(
      says("fsdp"),
      absl::StrCat("unknown strategy 'fsdp'; psring has nothing like it; the nearest is 'ring'. ", all));
  EXPECT_EQ(says("Parameter_Server"),
            absl::StrCat("unknown strategy 'Parameter_Server'; psring calls it 'ps-sync'. ", all));
  EXPECT_EQ(says("rign"), absl::StrCat("unknown strategy 'rign'; did you mean 'ring'? ", all));
  EXPECT_EQ(says("gossip"), "unknown strategy 'gossip'; use one of dp, ring, ps-sync, ps-ssp");
  // What is given is not suggested.
  EXPECT_EQ(says("horovod", {"ring", "horovod"}),
            "unknown strategy 'horovod'; psring calls it 'ring', which is given, too; omit 'horovod'");
  EXPECT_EQ(
      says("fsdp", {"fsdp", "ring"}),
      "unknown strategy 'fsdp'; psring has nothing like it; the nearest is 'ring', which is given, too; omit "
      "'fsdp'");
  EXPECT_EQ(says("rign", {"ring", "rign"}), "unknown strategy 'rign'; use one of dp, ring, ps-sync, ps-ssp");
  EXPECT_EQ(says("ps-snc", {"ps-sync", "ps-snc"}),
            absl::StrCat("unknown strategy 'ps-snc'; did you mean 'ps-ssp'? ", all));
  EXPECT_EQ(says("ps-spp:2", {"ps-ssp:1", "ps-spp:2"}),
            "unknown strategy 'ps-spp:2'; use one of dp, ring, ps-sync, ps-ssp");
  EXPECT_EQ(says("hierarchical"),
            "'hierarchical' is a schedule that psring predict and psring explain know, but no strategy "
            "trains with it; "
            "use ring");
  EXPECT_TRUE(FindStrategy(*catalog, "ring").ok());
}

TEST(CatalogTest, AnAliasIsReplacedByTheStrategysName) {
  const auto catalog = CatalogFromJson(kCatalog);
  ASSERT_TRUE(catalog.ok()) << catalog.status();
  std::vector<std::string> names = {"All-Reduce", "ps", "ps-ssp:02", "hierarchical"};
  ASSERT_TRUE(UseCatalogNames(*catalog, names).ok());
  EXPECT_EQ(names, (std::vector<std::string>{"ring", "ps-sync", "ps-ssp:2", "hierarchical"}));
  names = {"ring", "ps", "allreduce"};
  EXPECT_EQ(UseCatalogNames(*catalog, names).message(), "--strategies names ring twice; name it once");
  EXPECT_EQ(FindStrategy(*catalog, "ps:2").status().message(), "strategy 'ps:2': ps-sync takes no number");
}

TEST(CatalogTest, AModelThatCanOnlyBeReplayedNamesTheFlagForIt) {
  const auto catalog =
      CatalogFromJson(R"({"strategies": [], "models": [{"name": "mlp"}, {"name": "resnet18"}]})");
  ASSERT_TRUE(catalog.ok()) << catalog.status();
  const struct {
    const char *model, *says;
  } cases[] = {
      {"./mine.csv",
       "'./mine.csv' is a file, not a model; to replay the times in it, use --workload ./mine.csv"},
      {"mine.csv", "'mine.csv' is a file, not a model; to replay the times in it, use --workload mine.csv"},
      {"models/mine",
       "'models/mine' is a file, not a model; to replay the times in it, use --workload models/mine"},
      {"vgg16", "psring cannot train 'vgg16'; to replay its recorded times, use --workload vgg16"},
      {"BERT-base",
       "psring cannot train 'BERT-base'; to replay its recorded times, use --workload bert_base"},
      {"mpl", "unknown model 'mpl'; did you mean 'mlp'? Use one of mlp, resnet18"},
      {"transformer", "unknown model 'transformer'; use one of mlp, resnet18"}};
  for (const auto& [model, says] : cases) EXPECT_EQ(FindModel(*catalog, model).status().message(), says);
}

TEST(CatalogTest, HybridUsesBothAndModelsMayHaveTables) {
  const auto catalog = CatalogFromJson(R"({
      "strategies": [{"name": "hybrid", "needs": "process_group+parameter_server", "also_called": "parallax"}],
      "models": [{"name": "dlrm-small", "parameters": 5, "has_tables": true}, {"name": "mlp"}]})");
  ASSERT_TRUE(catalog.ok()) << catalog.status();
  const StrategyInfo hybrid = *FindStrategy(*catalog, "hybrid");
  EXPECT_TRUE(hybrid.has_only_rows_on_servers());
  EXPECT_FALSE(CanAggregate(hybrid));
  EXPECT_EQ(FindStrategy(*catalog, "parallax").status().message(),
            "unknown strategy 'parallax'; psring calls it 'hybrid'. Use one of hybrid");
  EXPECT_TRUE(FindModel(*catalog, "dlrm-small")->has_tables);
  EXPECT_FALSE(FindModel(*catalog, "mlp")->has_tables);
}

}  // namespace
}  // namespace psring
