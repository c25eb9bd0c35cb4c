#include "experiments/verbs/predict/published_systems.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/text/translate.h"
#include "common/workloads/changes.h"

namespace psring {
namespace {

constexpr double kGbit = 1e9 / 8;
constexpr char kBytePs[] = "BytePS project's charts, read within 3%";
constexpr char kTensorFlow[] = "TensorFlow benchmarks page, distributed training on Amazon EC2";
constexpr char kPoseidon[] = "Zhang et al. 2017, Poseidon (USENIX ATC)";
constexpr char kSettled[] =
    "Buffers of 64 MiB. Added after the model and the choice of constants were settled on the other systems.";
constexpr char kDlPerf[] = "DLPerf benchmark report v1.0, float32";

Cluster Machines(int gpus, double link_gbit, double intra_gbit) {
  return {.gpus_per_node = gpus,
          .link_bytes_per_s = link_gbit * kGbit,
          .intra_bytes_per_s = gpus > 1 ? intra_gbit * kGbit : 0};
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
                     .fitted = {"compute_cv", "node_loss"},
                     .constants = {{"compute_cv", 0.171}, {"node_loss", 0.101}},
                     .remark = "Tensors in pieces of 4 MiB, added within each machine."});
  systems.push_back({.name = "horovod-tcp",
                     .title = "Horovod, the same machines",
                     .source = kBytePs,
                     .gpu = "V100",
                     .cluster = Machines(8, 20, 1200),
                     .options = Ring(64),
                     .models = {{"resnet50", 64, {{8, 2550}, {16, 4050}, {32, 7650}, {64, 11500}}},
                                {"vgg16", 64, {{8, 1640}, {16, 1590}}}},
                     .fitted = {"latency_us", "node_loss"},
                     .constants = {{"latency_us", 25}, {"node_loss", 0.79}},
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
                     .fitted = {"fraction", "compute_cv"},
                     .constants = {{"fraction", 0.9}, {"compute_cv", 0.0325}},
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
                     .fitted = {"fraction", "sender_loss"},
                     .constants = {{"fraction", 0.222}, {"sender_loss", 0.119}},
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
                     .fitted = {"compute_cv"},
                     .constants = {{"compute_cv", 0.205}},
                     .remark = "Gradients in pieces of 2 MiB, the unit of Poseidon's store."});
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
                       .fitted = {"fraction", "compute_cv"},
                       .constants = std::move(constants),
                       .remark = remark});
  };
  dlperf("pytorch-nccl", "PyTorch with Apex, NCCL",
         {{"resnet50", 128, {{8, 2887.65}, {16, 5716.79}, {32, 10917.09}}},
          {"bert_base", 32, {{8, 921.32}, {16, 1499.40}, {32, 2885.81}}}},
         true, 1000, "One bucket after backward, as Apex sends it (delay_allreduce).",
         {{"fraction", 0.995}, {"compute_cv", 0.0218}});
  dlperf("tensorflow-horovod", "TensorFlow 1 with Horovod, NCCL",
         {{"resnet50", 128, {{8, 2721.98}, {16, 5099.42}, {32, 9514.64}}},
          {"bert_base", 32, {{8, 790.03}, {16, 1404.04}, {32, 2727.90}}}},
         false, 64, "Buffers of 64 MiB.", {{"fraction", 0.918}, {"compute_cv", 0.0832}});
  dlperf("mxnet-horovod", "MXNet with Horovod, NCCL",
         {{"resnet50", 128, {{8, 2556.03}, {16, 4855.34}, {32, 9579.74}}},
          {"bert_base", 32, {{8, 1058.60}, {16, 1845.65}, {32, 3671.45}}}},
         false, 64, "Buffers of 64 MiB.", {{"fraction", 0.848}, {"compute_cv", 0.0389}});
  dlperf("oneflow", "OneFlow, NCCL",
         {{"resnet50", 128, {{8, 3130.34}, {16, 6260.30}, {32, 12411.97}}},
          {"bert_base", 32, {{8, 1105.55}, {16, 2015.78}, {32, 3689.80}}}},
         false, 64, kSettled, {{"fraction", 0.865}, {"compute_cv", 0.0236}});
  dlperf("paddlepaddle", "PaddlePaddle, NCCL",
         {{"resnet50", 128, {{8, 2625.38}, {16, 4895.27}, {32, 9348.17}}},
          {"bert_base", 32, {{8, 615.12}, {16, 1116.02}, {32, 2073.60}}}},
         false, 64, kSettled, {{"fraction", 0.831}, {"compute_cv", 0.0866}});
  dlperf("tensorflow2", "TensorFlow 2 with MultiWorkerMirroredStrategy, NCCL",
         {{"resnet50", 128, {{8, 2458.74}, {16, 4849.68}, {32, 9418.44}}},
          {"bert_base", 32, {{8, 675.82}, {16, 909.00}, {32, 1551.52}}}},
         false, 64, kSettled, {{"fraction", 0.164}, {"compute_cv", 0.0189}});
  return systems;
}

double PublishedSeconds(const PublishedSystem& system, const PublishedModel& model, const PublishedRow& row) {
  return system.seconds ? row.published : row.gpus * model.batch / row.published;
}

