#include "common/net/unix_socket.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include "absl/strings/str_cat.h"
#include "common/base/deadline.h"
#include "common/base/file_descriptor.h"

namespace psring {
namespace {

TEST(UnixSocketTest, AFullQueueOfConnectionsIsWaitedForUntilTheDeadline) {
  const std::string name = absl::StrCat("psring-unix-socket-test-", getpid());
  const UnixSocket listener = *UnixSocket::Listen(name);
  ASSERT_EQ(listen(listener.fd(), 0), 0);  // a queue of one
  const auto first = UnixSocket::Connect(name, MonotonicNow() + absl::Seconds(30));
  ASSERT_TRUE(first.ok()) << first.status();
  const auto late = UnixSocket::Connect(name, MonotonicNow() + absl::Milliseconds(20));
  EXPECT_TRUE(absl::IsDeadlineExceeded(late.status())) << late.status();

  absl::StatusOr<UnixSocket> second = absl::UnknownError("not yet");
  std::thread waiting([&] { second = UnixSocket::Connect(name, MonotonicNow() + absl::Seconds(30)); });
  const FileDescriptor accepted(accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC));
  waiting.join();
  EXPECT_TRUE(accepted.valid());
  EXPECT_TRUE(second.ok()) << second.status();
}

TEST(UnixSocketTest, ANameWithoutAListenerIsAnErrorAtOnce) {
  const auto found = UnixSocket::Connect(absl::StrCat("psring-unix-socket-test-none-", getpid()),
                                         MonotonicNow() + absl::Minutes(10));
  EXPECT_TRUE(absl::IsUnavailable(found.status())) << found.status();
}

}  // namespace
}  // namespace psring
