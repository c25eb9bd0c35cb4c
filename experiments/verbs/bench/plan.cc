#include "experiments/verbs/bench/plan.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/base/read_file.h"
#include "common/io/json_object.h"
#include "common/text/suggestions.h"
#include "common/text/translate.h"
#include "ring_worker/schedules/schedule.h"

namespace psring {
namespace {

constexpr char kBetweenGpus[] = "cuda_ipc";  // native's transport on GPUs, and only there

template <typename List, typename Item>
bool Contains(const List& list, const Item& name) {
  return std::find(std::begin(list), std::end(list), name) != std::end(list);
}

// `list` without duplicates, in the same order.
template <typename T>
std::vector<T> Once(const std::vector<T>& list) {
  std::vector<T> once;
  for (const T& item : list) {
    if (!Contains(once, item)) once.push_back(item);
  }
  return once;
}

// The entry of `table` that equals `name`, with the number of hierarchical:2; `-` and `_` are equal.
std::optional<std::string> Find(const std::vector<std::string>& table, const std::string& name) {
  const std::string base = BaseAlgorithm(name);
  for (const std::string& known : table) {
    if (CanonicalWord(known) == CanonicalWord(base)) return base == name ? known : name;
  }
  return std::nullopt;
}

// With more ranks, sums of the values that ring_worker sends and checks are not exact (TestValues).
int MostExactRanks(const std::string& type) {
  return type == "bfloat16" ? 64 : type == "float16" ? 512 : kMaxBenchWorkers;
}

class Planner {
 public:
  Planner(const BenchRequest& request, const BenchCatalog& catalog, const absl::Status& mpirun)
      : request_(request), catalog_(catalog), mpirun_(mpirun) {}

  absl::StatusOr<BenchPlan> Make() {
    PSRING_ASSIGN_OR_RETURN(plan_.sizes, SizesOf(request_.sizes));
    PSRING_RETURN_IF_ERROR(CheckWorkers());
    PSRING_RETURN_IF_ERROR(CheckDevice());
    PSRING_RETURN_IF_ERROR(CheckNodes());
    if (Contains(request_.collectives, kPushPull) && std::ranges::min(plan_.sizes) < sizeof(float)) {
      return absl::InvalidArgumentError("ps_push_pull: a gradient has at least 4 bytes; raise --minbytes");
    }
    PSRING_RETURN_IF_ERROR(ChooseBackends());
    PSRING_RETURN_IF_ERROR(RequireOffered("algorithm", request_.algorithms, &Planner::AlgorithmsOf));
    PSRING_RETURN_IF_ERROR(RequireOffered("transport", request_.transports, &Planner::TransportsOf));
    PSRING_RETURN_IF_ERROR(Combine());
    if (request_.paced() && std::ranges::any_of(plan_.combinations, &BenchCombination::is_library_over_tcp)) {
      Note(
          Tr("libraries over TCP use this machine's congestion control, $0, which is slow within it; "
             "psring uses reno; for equal conditions: sysctl -w net.ipv4.tcp_congestion_control=cubic",
             request_.congestion_control));
    }
    for (const int workers : Once(request_.workers)) PlanLaunches(workers);
    plan_.rounds = request_.rounds > 0 ? request_.rounds : plan_.launches.size() > 1 ? 3 : 1;
    plan_.layout = request_.layout;
    plan_.iterations = (request_.iterations + plan_.rounds - 1) / plan_.rounds;
    return std::move(plan_);
  }

 private:
  using Offered = std::vector<std::string> (Planner::*)(const BackendInfo&, const std::string&) const;

  std::vector<std::string> AlgorithmsOf(const BackendInfo& backend, const std::string& collective) const {
    return backend.AlgorithmsFor(collective);
  }
  std::vector<std::string> TransportsOf(const BackendInfo& backend, const std::string& collective) const {
    return backend.AlgorithmsFor(collective).empty() ? std::vector<std::string>() : TransportsHere(backend);
  }

