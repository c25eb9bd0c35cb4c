// The real binary: what it refuses.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/experiments/psring_in_a_folder.h"
#include "tests/has.h"

namespace psring {
namespace {

namespace fs = std::filesystem;

using BadInputTest = PsringInAFolder;

// A comparison on two machines.
std::string CompareOnTwo(const std::string& flags) {
  return absl::StrCat(
      "compare --nnodes 2 --node_rank 0 --master_addr 127.0.0.1 --model mlp-small --data "
      "synthetic --no_eval --dry_run ",
      flags);
}

TEST_F(BadInputTest, BadInputIsOneLineAndWritesNothing) {
  ASSERT_TRUE(std::ofstream(root_ / "file") << "x");
  fs::create_directory(root_ / "data");
  const std::string file = (root_ / "file").string(), data = (root_ / "data").string();
  const std::vector<BadInput> cases = {
      {"comprae", "compare"},
      {"compare --worker 2", "--workers"},
      {"compare --strategies rign", "did you mean 'ring'"},
      {"compare --strategies ring,", "name"},
      {"compare --strategies ddp", "psring calls it 'ring'"},
      {"compare --strategies ring,horovod", "which is given, too; omit 'horovod'"},
      {"predict --strategies ring,ddp --link 1gbit", "which is given, too; omit 'ddp'"},
      {"compare --model ./mine.csv", "use --workload ./mine.csv"},
      {"train --model vgg16", "use --workload vgg16"},
      {"compare --batch_size 8", "did you mean --batch?"},
      {"compare --bandwidth 1gbit", "did you mean --link?"},
      {"compare --gpus 2", "did you mean --workers?"},
      {"compare -n 2", "did you mean --workers?"},
      {"train -np 2", "did you mean --workers?"},
      {"bench -g 2", "psring bench: psring bench has one GPU per process, and no threads; give --workers"},
      {"predict --model resnet50", "did you mean --workload?"},
      {"report -o page.html", "did you mean --out?"},
      {"explain ring -n 4", "did you mean --workers?"},
      {"compare --link 1gbit,10gbit", "run the command once for each; psring report RUN RUN shows"},
      {"compare --link 2,5gbit", "write 2.5gbit"},
      {"predict --link 1gbit,10gbit", "run the command once for each"},
      {"compare --batch 32,64", "'32,64' is a list"},
      {"compare --samples 60,000", "write 60000"},
      {"compare --bucket_mb 25M", "--bucket_mb is in MiB; write 25"},
      {"compare --timeout 2m", "--timeout is in seconds; write 120"},
      {"compare --time_budget 2m,4m", "is a list"},
      {"compare --layouts dp2,tp2", "'tp2' is not a layout"},
      {"compare --layouts dp2,pp2 --workers 2", "--workers"},
      {"compare --layouts dp2,pp2 --pp 2", "--pp"},
      {"compare --layouts dp2,pp2 --strategies ps-sync", "--pp does not support --strategy ps-sync"},
      {"compare --layouts dp3,pp2 --micro_batches 8", "or omit dp3"},
      {"compare --layouts dp2,pp2 --target_accuracy .5", "omit --target_accuracy"},
      {"compare --layouts dp2,pp2 --workload resnet50 --micro_batches 4,8", "name one number"},
      {"compare --micro_batches 2,4", "several values of --micro_batches need a pipeline"},
      {"compare --workers 3 --pp 2", "--pp 2"},
      {"compare --strategies ring,ps-sync,ring", "--strategies names ring twice"},
      {"compare --strategies ring,allreduce", "--strategies names ring twice"},
      {"predict --link 1gbit --strategies ps,ps-sync", "--strategies names ps-sync twice"},
      {"compare --workers 2,4,2", "--workers names 2 twice"},
      {"compare --workers 2 4", "--workers 2,4"},
      {"compare --link 10GB/s", "in bytes, but a rate is in bits; write 80gbit"},
      {"compare --model mpl", "did you mean 'mlp'"},
      {"compare --data syntetic", "synthetic"},
      {"compare --workers 0", "--workers"},
      {"compare --workers -1", "--workers"},
      {"compare --workers nan", "--workers"},
      {"compare --workers 1,two", "two"},
      {"compare --workers 65", "64"},
      {"compare --batch 0", "--batch"},
      {"compare --model mlp --data synthetic --batch 1000000000", "--batch 1000000000"},
      {"compare --model mlp --data synthetic --batch 50000 --workers 4", "--batch 50000 times 4 workers"},
      {"compare --lr -1", "--lr"},
      {"compare --lr 0.1,0.1", "twice"},
      {"compare --batch 64 --global_batch 256", "--batch"},
      {"compare --global_batch 0", "--global_batch"},
      {"compare --data synthetic --global_batch 100 --workers 3", "use 99 or 102"},
      {"train --data synthetic --strategy ring --workers 3 --global_batch 128",
       "does not divide into 3 equal batches"},
      {"compare --global_batch 64 --workload resnet50", "for its own batch"},
      {"compare --tune momentum", "write lr"},
      {"compare --tune lr:1,1", "twice"},
      {"compare --tune lr:1", "at least two rates"},
      {"compare --tune lr:1,x", "--tune"},
      {"compare --tune lr --lr 0.1,0.2", "one rate per strategy"},
      {"compare --tune lr --no_eval", "omit --no_eval"},
      {"compare --tune lr --workload resnet50", "omit --workload"},
      {"compare --data synthetic --link none --time_budget 1s", "use --time_budget"},
      {"compare --resume /no/such/run", "there is no such folder"},
      {"compare --straggler 4:2", "no worker 4"},
      {"compare --straggler 1:2 --workers 1", "there is only worker 0"},
      {"compare --strategies ring --workers 2 --straggler 2:2", "no worker 2"},
      {"compare --straggler 1:0.5", "slow the other workers down instead"},
      {"compare --jitter_ms often", "--jitter_ms"},
      {"compare --compute_ms 6", "--clock virtual"},
      {"compare --like /no/such/run", "--clock virtual"},
      {"compare --clock virtual --like /no/such/run", "/no/such/run"},
      {"compare --clock virtual --strategies gloo --workers 2", "not gloo"},
      {"compare --clock virtual --workers 257", "256"},
      {"train --strategy ring --workers 4 --pp 3", "use a multiple, such as --workers 6, or --pp 2 or 4"},
      {"train --strategy ps-sync --workers 4 --pp 2", "use an all-reduce strategy such as ring"},
      {"train --workers 4 --pp 2", "--strategy single has one replica of the model"},
      {"train --workers 2 --pp 2 --program 1f1", "did you mean '1f1b'"},
      {"train --workers 2 --pp 2 --program interleaved:2 --cuts 3", "4 stages need 3 cuts"},
      {"train --workers 2 --pp 2 --rank_order pp", "--rank_order"},
      {"train --workers 2 --pp 2 --jitter_ms 5", "--pp and --jitter_ms exclude each other"},
      {"train --workers 2 --pp 2 --model dlrm-small", "--pp does not support the tables of dlrm-small"},
      {"train --strategy ring --workers 4 --pp 2 --backend mpi", "choose native or gloo"},
      {"train --strategy ring --workers 2 --program gpipe", "--program needs --pp"},
      {"train --preset dp4", "not of the form dp4xpp2"},
      {"train --strategy ring --preset dp2xpp2 --workers 4", "omit it, or --workers"},
      {"train --strategy ring --preset dp2xpp2 --pp 2", "omit it, or --pp"},
      {"train --strategy single --straggler 0:2", "undisturbed reference"},
      {"compare --strategies ps-ssp:x", "ps-ssp:K needs a whole number"},
      {"compare --strategies ps-backup:9 --workers 4", "at most 3 can be spare"},
      {"compare --servers 0", "the least is 1"},
      {"compare --warmup_steps 0", "the least is 1"},
      {"compare --staleness_lr often", "none, inverse"},
      {"compare --on_worker_loss panic", "stop, continue"},
      {"train --strategy ring --ps_schedule serial", "parameter-server strategies"},
      {"train --strategy ring --on_worker_loss continue", "parameter-server strategies"},
      {"train --strategy ring --server_wire stream --transport tcp", "parameter-server strategies"},
      {"train --strategy ps-sync --server_wire stream", "add --transport tcp"},
      {"train --strategy ps-sync --server_wire stream --transport shm", "shared memory carries all payload"},
      {"compare --server_wire stream --clock virtual", "--server_wire with --clock virtual"},
      {"compare --server_wire grpc,streams", "grpc, stream"},
      {"bench --server_wire stream", "name it, or omit the flag"},
      {"bench --collective ps_push_pull --server_wire stream --transport shm", "is for --transport tcp"},
      {"train --strategy ps-sync --clock virtual --transport shm", "--network_ms"},
      {"replay /no/such/run", "not a run folder"},
      {"compare --debug.score validation", "--validation"},
      {"compare --epochs 0", "--epochs"},
      {"compare --samples 9 --epochs 1", "--samples and --epochs"},
      {"compare --repeats many", "--repeats"},
      {"compare --time_budget soon", "--time_budget"},
      {"compare --link 1000", "no unit"},
      {"compare --link fast", "1gbit"},
      {"compare --link 1gbit --shaping none", "--shaping none"},
      {"compare --link none --shaping netns", "--link 1gbit"},
      {"compare --latency 1", "0.5ms"},
      {"compare --scale 10", "add --link"},
      {"compare --scale 10 --link 10gbit", "add --workload"},
      {"compare --scale 0.5 --link 10gbit --workload resnet50", "--scale"},
      {"compare --scale 10 --link 10gbit --workload resnet50 --jitter_ms 5", "--jitter_ms"},
      {"train --strategy ring --link 1gbit --transport shm", "share no memory"},
      {"compare --predict --link none", "--link 1gbit"},
      {"compare --predict --clock virtual", "--clock virtual"},
      {"compare --reference_workers 2", "--reference_workers"},
      {"compare --strategies ring --reference_workers 2", "--reference_workers"},
      {"compare --data_dir " + data, data},
      {"compare --data_dir /no/such/folder", "/no/such/folder"},
      {"compare --out " + file, file},
      {"compare --out /proc/psring", "/proc/psring"},
      {"train --strategy ring,star", "compare"},
      {"train --strategy ring --workers 1,2", "compare"},
      {"train --strategy single --workers 2", "one process"},
      {"train --strategy ring --reference_workers 2", "--reference_workers"},
      {"train --steps 5 --epochs 1", "--steps and --epochs"},
      {"train --transport pigeon", "--transport"},
      {"compare --workload resnet5", "resnet50"},
      {"compare --workload ./none.csv", "none.csv"},
      {"compare --workload resnet50 --model cnn", "--model"},
      {"compare --compute_speedup 2", "--workload"},
      {"train --strategy mpi --workers 2 --data synthetic --link 1gbit", "--link none"},
      {"compare --backend golo", "gloo"},
      {"predict --link 25", "has no unit"},
      {"predict --link 1gbit --workload resnet", "resnet50"},
      {"predict --link 1gbit --strategies rign", "did you mean 'ring'"},
      {"predict --cluster p3dn --workers 12", "12 workers do not fill nodes of 8 GPUs"},
      {"train --data synthetic --strategy none --workers 2 --backend native", "no collectives"},
      {"train --data synthetic --strategy none --workers 2 --transport tcp", "no collectives"},
      {"train --strategy ring --workers 3 --ranks_per_process 2", "3 is not a multiple of 2"},
      {"compare --strategies ring --workers 2,5 --ranks_per_process 2", "5 is not a multiple of 2"},
      {"train --strategy single --ranks_per_process 2", "omit --workers and --ranks_per_process"},
      {"train --strategy mpi --ranks_per_process 2 --data synthetic", "MPI"},
      {"train --strategy ring --ranks_per_process 2 --data synthetic --link 1gbit --shaping userspace",
       "this needs network namespaces"},
      {"train --data synthetic --steps 1 --bind 0.0.0.0", "names no machine"},
      {"train --data synthetic --bind :: --nnodes 2 --master_addr 127.0.0.1", "names no machine"},
      {CompareOnTwo("--strategies ring --workers 3"), "ring x 3 on 2 machines of 1: use at most 2 --workers"},
      {CompareOnTwo("--link 1gbit"), "--nnodes needs real machines"},
      {CompareOnTwo("--shaping none"), "--shaping none is for a virtual cluster"},
      {CompareOnTwo("--strategies ps-sync --servers 2 --server_placement dedicated"), "leaves none to train"},
      {CompareOnTwo("--strategies ring,ps-sync --servers 1"),
       "--servers on several machines needs --server_placement"},
      {"compare --strategies parallax", "psring calls it 'hybrid'"},
      {"train --data synthetic --strategy hybrid --workers 2",
       "--strategy hybrid needs a model with tables of rows, such as dlrm-small; use ring for mlp"},
      {"compare --workload resnet50 --strategies ring,hybrid",
       "--strategy hybrid needs a model with tables of rows, such as dlrm-small; use ring"},
      {"compare --model dlrm-small --data zipf:300:1 --strategies hybrid,data-parallel",
       "--strategy data-parallel does not support the tables of dlrm-small; use one of "},
      {"predict --link 1gbit --strategies hybrid", "a workload has no tables of rows"},
      {"compare --clock virtual --strategies hybrid --workers 2",
       "--clock virtual has no model of the rows of tables; omit hybrid"},
  };
  ExpectOneLineOfEach(cases, "psring");
}

TEST_F(BadInputTest, CudaIsRejectedWithoutAGpu) {
  if (fs::exists("/dev/nvidia0")) GTEST_SKIP() << "this machine has a GPU";
  EXPECT_THAT(Refused("compare --device cuda"), IsOneLine());
  EXPECT_TRUE(fs::is_empty(root_ / "work"));
}

}  // namespace
}  // namespace psring
