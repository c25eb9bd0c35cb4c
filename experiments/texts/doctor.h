// The output of `doctor`.
#pragma once

#include "experiments/texts/phrase.h"

namespace psring {

inline constexpr Phrase kYes = {"yes", "有"};
inline constexpr Phrase kNo = {"no", "无"};
inline constexpr Phrase kNoAndRequired = {"NO", "缺"};
inline constexpr Phrase kFix = {"fix: $0", "解决：$0"};
inline constexpr Phrase kAllThere = {"All requirements are met.", "必需的都已具备。"};
inline constexpr Phrase kMissing = {"Missing requirement: $0.", "必需但缺少：$0。"};

inline constexpr Phrase kSystem = {"system", "系统"};
inline constexpr Phrase kCores = {"cores", "核"};
inline constexpr Phrase kCoresFix = {
    "workers share the only core: timings are not meaningful, but bytes and accuracy are valid",
    "只有一个核，worker 共用它：时间没有意义，字节数与准确率仍有效"};
inline constexpr Phrase kMemory = {"memory", "内存"};
inline constexpr Phrase kMemoryFix = {"each worker needs about 300 MiB: use fewer --workers",
                                      "每个 worker 约需 300 MiB：减少 --workers"};
inline constexpr Phrase kFree = {"$0 MiB free", "可用 $0 MiB"};
inline constexpr Phrase kNotMounted = {"not mounted", "未挂载"};
inline constexpr Phrase kSharedMemoryFix = {
    "mount -o remount,size=2G /dev/shm   (a container: docker run --shm-size=2g)",
    "mount -o remount,size=2G /dev/shm   （容器：docker run --shm-size=2g）"};
inline constexpr Phrase kBinaries = {"binaries", "程序"};
inline constexpr Phrase kPackagesThere = {"all $0", "$0 个齐全"};
inline constexpr Phrase kPackages = {"packages", "软件包"};
inline constexpr Phrase kPackagesNotAsked = {
    "not checked: dpkg is not available, and psring is already built",
    "未检查：这里没有 dpkg，而 psring 已经构建"};
inline constexpr Phrase kDataFix = {
    "sudo apt-get install -y dataset-fashion-mnist   (or --data synthetic)",
    "sudo apt-get install -y dataset-fashion-mnist   （或 --data synthetic）"};
inline constexpr Phrase kDataNotAsked = {"not checked: the trainer is missing", "未检查：缺少 trainer"};
inline constexpr Phrase kDataThere = {"$0 training images and $1 test images", "训练图 $0 张，测试图 $1 张"};
inline constexpr Phrase kGpus = {"GPUs", "GPU"};
inline constexpr Phrase kGpusFix = {"install the NVIDIA driver and check it with nvidia-smi",
                                    "安装 NVIDIA 驱动，并用 nvidia-smi 检查"};
inline constexpr Phrase kCudaFix = {
    "for an NVIDIA GPU: install the CUDA toolkit (Debian: component non-free, package nvidia-cuda-toolkit), "
    "remove the build folder, ./run build",
    "若有 NVIDIA GPU：安装 CUDA 工具包（Debian：non-free 组件，软件包 nvidia-cuda-toolkit），"
    "删除 build 目录，再 ./run build"};
inline constexpr Phrase kSeveralGpus = {"; one process per GPU, or one for all: --ranks_per_process",
                                        "；每个 GPU 一个进程，或一个进程管全部：--ranks_per_process"};
inline constexpr Phrase kConvolutions = {"convolutions on GPUs: $0", "GPU 上的卷积：$0"};
inline constexpr Phrase kNoConvolutions = {"$0; convolutions on GPUs use matrix products of cuBLASLt",
                                           "$0；GPU 上的卷积改用 cuBLASLt 的矩阵乘"};
inline constexpr Phrase kCudnnFix = {
    "install nvidia-cudnn (pip) or libcudnn9 (NVIDIA) and add its folder to LD_LIBRARY_PATH",
    "安装 nvidia-cudnn（pip）或 libcudnn9（NVIDIA），并把其目录加入 LD_LIBRARY_PATH"};
inline constexpr Phrase kCudnnBuildFix = {"install the CUDA and cuDNN headers, then ./run build",
                                          "安装 CUDA 与 cuDNN 的头文件，再 ./run build"};
inline constexpr Phrase kMadeWith = {"built with $0", "用 $0 构建"};
inline constexpr Phrase kInBuild = {"in this build: --strategy $0", "本次构建包含：--strategy $0"};
inline constexpr Phrase kNotInBuild = {"not in this build: no --strategy $0",
                                       "本次构建不包含：没有 --strategy $0"};
inline constexpr Phrase kNcclFix = {
    "install the CUDA toolkit and libnccl-dev (NVIDIA's apt repository), then ./run build",
    "安装 CUDA 工具包与 libnccl-dev（NVIDIA 的 apt 源），再 ./run build"};
inline constexpr Phrase kGlooFix = {"sudo apt-get install -y libgloo-dev, then ./run build",
                                    "sudo apt-get install -y libgloo-dev，再 ./run build"};
inline constexpr Phrase kMpiFix = {"sudo apt-get install -y libopenmpi-dev openmpi-bin, then ./run build",
                                   "sudo apt-get install -y libopenmpi-dev openmpi-bin，再 ./run build"};
inline constexpr Phrase kNamespaces = {"namespaces", "网络命名空间"};
inline constexpr Phrase kNamespacesThere = {
    "each machine of a virtual cluster has its own network (--link 1gbit)",
    "虚拟集群的每台机器有自己的网络（--link 1gbit）"};
inline constexpr Phrase kNamespacesMissing = {"psring's own transports limit the rate of --link instead: $0",
                                              "改由 psring 自己的传输层限速（--link）：$0"};
inline constexpr Phrase kNamespacesFix = {
    "run as root, or: sudo sysctl -w kernel.unprivileged_userns_clone=1 "
    "kernel.apparmor_restrict_unprivileged_userns=0   (a container: --privileged)",
    "以 root 运行，或：sudo sysctl -w kernel.unprivileged_userns_clone=1 "
    "kernel.apparmor_restrict_unprivileged_userns=0   （容器：--privileged）"};
inline constexpr Phrase kNotInstalled = {"not installed", "未安装"};

}  // namespace psring
