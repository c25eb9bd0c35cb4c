#include "common/io/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>

#include "absl/strings/str_cat.h"
#include "tests/decode_safetensors.h"

namespace psring {
namespace {

std::vector<NamedTensor> Some() {
  return {{.name = "fc1.weight", .shape = {2, 3}, .values = {1, 2, 3, 4, 5, 6}},
          {.name = "fc1.bias", .shape = {2}, .values = {-1, .5}},
          {.name = "nothing", .shape = {0, 7}, .values = {}},
          {.name = "scalar", .shape = {}, .values = {42}}};
}

// A file with this header and so many bytes of data.
std::string File(const std::string& header, size_t data_bytes) {
  std::string bytes(8, 0);
  for (size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(header.size() >> (8 * i));
  return bytes + header + std::string(data_bytes, 0);
}

std::string ErrorOf(const std::string& bytes) {
  return std::string(DecodeSafetensors(bytes).status().message());
}

TEST(Safetensors, RoundTrips) {
  const auto back = DecodeSafetensors(EncodeSafetensors(Some(), {{"format", "pt"}})).value();
  ASSERT_EQ(back.size(), Some().size());
  for (const NamedTensor& tensor : Some()) {
    const auto same = [&](const NamedTensor& other) { return other.name == tensor.name; };
    const auto found = std::find_if(back.begin(), back.end(), same);
    ASSERT_NE(found, back.end()) << tensor.name;
    EXPECT_EQ(found->shape, tensor.shape);
    EXPECT_EQ(found->values, tensor.values);
  }
}

TEST(Safetensors, AnEmptyListIsValid) {
  EXPECT_TRUE(DecodeSafetensors(EncodeSafetensors({}, {})).value().empty());
}

// As the format is specified, so that other readers find the values.
TEST(Safetensors, HasTheLayoutOfTheFormat) {
  const std::string bytes =
      EncodeSafetensors({{.name = "a", .shape = {1}, .values = {1.5}}}, {{"step", "3"}});
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  EXPECT_EQ(length % 8, 0);
  std::string header = bytes.substr(8, length);
  header.erase(header.find_last_not_of(' ') + 1);
  EXPECT_EQ(header, R"({"__metadata__":{"step":"3"},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})");
  float value = 0;
  ASSERT_EQ(bytes.size(), 8 + length + 4);
  std::memcpy(&value, bytes.data() + 8 + length, 4);
  EXPECT_EQ(value, 1.5);
}

TEST(Safetensors, ErrorsNameTheProblem) {
  EXPECT_EQ(ErrorOf(""), "it ends early");
  EXPECT_EQ(ErrorOf("no such thing at all"), "it is truncated, or not a safetensors file");
  EXPECT_EQ(ErrorOf(File("[]", 0)), "its header is not a JSON object");
  EXPECT_EQ(ErrorOf(File("{", 0)), "its header is not a JSON object");
  EXPECT_EQ(ErrorOf(File(R"({"a":1})", 0)), "its tensor \"a\" has no dtype, shape and data_offsets");
  const auto tensor = [](const std::string& type, const std::string& shape, const std::string& place) {
    return absl::StrCat(R"({"a":{"dtype":")", type, R"(","shape":)", shape, R"(,"data_offsets":)", place,
                        "}}");
  };
  EXPECT_EQ(ErrorOf(File(tensor("BF16", "[2]", "[0,4]"), 4)),
            "its tensor \"a\" is of type \"BF16\"; psring reads F32");
  EXPECT_EQ(ErrorOf(File(tensor("F32", "[-1]", "[0,4]"), 4)),
            "its tensor \"a\" has an invalid shape or offsets");
  EXPECT_EQ(ErrorOf(File(tensor("F32", "[1]", "[0,4,8]"), 4)),
            "its tensor \"a\" has an invalid shape or offsets");
  EXPECT_EQ(ErrorOf(File(tensor("F32", "[1]", "[0,8]"), 4)), "its tensor \"a\" is outside the file");
  EXPECT_EQ(ErrorOf(File(tensor("F32", "[1]", "[4,0]"), 4)), "its tensor \"a\" is outside the file");
  for (const char* shape : {"[2]", "[4294967296,4294967296]", "[9223372036854775807,2]"})
    EXPECT_EQ(ErrorOf(File(tensor("F32", shape, "[0,4]"), 4)),
              "its tensor \"a\" does not have as many values as its shape")
        << shape;
  EXPECT_EQ(ErrorOf(File(tensor("F32", "[1]", "[4,8]"), 8)), "its tensors overlap or have gaps");
  EXPECT_EQ(ErrorOf(File(tensor("F32", "[1]", "[0,4]"), 8)), "it has bytes that belong to no tensor");
}

TEST(Safetensors, LeavesOutPyTorchsCountersOfBatches) {
  const std::string counter = R"({"n.num_batches_tracked":{"dtype":"I64","shape":[],"data_offsets":[0,8]},)"
                              R"("a":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}})";
  const auto tensors = DecodeSafetensors(File(counter, 12)).value();
  ASSERT_EQ(tensors.size(), 1);
  EXPECT_EQ(tensors[0].name, "a");
  EXPECT_EQ(ErrorOf(File(counter, 11)), "its tensor \"a\" is outside the file");
  EXPECT_EQ(ErrorOf(File(R"({"steps":{"dtype":"I64","shape":[],"data_offsets":[0,8]}})", 8)),
            "its tensor \"steps\" is of type \"I64\"; psring reads F32");
}

TEST(Safetensors, OverlappingTensorsAreRejected) {
  const std::string one = R"("dtype":"F32","shape":[1],"data_offsets":[0,4]})";
  EXPECT_EQ(ErrorOf(File(absl::StrCat("{\"a\":{", one, ",\"b\":{", one, "}"), 4)),
            "its tensors overlap or have gaps");
}

TEST(Safetensors, TruncationIsAnError) {
  const std::string whole = EncodeSafetensors(Some(), {{"format", "pt"}});
  for (size_t length = 0; length < whole.size(); ++length)
    EXPECT_FALSE(DecodeSafetensors(whole.substr(0, length)).ok()) << length;
}

// With a flipped bit, the result is an error or a consistent file.
TEST(Safetensors, AFlippedBitIsAnErrorOrAConsistentFile) {
  const std::string whole = EncodeSafetensors(Some(), {{"format", "pt"}});
  for (size_t bit = 0; bit < 8 * whole.size(); ++bit) {
    std::string flipped = whole;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    const auto tensors = DecodeSafetensors(flipped);
    if (!tensors.ok()) {
      EXPECT_EQ(tensors.status().message().find('\n'), std::string::npos) << tensors.status();
      continue;
    }
    for (const NamedTensor& tensor : *tensors) {
      int64_t count = 1;
      for (const int64_t extent : tensor.shape) count *= extent;
      EXPECT_EQ(count, tensor.values.size());
    }
  }
}

}  // namespace
}  // namespace psring
