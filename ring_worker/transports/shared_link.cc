#include "ring_worker/transports/shared_link.h"

#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/check.h"
#include "common/base/deadline.h"
#include "common/base/errors.h"
#include "common/kernels/copy.h"

namespace psring {
namespace {

// A header, and a channel for each rank; both are whole pages.
constexpr size_t kHeaderBytes = 4096;
static_assert(sizeof(SharedArena::Channel) % 4096 == 0);

size_t ArenaBytes(int ranks) {
  return kHeaderBytes + static_cast<size_t>(ranks) * sizeof(SharedArena::Channel);
}

constexpr int64_t kArena = -1;
constexpr absl::Duration kHandOverPatience = absl::Seconds(10);
constexpr size_t kMaxRegions = 16384;  // of one peer; a process can map about four times as many

template <typename T>
T ReadOnce(T& shared) {
  return std::atomic_ref<T>(shared).load(std::memory_order_relaxed);
}

// How memory is passed: its files, and "BYTES NUMBER", where the number is a region's or kArena.
struct Offered {
  uint64_t bytes = 0;
  int64_t number = kArena;
  std::vector<FileDescriptor> files;
};

absl::Status Hand(const UnixSocket& socket, uint64_t bytes, int64_t number, const std::vector<int>& files) {
  return socket.Send(absl::StrCat(bytes, " ", number), files, MonotonicNow() + kHandOverPatience);
}

absl::StatusOr<Offered> Take(const UnixSocket& socket, size_t files, MonotonicTime deadline) {
  PSRING_ASSIGN_OR_RETURN(UnixSocket::Message message, socket.Receive(deadline));
  const std::vector<std::string> words = absl::StrSplit(message.text, ' ');
  Offered offered;
  if (message.files.size() != files || words.size() != 2 || !absl::SimpleAtoi(words[0], &offered.bytes) ||
      !absl::SimpleAtoi(words[1], &offered.number)) {
    return absl::DataLossError("the message on the Unix socket does not describe shared memory");
  }
  offered.files = std::move(message.files);
  return offered;
}

}  // namespace

// If the socket is full, the rank wakes anyway.
void WakeFromPoll(int fd) { (void)send(fd, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL); }

void ReadRings(int fd) {
  std::array<char, 256> rings;
  (void)!recv(fd, rings.data(), rings.size(), MSG_DONTWAIT);
}

absl::StatusOr<SharedArena> SharedArena::Create(int ranks, int wake_fd) {
  SharedArena arena;
  PSRING_ASSIGN_OR_RETURN(arena.memory_, SharedMemory::Create(ArenaBytes(ranks)));
  arena.wake_fd_ = wake_fd;
  return arena;
}

absl::Status SharedArena::Offer(const UnixSocket& socket) const {
  return Hand(socket, memory_.bytes(), kArena, {memory_.fd(), wake_fd_});
}

absl::StatusOr<SharedArena> SharedArena::Adopt(int ranks, const UnixSocket& socket, MonotonicTime deadline) {
  PSRING_ASSIGN_OR_RETURN(Offered offered, Take(socket, 2, deadline));
  if (offered.bytes != ArenaBytes(ranks)) {
    return absl::FailedPreconditionError("its shared memory has another size: another version of psring?");
  }
  SharedArena arena;
  PSRING_ASSIGN_OR_RETURN(arena.memory_,
                          SharedMemory::Adopt(offered.files[0].release(), offered.bytes, false));
  arena.adopted_wake_ = std::move(offered.files[1]);
  arena.wake_fd_ = arena.adopted_wake_.get();
  return arena;
}

SharedArena::Channel& SharedArena::channel(int peer) {
  return *reinterpret_cast<Channel*>(memory_.data() + kHeaderBytes +
                                     static_cast<size_t>(peer) * sizeof(Channel));
}

void SharedArena::Ring() {
  // A rank that goes to sleep first stores to the bell and then checks for frames; the sender first stores
  // the frame and then checks the bell. All four are sequentially consistent, so at least one sees the
  // other's store.
  std::atomic<uint32_t>& bell = header().bell;
  if (bell.load() == static_cast<uint32_t>(Sleep::kAwake)) return;
  const uint32_t was = bell.exchange(static_cast<uint32_t>(Sleep::kAwake));
  if (was == static_cast<uint32_t>(Sleep::kOnFutex)) FutexWake(bell);
  if (was == static_cast<uint32_t>(Sleep::kInPoll)) WakeFromPoll(wake_fd_);
}

void SharedArena::WakeForControl() {
  // The bell keeps its value, so that the owner knows that no frame has come.
  std::atomic<uint32_t>& bell = header().bell;
  const uint32_t is = bell.load();
  if (is == static_cast<uint32_t>(Sleep::kOnFutex)) FutexWake(bell);
  if (is == static_cast<uint32_t>(Sleep::kInPoll)) WakeFromPoll(wake_fd_);
}

void SharedArena::NoteCall(const CallInfo& call) {
  uint64_t words[sizeof(CallInfo) / 8];
  std::memcpy(words, &call, sizeof call);
  auto& place = header().calls[call.number % 4];
  for (size_t i = 0; i < sizeof(CallInfo) / 8; ++i) place[i].store(words[i], std::memory_order_relaxed);
}

CallInfo SharedArena::RecentCall(uint32_t number) const {
  uint64_t words[sizeof(CallInfo) / 8];
  const auto& place = header().calls[number % 4];
  for (size_t i = 0; i < sizeof(CallInfo) / 8; ++i) words[i] = place[i].load(std::memory_order_relaxed);
  CallInfo call;
  std::memcpy(static_cast<void*>(&call), words, sizeof call);
  if (call.number == number) return call;
  CallInfo forgotten;
  forgotten.number = number;
  std::strcpy(forgotten.operation, "an earlier call");
  return forgotten;
}

SharedLink::SharedLink(int rank, int peer, SharedArena& mine, SharedArena theirs, UnixSocket socket,
                       bool touch)
    : rank_(rank),
      peer_(peer),
      touch_(touch),
      mine_(mine),
      theirs_(std::move(theirs)),
      socket_(std::move(socket)),
      out_(mine_.channel(peer)),
      in_(theirs_.channel(rank)) {}

void SharedLink::BeginCall(bool pass_caches) {
  pass_caches_ = pass_caches;
  while (!wanted_.empty()) wanted_.PopFront();
  while (!promised_.empty()) promised_.PopFront();
}

const SharedLink::Region* SharedLink::FindRegion(const std::byte* payload, uint64_t bytes) const {
  if (bytes < kInPlaceBytes) return nullptr;
  const auto has = [&](const Region& region) {
    return payload >= region.data && payload + bytes <= region.data + region.bytes;
  };
  const auto found = std::find_if(regions_.begin(), regions_.end(), has);
  return found == regions_.end() ? nullptr : &*found;
}

std::optional<SharedLink::Place> SharedLink::TakePlace(Fifo<Place>& places, const FrameHeader& header) {
  if (places.empty()) return std::nullopt;
  const Place first = places.front();
  if (first.round != header.round || first.segment != header.segment || first.bytes != header.bytes) {
    return std::nullopt;
  }
  places.PopFront();
  return first;
}

// A rank that gives up first sets `ended` and then waits for those who write; a writer first says so and then
// checks `ended`. All four are sequentially consistent, so at least one sees the other's store.
bool SharedLink::BeginReply() {
  out_.writes_reply.store(1);
  if (theirs_.ended().load() == 0) return true;
  EndReply();
  return false;
}

std::byte* SharedLink::FillPlace(const FrameHeader& header) {
  if (!first_wants_reply_ || wanted_.back().bytes != header.bytes || !BeginReply()) return nullptr;
  wanted_.back().filled = true;
  return wanted_.back().at;
}

bool SharedLink::TrySend(const FrameHeader& header, uint64_t call_hash, const std::byte* payload,
                         const SendTraits& traits, bool& taken) {
  const uint64_t consumed = out_.consumed.load(std::memory_order_acquire);
  if (sent_ - consumed >= SharedArena::kEntries) return false;
  SharedArena::Entry& entry = out_.cells[sent_ % SharedArena::kEntries].entry;
  const Region* region = traits.copy ? nullptr : FindRegion(payload, header.bytes);
  entry.offset = 0;
  taken = true;
  if (const std::optional<Place> place = TakePlace(wanted_, header)) {
    if (!place->filled && BeginReply()) {
      cpu::Copy(place->at, payload, header.bytes, pass_caches_);
      EndReply();
    }
    entry.region = SharedArena::kInPlace;
  } else if (region != nullptr) {
    entry.region = region->number;
    entry.offset = payload - region->data;
    taken = false;
  } else {
    PSRING_CHECK(header.bytes <= kSlotBytes);
    // The first free slot, so that few slots are in use and stay in the cache.
    size_t slot = 0;
    while (slot < SharedArena::kSlots && slot_frame_[slot] > consumed) ++slot;
    if (slot == SharedArena::kSlots) return false;
    if (header.bytes > touched_out_) TouchSlots(out_, header.bytes, touched_out_);
    cpu::Copy(out_.slots[slot], payload, header.bytes, pass_caches_);
    entry.region = -1 - static_cast<int32_t>(slot);
    slot_frame_[slot] = sent_ + 1;
  }
  region = traits.reply.to == nullptr ? nullptr : FindRegion(traits.reply.to, header.bytes);
  entry.reply_region = 0;
  if (region != nullptr) {
    entry.reply_region = 1 + region->number;
    entry.reply_offset = traits.reply.to - region->data;
    entry.reply_round = traits.reply.round;
    promised_.PushBack() = {traits.reply.round, header.segment, header.bytes, traits.reply.to};
  }
  entry.call_hash = call_hash;
  entry.bytes = header.bytes;
  entry.call = header.call.number;
  entry.round = header.round;
  entry.segment = header.segment;
  entry.number.store(++sent_);
  theirs_.Ring();
  return true;
}

// The peer can change an entry at any time, so each field is read once and then checked.
absl::StatusOr<const std::byte*> SharedLink::Payload(const FrameHeader& expected, uint64_t call_hash) {
  SharedArena::Entry& entry = in_.cells[received_ % SharedArena::kEntries].entry;
  FrameHeader found;
  found.round = ReadOnce(entry.round);
  found.segment = ReadOnce(entry.segment);
  found.bytes = ReadOnce(entry.bytes);
  const uint32_t call = ReadOnce(entry.call);
  if (ReadOnce(entry.call_hash) != call_hash || call != expected.call.number ||
      found.round != expected.round || found.segment != expected.segment || found.bytes != expected.bytes) {
    found.call = theirs_.RecentCall(call);
    return FramesDiffer(peer_, found, rank_, expected);
  }
  const int32_t reply = ReadOnce(entry.reply_region);
  first_wants_reply_ = reply > 0;
  if (first_wants_reply_) {
    PSRING_ASSIGN_OR_RETURN(std::byte* const at,
                            InRegion(reply - 1, ReadOnce(entry.reply_offset), found.bytes));
    wanted_.PushBack() = {ReadOnce(entry.reply_round), found.segment, found.bytes, at};
  }
  const int32_t number = ReadOnce(entry.region);
  const std::optional<Place> promised = TakePlace(promised_, expected);
  if (number == SharedArena::kInPlace) {
    if (promised.has_value()) return promised->at;
    return DataLoss("rank ", peer_, " sent ", found.bytes, " bytes as a reply that was not asked for");
  }
  if (number < 0) {
    const auto slot = static_cast<size_t>(-1 - number);
    if (slot >= SharedArena::kSlots || found.bytes > kSlotBytes) {
      return DataLoss("rank ", peer_, " sent ", found.bytes, " bytes in slot ", slot, "; there are ",
                      SharedArena::kSlots, " slots of ", kSlotBytes, " bytes");
    }
    if (found.bytes > touched_in_) TouchSlots(in_, found.bytes, touched_in_);
    return in_.slots[slot];
  }
  return InRegion(number, ReadOnce(entry.offset), found.bytes);
}

absl::StatusOr<std::byte*> SharedLink::InRegion(int32_t number, uint64_t offset, uint64_t bytes) {
  PSRING_ASSIGN_OR_RETURN(const SharedMemory* const region, RegionOf(number));
  if (offset > region->bytes() || bytes > region->bytes() - offset) {
    return DataLoss("rank ", peer_, " sent ", bytes, " bytes at ", offset, " of its memory region ", number,
                    ", which has ", region->bytes());
  }
  return region->data() + offset;
}

// Touches all slots when the first one is used, so that page faults happen in the first calls only.
void SharedLink::TouchSlots(SharedArena::Channel& channel, size_t bytes, size_t& touched) {
  for (auto& slot : channel.slots) {
    // Adding 0 maps the page and is safe with concurrent users.
    for (size_t at = touched / 4096 * 4096; touch_ && at < bytes; at += 4096) {
      reinterpret_cast<std::atomic<uint32_t>*>(slot + at)->fetch_add(0, std::memory_order_relaxed);
    }
  }
  touched = bytes;
}

void SharedLink::Pop() {
  in_.consumed.store(++received_);
  theirs_.Ring();
}

absl::Status SharedLink::Register(const SharedRegion& region) {
  struct stat file;
  if (fstat(region.fd, &file) != 0) {
    return Internal("cannot register a buffer: ", std::strerror(errno));
  }
  PSRING_RETURN_IF_ERROR(
      Prefixed(Hand(socket_, static_cast<uint64_t>(file.st_size), next_region_, {region.fd}), "rank ", peer_,
               " does not accept shared memory: "));
  regions_.push_back({next_region_++, region.data, region.bytes});
  return absl::OkStatus();
}

void SharedLink::Unregister(const std::byte* data) {
  std::erase_if(regions_, [&](const Region& region) { return region.data == data; });
}

// The peer sent the region before a frame that names it, so its message has arrived.
absl::StatusOr<const SharedMemory*> SharedLink::RegionOf(int32_t number) {
  for (const PeerRegion& region : peer_regions_) {
    if (region.number == number) return &region.memory;
  }
  const MonotonicTime deadline = MonotonicNow() + kHandOverPatience;
  do {
    PSRING_RETURN_IF_ERROR(Prefixed(TakeRegion(deadline), "rank ", peer_, ", memory region ", number, ": "));
  } while (peer_regions_.back().number != number);
  return &peer_regions_.back().memory;
}

absl::Status SharedLink::TakeRegion(MonotonicTime deadline) {
  if (peer_regions_.size() >= kMaxRegions) {
    return ResourceExhausted("it has registered ", kMaxRegions, " others");
  }
  PSRING_ASSIGN_OR_RETURN(Offered offered, Take(socket_, 1, deadline));
  if (offered.number < 0 || offered.number > INT32_MAX) {
    return DataLoss("it has sent a region with number ", offered.number);
  }
  PSRING_ASSIGN_OR_RETURN(SharedMemory memory,
                          SharedMemory::Adopt(offered.files[0].release(), offered.bytes, /*prefault=*/true));
  peer_regions_.push_back({static_cast<int32_t>(offered.number), std::move(memory)});
  return absl::OkStatus();
}

}  // namespace psring
