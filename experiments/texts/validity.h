// The line on validity, below the verdict: whether its times can be trusted.
#pragma once

#include "experiments/texts/phrase.h"

namespace psring {

inline constexpr Phrase kValid = {"Valid.", "有效。"};
inline constexpr Phrase kLimited = {"Valid with limits.", "有限制地有效。"};
inline constexpr Phrase kOnlySimulated = {"Simulated.", "模拟。"};
inline constexpr Phrase kInvalid = {"Not valid.", "无效。"};
// If only rows are disturbed that the verdict does not use.
inline constexpr Phrase kPartlyValid = {"The answer is valid, but other rows are not.",
                                        "结论有效，但另有一些行无效。"};

// $0 rounds, $1 percent.
inline constexpr Phrase kUndisturbed = {"Rounds: $0. Other programs used at most $1% of the processors.",
                                        "轮数：$0。其他程序最多占用处理器的 $1%。"};
inline constexpr Phrase kUsedRowsUndisturbed = {
    "For the rows that the answer uses, rounds: $0; other programs used at most $1% of the processors.",
    "结论所用的行：轮数 $0，其他程序最多占用处理器的 $1%。"};

// $0 rows in the next ones.
inline constexpr Phrase kRowsShareGpus = {
    "Ranks share a GPU in $0: the run shows that it works, not how fast it is.",
    "$0 的 rank 共用 GPU：这次运行说明能工作，不说明有多快。"};
// $1 percent.
inline constexpr Phrase kRowsDisturbed = {"Other programs used up to $1% of the processors during $0.",
                                          "$0 期间，其他程序占用了多达 $1% 的处理器。"};
// $1 process ID.
inline constexpr Phrase kRowsBesidePsring = {"Another psring (process $1) was running during $0.",
                                             "$0 期间，另一个 psring（进程 $1）也在运行。"};
inline constexpr Phrase kOtherInvalidRows = {"Other rows that are not valid: $0.",
                                             "此外，无效的行还有：$0。"};
// $1 $2 "2 cores".
inline constexpr Phrase kRowsShareCores = {
    "Workers share $1 $2 in $0: their times do not apply to machines with one core per worker.",
    "$0 的 worker 共用 $1 个核：时间不能推广到每个 worker 各有一核的机器。"};

inline constexpr Phrase kUsesInvalidRows = {"The answer uses rows that are not valid.",
                                            "结论用到了无效的行。"};
inline constexpr Phrase kRepeatWhenIdle = {"Repeat the run on an idle machine.",
                                           "请在空闲的机器上重新运行。"};
inline constexpr Phrase kWithoutLinks = {
    "All ranks share one machine without links, so the times do not apply to a network.",
    "所有 rank 共用一台机器，没有链路：时间不适用于网络。"};
inline constexpr Phrase kNoIntervals = {"One round: no intervals.", "只有一轮：没有区间。"};
inline constexpr Phrase kRecordsOfOneLaunch = {
    "One launch: no intervals. Its records do not say where it ran and whether other programs disturbed it.",
    "只有一次启动：没有区间。记录未说明运行地点，也未说明是否受其他程序干扰。"};
// --scale. $0: its factor.
inline constexpr Phrase kSlowed = {"Links and computing ran $0 times slower, and times are divided by $0.",
                                   "链路与计算慢 $0 倍，时间已除以 $0。"};
inline constexpr Phrase kVirtualTimes = {
    "Times come from a virtual clock; the training and its accuracy are real.",
    "时间来自虚拟时钟；训练及其准确率是真实的。"};

}  // namespace psring
