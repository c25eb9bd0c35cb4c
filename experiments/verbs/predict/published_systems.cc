#include "experiments/verbs/predict/published_systems.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_join.h"
#include "common/text/translate.h"

namespace psring {
namespace {

constexpr double kGbit = 1e9 / 8;
constexpr char kBytePs[] = "BytePS project's charts, read within 3%";
constexpr char kTensorFlow[] = "TensorFlow benchmarks page, distributed training on Amazon EC2";
constexpr char kPoseidon[] = "Zhang et al. 2017, Poseidon (USENIX ATC)";
constexpr char kAws[] =
    "github.com/BinhangYuan/tc_cluster_setting, results/Simulate_DP.md (2022), AWS default";
constexpr char kBuffers[] = "Buffers of 64 MiB.";
constexpr char kDlPerf[] = "DLPerf benchmark report v1.0, float32";

Cluster Machines(int gpus, double link_gbit, double intra_gbit) {
  return {.gpus_per_node = gpus,
          .link_bytes_per_s = link_gbit * kGbit,
          .intra_bytes_per_s = gpus > 1 ? intra_gbit * kGbit : 0};
}

Constants Fitted(double compute_cv, double fraction, double node_loss) {
  return {{"compute_cv", compute_cv}, {"fraction", fraction}, {"node_loss", node_loss}};
}

PredictOptions Ring(double bucket_mb) { return {.buckets = {.first_mb = bucket_mb, .others_mb = bucket_mb}}; }

PredictOptions Servers(ServerPlace place, double bucket_mb, bool pipelined, bool local) {
  return {.buckets = {.first_mb = bucket_mb, .others_mb = bucket_mb},
          .place = place,
          .pipelined = pipelined,
          .local_aggregation = local};
}

std::vector<PublishedSystem> MakeSystems() {
  std::vector<PublishedSystem> systems;
  systems.push_back({.name = "byteps-tcp",
                     .title = "BytePS, servers on as many further machines",
                     .source = kBytePs,
                     .gpu = "V100",
                     .servers = true,
                     .cluster = Machines(8, 20, 1200),
                     .options = Servers(ServerPlace::kDedicated, 4, true, true),
                     .partition_mb = 4,
                     .models = {{"resnet50", 64, {{8, 2650}, {16, 4800}, {32, 8900}, {64, 16600}}},
                                {"vgg16", 64, {{8, 1750}, {16, 2450}}}},
                     .constants = Fitted(0.171, 0.865, 0.0675),
                     .remark = "Tensors in pieces of 4 MiB, added within each machine."});
  systems.push_back({.name = "horovod-tcp",
                     .title = "Horovod, the same machines",
                     .source = kBytePs,
                     .gpu = "V100",
                     .cluster = Machines(8, 20, 1200),
                     .options = Ring(64),
                     .models = {{"resnet50", 64, {{8, 2550}, {16, 4050}, {32, 7650}, {64, 11500}}},
                                {"vgg16", 64, {{8, 1640}, {16, 1590}}}},
                     .constants = Fitted(0.0536, 0.814, 0.585),
                     .remark = "One flat ring over all GPUs, buffers of 64 MiB."});
  systems.push_back({.name = "tensorflow-ps",
                     .title = "TensorFlow, synchronous servers beside the workers",
                     .source = kTensorFlow,
                     .gpu = "K80",
                     .servers = true,
                     .cluster = Machines(8, 10, 80),
                     .options = Servers(ServerPlace::kColocated, 4, true, true),
                     .models = {{"inception_v3", 64, {{8, 229}, {16, 459}, {32, 902}}},
                                {"resnet50", 64, {{8, 378}, {16, 751}, {32, 1388}}},
                                {"resnet152", 32, {{8, 146}, {16, 291}, {32, 565}}}},
                     .constants = Fitted(0.0325, 0.9, 0.05),
                     .remark = "p2.8xlarge: 8 GPUs, 10 Gbit/s. A machine adds its GPUs' gradients."});
  systems.push_back({.name = "caffe-ps",
                     .title = "Caffe with a plain parameter server",
                     .source = kPoseidon,
                     .gpu = "Titan X",
                     .servers = true,
                     .seconds = true,
                     .cluster = Machines(1, 40, 0),
                     .options = Servers(ServerPlace::kColocated, 100'000, false, false),
                     .after_backward = true,
                     .models = {{"vgg19_22k", 32, {{1, 0.925}, {2, 1.84}, {4, 2.515}, {8, 3.425}}}},
                     .constants = Fitted(0.0359, 0.24, 0.392),
                     .remark = "Pushes everything after backward, then pulls; a server beside each worker."});
  systems.push_back({.name = "caffe-wfbp",
                     .title = "Caffe with wait-free backpropagation",
                     .source = kPoseidon,
                     .gpu = "Titan X",
                     .servers = true,
                     .seconds = true,
                     .cluster = Machines(1, 40, 0),
                     .options = Servers(ServerPlace::kColocated, 2, true, false),
                     .partition_mb = 2,
                     .models = {{"vgg19_22k", 32, {{1, 0.925}, {2, 1.040}, {4, 1.129}, {8, 1.210}}}},
                     .constants = Fitted(0.205, 0.9, 0.05),
                     .remark = "Gradients in pieces of 2 MiB, the unit of Poseidon's store."});
  systems.push_back({.name = "aws-ring",
                     .title = "all-reduce of NCCL, without computing",
                     .source = kAws,
                     .gpu = "V100",
                     .seconds = true,
                     .cluster = Machines(1, 10, 0),
                     .options = Ring(64),
                     .models = {{"256 MiB", 1, {{4, 0.37}, {8, 0.45}, {16, 0.53}}, 256},
                                {"1 GiB", 1, {{4, 1.42}, {8, 1.95}, {16, 2.07}}, 1024}},
                     .constants = {{"fraction", 0.9}, {"node_loss", 0.054}},
                     .remark = "p3.2xlarge, one GPU each, up to 10 Gbit/s. Cut into one piece per machine."});
  systems.push_back({.name = "aws-ps",
                     .title = "sharded servers on the same machines, sent by NCCL",
                     .source = kAws,
                     .gpu = "V100",
                     .servers = true,
                     .seconds = true,
                     .cluster = Machines(1, 10, 0),
                     .options = Servers(ServerPlace::kColocated, 100'000, false, false),
                     .models = {{"256 MiB", 1, {{4, 0.42}, {8, 0.53}, {16, 0.60}}, 256},
                                {"1 GiB", 1, {{4, 1.63}, {8, 3.12}, {16, 2.33}}, 1024}},
                     .constants = {{"fraction", 0.882}, {"node_loss", 0.144}},
                     .remark = "Each machine adds its shard after all pushes (all-to-all), then sends it "
                               "(all-gather)."});
  const auto dlperf = [&](const char* name, const char* title, std::vector<PublishedModel> models,
                          bool after_backward, double bucket_mb, const char* remark, Constants constants) {
    systems.push_back({.name = name,
                       .title = title,
                       .source = kDlPerf,
                       .gpu = "V100",
                       .rdma = true,
                       .cluster = Machines(8, 100, 1200),
                       .options = Ring(bucket_mb),
                       .after_backward = after_backward,
                       .models = std::move(models),
                       .constants = std::move(constants),
                       .remark = remark});
  };
  dlperf("pytorch-nccl", "PyTorch with Apex, NCCL",
         {{"resnet50", 128, {{8, 2887.65}, {16, 5716.79}, {32, 10917.09}}},
          {"bert_base", 32, {{8, 921.32}, {16, 1499.40}, {32, 2885.81}}}},
         true, 1000, "One bucket after backward, as Apex sends it (delay_allreduce).",
         Fitted(0.0209, 0.995, 0.048));
  dlperf("tensorflow-horovod", "TensorFlow 1 with Horovod, NCCL",
         {{"resnet50", 128, {{8, 2721.98}, {16, 5099.42}, {32, 9514.64}}},
          {"bert_base", 32, {{8, 790.03}, {16, 1404.04}, {32, 2727.90}}}},
         false, 64, kBuffers, Fitted(0.0799, 0.918, 0.05));
  dlperf("mxnet-horovod", "MXNet with Horovod, NCCL",
         {{"resnet50", 128, {{8, 2556.03}, {16, 4855.34}, {32, 9579.74}}},
          {"bert_base", 32, {{8, 1058.60}, {16, 1845.65}, {32, 3671.45}}}},
         false, 64, kBuffers, Fitted(0.0381, 0.865, 0.048));
  dlperf("oneflow", "OneFlow, NCCL",
         {{"resnet50", 128, {{8, 3130.34}, {16, 6260.30}, {32, 12411.97}}},
          {"bert_base", 32, {{8, 1105.55}, {16, 2015.78}, {32, 3689.80}}}},
         false, 64, kBuffers, Fitted(0.0227, 0.882, 0.0611));
  dlperf("paddlepaddle", "PaddlePaddle, NCCL",
         {{"resnet50", 128, {{8, 2625.38}, {16, 4895.27}, {32, 9348.17}}},
          {"bert_base", 32, {{8, 615.12}, {16, 1116.02}, {32, 2073.60}}}},
         false, 64, kBuffers, Fitted(0.0849, 0.831, 0.0542));
  dlperf("tensorflow2", "TensorFlow 2 with MultiWorkerMirroredStrategy, NCCL",
         {{"resnet50", 128, {{8, 2458.74}, {16, 4849.68}, {32, 9418.44}}},
          {"bert_base", 32, {{8, 675.82}, {16, 909.00}, {32, 1551.52}}}},
         false, 64, kBuffers, Fitted(0.0178, 0.182, 0.224));
  return systems;
}

}  // namespace

const std::vector<PublishedSystem>& PublishedSystems() {
  static const auto& systems = *new std::vector<PublishedSystem>(MakeSystems());
  return systems;
}

absl::StatusOr<const PublishedSystem*> FindSystem(const std::string& name) {
  std::vector<std::string> names;
  for (const PublishedSystem& system : PublishedSystems()) {
    if (name == system.name) return &system;
    names.push_back(system.name);
  }
  return absl::NotFoundError(
      Tr("unknown system '$0'; use auto, none or one of $1", name, absl::StrJoin(names, ", ")));
}

int MostGpus(const PublishedSystem& system) {
  int most = 0;
  for (const PublishedModel& model : system.models) most = std::max(most, model.rows.back().gpus);
  return most;
}

}  // namespace psring
