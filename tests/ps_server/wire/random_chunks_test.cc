// Random messages, and mutations of valid ones, from a member of a job during training: the server keeps
// running, and the weights of the other workers are as usual.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/ps_server/wire/hostile.h"
#include "tests/random_moments.h"

namespace psring {
namespace {

std::string BytesOfMessage(const Sent& sent) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(Encode(sent.message, AsBytes(sent.payload), nullptr).Dump(&slices).ok());
  std::string bytes;
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return bytes;
}

class RandomChunksTest : public HostileTest {
 protected:
  size_t Below(size_t end) { return random_() % end; }

  int64_t Number(int64_t usual) {
    const int64_t small = static_cast<int64_t>(random_() % 5000), chunk = kChunkBytes, tail = kTail;
    const int64_t numbers[] = {usual, usual,         usual + 1,         usual - 1, 0,         1,
                               -1,    kMaxWireCount, kMaxWireCount + 1, INT64_MAX, INT64_MIN, chunk,
                               tail,  small};
    return numbers[Below(std::size(numbers))];
  }
  uint64_t Unsigned(uint64_t usual) { return static_cast<uint64_t>(Number(static_cast<int64_t>(usual))); }
  double Real() {
    const double reals[] = {
        0, 1, -1, 1e300, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()};
    return reals[Below(std::size(reals))];
  }

  // A message in which every field is usual or not. None completes a push or leaves: both are allowed, and
  // would change the weights of the others.
  Sent Message(const Stranger& stranger) {
    Sent sent = stranger.First();
    message::Gradient& usual = sent.gradient();
    switch (Below(9)) {
      case 0:
        return sent;
      case 1:
        return {message::Fetch{.slot = Number(0)}, ""};
      case 2:
        return {message::Barrier{.number = Number(0)}, ""};
      case 3:
        return {message::Announcement{.step = Number(usual.step),
                                      .incarnation = usual.incarnation,
                                      .dropped = Below(2) == 0,
                                      .version = Number(usual.step),
                                      .complete = Number(1)},
                ""};
      case 4:
        return {message::NormTotal{.step = Number(usual.step), .sum_of_squares = Real()}, ""};
      case 5:
        return {message::Rewind{.step = Number(usual.step), .epoch = Number(0)}, ""};
      case 6:
        return {message::InitialWeights{
                    .bucket = static_cast<int>(Number(0)), .offset = Unsigned(0), .slot = Number(0)},
                std::string(4000, 1)};
      case 7:
        usual.shared = message::SharedPlaces{
            .bytes = Unsigned(kChunkBytes), .gradient_at = Unsigned(0), .weights_at = Unsigned(0)};
        [[fallthrough]];
      default:
        usual.bucket = static_cast<int>(Number(1));
        usual.offset = Below(2) == 0 ? 0 : Unsigned(0);
        usual.step = Number(usual.step);
        usual.samples = Number(usual.samples);
        usual.resets = Unsigned(usual.resets);
        if (Below(4) == 0) usual.incarnation = Unsigned(usual.incarnation);
        sent.payload.resize(Below(2) == 0 ? sent.payload.size() : Below(5000));
        return sent;
    }
  }

  std::string Mutated(std::string bytes) {
    for (size_t i = Below(4); i > 0 && !bytes.empty(); --i) {
      // Mostly in the fields, which are in front of the payload.
      const size_t end = Below(4) == 0 ? bytes.size() : std::min(bytes.size(), sizeof(MessageFields));
      const size_t at = Below(end);
      switch (Below(5)) {
        case 0:
          bytes[at] = static_cast<char>(random_());
          break;
        case 1:
          bytes[at] = static_cast<char>(bytes[at] ^ (1 << Below(8)));
          break;
        case 2:
          bytes.resize(at);
          break;
        case 3:
          bytes.insert(at, std::string(Below(12), '\xff'));
          break;
        default:
          bytes.insert(at, bytes.substr(Below(end), Below(20)));
      }
    }
    return bytes;
  }

  // Whether the server may take it as something that changes the others' weights.
  static bool IsAllowed(const std::string& bytes) {
    Received<message::ToServer> received;
    grpc::ByteBuffer buffer = BufferOf(bytes);
    if (!received.Decode(buffer).ok()) return false;
    if (std::holds_alternative<message::Leave>(received.message())) return true;
    const auto* const gradient = std::get_if<message::Gradient>(&received.message());
    return gradient != nullptr && (gradient->offset != 0 || gradient->bucket == 0);
  }

  std::mt19937 random_{TestSeed()};
};

TEST_P(RandomChunksTest, OfAMemberDoNotAffectTheOthers) {
  ExpectOthersContinue();
  const int64_t memory = MemoryKb("VmRSS");
  int64_t sent = 0, refused = 0;
  for (int conversation = 0; conversation < 150 && !HasFailure(); ++conversation) {
    const std::unique_ptr<Stranger> stranger = Joined();
    ASSERT_NE(stranger, nullptr) << "after " << sent << " messages; the server's output: " << server_->both();
    for (size_t i = 1 + Below(6); i > 0; --i) {
      const std::string bytes = Mutated(BytesOfMessage(Message(*stranger)));
      if (GetParam() == "sync" && IsAllowed(bytes)) continue;
      stranger->SendBytes(BufferOf(bytes));
      ++sent;
    }
    // Some conversations end when the server ends them, others at once.
    if (Below(2) == 0) {
      stranger->Cut();
    } else {
      stranger->SendBytes(BufferOf(RandomBytes(conversation)));
      refused += stranger->End().empty() ? 0 : 1;
    }
    if (conversation % 10 == 0) {
      ASSERT_NO_FATAL_FAILURE(ExpectOthersContinue());
    }
  }
  EXPECT_GT(sent, 200);
  EXPECT_GT(refused, 50);
  ExpectNoGrowth(memory);
  ExpectWeightsOfTheOthers();
}

TEST_P(RandomChunksTest, InAJoinAreRejectedOrAreAJoin) {
  ExpectOthersContinue();
  for (int i = 0; i < 100 && !HasFailure(); ++i) {
    const std::string valid = EncodeJoin({.worker = kHostile, .job = job_, .session = 77});
    Stranger stranger(address_);
    stranger.Send({message::Join{}, Mutated(valid)});
    if (!stranger.IsWelcome()) {
      EXPECT_NE(stranger.End(), "") << "join " << i;
    }
    stranger.Cut();
  }
  ExpectOthersContinue();
  EXPECT_NE(Joined(), nullptr);
}

INSTANTIATE_TEST_SUITE_P(Modes, RandomChunksTest, testing::Values("sync", "async"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace psring