  // The transports for the memory that is measured: the host's or the GPUs'.
  std::vector<std::string> TransportsHere(const BackendInfo& backend) const {
    std::vector<std::string> list = backend.transports;
    if (backend.name != "native") return list;
    std::erase_if(list, [&](const std::string& name) {
      return (name == kBetweenGpus) != on_gpus() || (request_.on_nodes() && name == "shm");
    });
    return list;
  }

  bool on_gpus() const { return request_.device != "cpu"; }

  absl::Status CheckDevice() {
    if (!on_gpus()) {
      if (!request_.oversubscribe) return absl::OkStatus();
      return absl::InvalidArgumentError(
          "--oversubscribe is for --device cuda, where ranks may share a GPU; omit it");
    }
    if (Contains(request_.collectives, kPushPull)) {
      return absl::InvalidArgumentError(
          "ps_push_pull measures the server in the host's memory; omit --device (psring train measures a "
          "server on a GPU)");
    }
    if (request_.limits) {
      return absl::InvalidArgumentError("--limits measures the host's memory; omit --device or --limits");
    }
    if (Contains(request_.buffers, "huge")) {
      return absl::InvalidArgumentError(
          "huge pages are for the host's memory; GPUs have private and shared buffers");
    }
    for (const int all : request_.workers) {
      const int workers = MostOnAMachine(request_.layout, all);
      if (workers <= request_.gpus) continue;
      if (!request_.oversubscribe) {
        return InvalidArgument(request_.on_nodes() ? "--nproc_per_node " : "--workers ", workers, " on ",
                               request_.gpus, request_.gpus == 1 ? " GPU" : " GPUs",
                               ": use fewer, or --oversubscribe (a functional test, not a speed test)");
      }
      Note(Tr("ranks share GPUs: functional, not a measurement"));
    }
    return absl::OkStatus();
  }

  absl::Status CheckNodes() const {
    if (!request_.on_nodes()) return absl::OkStatus();
    const NodeLayout& layout = request_.layout;
    for (const int workers : request_.workers) {
      if (workers <= layout.capacity()) continue;
      return InvalidTr("--workers $0 on $1 machines of $2: use at most $3, or a larger --nproc_per_node",
                       workers, layout.nodes, layout.per_node, layout.capacity());
    }
    if (request_.limits) {
      return InvalidTr("--limits measures one machine; omit it, or --nnodes");
    }
    if (Contains(request_.backends, "mpi")) {
      return InvalidTr(
          "mpirun starts MPI's ranks, also on several machines; omit --backend mpi, or --nnodes");
    }
    if (on_gpus() && Contains(request_.backends, "native")) {
      return InvalidTr(
          "native exchanges GPU memory only within a machine; use --backend nccl, or omit --device");
    }
    if (Contains(request_.transports, "shm")) {
      return InvalidTr("--transport shm is for the processes of one machine; with --nnodes use tcp or auto");
    }
    return absl::OkStatus();
  }

  absl::Status CheckWorkers() const {
    if (request_.workers.empty()) return absl::InvalidArgumentError("--workers is empty");
    for (const int workers : request_.workers) {
      if (workers < 1 || workers > kMaxBenchWorkers) {
        return InvalidArgument("--workers ", workers, ": must be from 1 to ", kMaxBenchWorkers);
      }
      if (request_.root >= workers && Contains(request_.collectives, "broadcast")) {
        return InvalidTr("--root $0 is not a rank of $1 workers", request_.root, workers);
      }
      for (const std::string& type : request_.types) {
        const int most = MostExactRanks(type);
        if (workers <= most || Collectives().empty()) continue;
        return InvalidTr(
            "--workers $0 with $1, whose sums are exact with at most $2 workers; use fewer, or another "
            "--datatype",
            workers, type, most);
      }
    }
    return absl::OkStatus();
  }

  // Without kPushPull.
  std::vector<std::string> Collectives() const {
    std::vector<std::string> list = Once(request_.collectives);
    std::erase(list, kPushPull);
    return list;
  }

