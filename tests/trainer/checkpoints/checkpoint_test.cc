#include "trainer/checkpoints/checkpoint.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/io/files.h"
#include "common/io/hash.h"
#include "common/io/safetensors.h"
#include "tests/decode_safetensors.h"
#include "tests/kept_files.h"
#include "tests/test_folder.h"
#include "tests/trainer/checkpoints/small_checkpoint.h"

namespace psring {
namespace {

namespace fs = std::filesystem;

CheckpointFiles EncodeCheckpoint(const TrainingCheckpoint& checkpoint, const ParameterLayout& layout) {
  return FilesOf([&](CheckpointSink& sink) { return WriteCheckpoint(checkpoint, layout, sink); });
}

std::string FileOf(const CheckpointFiles& files, const std::string& name) {
  for (const auto& [file, bytes] : files) {
    if (file == name) return bytes;
  }
  return "";
}

CheckpointBytes BytesOf(const CheckpointFiles& files) {
  return {.path = "here",
          .position = FileOf(files, kPositionFile),
          .model = FileOf(files, kModelFile),
          .optimizer = FileOf(files, kOptimizerFile),
          .has_optimizer = true};
}

TEST(Checkpoint, IsDecodedAsEncoded) {
  for (const OptimizerKind kind : {OptimizerKind::kSgd, OptimizerKind::kMomentum, OptimizerKind::kAdam}) {
    const TrainingCheckpoint was = SmallCheckpoint(kind);
    const auto back = DecodeCheckpoint(BytesOf(EncodeCheckpoint(was, SmallLayout())), SmallLayout()).value();
    EXPECT_EQ(back.weights, was.weights);
    EXPECT_EQ(back.slots, was.slots);
    const TrainingPosition &a = back.position, &b = was.position;
    EXPECT_EQ(std::tie(a.model, a.data, a.strategy, a.asynchronous, a.data_count, a.drawn_batch, a.workers),
              std::tie(b.model, b.data, b.strategy, b.asynchronous, b.data_count, b.drawn_batch, b.workers));
    EXPECT_EQ(std::tie(a.seed, a.wire, a.flags, a.sequence, a.step, a.updates, a.samples, a.epoch),
              std::tie(b.seed, b.wire, b.flags, b.sequence, b.step, b.updates, b.samples, b.epoch));
    EXPECT_EQ(a.epoch_samples, b.epoch_samples);
    EXPECT_EQ(a.ready_order, b.ready_order);
    EXPECT_EQ(a.worker_steps, b.worker_steps);
    EXPECT_EQ(a.optimizer, b.optimizer);
    EXPECT_EQ(a.schedule, b.schedule);
  }
}

TEST(Checkpoint, TensorsHavePyTorchsShapesAndOrder) {
  const CheckpointFiles files = EncodeCheckpoint(SmallCheckpoint(), SmallLayout());
  const auto model = DecodeSafetensors(FileOf(files, kModelFile)).value();
  ASSERT_EQ(model.size(), 4);
  EXPECT_EQ(model[0].name, "conv1.weight");
  EXPECT_EQ(model[0].shape, (std::vector<int64_t>{2, 3, 2, 1}));
  // psring's order was [out][height][width][in] = 1 2 3 | 4 5 6 for the first filter.
  EXPECT_EQ(model[0].values, (std::vector<float>{1, 4, 2, 5, 3, 6, 7, 10, 8, 11, 9, 12}));
  EXPECT_EQ(model[2].name, "fc1.weight");
  EXPECT_EQ(model[2].shape, (std::vector<int64_t>{1, 8}));
  EXPECT_EQ(model[2].values, (std::vector<float>{33, 35, 37, 39, 34, 36, 38, 40}));
  const auto optimizer = DecodeSafetensors(FileOf(files, kOptimizerFile)).value();
  ASSERT_EQ(optimizer.size(), 8);
  EXPECT_EQ(optimizer[0].name, "exp_avg.conv1.weight");
  EXPECT_EQ(optimizer[1].name, "exp_avg_sq.conv1.weight");
}

// `names` of the tensors of SmallCheckpoint, in its order.
CheckpointBytes Renamed(const std::vector<std::string>& names) {
  auto tensors = *DecodeSafetensors(FileOf(EncodeCheckpoint(SmallCheckpoint(), SmallLayout()), kModelFile));
  for (size_t i = 0; i < names.size(); ++i) tensors[i].name = names[i];
  return {.path = "here", .model = EncodeSafetensors(tensors, {})};
}

// As DistributedDataParallel and torch.compile write them.
TEST(Checkpoint, PrefixesOfPyTorchsWrappersAreRemoved) {
  for (const std::string prefix : {"", "module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module.",
                                   "module.module.", "_orig_mod.module._orig_mod."}) {
    const auto read = DecodeCheckpoint(Renamed({prefix + "conv1.weight", prefix + "conv1.bias",
                                                prefix + "fc1.weight", prefix + "fc1.bias"}),
                                       SmallLayout())
                          .value();
    EXPECT_EQ(read.weights, SmallValues());
  }
  const auto error_of = [](const std::vector<std::string>& names) {
    return std::string(DecodeCheckpoint(Renamed(names), SmallLayout()).status().message());
  };
  EXPECT_EQ(error_of({"module.conv1.weight", "conv1.bias", "module.fc1.weight", "fc1.bias"}),
            "here: the names of 2 of 4 tensors begin with \"module.\", but not \"conv1.bias\"");
  EXPECT_EQ(error_of({"module._orig_mod.conv1.weight", "module.conv1.bias", "module.fc1.weight",
                      "module.fc1.bias"}),
            "here: the names of 1 of 4 tensors begin with \"_orig_mod.\", but not \"conv1.bias\"");
  EXPECT_EQ(error_of({"model.conv1.weight", "model.conv1.bias", "model.fc1.weight", "model.fc1.bias"}),
            "here: it is of another model: it has no conv1.weight");
}

TEST(Checkpoint, BuffersAreWithTheWeights) {
  ParameterLayout layout = SmallLayout();
  layout.AddBuffer("bn1.running_mean", {2}, 0);
  layout.AddBuffer("bn1.running_var", {2}, 1);
  EXPECT_EQ(layout.initial_buffers(), (std::vector<float>{0, 0, 1, 1}));
  TrainingCheckpoint was = SmallCheckpoint();
  was.buffers = {1, 2, 3, 4};
  const CheckpointFiles files = EncodeCheckpoint(was, layout);
  const CheckpointBytes bytes = BytesOf(files);
  const auto model = DecodeSafetensors(FileOf(files, kModelFile)),
             optimizer = DecodeSafetensors(FileOf(files, kOptimizerFile));
  ASSERT_TRUE(model.ok() && optimizer.ok());
  ASSERT_EQ(model->size(), 6);
  EXPECT_EQ((*model)[5].name, "bn1.running_var");
  EXPECT_EQ((*model)[5].values, (std::vector<float>{3, 4}));
  EXPECT_EQ(optimizer->size(), 8) << "they are not trained";
  EXPECT_EQ(DecodeCheckpoint(bytes, layout)->buffers, was.buffers);
  EXPECT_EQ(DecodeCheckpoint(bytes, SmallLayout()).status().message(),
            "here: it is of another model: it has a \"bn1.running_mean\"");
}

// Tables of 10 and 3 rows; the rows of an array are its number, the table's and their own.
ParameterLayout LayoutWithTables(int rows = 10) {
  ParameterLayout layout = SmallLayout();
  layout.AddTable({.name = "tables.0.weight", .rows = rows, .width = 2});
  layout.AddTable({.name = "tables.1.weight", .rows = 3, .width = 1});
  return layout;
}

absl::Status NumberedRows(const RowRange& range, float* to) {
  const int width = range.table == 0 ? 2 : 1;
  for (int i = 0; i < range.count * width; ++i)
    to[i] = static_cast<float>(1000 * range.array + 100 * range.table + range.first + i / width);
  return absl::OkStatus();
}

TEST(Checkpoint, TablesAreReadInPieces) {
  const ParameterLayout layout = LayoutWithTables();
  TrainingCheckpoint was = SmallCheckpoint();
  was.rows = NumberedRows;
  const CheckpointFiles files = EncodeCheckpoint(was, layout);
  const auto model = DecodeSafetensors(FileOf(files, kModelFile)).value();
  ASSERT_EQ(model.size(), 6);
  EXPECT_EQ(model[5].name, "tables.1.weight");
  EXPECT_EQ(model[5].values, (std::vector<float>{100, 101, 102}));
  const auto back = DecodeCheckpoint(BytesOf(files), layout).value();
  EXPECT_EQ(back.weights, was.weights);
  std::vector<float> rows(4);
  ASSERT_TRUE(back.rows({.table = 0, .array = 2, .first = 8, .count = 2}, rows.data()).ok());
  EXPECT_EQ(rows, (std::vector<float>{2008, 2008, 2009, 2009}));
  ASSERT_TRUE(back.rows({.table = 1, .array = 1, .first = 1, .count = 1}, rows.data()).ok());
  EXPECT_EQ(rows[0], 1101);
}

TEST(Checkpoint, OfOtherTablesNamesTheTable) {
  TrainingCheckpoint was = SmallCheckpoint();
  was.rows = NumberedRows;
  CheckpointFiles files = EncodeCheckpoint(was, LayoutWithTables());
  EXPECT_EQ(DecodeCheckpoint(BytesOf(files), LayoutWithTables(12)).status().message(),
            "here: it is of another model: tables.0.weight is [10,2], but here [12,2]");
  EXPECT_EQ(DecodeCheckpoint(BytesOf(files), SmallLayout()).status().message(),
            "here: it is of another model: it has a \"tables.0.weight\"");
  // Without the state of the second table's optimizer.
  CheckpointBytes bytes = BytesOf(files);
  bytes.optimizer = FileOf(EncodeCheckpoint(SmallCheckpoint(), SmallLayout()), kOptimizerFile);
  EXPECT_EQ(DecodeCheckpoint(bytes, LayoutWithTables()).status().message(),
            "here: it is of another model: it has no exp_avg.tables.0.weight");
  bytes = BytesOf(files);
  std::string truncated = FileOf(files, kModelFile);
  truncated.resize(truncated.size() - 4);
  bytes.model = truncated;
  EXPECT_EQ(DecodeCheckpoint(bytes, LayoutWithTables()).status().message(),
            "here is damaged: its tensor \"tables.1.weight\" is outside the file");
}

TEST(Checkpoint, AnErrorOfReadingRowsIsThatOfWriting) {
  TrainingCheckpoint was = SmallCheckpoint();
  was.rows = [](const RowRange& range, float* to) {
    return range.array < 2 ? NumberedRows(range, to) : absl::UnavailableError("server 1 is lost");
  };
  KeptFiles files;
  EXPECT_EQ(WriteCheckpoint(was, LayoutWithTables(), files).message(), "server 1 is lost");
}

// In quadratic time this would take an hour.
TEST(Checkpoint, TooManyFieldsAreRejected) {
  std::string hashes = "\"0\": \"\"";
  for (int i = 1; i < 1'000'000; ++i) absl::StrAppend(&hashes, ",\"", i, "\":\"\"");
  EXPECT_EQ(HashesIn(absl::StrCat("{\"hashes\": {", hashes, "}}")).status().message(),
            "training.json has 1000000 fields in one object; the limit is 8192");
}

TEST(Checkpoint, ResidualsAreDecodedAsEncoded) {
  const std::vector<float> residual = SmallValues(1.0f / 64);
  TrainingCheckpoint was = SmallCheckpoint();
  was.worker_files = {{WorkerFile(1), EncodeResidual({residual.data(), residual.size()}, SmallLayout())}};
  const CheckpointFiles files = EncodeCheckpoint(was, SmallLayout());
  EXPECT_EQ(HashesIn(FileOf(files, kPositionFile))->size(), 3);
  CheckpointBytes bytes = BytesOf(files);
  std::vector<float> back;
  ASSERT_TRUE(DecodeResidual(bytes, SmallLayout(), back).ok());
  EXPECT_TRUE(back.empty()) << "worker 0 has none";
  bytes.residual = FileOf(files, WorkerFile(1));
  ASSERT_TRUE(DecodeResidual(bytes, SmallLayout(), back).ok());
  EXPECT_EQ(back, residual);
  std::string truncated = FileOf(files, WorkerFile(1));
  truncated.pop_back();
  bytes.residual = truncated;
  EXPECT_EQ(DecodeResidual(bytes, SmallLayout(), back).code(), absl::StatusCode::kDataLoss);
}

TEST(Checkpoint, OfAnotherModelNamesTheTensor) {
  const CheckpointBytes bytes = BytesOf(EncodeCheckpoint(SmallCheckpoint(), SmallLayout()));
  const auto error = [&](const ParameterLayout& layout) {
    const auto decoded = DecodeCheckpoint(bytes, layout);
    EXPECT_EQ(decoded.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(decoded.status().message());
  };
  ParameterLayout more = SmallLayout();
  more.Add("fc2.bias", {1});
  EXPECT_EQ(error(more), "here: it is of another model: it has no fc2.bias");
  ParameterLayout fewer;
  fewer.Add("conv1.bias", {2});
  EXPECT_EQ(error(fewer), "here: it is of another model: it has a \"conv1.weight\"");
  ParameterLayout other;
  other.Add("conv1.weight", {2, 6});
  EXPECT_EQ(error(other), "here: it is of another model: conv1.weight is [2,3,2,1], but here [2,6]");
}

// The folder of a checkpoint, to be damaged.
class LoadedCheckpoint : public testing::Test {
 protected:
  void Save(int64_t step, int64_t sequence, bool with_worker = false) {
    TrainingCheckpoint checkpoint = SmallCheckpoint(OptimizerKind::kMomentum);
    checkpoint.position.step = step;
    checkpoint.position.sequence = sequence;
    const std::vector<float> residual(SmallLayout().count(), .5f);
    if (with_worker) {
      checkpoint.worker_files = {
          {WorkerFile(1), EncodeResidual({residual.data(), residual.size()}, SmallLayout())}};
    }
    ASSERT_TRUE(
        SaveCheckpoint(folder_.string(), step, ContentOf(EncodeCheckpoint(checkpoint, SmallLayout())), 9)
            .ok());
  }
  // With tables, saved and loaded.
  absl::StatusOr<TrainingCheckpoint> LoadTables() {
    TrainingCheckpoint checkpoint = SmallCheckpoint();
    checkpoint.rows = NumberedRows;
    const CheckpointContent content = [&](CheckpointSink& sink) {
      return WriteCheckpoint(checkpoint, LayoutWithTables(), sink);
    };
    EXPECT_TRUE(SaveCheckpoint(folder_.string(), 10, content, 9).ok());
    return Load(folder_.string(), LayoutWithTables());
  }
  absl::StatusOr<TrainingCheckpoint> Load(const std::string& path,
                                          const ParameterLayout& layout = SmallLayout()) {
    notes_.clear();
    const auto bytes = LoadCheckpoint(path, notes_);
    if (!bytes.ok()) return bytes.status();
    return DecodeCheckpoint(*bytes, layout);
  }
  fs::path File(int64_t step, const char* name) const { return folder_ / absl::StrCat("step", step) / name; }
  static void Put(const fs::path& path, const std::string& bytes) { std::ofstream(path) << bytes; }

  const TestFolder made_;
  const fs::path folder_ = made_.path();
  std::vector<std::string> notes_;
};

TEST_F(LoadedCheckpoint, AFolderGivesItsNewestAndAFileItsCheckpoint) {
  Save(10, 1);
  Save(20, 2);
  for (const auto& [path, step] : {std::pair{folder_, 20},
                                   {folder_ / "step10", 10},
                                   {folder_ / "step10" / "", 10},
                                   {File(10, kModelFile), 10},
                                   {File(10, kPositionFile), 10}}) {
    const auto loaded = Load(path.string()).value();
    EXPECT_EQ(loaded.position.step, step) << path;
    EXPECT_EQ(loaded.slots.size(), 1);
    EXPECT_TRUE(notes_.empty());
  }
  EXPECT_EQ(Load((folder_ / "none").string()).status().code(), absl::StatusCode::kNotFound);
  fs::create_directories(folder_ / "empty");
  EXPECT_EQ(Load((folder_ / "empty").string()).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(LoadedCheckpoint, AnotherFileGivesOnlyWeights) {
  Save(10, 1);
  fs::copy(File(10, kModelFile), folder_ / "theirs.safetensors");
  const auto loaded = Load((folder_ / "theirs.safetensors").string()).value();
  EXPECT_EQ(loaded.position.step, 0);
  EXPECT_EQ(loaded.weights, SmallCheckpoint().weights);
  EXPECT_TRUE(loaded.slots.empty());
}

TEST_F(LoadedCheckpoint, UsesThePreviousIfTheNewestIsDamaged) {
  Save(10, 1);
  Save(20, 2, /*with_worker=*/true);
  const std::string workers = WorkerFile(1);
  for (const char* name : {kModelFile, kOptimizerFile, kPositionFile, workers.c_str()}) {
    const std::string whole = *ReadFile(File(20, name).string());
    Put(File(20, name), whole.substr(0, whole.size() / 2));
    EXPECT_EQ(Load(folder_.string()).value().position.step, 10);
    ASSERT_EQ(notes_.size(), 1) << name;
    EXPECT_TRUE(absl::StrContains(notes_[0], "step20 is damaged")) << notes_[0];
    Put(File(20, name), whole);
  }
}

TEST_F(LoadedCheckpoint, NotesANewerFolderWithoutItsPosition) {
  Save(10, 1);
  Save(20, 2);
  fs::remove(File(20, kPositionFile));
  fs::create_directories(folder_ / "step5");  // of a removal that was interrupted
  EXPECT_EQ(Load(folder_.string()).value().position.step, 10);
  ASSERT_EQ(notes_.size(), 1);
  EXPECT_TRUE(absl::StrContains(notes_[0], "step20 has no training.json and is skipped")) << notes_[0];
}

// The run that continues from it may remove it.
TEST_F(LoadedCheckpoint, ItsTablesCanBeReadAfterItIsRemoved) {
  const auto loaded = LoadTables().value();
  fs::remove_all(folder_ / "step10");
  std::vector<float> row(2);
  ASSERT_TRUE(loaded.rows({.table = 0, .array = 1, .first = 7, .count = 1}, row.data()).ok());
  EXPECT_EQ(row, (std::vector<float>{1007, 1007}));
}

TEST_F(LoadedCheckpoint, ATableThatBecomesShorterIsDamaged) {
  const auto loaded = LoadTables().value();
  fs::resize_file(File(10, kModelFile), fs::file_size(File(10, kModelFile)) - 4);
  std::vector<float> rows(3);
  EXPECT_EQ(loaded.rows({.table = 1, .count = 3}, rows.data()).message(),
            absl::StrCat((folder_ / "step10").string(), " is damaged: it ends early"));
}

TEST_F(LoadedCheckpoint, TruncationAnywhereIsAnErrorOfOneLine) {
  Save(10, 1);
  for (const char* name : {kModelFile, kOptimizerFile, kPositionFile}) {
    const std::string whole = *ReadFile(File(10, name).string());
    const size_t last = name == std::string(kPositionFile) ? whole.size() - 1 : whole.size();  // a newline
    for (size_t length = 0; length < last; ++length) {
      Put(File(10, name), whole.substr(0, length));
      const auto loaded = Load(folder_.string());
      ASSERT_FALSE(loaded.ok()) << name << " " << length;
      EXPECT_EQ(loaded.status().message().find('\n'), std::string::npos) << loaded.status();
    }
    Put(File(10, name), whole);
  }
}

TEST_F(LoadedCheckpoint, DetectsAFlippedBitInAnyByte) {
  Save(10, 1);
  const TrainingCheckpoint was = *Load(folder_.string());
  for (const char* name : {kModelFile, kOptimizerFile, kPositionFile}) {
    const std::string whole = *ReadFile(File(10, name).string());
    for (size_t byte = 0; byte < whole.size(); ++byte) {
      const size_t bit = 8 * byte + byte % 8;
      std::string flipped = whole;
      flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
      Put(File(10, name), flipped);
      const auto loaded = Load(folder_.string());
      if (!loaded.ok()) {
        EXPECT_EQ(loaded.status().message().find('\n'), std::string::npos) << loaded.status();
        continue;
      }
      // Only changes without effect are accepted: whitespace of the JSON, an escape for the same letter.
      EXPECT_EQ(name, std::string(kPositionFile)) << bit;
      EXPECT_EQ(loaded->position.step, was.position.step);
      EXPECT_EQ(loaded->position.flags, was.position.flags);
    }
    Put(File(10, name), whole);
  }
}

// Each with valid hashes.
TEST_F(LoadedCheckpoint, ReadsOnlyRegularFilesOfItsFolder) {
  Save(10, 1);
  Put(folder_ / "outside", "x");
  fs::create_symlink("../outside", folder_ / "step10" / WorkerFile(1));
  ASSERT_EQ(mkfifo(File(10, WorkerFile(2).c_str()).c_str(), 0600), 0);
  fs::create_directories(folder_ / "step10" / WorkerFile(3));
  const TrainingPosition position = SmallCheckpoint().position;
  const std::string model = *ReadFile(File(10, kModelFile).string());
  const std::string optimizer = *ReadFile(File(10, kOptimizerFile).string());
  for (const auto& [name, why] : {std::pair<std::string, std::string>("../outside", "names \"../outside\""),
                                  {"../../../../../../dev/zero", "dev/zero\", which is not a file"},
                                  {"/dev/zero", "names \"/dev/zero\""},
                                  {"..", "names \"..\""},
                                  {"", "names \"\""},
                                  {WorkerFile(1), "it is a symbolic link"},
                                  {WorkerFile(2), "it is a FIFO"},
                                  {WorkerFile(3), "it is a folder"}}) {
    Put(File(10, kPositionFile),
        EncodePosition(position, {{kModelFile, HashBytes(model.data(), model.size())},
                                  {kOptimizerFile, HashBytes(optimizer.data(), optimizer.size())},
                                  {name, HashBytes("x", 1)}}));
    const absl::Status status = Load(folder_.string()).status();
    EXPECT_TRUE(absl::StrContains(status.message(), why)) << name << status;
    EXPECT_EQ(status.message().find('\n'), std::string::npos) << status;
  }
}

TEST_F(LoadedCheckpoint, APositionThatIsNestedDeeplyIsDamaged) {
  Save(10, 1);
  const size_t depth = 1 << 20;
  std::string text = *ReadFile(File(10, kPositionFile).string());
  text.insert(text.find('{') + 1,
              absl::StrCat("\"x\": ", std::string(depth, '['), std::string(depth, ']'), ","));
  Put(File(10, kPositionFile), text);
  const absl::Status status = Load(folder_.string()).status();
  EXPECT_TRUE(absl::StrContains(status.message(), "nested deeper than 32 levels")) << status;
}

TEST_F(LoadedCheckpoint, NamesANewerVersion) {
  Save(10, 1);
  std::string text = *ReadFile(File(10, kPositionFile).string());
  text.replace(text.find("\"version\": 1"), 12, "\"version\": 2");
  Put(File(10, kPositionFile), text);
  const absl::Status status = Load(folder_.string()).status();
  EXPECT_TRUE(absl::StrContains(status.message(), "newer psring: its format is version 2")) << status;
}

}  // namespace
}  // namespace psring
