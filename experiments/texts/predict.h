// Output of `predict`.
#pragma once

#include "experiments/texts/phrase.h"
#include "experiments/texts/table.h"

namespace psring {

inline constexpr Phrase kPredictHead = {
    "Prediction; nothing was run, and every figure is simulated. "
    "Workload: $0, $1 MB of gradients in $2 buckets, batch $3 per worker, forward $4 ms, "
    "backward $5 ms ($6). Cluster: $7.",
    "预测；没有实际运行，所有数字均为模拟。负载：$0，梯度 $1 MB，分 $2 桶，每个 worker 批大小 $3，"
    "前向 $4 毫秒，反向 $5 毫秒（$6）。集群：$7。"};
inline constexpr Phrase kClusterNodes = {"nodes", "节点"};
inline constexpr Phrase kClusterNamed = {"$0: nodes", "$0：节点"};
inline constexpr Phrase kClusterText = {
    "$0 with $1 GPU$2 each; $3$4 between nodes ($5 of the rate is usable, latency $6 us)",
    "$0各有 $1 块 GPU；节点间 $3$4（可用其 $5，延迟 $6 微秒）"};
inline constexpr Phrase kClusterInside = {"; $0 inside a node (latency $1 us)",
                                          "；节点内 $0（延迟 $1 微秒）"};
inline constexpr Phrase kClusterServer = {"; a server adds and updates in $0 ns per byte",
                                          "；服务器相加并更新每字节 $0 纳秒"};
inline constexpr Phrase kClusterRings = {"; $0 rings", "；$0 个环"};
inline constexpr Phrase kClusterOversubscribed = {"; oversubscribed $0 : 1", "；收敛比 $0 : 1"};
inline constexpr Phrase kServerOne = {"$0 on 1 server", "$0（1 台服务器）"};
inline constexpr Phrase kServerMany = {"$0 on $1 servers", "$0（$1 台服务器）"};

// If workers of an asynchronous strategy are unequal. $0 the strategy, $1 %.
inline constexpr Phrase kOneWorkerMakes = {"$0 (one worker makes $1% of the samples)",
                                           "$0（一个 worker 占 $1% 的样本）"};
inline constexpr Phrase kOneWorkerLine = {"- one worker: $0%", "- 一个 worker：$0%"};
inline constexpr Phrase kOtherWorkersLine = {"- others: $0%", "- 其余：$0%"};

inline constexpr Heading kPredictStrategy = {{"strategy", "策略"}, {"", ""}};
inline constexpr Heading kPredictServers = {{"ser-", "服务"}, {"vers", "器"}};
inline constexpr Heading kPredictWorkers = {{"workers", "worker"}, {"", "数"}};
inline constexpr Heading kPredictSamples = {{"samples", "样本"}, {"/s", "/秒"}};
inline constexpr Heading kPredictRange = {{"range of", "90%"}, {"9 in 10", "范围"}};
inline constexpr Heading kPredictEfficiency = {{"effi-", "效率"}, {"ciency", ""}};
inline constexpr Heading kPredictStep = {{"step", "一步"}, {"ms", "毫秒"}};
inline constexpr Heading kPredictLimit = {{"limited by", "受限于"}, {"", ""}};

inline constexpr Phrase kPredictColumns = {
    "Times are ms of a worker's mean step. range: contains at least 9 of 10 published runs that were "
    "withheld from "
    "the fit. It is wider if extrapolated: links 10% slower with twice the latency to 10% faster with half "
    "of it. limited by: the resource that is busy most of the time, and its share.",
    "时间为 worker 平均一步的毫秒数。范围：至少包含拟合时留出的已发表结果的十分之九。"
    "外推时更宽：链路慢 10% 且延迟加倍，至快 10% 且延迟减半。受限于：忙碌时间最长的资源及其忙碌的比例。"};
// What a step is limited by.
inline constexpr Phrase kLimits[] = {{"computing", "计算"},          {"latency", "延迟"},
                                     {"node links", "节点链路"},     {"links inside", "节点内链路"},
                                     {"server links", "服务器链路"}, {"worker links", "worker 链路"},
                                     {"fabric", "交换网"},           {"adding", "相加"},
                                     {"server adds", "服务器相加"}};
inline constexpr Phrase kTheoryMethod = {", theory", "，理论"};

inline constexpr Phrase kFastestWith = {"$0 is fastest with $1 workers", "$1 个 worker 时 $0 最快"};
inline constexpr Phrase kFastestFrom = {"$0 from $1 on", "$1 个起 $0"};
inline constexpr Phrase kNoCrossover = {
    "Crossover in workers: none; $0 is fastest for every requested number of workers.",
    "随 worker 数变化的转折点：无；所有给定的 worker 数下都是 $0 最快。"};
inline constexpr Phrase kCrossover = {"Crossover in workers: $0.", "随 worker 数变化的转折点：$0。"};
inline constexpr Phrase kSizeAt = {"$0 at $1", "$1 时 $0"};
inline constexpr Phrase kSizeFrom = {"$0 from $1 on", "$1 起 $0"};
inline constexpr Phrase kSizeCrossover = {
    "Crossover in size for one exchange with $0 workers, without computation: the fastest is $1.",
    "随大小变化的转折点（$0 个 worker 的一次交换，同时不计算），最快的是：$1。"};
inline constexpr Phrase kServersWith = {"$0 with $1 workers", "$1 个 worker 需 $0 台"};
inline constexpr Phrase kServersNone = {"no number of servers suffices with $0 workers",
                                        "$0 个 worker 时多少台都不够"};
inline constexpr Phrase kServersNoneOfThem = {"no number suffices with $0 workers",
                                              "$0 个 worker 时多少台都不够"};
inline constexpr Phrase kServersToMatch = {
    "Number of servers ($0) with which ps-sync is at least as fast as $1: $2.$3",
    "使 ps-sync 不慢于 $1 的服务器数（$0）：$2。$3"};
inline constexpr Phrase kSharedLink = {
    " All servers share rank 0's link; with --server_placement dedicated or colocated each has its own.",
    "所有服务器共用 rank 0 的链路；--server_placement dedicated 或 colocated 时每台有自己的链路。"};
inline constexpr Phrase kBesideOneWorker = {
    "The servers are on worker 0's machine (--server_placement rank0), so its exchange uses no link.",
    "服务器在 worker 0 的机器上（--server_placement rank0），因此它的交换不用链路。"};
inline constexpr Phrase kDroppedOne = {"$0% with $1", "$1 为 $0%"};
inline constexpr Phrase kDropped = {
    "Gradients that are dropped because they arrive too late, with $0 workers: $1. "
    "They do not count in samples/s.",
    "$0 个 worker 时因到得太迟而丢弃的梯度：$1。它们不计入每秒样本数。"};

inline constexpr Phrase kNoVerdict = {
    "Verdict: none. A verdict needs two strategies that communicate and at least two workers.",
    "结论：无。至少要有两种会通信的策略和两个 worker。"};
// The verdict is kVerdictHead, then kVerdictOneProcess or kVerdictOneProcessLevel if the workers are not
// shown to be faster than one, then one of the next three.
inline constexpr Phrase kVerdictHead = {"Verdict (simulated): ", "结论（模拟）："};
// $0 workers, $1 the fastest strategy, $2 the factor.
inline constexpr Phrase kVerdictOneProcess = {
    "use one process: $0 workers with the fastest strategy, $1, reach only $2 times its samples/s. "
    "If you distribute the model anyway: ",
    "请只用一个进程：$0 个 worker 用最快的策略（$1），每秒样本数也只有它的 $2 倍。如果仍要分布式训练："};
inline constexpr Phrase kVerdictOneProcessLevel = {
    "use one process: $0 workers are not shown to be faster; with the fastest strategy, $1, they reach $2 "
    "times its samples/s. If you distribute the model anyway: ",
    "请只用一个进程：$0 个 worker 未显示出更快；用最快的策略（$1），每秒样本数是它的 $2 "
    "倍。如果仍要分布式训练："};
inline constexpr Phrase kVerdictEven = {
    "no difference is shown between $0 and $1 with $2 workers: factor $3.",
    "$2 个 worker 时，$0 与 $1 未显示出差别：倍数 $3。"};
inline constexpr Phrase kVerdictWins = {"$0 is fastest with $1 workers, $2 times as fast as $3.",
                                        "$1 个 worker 时 $0 最快，速度为 $3 的 $2 倍。"};
// After kVerdictWins.
inline constexpr Phrase kVerdictAsynchronous = {
    " $0 updates the weights with late gradients: compare accuracy, too, with psring compare.",
    "$0 用迟到的梯度更新权重：请再用 psring compare 比较准确率。"};
inline constexpr Phrase kOneGpu = {
    "psring: note: this machine has one GPU, so single and none are measured on it, "
    "and more GPUs are simulated from its times per layer (to share the GPU: --device cuda --oversubscribe; "
    "to compare on CPUs: --device cpu)",
    "psring: 说明：本机只有一块 GPU，在其上实测 single 与 none，更多 GPU "
    "的结果由各层的时间模拟（共用这块 GPU：--device cuda --oversubscribe；在 CPU 上比较：--device cpu）"};
inline constexpr Phrase kBeyondOneGpu = {
    "\nMore GPUs like this one ($0), *simulated* from the times in $1/workload.csv:\n",
    "\n更多同样的 GPU（$0），由 $1/workload.csv 中的时间*模拟*：\n"};
inline constexpr Phrase kPredictAllOfIt = {
    "results: $0/report.html, and in the same folder summary.csv, summary.json, predict.txt, manifest.json\n"
    "repeat: $1 predict --config $0/config.toml",
    "全部结果：$0/report.html，同一目录下还有 summary.csv、summary.json、predict.txt、manifest.json\n"
    "重复运行：$1 predict --config $0/config.toml"};

}  // namespace psring
