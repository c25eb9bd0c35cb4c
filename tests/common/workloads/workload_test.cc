#include "common/workloads/workload.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/workloads/zipf.h"
#include "tests/has.h"

namespace psring {
namespace {

constexpr char kHead[] = "# batch: 32\n# device: V100\n# forward_ms: 10\nname,bytes,ready_ms\n";

Workload Parsed(const std::string& rows) { return ParseWorkload("mine", kHead + rows).value(); }

void ExpectRefused(const std::string& text, const std::string& what) {
  EXPECT_THAT(ParseWorkload("mine", text).status().message(), Has(what));
}

TEST(Workload, ReadsHeaderAndRows) {
  const Workload workload = Parsed("fc.bias,40,0.5\n\nfc.weight,4000,0.75\n");
  EXPECT_EQ(workload.batch, 32);
  EXPECT_EQ(workload.device, "V100");
  EXPECT_DOUBLE_EQ(workload.forward_ms, 10);
  EXPECT_DOUBLE_EQ(workload.backward_ms, 0.75);
  EXPECT_EQ(workload.bytes(), 4040);
  ASSERT_EQ(workload.tensors.size(), 2u);
  EXPECT_EQ(workload.tensors[1].name, "fc.weight");
}

TEST(Workload, TensorsOfABlockShareTheirNameUpToANumber) {
  EXPECT_EQ(BlockName("transformer.h.11.mlp.c_fc.weight"), "transformer.h.11");
  EXPECT_EQ(BlockName("layer4.2.bn1.bias"), "layer4.2");
  EXPECT_EQ(BlockName("embeddings.word"), "embeddings");
  EXPECT_EQ(BlockName("bias"), "bias");
}

TEST(Workload, BackwardMayEndAfterTheLastGradient) {
  const auto workload = ParseWorkload("mine", std::string("# backward_ms: 3\n") + kHead + "w,4,2\n").value();
  EXPECT_DOUBLE_EQ(workload.compute_ms(), 13);
}

TEST(Workload, MayContainTheSizeOfActivations) {
  EXPECT_EQ(Parsed("w,4,2\n").activation_bytes, 0);
  const std::string line = "# activation_bytes: 393216\n";
  EXPECT_EQ(ParseWorkload("mine", line + kHead + "w,4,2\n").value().activation_bytes, 393216);
  ExpectRefused(std::string("# activation_bytes: 1.5\n") + kHead + "w,4,2\n", "activation_bytes");
}

TEST(Workload, MayContainTheHeadsOfAttention) {
  EXPECT_EQ(Parsed("w,4,2\n").heads, 0);
  EXPECT_EQ(ParseWorkload("mine", std::string("# heads: 12\n") + kHead + "w,4,2\n").value().heads, 12);
  ExpectRefused(std::string("# heads: 0\n") + kHead + "w,4,2\n", "heads");
  EXPECT_EQ(LoadWorkload("llama_8b")->heads, 8) << "of keys";
}

TEST(Workload, TensorsMayBeDeclaredInAnyOrder) {
  std::vector<int> place;
  EXPECT_EQ(DeclaredLayoutOf(Parsed("b,40,1\na,80,2\n"), place).tensors()[0].name, "a");
  EXPECT_EQ(place, (std::vector<int>{1, 0}));
  const std::string head = "# batch: 32\n# device: V100\n# forward_ms: 10\nname,bytes,ready_ms,declared\n";
  const auto workload = ParseWorkload("mine", head + "wide,40,1,0\nlast,80,2,2\nfirst,4,3,1\n").value();
  const ParameterLayout layout = DeclaredLayoutOf(workload, place);
  EXPECT_EQ(place, (std::vector<int>{0, 2, 1}));
  ASSERT_EQ(layout.tensors().size(), 3u);
  EXPECT_EQ(layout.tensors()[2].name, "last");
  EXPECT_EQ(layout.tensors()[2].first, 11u);
  ExpectRefused(head + "a,4,1,0\nb,4,2,0\n", "0 of b appears twice");
  ExpectRefused(head + "a,4,1,0\nb,4,2,2\n", "2 of b is too large");
  ExpectRefused(head + "a,4,1\n", "line 5: it has 3 fields; the header has 4");
  ExpectRefused(head + "a,4,1,first\n", "line 5: declared 'first'");
}

TEST(Workload, ErrorsNameTheLine) {
  const std::string head = kHead;
  ExpectRefused("", "no tensor");
  ExpectRefused("name,bytes\n", "line 1: the columns must be name,bytes,ready_ms");
  ExpectRefused(head + "w,10,1\n", "line 5: bytes '10' is not a size of float32 values");
  ExpectRefused(head + "w,8\n", "line 5: it has 2 fields; the header has 3");
  ExpectRefused(head + "w,8,soon\n", "ready_ms 'soon'");
  ExpectRefused(head + "w,8,2\nv,8,1\n", "line 6: ready_ms 1 comes before that of the row above (2)");
  ExpectRefused(head + "w,8,2\nv,8,1.00000000000000000\n", "ready_ms 1.00000000000000000 comes before");
  ExpectRefused("# batch: none\n" + head, "line 1: batch 'none'");
  ExpectRefused("# device: V100\n# forward_ms: 1\nname,bytes,ready_ms\nw,8,1\n", "'# batch: N' is missing");
  ExpectRefused("# backward_ms: 1\n" + head + "w,8,2\n", "before the last gradient");
}

TEST(Workload, NumbersOutOfRangeAreErrors) {
  const std::string head = kHead;
  ExpectRefused(head + "w,9223372036854775804,1\n",
                "line 5: bytes 9223372036854775804 are more than 8589934588");
  ExpectRefused(head + "w,17179869184,1\n", "line 5: bytes 17179869184 are more than");
  ExpectRefused(head + "w,9223372036854775808,1\n", "line 5: bytes '9223372036854775808' is not");
  std::string large = head;
  for (int i = 0; i < 129; ++i) large += "w,8589934588,1\n";
  ExpectRefused(large, "line 133: a workload has at most 100000 tensors of 1099511627776 bytes in total");
  std::string many = head;
  for (int i = 0; i <= 100'000; ++i) many += "w,4,1\n";
  ExpectRefused(many, "line 100005: a workload has at most");
  for (const char* time : {"1e300", "inf", "nan", "-1", "3600001"})
    ExpectRefused(head + "w,4," + time + "\n", "' is not a number from 0 to 3.6e+06");
  ExpectRefused("# batch: 1000001\n" + head, "line 1: batch '1000001'");
  ExpectRefused("# flops_per_sample: inf\n" + head, "line 1: flops_per_sample 'inf'");
}

TEST(Workload, MalformedLinesAreErrors) {
  const std::string head = kHead;
  ExpectRefused(head + "\"w,4,1\n", "line 5: a quote is not closed");
  ExpectRefused(head + std::string("w\0,4,1\n", 7), "line 5: it contains the control character 0");
  ExpectRefused(head + "w\x1b[31m,4,1\n", "line 5: it contains the control character 27");
  ExpectRefused(head + std::string(1 << 17, 'w') + ",4,1\n", "line 5: it has more than 65536 bytes");
  ExpectRefused(head + "w" + std::string(2000, ',') + "4,1\n", "line 5: it has more than 1024 fields");
  EXPECT_EQ(Parsed("\"a, \"\"b\"\"\",4,1\r\n").tensors[0].name, "a, \"b\"");
}

TEST(Workload, FilesThatASpreadsheetHasSavedAreRead) {
  const std::string head = "# device: V100\n# batch: 32\n# forward_ms: 10.5\n";
  const std::string rows = "name,bytes,ready_ms\nhead,8388608,1.5\nfirst,9437184,20\n";
  const std::string semicolons = "name;bytes;ready_ms\nhead;8388608;1,5\nfirst;9437184;20,0\n";
  std::string padded, crlf;
  for (const char c : head) padded += c == '\n' ? ",,\n" : std::string(1, c);
  for (const char c : head + rows) crlf += c == '\n' ? "\r\n" : std::string(1, c);
  for (const std::string& text :
       {head + rows, "\xEF\xBB\xBF" + head + rows, padded + rows + ",,\n", crlf, head + semicolons,
        "# forward_ms: 10,5;;\n# device: V100;;\n# batch: 32;;\n" + semicolons,
        "\"# forward_ms: 10,5\",,\n\"# note: a, b\",,\n" + head.substr(0, 27) + rows,
        head + "name,bytes,ready_ms\nhead,8388608,\"1,5\"\nfirst,9437184,\"20,0\"\n"}) {
    const Workload workload = ParseWorkload("mine", text).value();
    EXPECT_EQ(workload.bytes(), 8388608 + 9437184) << text;
    EXPECT_EQ(workload.tensors[0].ready_ms, 1.5) << text;
    EXPECT_EQ(workload.forward_ms, 10.5) << text;
    EXPECT_EQ(workload.batch, 32) << text;
    EXPECT_EQ(workload.device, "V100") << text;
  }
}

TEST(Workload, PartOfANumberIsNeverASize) {
  const std::string head = kHead;
  for (const char* bytes : {"\"8,388,608\"", "8 388 608", "8'388'608", "8.388.608", "8388608.0", "8.39E+06",
                            "0x800000", "\"8388608,0\"", "8388608B", "nan", ""}) {
    ExpectRefused(absl::StrCat(head, "w,", bytes, ",1\n"), "line 5: bytes ");
  }
  ExpectRefused(head + "w,8,388,608,1\n", "line 5: it has 5 fields; the header has 3; quote names");
  ExpectRefused(head + "w,8388608,1,5\n", "line 5: it has 4 fields; the header has 3");
  ExpectRefused(head + "w,4,\"1,234\"\n", "line 5: ready_ms '1,234' is not a number");
  ExpectRefused("# batch: 1,024\n" + head, "line 1: batch '1,024' is not a whole number");
  ExpectRefused("# forward_ms: 10,5\n" + head, "line 1: forward_ms '10,5' is not a number");
}

TEST(Workload, ANameMayBeginWithANumberSign) {
  EXPECT_EQ(Parsed("\"#0.weight\",8,1\n# 1.weight,8,2\nw,8,2\n").bytes(), 16);
  EXPECT_EQ(Parsed("\"#0.weight\",8,1\n").tensors[0].name, "#0.weight");
  ExpectRefused(std::string(kHead) + "#0.weight,8,1\nw,8,2\n",
                "line 5: '#0.weight,8,1' is a comment or a row");
}

TEST(Workload, BuiltInWorkloadsHaveTheSizesOfTheirModels) {
  const std::vector<std::pair<std::string, int64_t>> bytes = {
      {"alexnet", 244'403'360},
      {"gnmt", 775'063'808},
      {"inception_v3", 108'645'056},
      {"resnet101", 178'196'640},
      {"resnet50", 102'228'128},
      {"vgg16", 553'463'968},
      // Computed: 4 bytes for each published parameter.
      {"bert_base", 440'425'712},
      {"gpt2", 497'759'232},
      {"gpt_mini", 43'095'552},
      {"inception_bn", 45'140'896},
      {"llama_8b", 32'121'044'992},
      {"resnet152", 240'771'232},
      {"vgg19_22k", 916'211'268}};
  EXPECT_EQ(WorkloadNames().size(), bytes.size());
  for (const auto& [name, expected] : bytes) {
    const Workload workload = LoadWorkload(name).value();
    EXPECT_EQ(workload.bytes(), expected) << name;
    EXPECT_GT(workload.forward_ms, 0) << name;
    EXPECT_FALSE(workload.source.empty()) << name;
    EXPECT_FALSE(workload.licence.empty()) << name;
  }
  EXPECT_NEAR(LoadWorkload("resnet50")->backward_ms, 64.8, 0.1);
}

TEST(Workload, AnUnknownNameIsAnErrorThatListsTheKnownOnes) {
  EXPECT_THAT(LoadWorkload("resnet51").status(), Fails(absl::StatusCode::kNotFound, "resnet50, vgg16"));
  EXPECT_THAT(LoadWorkload("./nowhere.csv").status().message(),
              Has("nowhere.csv: No such file or directory; experiments/export_workload.py"));
}

TEST(Workload, AFasterDeviceDividesEveryTime) {
  const Workload workload = Faster(Parsed("a,8,1\nb,8,3\n"), 2);
  EXPECT_DOUBLE_EQ(workload.forward_ms, 5);
  EXPECT_DOUBLE_EQ(workload.backward_ms, 1.5);
  EXPECT_DOUBLE_EQ(workload.tensors[0].ready_ms, 0.5);
}

TEST(Workload, ABucketIsReadyWithItsLastTensor) {
  // 1 MiB, then 0.5 + 0.5 MiB, then what is left.
  const Workload workload = Parsed("a,1048576,1\nb,524288,2\nc,524288,3\nd,4,4\n");
  const std::vector<Bucket> buckets = PlanBuckets(LayoutOf(workload), {.first_mb = 1, .others_mb = 1});
  ASSERT_EQ(buckets.size(), 3u);
  EXPECT_EQ(buckets[0].first, (524288u * 2 + 4) / 4);
  EXPECT_EQ(BucketReadyMs(workload, buckets), (std::vector<double>{1, 3, 4}));
}

TEST(Zipf, DrawsItemsWithTheirProbabilities) {
  for (const double alpha : {0.0, .5, 1.0, 1.05, 2.5}) {
    for (const int items : {1, 2, 20}) {
      constexpr int kDraws = 40'000;
      std::vector<int> counts(static_cast<size_t>(items) + 1);
      Random random(1);
      const Zipf zipf(items, alpha);
      for (int i = 0; i < kDraws; ++i) ++counts[static_cast<size_t>(zipf.Next(random))];
      double sum = 0;
      for (int k = 1; k <= items; ++k) sum += std::pow(k, -alpha);
      for (int k = 1; k <= items; ++k) {
        const double share = std::pow(k, -alpha) / sum;
        const double deviation = std::sqrt(share * (1 - share) / kDraws);
        EXPECT_NEAR(counts[static_cast<size_t>(k)] / double{kDraws}, share, 4 * deviation + 1e-9)
            << k << " of " << items << ", alpha " << alpha;
      }
    }
  }
}

TEST(Zipf, NamesAreChecked) {
  const auto name = ParseZipf("zipf:1000:1.05").value();
  EXPECT_EQ(name.rows, 1000);
  EXPECT_EQ(name.alpha, 1.05);
  for (const char* wrong : {"zipf", "zipf:1000", "zipf:0:1", "zipf:-3:1", "zipf:1e3:1", "zipf:1000:-1",
                            "zipf:1000:nan", "zipf:1000:", "zipf:1000:1:2", "zipf:999999999:1", "zopf:1:1"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseZipf(wrong).status())) << wrong;
  }
  EXPECT_EQ(ParseZipf("zipf:0:1").status().message(),
            "'zipf:0:1': ROWS must be a whole number from 1 to 100000000, the rows of each table");
}

}  // namespace
}  // namespace psring