  absl::Status ChooseBackends() {
    std::vector<std::string> known = catalog_.collectives;
    known.push_back(kPushPull);
    for (const std::string& name : request_.collectives) {
      if (!Contains(known, name)) return UnknownName(TrNoop("collective"), name, known);
    }
    std::vector<std::string> names;
    for (const BackendInfo& backend : catalog_.backends) names.push_back(backend.name);
    for (const std::string& name : request_.backends) {
      if (!Contains(names, name)) return UnknownName(TrNoop("backend"), name, names);
    }
    for (const BackendInfo& backend : catalog_.backends) {
      const bool named = Contains(request_.backends, backend.name);
      if (!named && !request_.backends.empty()) continue;
      if (named && !backend.available) {
        return absl::NotFoundError(absl::StrCat("this build has no ", backend.name, ": ", backend.missing));
      }
      if (!backend.available) continue;
      if (!request_.tls.empty() && backend.name != "native") {
        if (!named) continue;
        return InvalidArgument("--tls with --backend ", backend.name,
                               ", which opens its own connections; omit one of them");
      }
      const bool takes_gpus =
          backend.name == "nccl" || Contains(backend.transports, std::string(kBetweenGpus));
      if (on_gpus() && !takes_gpus) {
        if (!named) continue;
        return InvalidArgument("--device cuda is for native and nccl; ", backend.name,
                               " works in the host's memory");
      }
      // nccl needs a GPU; by default, host memory is measured.
      if (!named && !on_gpus() && backend.name == "nccl") continue;
      if (request_.on_nodes() && backend.name == "mpi") {
        Note(Tr("mpi is omitted: mpirun starts its ranks, also on several machines"));
        continue;
      }
      if (request_.on_nodes() && on_gpus() && backend.name == "native") {
        Note(Tr("native is omitted: it exchanges GPU memory only within a machine"));
        continue;
      }
      if (backend.name == "mpi" && !mpirun_.ok()) {
        if (named) return mpirun_;
        Note(Tr("mpi is omitted: $0", mpirun_.message()));
        continue;
      }
      backends_.push_back(&backend);
    }
    return absl::OkStatus();
  }

  // Each name must be offered by at least one backend for at least one collective.
  absl::Status RequireOffered(const std::string& what, const std::vector<std::string>& names,
                              Offered offered) const {
    const std::vector<std::string> collectives = Collectives();
    if (collectives.empty()) return absl::OkStatus();
    for (const std::string& name : names) {
      std::vector<std::string> offers;
      bool found = false;
      for (const BackendInfo* backend : backends_) {
        for (const std::string& collective : collectives) {
          const std::vector<std::string> list = (this->*offered)(*backend, collective);
          found = found || Find(list, name).has_value();
          if (!list.empty()) {
            offers.push_back(
                absl::StrCat(backend->name, " has for ", collective, ": ", absl::StrJoin(list, ", ")));
          }
        }
      }
      if (found) continue;
      return InvalidArgument("'", name, "' is not ", what == "algorithm" ? "an " : "a ", what, " of ",
                             backends_.size() == 1 ? backends_[0]->name + " here" : "these backends", "; ",
                             offers.empty() ? "none offers the collective" : absl::StrJoin(offers, "; "));
    }
    return absl::OkStatus();
  }

  // The `names` that a backend offers; adds a note for each of the others.
  std::vector<std::string> Offer(const std::string& what, const std::vector<std::string>& names,
                                 const std::vector<std::string>& offered, const std::string& whose) {
    std::vector<std::string> list;
    for (const std::string& name : names) {
      if (const std::optional<std::string> known = Find(offered, name)) {
        list.push_back(*known);
      } else {
        Note(absl::StrCat(whose, " has no ", what, " '", name, "'; it has: ", absl::StrJoin(offered, ", ")));
      }
    }
    return Once(list);
  }

