#include "common/rendezvous/job_failure.h"

#include <gtest/gtest.h>

#include <memory>

#include "tests/test_secret.h"

namespace psring {
namespace {

TEST(JobFailure, OtherProcessesNameItInsteadOfItsConsequence) {
  const auto store = *RendezvousServer::Start("127.0.0.1", 0, TestSecret());
  const auto join = [&](int rank) {
    return *Rendezvous::Join({.rank = rank,
                              .world_size = 2,
                              .host = "127.0.0.1",
                              .port = store->port(),
                              .hosted_elsewhere = true,
                              .secret = TestSecret()});
  };
  std::unique_ptr<Rendezvous> first = join(0);
  const std::unique_ptr<Rendezvous> second = join(1);
  const absl::Status lost = absl::UnavailableError("lost the connection to rank 0");
  EXPECT_EQ(WithReportedFailure(*second, lost), lost) << "no failure was told";
  PublishFailure(*first, "rank 0: cannot write F: No space left on device");
  first.reset();  // the others may fail after it has left
  EXPECT_EQ(WithReportedFailure(*second, lost),
            absl::UnavailableError("ended because of rank 0: cannot write F: No space left on device"));
  EXPECT_EQ(WithReportedFailure(*second, absl::OkStatus()), absl::OkStatus());
  PublishFailure(*second, "rank 1: \x1b[2J\n\xff");
  EXPECT_EQ(WithReportedFailure(*second, lost).message(), "ended because of rank 1: \\x1b[2J\\x0a\\xff");
  PublishFailure(*second, std::string(1 << 20, 'x'));
  EXPECT_LT(WithReportedFailure(*second, lost).message().size(), 2000u);
  const absl::Status silence = absl::DeadlineExceededError("waited 60 s for rank 0");
  EXPECT_EQ(WithReportedFailure(*second, silence), silence);
}

}  // namespace
}  // namespace psring
