#include "ring_worker/bench/bench_output.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <memory>
#include <string>

namespace psring {
namespace {

TEST(BenchOutput, HostNamesThatAreNotUtf8AreReplacedInJson) {
  const std::unique_ptr<FILE, int (*)(FILE*)> file(tmpfile(), fclose);
  ASSERT_NE(file, nullptr);
  const std::unique_ptr<BenchOutput> output = MakeJsonOutput(file.get());
  output->report().on_start({{.host = "caf\xe9", .pid = 7}}, {});
  std::rewind(file.get());
  char line[256] = {};
  ASSERT_NE(fgets(line, sizeof line, file.get()), nullptr);
  EXPECT_NE(std::string(line).find("\"caf\xef\xbf\xbd\""), std::string::npos) << line;
}

}  // namespace
}  // namespace psring