  std::vector<std::string> ChosenAlgorithms(const BackendInfo& backend, const std::string& collective) {
    const std::vector<std::string>& offered = backend.AlgorithmsFor(collective);
    if (!request_.algorithms.empty()) {
      return Offer("algorithm", request_.algorithms, offered, absl::StrCat(backend.name, " ", collective));
    }
    if (backend.name != "native") return {""};
    std::vector<std::string> list;
    for (const ScheduleRow& row : ScheduleRows()) {
      if (row.traits.is_compared && Contains(offered, row.name)) list.emplace_back(row.name);
    }
    return list.empty() ? std::vector<std::string>{offered.front()} : list;
  }

  std::vector<std::string> ChosenTransports(const BackendInfo& backend) {
    if (!request_.transports.empty()) {
      return Offer("transport", request_.transports, TransportsHere(backend), backend.name);
    }
    if (on_gpus() && backend.name == "nccl") return {"auto"};
    std::vector<std::string> list = TransportsHere(backend);
    std::erase(list, "auto");
    return list.empty() ? std::vector<std::string>{"auto"} : list;
  }

  std::vector<std::string> ChosenBuffers(const BackendInfo& backend, const std::string& transport) const {
    if (!request_.buffers.empty()) return Once(request_.buffers);
    if (transport == kBetweenGpus) return {"shared"};
    if (backend.name == "native" && transport == "shm") return {"private", "shared"};
    return {"private"};
  }

