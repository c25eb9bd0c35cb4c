// Trainers and servers on a full disk, with few file descriptors or with data that expand: every process ends
// at once and names the cause.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>
#include <zlib.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/full_disk.h"
#include "tests/trainer/main/trainer_process.h"

namespace psring {
namespace {

constexpr char kEndless[] = " --model mlp-small --data synthetic --steps 1000000 --batch 16 --no_eval";

class FaultsTest : public TrainerProcess {
 protected:
  // Runs `command` after `before`, in a shell.
  std::unique_ptr<Child> StartAfter(const std::string& before, const std::string& command, int rank,
                                    int world_size) const {
    std::vector<std::string> environment = Environment(rank, world_size);
    environment.push_back(absl::StrCat("PATH=", std::getenv("PATH")));
    return std::make_unique<Child>(
        std::vector<std::string>{"/bin/sh", "-c", absl::StrCat(before, " && exec ", command)}, environment);
  }
  std::string TrainerOn(const std::string& flags) const {
    return absl::StrCat(PSRING_TRAINER, " --rendezvous ", Rendezvous(), " ", flags);
  }
};

TEST_F(FaultsTest, AFullDiskOfRecordsEndsTrainingAndEveryRankNamesIt) {
  for (const std::string strategy : {"ring", "ps-sync"}) {
    SCOPED_TRACE(strategy);
    MeetAnew();
    fs::remove_all(dir_ / "records");
    fs::create_directories(dir_ / "records");
    if (!MakeFullFile(dir_ / "records" / "steps-rank1.jsonl")) GTEST_SKIP() << "only root may create devices";
    std::unique_ptr<Child> server;
    if (strategy == "ps-sync") server = StartServer(0, 1, 2);
    const auto ranks = StartTrainers(2, absl::StrCat("--strategy ", strategy, kEndless));
    const std::string cause =
        "cannot write " + (dir_ / "records" / "steps-rank1.jsonl").string() + ": No space left on device";
    ExpectOneLine(*ranks[0], {"trainer: rank 0: ", "rank 1: " + cause});
    ExpectOneLine(*ranks[1], {"trainer: rank 1: " + cause});
    if (server != nullptr) ExpectOneLine(*server, {"ps_server: ended because of rank 1: " + cause});
  }
}

TEST_F(FaultsTest, AFullCheckpointFolderEndsTrainingAndEveryRankNamesIt) {
  const fs::path folder = dir_ / "checkpoints";
  fs::create_directories(folder);
  const std::string small = absl::StrCat("mount -t tmpfs -o size=300k none ", folder.string());
  const std::string as_root = "unshare --user --map-root-user --mount /bin/sh -c ";
  if (std::system(absl::StrCat(as_root, "'", small, "' 2> /dev/null").c_str()) != 0) {
    GTEST_SKIP() << "user and mount namespaces are not permitted";
  }
  for (const std::string strategy : {"ring", "ps-sync"}) {
    SCOPED_TRACE(strategy);
    MeetAnew();
    std::unique_ptr<Child> server;
    if (strategy != "ring") server = StartServer(0, 1, 2);
    const std::string flags = absl::StrCat("--strategy ", strategy, kEndless,
                                           " --checkpoint_every 3 --checkpoint_dir ", folder.string());
    const std::string command = absl::StrCat(small, " && exec ", TrainerOn(flags));
    Children ranks;
    ranks.push_back(StartAfter("true", absl::StrCat(as_root, "'", command, "'"), 0, 2));
    ranks.push_back(StartAfter("true", TrainerOn(flags), 1, 2));
    for (const auto& rank : ranks) {
      EXPECT_GT(rank->Wait(), 0);
      EXPECT_THAT(rank->errors(), Has("No space left on device", folder.string()));
    }
  }
}

// Writes `bytes`, and after them 512 MiB of zeros, into `folder`/`name`.gz, which has less than 1 MiB.
void WriteBomb(const fs::path& folder, const std::string& name, const std::string& bytes) {
  const std::string path = (folder / (name + ".gz")).string(), zeros(1 << 20, '\0');
  // A gzip file may consist of several, one after another.
  const auto append = [&](const std::string& part) {
    gzFile file = gzopen(path.c_str(), "ab");
    gzwrite(file, part.data(), static_cast<unsigned>(part.size()));
    gzclose(file);
  };
  append(bytes);
  const std::string begin = ReadFile(path).value_or("");
  append(zeros);
  const std::string member = ReadFile(path).value_or("").substr(begin.size());
  std::ofstream out(path, std::ios::binary | std::ios::app);
  for (int i = 1; i < 512; ++i) out << member;
}

TEST_F(FaultsTest, ABombInOneRanksDataEndsTheJobAndIsNotExpanded) {
  const std::string images = std::string("\0\0\x08\x03\0\0\0\x20\0\0\0\x1c\0\0\0\x1c", 16);
  const std::string labels = std::string("\0\0\x08\x01", 4);
  const std::string count = std::string("\0\0\0\x20", 4);
  const fs::path sound = dir_ / "sound";
  fs::create_directories(sound);
  for (const std::string split : {"train", "t10k"}) {
    std::ofstream(sound / (split + "-images-idx3-ubyte")) << images << std::string(32 * 28 * 28, '\x01');
    std::ofstream(sound / (split + "-labels-idx1-ubyte")) << labels << count << std::string(32, '\x01');
  }
  for (const auto& [name, bytes, what] :
       {std::tuple("train-images-idx3-ubyte", images, "longer than its header says"),
        std::tuple("train-labels-idx1-ubyte", labels + std::string("\x20\0\0\0", 4), "536870912 labels")}) {
    SCOPED_TRACE(what);
    MeetAnew();
    const fs::path bombs = dir_ / "bombs";
    fs::remove_all(bombs);
    fs::copy(sound, bombs);
    fs::remove(bombs / name);
    WriteBomb(bombs, name, bytes);
    ASSERT_LT(fs::file_size(bombs / (std::string(name) + ".gz")), size_t{1} << 20);
    Children ranks;
    for (const fs::path& data : {sound, bombs}) {
      ranks.push_back(StartTrainer(static_cast<int>(ranks.size()), 2,
                                   absl::StrCat("--strategy ring --model mlp-small --data mnist --batch 16 "
                                                "--steps 1000000 --no_eval --data_dir ",
                                                data.string())));
    }
    ExpectOneLine(*ranks[0], {"trainer: rank 0: ", "rank 1: ", what});
    ExpectOneLine(*ranks[1], {"trainer: rank 1: ", std::string(name) + ".gz", what});
  }
  rusage used = {};
  ASSERT_EQ(getrusage(RUSAGE_CHILDREN, &used), 0);
  EXPECT_LT(used.ru_maxrss, 400 << 10) << "KiB";
}

TEST_F(FaultsTest, TooFewDescriptorsAreReportedAtOnce) {
  const auto trainer =
      StartAfter("ulimit -n 32", TrainerOn(absl::StrCat("--strategy direct --timeout 60", kEndless)), 0, 16);
  ExpectOneLine(*trainer,
                {"trainer: this process may open 32 files, and 16 ranks need about ", "; run: ulimit -n "});
  const auto server = StartAfter(
      "ulimit -n 32",
      absl::StrCat(PSRING_PS_SERVER, " --workers 16 --timeout 60 --rendezvous ", Rendezvous()), 0, 16);
  ExpectOneLine(*server, {"ps_server: this process may open 32 files, and 16 ranks need about "});
}

TEST_F(FaultsTest, TooLittleAddressSpaceIsReportedAtOnce) {
  const auto trainer =
      StartAfter("ulimit -v 204800", TrainerOn(absl::StrCat("--strategy ring --timeout 60", kEndless)), 0, 2);
  ExpectOneLine(*trainer,
                {"trainer: this process may use 200 MiB of address space, and psring needs about "});
  const auto server = StartAfter(
      "ulimit -v 204800",
      absl::StrCat(PSRING_PS_SERVER, " --workers 2 --timeout 60 --rendezvous ", Rendezvous()), 0, 2);
  ExpectOneLine(*server, {"ps_server: this process may use 200 MiB of address space"});
}

TEST_F(FaultsTest, ASoftLimitOfDescriptorsIsRaised) {
  Children ranks;
  for (int rank = 0; rank < 2; ++rank)
    ranks.push_back(
        StartAfter("ulimit -S -n 16", TrainerOn(absl::StrCat("--strategy ring", kShort)), rank, 2));
  ExpectSuccess(ranks);
}

}  // namespace
}  // namespace psring