// A figure of each withheld row's error, ascending.
std::vector<double> OfWithheld(const std::vector<CheckedSystem>& systems, double (*figure)(double error)) {
  std::vector<double> figures;
  for (const CheckedSystem& checked : systems) {
    for (const CheckedRow& row : checked.rows) {
      if (row.withheld) figures.push_back(figure(row.error()));
    }
  }
  std::sort(figures.begin(), figures.end());
  return figures;
}

std::string SystemText(const CheckedSystem& checked) {
  const PublishedSystem& system = *checked.system;
  std::string text = absl::StrFormat("\n## %s: %s\n\n%s. %s, %s. %s\n\n", system.name, system.title,
                                     system.source, system.gpu, system.network(), system.remark);
  absl::StrAppend(&text, "Fitted without the withheld rows: ", ConstantsText(checked.without),
                  "; over all rows: ", ConstantsText(checked.all), ".\n\n");
  absl::StrAppend(&text, "| case | published, ms a step | predicted | error | |\n|---|---|---|---|---|\n");
  for (const CheckedRow& row : checked.rows) {
    absl::StrAppendFormat(&text, "| %s | %.1f | %.1f | %+.1f%% | %s |\n", row.label, 1e3 * row.measured,
                          1e3 * row.predicted, 100 * row.error(), row.withheld ? "withheld" : "fitted");
  }
  return text;
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

absl::StatusOr<std::vector<FitRow>> RowsOf(const PublishedSystem& system) {
  std::vector<FitRow> rows;
  for (const PublishedModel& model : system.models) {
    PSRING_ASSIGN_OR_RETURN(Workload workload, LoadWorkload(model.workload));
    workload.batch = model.batch;
    workload =
        Faster(workload, workload.compute_ms() / (1e3 * PublishedSeconds(system, model, model.rows.front())));
    if (system.partition_mb > 0) {
      workload = InPieces(workload, static_cast<int64_t>(system.partition_mb * (1 << 20)));
    }
    if (system.after_backward) workload = AfterBackward(std::move(workload));
    for (size_t i = 1; i < model.rows.size(); ++i) {
      const PublishedRow row = model.rows[i];
      const int nodes = row.gpus / system.cluster.gpus_per_node;
      const PredictCase point = {.strategy = *FindStrategy(system.servers ? "ps-sync" : "ring"),
                                 .workers = row.gpus,
                                 .servers = system.servers ? nodes : 0};
      rows.push_back({.label = absl::StrCat(model.workload, ", ", row.gpus, " GPUs"),
                      .size = row.gpus,
                      .measured = PublishedSeconds(system, model, row),
                      .predict = PredictedStepOf(workload, point, system.cluster, system.options),
                      .withheld = i + 1 == model.rows.size()});
    }
  }
  return rows;
}

absl::StatusOr<CheckedSystem> CheckSystem(const PublishedSystem& system) {
  PSRING_ASSIGN_OR_RETURN(const std::vector<FitRow> rows, RowsOf(system));
  PSRING_ASSIGN_OR_RETURN(CheckedFit fit, FitAndCheck(rows, system.fitted));
  return CheckedSystem{std::move(fit), &system};
}

double FactorOf(const std::vector<CheckedSystem>& systems, double share) {
  const std::vector<double> factors =
      OfWithheld(systems, [](double error) { return std::exp(std::abs(std::log1p(error))); });
  if (factors.empty()) return 1;
  const auto place = static_cast<size_t>(std::ceil(share * factors.size()));
  return factors[std::max<size_t>(place, 1) - 1];
}

std::string PublishedText(const std::vector<CheckedSystem>& systems) {
  std::string text =
      "# Published runs, predicted\n\nWritten by `./run predict --published`. Every predicted figure is "
      "*simulated*; the published ones\nare measurements by others.\n\nThe first row of each model, on one "
      "machine, sets its computing time and is not listed. At most two constants per\nsystem are fitted. "
      "The largest run of each model is withheld from the fit and predicted: this is an extrapolation, "
      "which\nleave-one-out would hide. The fit assumes that rows are accurate to 5% and that constants are "
      "near their initial\nvalues, so a constant that the rows do not determine keeps its initial value.\n";
  for (const CheckedSystem& checked : systems) text += SystemText(checked);
  const std::vector<double> errors = OfWithheld(systems, [](double error) { return std::abs(error); });
  PSRING_CHECK(!errors.empty());
  const double factor = FactorOf(systems, 0.9);
  absl::StrAppendFormat(&text,
                        "\n## All withheld rows\n\n%d rows: median error %.1f%%, worst %.1f%%. 90%% are "
                        "within a factor of %.2f of "
                        "their prediction.\n\nThe range that predict prints is a factor of %.2f up and down, "
                        "a width of %.2f. It is larger "
                        "because the constants\nof each system, except the last three, were chosen when its "
                        "withheld rows were already known.\n\nThese runs do not show what causes a loss: "
                        "`compute_cv` stands for everything that makes a synchronous step wait for its\n"
                        "slowest machine, `node_loss` for everything that slows an exchange down as machines "
                        "are added.\n",
                        errors.size(), 100 * errors[errors.size() / 2], 100 * errors.back(), factor,
                        kCalibratedFactor, kCalibratedFactor * kCalibratedFactor);
  return text;
}

}  // namespace psring