  absl::Status Combine() {
    for (const int workers : Once(request_.workers)) {
      for (const std::string& collective : Collectives()) {
        for (const BackendInfo* backend : backends_) {
          if (backend->AlgorithmsFor(collective).empty()) {
            Note(Tr("$0 offers no $1", backend->name, collective));
            continue;
          }
          for (const std::string& transport : ChosenTransports(*backend)) {
            for (const std::string& algorithm : ChosenAlgorithms(*backend, collective)) {
              for (const std::string& buffers : ChosenBuffers(*backend, transport)) {
                plan_.combinations.push_back({.collective = collective,
                                              .backend = backend->name,
                                              .algorithm = algorithm,
                                              .transport = transport,
                                              .buffers = buffers,
                                              .workers = workers});
              }
            }
          }
        }
      }
      if (Contains(request_.collectives, kPushPull)) {
        // Over shm, nothing is on a wire, and buffers are shared from the start, as in the trainer.
        std::vector<std::pair<std::string, std::string>> ways = {{"shm", "grpc"}};
        for (const std::string& wire : Once(request_.server_wires)) ways.emplace_back("tcp", wire);
        for (const auto& [transport, wire] : ways) {
          if (request_.on_nodes() && transport == "shm") continue;
          if (!request_.transports.empty() && !Contains(request_.transports, transport)) continue;
          for (const int servers : Once(request_.servers)) {
            plan_.combinations.push_back(
                {.collective = kPushPull,
                 .backend = wire,
                 .algorithm = servers > 1 ? absl::StrCat("sync on ", servers, " servers") : "sync",
                 .transport = transport,
                 .buffers = transport == "shm" ? "shared" : "private",
                 .workers = workers,
                 .servers = servers});
          }
        }
      }
    }
    if (!plan_.combinations.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(plan_.notes.empty() ? "there is nothing to measure"
                                                          : plan_.notes.front());
  }

  // mpirun fixes MPI's transport for a job, so each MPI transport has its own launch. Other combinations join
  // the launch with their transport, or the first one. The parameter server has its own processes.
  void PlanLaunches(int workers) {
    std::vector<std::string> mpi_transports;
    for (const BenchCombination& combination : plan_.combinations) {
      if (combination.workers != workers) continue;
      if (combination.backend == "mpi" && !Contains(mpi_transports, combination.transport)) {
        mpi_transports.push_back(combination.transport);
      }
    }
    std::vector<BenchLaunch> launches;
    for (const std::string& transport : mpi_transports) {
      launches.push_back({.kind = BenchLaunchKind::kMpirun, .mpi_transport = transport, .workers = workers});
    }
    const size_t groups = std::max<size_t>(launches.size(), 1);
    if (launches.empty()) launches.push_back({.workers = workers});
    std::vector<BenchLaunch> push_pulls;  // one parameter server combination each
    std::vector<size_t> nccl_sockets;
    for (size_t i = 0; i < plan_.combinations.size(); ++i) {
      const BenchCombination& combination = plan_.combinations[i];
      if (combination.workers != workers) continue;
      if (combination.push_pull()) {
        push_pulls.push_back({.kind = BenchLaunchKind::kPushPull,
                              .workers = workers,
                              .combinations = {i},
                              .limits = request_.limits});
        continue;
      }
      // NCCL reads some of its variables once per process, so its sockets get their own processes.
      if (combination.backend == "nccl" && combination.transport == "tcp") {
        nccl_sockets.push_back(i);
        continue;
      }
      size_t where = 0;
      for (size_t launch = 0; launch < groups; ++launch) {
        if (launches[launch].mpi_transport == combination.transport) where = launch;
      }
      launches[where].combinations.push_back(i);
    }
    for (BenchLaunch& launch : launches) launch.limits = request_.limits;
    // A launch without combinations may still measure limits.
    std::erase_if(launches, [&](const BenchLaunch& launch) {
      return launch.combinations.empty() && (!launch.limits || !push_pulls.empty());
    });
    if (!nccl_sockets.empty()) launches.push_back({.workers = workers, .combinations = nccl_sockets});
    plan_.launches.insert(plan_.launches.end(), launches.begin(), launches.end());
    plan_.launches.insert(plan_.launches.end(), push_pulls.begin(), push_pulls.end());
  }

  void Note(const std::string& text) {
    if (!Contains(plan_.notes, text)) plan_.notes.push_back(text);
  }

  const BenchRequest& request_;
  const BenchCatalog& catalog_;
  const absl::Status& mpirun_;
  std::vector<const BackendInfo*> backends_;
  BenchPlan plan_;
};

}  // namespace

absl::StatusOr<BenchPlan> MakeBenchPlan(const BenchRequest& request, const BenchCatalog& catalog,
                                        const absl::Status& mpirun) {
  return Planner(request, catalog, mpirun).Make();
}

const std::vector<std::string>& BackendInfo::AlgorithmsFor(const std::string& collective) const {
  static const std::vector<std::string> none;
  const auto found = algorithms.find(collective);
  return found == algorithms.end() ? none : found->second;
}

absl::StatusOr<BenchCatalog> BenchCatalogFromJson(const std::string& text) {
  constexpr size_t kMaxRows = 1000, kMaxBytes = 4096;
  PSRING_ASSIGN_OR_RETURN(const JsonObject json,
                          JsonObject::Parse(text, kMaxTextBytes, "the answer of `ring_worker --describe`"));
  BenchCatalog catalog;
  PSRING_ASSIGN_OR_RETURN(catalog.collectives, json.Texts("collectives", kMaxRows, kMaxBytes));
  PSRING_ASSIGN_OR_RETURN(const std::vector<JsonObject> backends, json.Objects("backends", kMaxRows));
  for (const JsonObject& row : backends) {
    BackendInfo& backend = catalog.backends.emplace_back();
    PSRING_ASSIGN_OR_RETURN(backend.name, row.Text("name", kMaxBytes));
    PSRING_ASSIGN_OR_RETURN(backend.available, row.Bool("available", false));
    PSRING_ASSIGN_OR_RETURN(backend.missing, row.Text("missing", kMaxBytes, ""));
    PSRING_ASSIGN_OR_RETURN(backend.transports, row.Texts("transports", kMaxRows, kMaxBytes));
    PSRING_ASSIGN_OR_RETURN(const JsonObject algorithms, row.Object("algorithms"));
    for (const std::string& collective : algorithms.Keys()) {
      PSRING_ASSIGN_OR_RETURN(backend.algorithms[collective],
                              algorithms.Texts(collective.c_str(), kMaxRows, kMaxBytes));
    }
  }
  return catalog;
}

}  // namespace psring
