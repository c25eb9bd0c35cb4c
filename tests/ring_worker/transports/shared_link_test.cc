// Frames in shared memory from a peer that writes arbitrary numbers.
#include "ring_worker/transports/shared_link.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/deadline.h"

namespace psring {
namespace {

using ::testing::HasSubstr;

MonotonicTime Soon() { return MonotonicNow() + absl::Seconds(30); }

// Rank 1 receives; the test writes what rank 0 sends.
class SharedLinkTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int ends[2] = {-1, -1};
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    peer_ = UnixSocket(FileDescriptor(ends[0]));
    UnixSocket socket((FileDescriptor(ends[1])));
    ASSERT_EQ(peers_.Offer(peer_), absl::OkStatus());
    SharedArena adopted = *SharedArena::Adopt(2, socket, Soon());
    link_.emplace(1, 0, mine_, std::move(adopted), std::move(socket), /*touch=*/false);
  }

  // What the receiver makes of a frame of `bytes` in this region or slot.
  std::string Received(int32_t region, uint64_t offset, uint64_t bytes) {
    SharedArena::Entry& entry = peers_.channel(1).cells[0].entry;
    entry.bytes = bytes;
    entry.offset = offset;
    entry.region = region;
    entry.number.store(1);
    EXPECT_TRUE(link_->HasFrame());
    FrameHeader expected;
    expected.bytes = bytes;
    return link_->Payload(expected, 0).status().ToString();
  }
  void Register(int fd, uint64_t bytes, int64_t number) {
    EXPECT_EQ(peer_.Send(absl::StrCat(bytes, " ", number), {fd}, Soon()), absl::OkStatus());
  }

  // One rank's sockets; the first end wakes it from poll().
  struct Waker {
    Waker() { EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0); }
    ~Waker() { close(ends[0]), close(ends[1]); }
    int ends[2] = {-1, -1};
  };

  Waker peers_waker_, my_waker_;
  SharedArena peers_ = *SharedArena::Create(2, peers_waker_.ends[0]),
              mine_ = *SharedArena::Create(2, my_waker_.ends[0]);
  UnixSocket peer_;
  std::optional<SharedLink> link_;
};

TEST_F(SharedLinkTest, ASlotThatDoesNotExistIsRejected) {
  const auto slots = static_cast<int32_t>(SharedArena::kSlots);
  EXPECT_EQ(Received(-1, 0, kSlotBytes), "OK");
  EXPECT_EQ(Received(-slots, 0, 8), "OK");
  EXPECT_THAT(Received(-1 - slots, 0, 8), HasSubstr("rank 0 sent 8 bytes in slot 12; there are 12 slots"));
  EXPECT_THAT(Received(INT32_MIN + 1, 0, 8), HasSubstr("in slot 2147483646"));
  EXPECT_THAT(Received(-1, 0, kSlotBytes + 1), HasSubstr("rank 0 sent 131073 bytes in slot 0"));
}

