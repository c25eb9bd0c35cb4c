// The first sentences that `compare` prints: which strategy to use, and why.
#pragma once

#include "experiments/texts/phrase.h"

namespace psring {

// $0 the strategy or strategies, $1 the factor, $2 the next best, $3 workers, $4 the network, $5 the reason.
inline constexpr Phrase kVerdictUse = {"Use $0: $1 times as fast as $2 with $3 workers on $4$5.",
                                       "请用 $0：在 $4 上 $3 个 worker 时，速度是 $2 的 $1 倍$5。"};
inline constexpr Phrase kVerdictOr = {" or ", " 或 "};
inline constexpr Phrase kVerdictLevel = {" No difference between $0 is shown.", "$0 之间未显示出差别。"};

inline constexpr Phrase kBecauseOneServer = {", because one server's link carries all workers' gradients",
                                             "，因为一台服务器的链路要承载所有 worker 的梯度"};
inline constexpr Phrase kBecauseTheory = {", because an exchange takes $0 ms in theory, and with $1 $2 ms",
                                          "，因为理论上一次交换需 $0 毫秒，而 $1 需 $2 毫秒"};
inline constexpr Phrase kTheoryDisagrees = {
    "; theory, which excludes processor time, predicts no such difference ($0 ms, and $2 ms with $1)",
    "；不计处理器时间的理论没有预测这一差别（$0 毫秒，$1 为 $2 毫秒）"};
inline constexpr Phrase kOneMachineOnly = {
    "; this compares programs and processor time on one machine, not networks",
    "；这比较的是一台机器上的程序与处理器时间，不是网络"};

// --clock virtual.
inline constexpr Phrase kVirtualNetwork = {"the simulated network", "模拟的网络"};

// $0 strategies, $1 workers, $2 the network, $3 the reason.
inline constexpr Phrase kVerdictNone = {"None of $0 is shown to be faster with $1 workers on $2: $3.",
                                        "在 $2 上 $1 个 worker 时，$0 中没有哪个显示出更快：$3。"};
inline constexpr Phrase kOneRoundOnly = {"one round gives no interval; run at least three (--repeats)",
                                         "只有一轮，没有区间；请至少运行三轮（--repeats）"};
inline constexpr Phrase kTooUncertain = {
    "the differences are below 2% or too uncertain for $0; a longer --time_budget gives narrower intervals",
    "差别小于 2%，或 $0 不足以确定；更长的 --time_budget 使区间更窄"};
inline constexpr Phrase kVerdictCrowded = {
    "No strategy is named: the workers share this machine's cores, and no link limits the step, so their "
    "times do not apply to machines with one core per worker.",
    "不推荐策略：各 worker 共用本机的核，一步的时间又不受链路限制，因此这些时间不能推广到每个 worker "
    "各有一核的机器。"};

// $0 samples/s of one worker, $1 factor, $2 strategy.
inline constexpr Phrase kSpeedupOverSingle = {"$2 is $1 times as fast as a single worker ($0 samples/s).",
                                              "$2 的速度是单个 worker（每秒 $0 个样本）的 $1 倍。"};
// $0 samples/s of one worker, $1 workers, $2 link rate.
inline constexpr Phrase kDistributeFrom = {
    "A single worker gives $0 samples/s, so distribute this model only on links of at least $2 (derived).",
    "单个 worker 每秒 $0 个样本，因此链路达到 $2（推导）才值得分布训练。"};
inline constexpr Phrase kDoNotDistribute = {
    "A single worker gives $0 samples/s, more than these $1 workers together: do not distribute this model "
    "here.",
    "单个 worker 每秒 $0 个样本，多于这 $1 个 worker：在这里不要分布训练该模型。"};

// $0 the asynchronous strategy, $1 factor, $2 the best synchronous one.
inline constexpr Phrase kAsynchronousIsFaster = {
    "$0 is $1 times as fast as $2, but it updates the weights differently: compare accuracy, too.",
    "$0 处理的样本是 $2 的 $1 倍，但更新方式不同：还要比较准确率。"};
inline constexpr Phrase kVerdictSimulated = {"Times are simulated.", "时间为模拟值。"};
inline constexpr Phrase kVerdictDisturbed = {
    "Other programs disturbed the rows marked !; repeat the run on an idle machine.",
    "其他程序干扰了标有 ! 的行；请在空闲的机器上重新运行。"};

inline constexpr Phrase kGigabits = {"$0 Gbit/s", "$0 Gbit/s"};
inline constexpr Phrase kMegabits = {"$0 Mbit/s", "$0 Mbit/s"};

}  // namespace psring
