// Output of `predict` about its calibration.
#pragma once

#include "experiments/texts/phrase.h"

namespace psring {

inline constexpr Phrase kDiffersGpu = {"$0 (calibrated on $1)", "$0（按 $1 校准）"};
inline constexpr Phrase kDiffersOtherDevice = {"a device of no known GPU generation",
                                               "非已知代次 GPU 的设备"};
inline constexpr Phrase kDiffersNetwork = {"$0 (calibrated on $1)", "$0（按 $1 校准）"};
inline constexpr Phrase kDiffersRate = {"machines with $0 (calibrated at $1)", "机器带宽 $0（按 $1 校准）"};
inline constexpr Phrase kDiffersMachines = {"$0 machines (calibrated up to $1)", "$0 台机器（校准到 $1 台）"};
inline constexpr Phrase kDiffersAlgorithm = {"$0 (calibrated on a ring)", "$0（按环校准）"};
inline constexpr Phrase kDiffersAsynchronous = {
    "asynchronous (calibrated on synchronous servers; checked against queueing theory)",
    "异步（按同步服务器校准，与排队论核对）"};
inline constexpr Phrase kDiffersSpare = {"spare workers", "备用 worker"};
inline constexpr Phrase kDiffersPlace = {"another --server_placement", "不同的 --server_placement"};
inline constexpr Phrase kDiffersSchedule = {"another --ps_schedule", "不同的 --ps_schedule"};
inline constexpr Phrase kDiffersLocal = {"no --local_aggregation", "没有 --local_aggregation"};
inline constexpr Phrase kDiffersServers = {"servers: $0 for $1 machines (calibrated with one per machine)",
                                           "$1 台机器 $0 台服务器（按服务器与机器同样多校准）"};
inline constexpr Phrase kDiffersFabric = {"an oversubscribed fabric", "有收敛的网络"};

inline constexpr Phrase kCalibratedInside = {
    "$0: calibrated on $1 ($2, $3, up to $4 GPUs). Constants used: $5.",
    "$0：按 $1 校准（$2，$3，最多 $4 块 GPU），取 $5。"};
inline constexpr Phrase kCalibratedOutside = {
    "$0: extrapolated. The nearest calibrated system is $1 ($2, $3, up to $4 GPUs); constants used: $5. "
    "Outside its range: $6.",
    "$0：外推。最近的已校准系统为 $1（$2，$3，最多 $4 块 GPU），取其 $5。超出其范围：$6。"};
inline constexpr Phrase kCalibratedNothing = {"nothing", "无"};
inline constexpr Phrase kNotCalibrated = {
    "--system none: no constants of a calibrated system are used. "
    "The ranges are valid only for calibrated systems.",
    "--system none：未使用任何已校准系统的常数。所列范围只适用于已校准的系统。"};
inline constexpr Phrase kSlowestMachine = {
    "Synchronous steps with $0 workers wait for the slowest machine: computing takes $1 times its mean. "
    "Asynchronous workers do not wait.",
    "$0 个 worker 的同步一步要等最慢的机器：计算为平均值的 $1 倍。异步 worker 不等待。"};
inline constexpr Phrase kCpuWorkload = {
    "The layer times were recorded on a CPU ($0). They do not describe a GPU; see --device.",
    "各层时间在 CPU 上记录（$0），不代表 GPU；参见 --device。"};
inline constexpr Phrase kLocalMissing = {
    "Each of a machine's $0 GPUs pushes its own gradient. "
    "BytePS, MXNet and TensorFlow add them on the machine first: --local_aggregation.",
    "每台机器的 $0 块 GPU 各自推送梯度。BytePS、MXNet 与 TensorFlow 先在机器内相加：--local_aggregation。"};
inline constexpr Phrase kVerdictOverlaps = {
    "no winner between $0 and $1 with $2 workers: factor $3; at least one is extrapolated, and their ranges "
    "overlap.",
    "$2 个 worker 时，$0 与 $1 无法分出胜负：倍数 $3；其中有外推，且范围重叠。"};

}  // namespace psring
