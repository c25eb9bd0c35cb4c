// Output of `bench` around nccl-tests' tables, whose format is fixed. Every line starts with #.
#pragma once

#include "experiments/texts/phrase.h"

namespace psring {

inline constexpr Phrase kBenchOn = {"# psring bench $0 ($1) on $2 $3, $4",
                                    "# psring bench $0（$1），$2 核，$4"};
inline constexpr Phrase kBenchOnNodes = {"# on $0 machines; ranks per machine: at most $1",
                                         "# 在 $0 台机器上；每台的 rank 数：至多 $1"};
// By value of --average.
inline constexpr Phrase kAverages[] = {{"rank 0's", "rank 0 的"},
                                       {"the mean of the ranks'", "各 rank 的平均"},
                                       {"the fastest rank's", "最快 rank 的"},
                                       {"the slowest rank's", "最慢 rank 的"}};
inline constexpr Phrase kBenchTime = {
    "# time: duration of one call ($0); median over iterations; combinations alternate",
    "# time：一次调用的时间（$0）；取各次迭代的中位数，各组合轮流进行"};
inline constexpr Phrase kBenchLimits = {" limits", " 极限"};
inline constexpr Phrase kBenchTurns = {"#    $0 processes share $1 cores", "#    $0 个进程共用 $1 个核"};
inline constexpr Phrase kBenchNote = {"# note: $0", "# 说明：$0"};
inline constexpr Phrase kBenchExpected = {"# expected: $0 of $1, about $2", "# 预计：$0，每轮 $1，约 $2"};
inline constexpr Phrase kOneLaunch = {"1 launch", "1 次启动"};
inline constexpr Phrase kLaunches = {"$0 launches", "$0 次启动"};
inline constexpr Phrase kBenchTitle = {"# === $0; others used $1% of the processors",
                                       "# === $0；其他程序占用处理器 $1%"};
inline constexpr Phrase kBenchOtherTransport = {"# note: --transport $0 was requested, but $1 is used",
                                                "# 说明：要求 --transport $0，实际经由 $1"};
inline constexpr Phrase kBenchSummary = {"# Summary: $0, $1 workers, busbw in GB/s, out of place",
                                         "# 汇总：$0，$1 个 worker，总线带宽 GB/s，非原地"};
inline constexpr Phrase kHostLimits = {
    "# Limits of this host with $0 processes, GB/s. copy: all processes copy at the same time.\n"
    "# shared, tcp, unix: busbw of the minimum work: adding directly from the peers' memory (shared),\n"
    "# or sending the data once around a ring (tcp, unix).",
    "# 本机在 $0 个进程下的极限，GB/s。copy：各进程同时拷贝。shared、tcp、unix：最少工作量的总线带宽：\n"
    "# 直接从其他进程的内存相加（shared），或把数据沿环发送一次（tcp、unix）。"};
inline constexpr Phrase kServerLimits = {
    "# Limits of a server's round with $0 workers, us. raw: the same bytes over plain TCP sockets.\n"
    "# fused: one pass through memory that adds all gradients, updates the weights and writes them\n"
    "# for every worker.",
    "# $0 个 worker 时服务器一轮的极限，微秒。raw：同样的字节经由普通 TCP 套接字。fused：一遍内存访问中\n"
    "# 加完所有梯度、更新权重并写给每个 worker。"};
inline constexpr Phrase kBenchAllOfIt = {
    "# results: $0/report.html and other files in this folder ($1 s); "
    "repeat: $2 bench --config $0/config.toml",
    "# 全部结果：$0/report.html 及同一目录（$1 秒）；重复运行：$2 bench --config $0/config.toml"};

}  // namespace psring