TEST_F(SharedLinkTest, AnOffsetOutsideOfARegionIsRejected) {
  const SharedMemory memory = *SharedMemory::Create(100'000);
  Register(memory.fd(), memory.bytes(), 3);
  EXPECT_EQ(Received(3, 0, 100'000), "OK");
  EXPECT_EQ(Received(3, 99'992, 8), "OK");
  for (const uint64_t offset : {uint64_t{99'993}, uint64_t{100'001}, ~uint64_t{0}, ~uint64_t{0} - 7})
    EXPECT_THAT(Received(3, offset, 8), HasSubstr(absl::StrCat("rank 0 sent 8 bytes at ", offset,
                                                               " of its memory region 3, which has 100000")));
}

TEST_F(SharedLinkTest, ARegionThatMayEndEarlierThanStatedIsRejected) {
  const SharedMemory memory = *SharedMemory::Create(4096);
  Register(memory.fd(), 4097, 0);
  EXPECT_THAT(Received(0, 0, 8),
              HasSubstr("rank 0, memory region 0: it is shared memory of 4096 bytes, not of"));
  const FileDescriptor shrinks(memfd_create("test", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(shrinks.get(), 4096), 0);
  Register(shrinks.get(), 4096, 0);
  EXPECT_THAT(Received(0, 0, 8), HasSubstr("memory region 0: it is not shared memory that keeps its size"));
  for (const int64_t number : {int64_t{-1}, int64_t{1} << 32}) {
    Register(memory.fd(), 4096, number);
    EXPECT_THAT(Received(0, 0, 8), HasSubstr(absl::StrCat("a region with number ", number)));
  }
}

TEST_F(SharedLinkTest, AReplyNeedsAPlaceThatWasNamed) {
  EXPECT_THAT(Received(SharedArena::kInPlace, 0, kInPlaceBytes),
              HasSubstr("as a reply that was not asked for"));

  const SharedMemory memory = *SharedMemory::Create(kInPlaceBytes);
  ASSERT_EQ(link_->Register({memory.fd(), memory.data(), memory.bytes()}), absl::OkStatus());
  FrameHeader header;
  header.bytes = kInPlaceBytes;
  bool taken = false;
  ASSERT_TRUE(link_->TrySend(header, 0, memory.data(), {.reply = {0, memory.data()}}, taken));
  EXPECT_EQ(Received(SharedArena::kInPlace, 0, kInPlaceBytes), "OK");
  EXPECT_THAT(Received(SharedArena::kInPlace, 0, kInPlaceBytes), HasSubstr("that was not asked for"))
      << "a place is used once";
}

TEST_F(SharedLinkTest, AReplyIsWrittenWhereThePeerWantsIt) {
  const SharedMemory memory = *SharedMemory::Create(3 * kInPlaceBytes);
  Register(memory.fd(), memory.bytes(), 0);
  SharedArena::Entry& wants = peers_.channel(1).cells[0].entry;
  wants.reply_region = 1;
  wants.reply_round = 7;
  for (const bool filled : {false, true}) {
    link_->BeginCall(/*pass_caches=*/filled);
    wants.reply_offset = kInPlaceBytes;
    ASSERT_EQ(Received(-1, 0, kInPlaceBytes), "OK");
    std::vector<std::byte> reply(kInPlaceBytes, filled ? std::byte{9} : std::byte{3});
    FrameHeader header;
    header.bytes = reply.size();
    if (filled) {
      std::byte* const place = link_->FillPlace(header);
      ASSERT_NE(place, nullptr);
      std::memset(place, 5, reply.size());
    }
    bool taken = false;
    header.round = 6;
    ASSERT_TRUE(link_->TrySend(header, 0, reply.data(), {}, taken));
    header.round = 7;
    ASSERT_TRUE(link_->TrySend(header, 0, reply.data(), {}, taken));
    EXPECT_TRUE(taken);
    const auto& cells = mine_.channel(0).cells;
    EXPECT_EQ(cells[link_->sent() - 2].entry.region, -1) << "of another round: in a slot";
    EXPECT_EQ(cells[link_->sent() - 1].entry.region, SharedArena::kInPlace);
    for (const size_t at : {kInPlaceBytes, 2 * kInPlaceBytes - 1}) {
      EXPECT_EQ(memory.data()[at], filled ? std::byte{5} : std::byte{3})
          << "what was filled in is not written again";
    }
    EXPECT_EQ(memory.data()[kInPlaceBytes - 1], std::byte{0});
    EXPECT_EQ(memory.data()[2 * kInPlaceBytes], std::byte{0});
    mine_.channel(0).consumed.store(link_->sent());
  }
  // This rank says that it writes, and does not write if the peer has given up.
  wants.reply_offset = kInPlaceBytes;
  link_->BeginCall(/*pass_caches=*/false);
  ASSERT_EQ(Received(-1, 0, kInPlaceBytes), "OK");
  FrameHeader header;
  header.bytes = kInPlaceBytes;
  EXPECT_NE(link_->FillPlace(header), nullptr);
  EXPECT_EQ(mine_.channel(0).writes_reply.load(), 1u);
  link_->EndReply();
  EXPECT_EQ(mine_.channel(0).writes_reply.load(), 0u);
  peers_.ended().store(1);
  EXPECT_EQ(link_->FillPlace(header), nullptr);
  EXPECT_EQ(mine_.channel(0).writes_reply.load(), 0u);
  for (const uint64_t offset : {uint64_t{2 * kInPlaceBytes + 1}, ~uint64_t{0}}) {
    wants.reply_offset = offset;
    EXPECT_THAT(Received(-1, 0, kInPlaceBytes), HasSubstr("of its memory region 0, which has"));
  }
}

// Neither waits nor receives SIGPIPE, whatever the peer sent as its socket.
TEST_F(SharedLinkTest, APeerCannotHoldUpTheRankThatWakesIt) {
  peers_.bell().store(static_cast<uint32_t>(Sleep::kInPoll));
  link_->Pop();
  char ring = 1;
  EXPECT_EQ(recv(peers_waker_.ends[1], &ring, 1, MSG_DONTWAIT), 1);

  const FileDescriptor full(eventfd(0, EFD_CLOEXEC));
  const uint64_t most = ~uint64_t{0} - 1;
  ASSERT_EQ(write(full.get(), &most, sizeof most), static_cast<ssize_t>(sizeof most));
  int pipe[2];
  ASSERT_EQ(pipe2(pipe, O_CLOEXEC), 0);
  close(pipe[0]);  // nobody reads
  const FileDescriptor closed(pipe[1]);
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const FileDescriptor unread(ends[0]), filled(ends[1]);
  while (send(filled.get(), &ring, 1, MSG_DONTWAIT) == 1) continue;
  for (const int fd : {full.get(), closed.get(), filled.get()}) WakeFromPoll(fd);
}

}  // namespace
}  // namespace psring
