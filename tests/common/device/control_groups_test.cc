#include "common/device/control_groups.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/common/device/fake_root.h"

namespace psring {
namespace {

constexpr char kNamespaceOfVersion2[] =
    "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";
constexpr char kCpuOfVersion1[] =
    "31 23 0:27 / /sys/fs/cgroup ro - tmpfs tmpfs ro,mode=755\n"
    "32 31 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
    "33 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
    "34 31 0:30 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n";

struct QuotaCase {
  std::string what;
  std::string mounts, groups;  // of /proc/self
  std::string files;           // for WriteFiles
  double cores = 0;
};

const std::vector<QuotaCase> kQuotaCases = {
    {"no file at all", "", "", "", 0},
    {"version 2, the quota of the root of a namespace", kNamespaceOfVersion2, "0::/\n",
     "cpu.max: 150000 100000", 1.5},
    {"version 2, a group of one's own (systemd-run)", kNamespaceOfVersion2, "0::/user.slice/run-1.scope\n",
     "user.slice/run-1.scope/cpu.max: 100000 100000; user.slice/cpu.max: max 100000", 1},
    {"version 2, the lowest of all ancestors (Slurm)", kNamespaceOfVersion2, "0::/slurm/job_7/step_0\n",
     "slurm/cpu.max: 800000 100000; slurm/job_7/cpu.max: 200000 100000; slurm/job_7/step_0/cpu.max: 300000 "
     "100000",
     2},
    {"version 2, no quota", kNamespaceOfVersion2, "0::/a\n", "cpu.max: max 100000; a/cpu.max: max 100000", 0},
    {"a group beside this one does not count", kNamespaceOfVersion2, "0::/a\n", "b/cpu.max: 100000 100000",
     0},
    {"version 1, whose folder has the names of two controllers", kCpuOfVersion1,
     "5:cpuset:/\n4:cpu,cpuacct:/job\n0::/\n",
     "cpu,cpuacct/job/cpu.cfs_quota_us: 100000; cpu,cpuacct/job/cpu.cfs_period_us: 50000", 2},
    {"version 1, an ancestor has the quota", kCpuOfVersion1, "4:cpu,cpuacct:/kubepods/pod1/c\n0::/\n",
     "cpu,cpuacct/kubepods/pod1/cpu.cfs_quota_us: 50000; cpu,cpuacct/kubepods/pod1/cpu.cfs_period_us: "
     "100000; cpu,cpuacct/kubepods/pod1/c/cpu.cfs_quota_us: -1; "
     "cpu,cpuacct/kubepods/pod1/c/cpu.cfs_period_us: 100000",
     0.5},
    {"version 1 in a container: the mount's top is this container's group",
     "33 31 0:29 /docker/01 /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu\n", "4:cpu:/docker/01\n",
     "cpu/cpu.cfs_quota_us: 300000; cpu/cpu.cfs_period_us: 100000", 3},
    {"version 1 in a container whose mount does not name its group",
     "33 31 0:29 / /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu\n", "4:cpu:/docker/01\n",
     "cpu/cpu.cfs_quota_us: 300000; cpu/cpu.cfs_period_us: 100000", 3},
    {"mounted elsewhere, in a folder with a space",
     "30 23 0:26 / /mnt/control\\040groups rw - cgroup2 none rw\n", "0::/a\n",
     "/mnt/control groups/a/cpu.max: 200000 100000", 2},
    {"another container's mount does not count",
     absl::StrCat(kNamespaceOfVersion2, "35 23 0:26 /other /mnt/other rw - cgroup2 cgroup2 rw\n"),
     "0::/mine\n", "mine/cpu.max: 400000 100000; /mnt/other/cpu.max: 100000 100000", 4},
    {"a group above the namespace's root", kNamespaceOfVersion2, "0::/../other\n",
     "cpu.max: 400000 100000; /sys/fs/other/cpu.max: 100000 100000", 4},
    {"without mountinfo, in the usual places", "", "4:cpu:/job\n0::/\n",
     "cpu/job/cpu.cfs_quota_us: 100000; cpu/job/cpu.cfs_period_us: 100000", 1},
    {"malformed files", kNamespaceOfVersion2, "0::/a\nx\n:::\n", "a/cpu.max: -3 0", 0},
    {"numbers that are not finite", kNamespaceOfVersion2, "0::/\n", "cpu.max: nan inf", 0},
    {"a cut-off file and mount", "30 23 0:26 /\n30 - cgroup2\n", "0::/\n", "cpu.max: 7", 0},
};

using ControlGroupsTest = FakeRoot;

TEST_F(ControlGroupsTest, TheLowestQuotaOfAllGroupsCounts) {
  for (const QuotaCase& of : kQuotaCases) {
    WriteFiles(of.files);
    Write("/proc/self/cgroup", of.groups);
    if (!of.mounts.empty()) Write("/proc/self/mountinfo", of.mounts);
    EXPECT_DOUBLE_EQ(QuotaCores(root_), of.cores) << of.what;
    Clear();
  }
}

TEST_F(ControlGroupsTest, AtLeastOneCoreIsUsable) { EXPECT_GE(UsableCores(), 1); }

}  // namespace
}  // namespace psring
