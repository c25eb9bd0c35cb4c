// Checks of channels between ranks of a group of any backend, in the memory of any device. Every rank of the
// group runs them; see group_checks.h.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "ring_worker/groups/channel.h"
#include "tests/ring_worker/groups/group_checks.h"

namespace psring {

using ChannelOr = absl::StatusOr<std::unique_ptr<Channel>>;

// From rank `from` to rank `to`; null for the others.
inline ChannelOr ConnectChannel(const GroupRank& rank, int from, int to) {
  const int own = rank.group.rank();
  const bool is_end = own == from || own == to;
  PSRING_ASSIGN_OR_RETURN(auto pair, rank.group.Split(is_end ? 0 : kNoColor, own == from ? 0 : 1));
  if (pair == nullptr) return nullptr;
  return Channel::Create(std::move(pair), rank.device, absl::StrCat(from, " to ", to));
}

// The values of the `number`-th message.
inline std::function<float(size_t)> MessageValues(int number) {
  return [number](size_t i) { return static_cast<float>(1000 * number) + static_cast<float>(i); };
}

// Between ranks 0 and 1 of at least two.
inline absl::Status CheckMessagesInOrder(const GroupRank& rank) {
  std::deque<TestMemory> messages;
  PSRING_ASSIGN_OR_RETURN(const std::unique_ptr<Channel> channel, ConnectChannel(rank, 1, 0));
  if (channel == nullptr) return absl::OkStatus();
  if (channel->sends() != (rank.group.rank() == 1)) return absl::InternalError("the other rank should send");
  uint64_t bytes = 0;
  int number = 0;
  for (const size_t count : {1, 7, 100, 65536, 3, 300000}) {
    TestMemory& message = messages.emplace_back(rank, DType::kFloat32, count, /*shared=*/false);
    if (channel->sends()) PSRING_RETURN_IF_ERROR(message.Fill(0, count, MessageValues(number)));
    bytes += message.span().bytes();
    ++number;
  }
  for (const TestMemory& message : messages) PSRING_RETURN_IF_ERROR(channel->Transfer(message.span()));
  PSRING_RETURN_IF_ERROR(channel->lane().Synchronize());
  number = 0;
  for (const TestMemory& message : messages) {
    PSRING_RETURN_IF_ERROR(
        message.Expect(0, message.span().count, 0, MessageValues(number), absl::StrCat("message ", number)));
    ++number;
  }
  const Traffic traffic = channel->traffic();
  const uint64_t counted = channel->sends() ? traffic.payload_tx_bytes : traffic.payload_rx_bytes;
  if (rank.group.info().backend == "native" && counted != bytes) {
    return absl::InternalError(absl::StrCat(counted, " bytes were counted, not ", bytes));
  }
  return absl::OkStatus();
}

// Between ranks 0 and 1 of at least two, which both send first. With one lane for both channels each would
// wait for the other's receive.
inline absl::Status CheckBothDirections(const GroupRank& rank) {
  constexpr size_t kCount = 200000;
  TestMemory sent(rank, DType::kFloat32, kCount, /*shared=*/false);
  TestMemory received(rank, DType::kFloat32, kCount, /*shared=*/false);
  PSRING_ASSIGN_OR_RETURN(const std::unique_ptr<Channel> forward, ConnectChannel(rank, 0, 1));
  PSRING_ASSIGN_OR_RETURN(const std::unique_ptr<Channel> back, ConnectChannel(rank, 1, 0));
  if (forward == nullptr) return absl::OkStatus();
  Channel& first = rank.group.rank() == 0 ? *forward : *back;
  Channel& second = rank.group.rank() == 0 ? *back : *forward;
  PSRING_RETURN_IF_ERROR(sent.Fill(0, kCount, MessageValues(rank.group.rank())));
  PSRING_RETURN_IF_ERROR(first.Transfer(sent.span()));
  PSRING_RETURN_IF_ERROR(second.Transfer(received.span()));
  PSRING_RETURN_IF_ERROR(second.lane().Synchronize());
  PSRING_RETURN_IF_ERROR(
      received.Expect(0, kCount, 0, MessageValues(1 - rank.group.rank()), "what was received"));
  return first.lane().Synchronize();
}

// Three ranks pass a value on while the whole group adds up.
inline absl::Status CheckChannelsBesideTheGroup(const GroupRank& rank) {
  constexpr size_t kCount = 5000;
  TestMemory value(rank, DType::kFloat32, kCount, /*shared=*/false);
  TestMemory sum(rank, DType::kFloat32, kCount, /*shared=*/false);
  PSRING_ASSIGN_OR_RETURN(const std::unique_ptr<Channel> from, ConnectChannel(rank, 0, 1));
  PSRING_ASSIGN_OR_RETURN(const std::unique_ptr<Channel> to, ConnectChannel(rank, 1, 2));
  const int own = rank.group.rank();
  PSRING_RETURN_IF_ERROR(value.Fill(0, kCount, [own](size_t) { return own == 0 ? 42.0f : 0.0f; }));
  PSRING_RETURN_IF_ERROR(sum.Fill(0, kCount, [](size_t) { return 1.0f; }));
  Channel* const receives = own == 1 ? from.get() : own == 2 ? to.get() : nullptr;
  Channel* const sends = own == 0 ? from.get() : own == 1 ? to.get() : nullptr;
  if (receives != nullptr) PSRING_RETURN_IF_ERROR(receives->Transfer(value.span()));
  if (receives != nullptr && sends != nullptr) sends->lane().WaitFor(receives->lane().Record());
  if (sends != nullptr) PSRING_RETURN_IF_ERROR(sends->Transfer(value.span()));
  PSRING_RETURN_IF_ERROR(rank.group.AllReduce(sum.span(), sum.span(), ReduceOp::kSum, rank.stream));
  PSRING_RETURN_IF_ERROR(rank.stream.Synchronize());
  for (Channel* const channel : {receives, sends}) {
    if (channel != nullptr) PSRING_RETURN_IF_ERROR(channel->lane().Synchronize());
  }
  PSRING_RETURN_IF_ERROR(value.Expect(
      0, kCount, 0, [](size_t) { return 42.0f; }, "the value"));
  return sum.Expect(
      0, kCount, 0, [](size_t) { return 3.0f; }, "the sum");
}

// All of these, by three ranks.
inline absl::Status CheckChannels(const GroupRank& rank) {
  PSRING_RETURN_IF_ERROR(CheckMessagesInOrder(rank));
  PSRING_RETURN_IF_ERROR(CheckBothDirections(rank));
  return CheckChannelsBesideTheGroup(rank);
}

}  // namespace psring
