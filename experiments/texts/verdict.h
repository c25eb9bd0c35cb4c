// The first sentences that `compare` prints: which strategy to use, and why.
#pragma once

#include "experiments/texts/phrase.h"

namespace psring {

// $0 the strategy or strategies, $1 the factor, $2 the next best, $3 workers, $4 the network, $5 the reason.
inline constexpr Phrase kVerdictUse = {"Use $0: $1 times as fast as $2 with $3 workers on $4$5.",
                                       "请用 $0：在 $4上 $3 个 worker 时，速度是 $2 的 $1倍$5。"};
// If one process is as fast as the workers, or faster; the first sentence is then one of the next two.
// $0 its samples/s, $1 workers, $2 the network, $3 the samples/s of the workers, $4 kFastestStrategy, $5 the
// unit (unit.h).
inline constexpr Phrase kUseOneProcess = {
    "Use one process: it processes $0 $5/s, but $1 workers on $2 process only $3 with $4.",
    "请只用一个进程：它每秒处理 $0 个$5，而在 $2上 $1 个 worker 用$4也只有 $3 个。"};
// $0 the factor and its interval, $1 workers, $2 the network, $3 kFastestStrategy, $4 the unit.
inline constexpr Phrase kUseOneProcessLevel = {
    "Use one process: $1 workers on $2 are not shown to be faster; with $3, they process $0 times its "
    "$4/s.",
    "请只用一个进程：在 $2上 $1 个 worker 未显示出更快；用$3时，每秒$4数是它的 $0倍。"};
inline constexpr Phrase kFastestStrategy = {"the fastest strategy, $0", "最快的策略 $0 "};
// If others, which drop gradients or use stale ones, were compared, too.
inline constexpr Phrase kFastestStrategyOfItsKind = {"the fastest synchronous strategy, $0",
                                                     "最快的同步策略 $0 "};
// As kVerdictUse, after kUseOneProcess.
inline constexpr Phrase kVerdictUseAnyway = {
    "If you distribute the model anyway, use $0: $1 times as fast as $2 with $3 workers$4.",
    "如果仍要分布式训练，请用 $0：$3 个 worker 时，速度是 $2 的 $1倍$4。"};
// $0 more workers than those of the recommendation, $1 the fastest strategy with them, $2 its samples/s, $3
// the samples/s of the recommendation, $4 the unit.
inline constexpr Phrase kMoreWorkersAreSlower = {
    "More workers are slower: $0 process $2 $4/s with $1, instead of $3.",
    "worker 更多反而更慢：$0 个 worker 用 $1 每秒处理 $2 个$4，而不是 $3 个。"};
inline constexpr Phrase kVerdictOr = {" or ", " 或 "};
inline constexpr Phrase kVerdictLevel = {" No difference between $0 is shown.", "$0 之间未显示出差别。"};

// $0 gradients, $1 the slower way, $2 gradients, $3 the faster way.
inline constexpr Phrase kBecauseLink = {
    ", because the busiest link carries $0 gradients one after another with $1, and $2 with $3",
    "，因为最忙的链路依次承载 $0 份梯度（$1），而 $3 只有 $2 份"};
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
                                        "在 $2上 $1 个 worker 时，$0 中没有哪个显示出更快：$3。"};
inline constexpr Phrase kOneRoundOnly = {"one round gives no interval; run at least three (--repeats)",
                                         "只有一轮，没有区间；请至少运行三轮（--repeats）"};
inline constexpr Phrase kTooUncertain = {
    "the differences are below 2% or too uncertain for $0; a longer --time_budget gives narrower intervals",
    "差别小于 2%，或 $0 不足以确定；更长的 --time_budget 使区间更窄"};
inline constexpr Phrase kVerdictOversubscribed = {
    "No strategy is named: the workers share this machine's cores, and no link limits the step, so their "
    "times do not apply to machines with one core per worker.",
    "不推荐策略：各 worker 共用本机的核，一步的时间又不受链路限制，因此这些时间不能推广到每个 worker "
    "各有一核的机器。"};

// $0 samples/s of one process, $1 factor, $2 strategy, $3 the unit.
inline constexpr Phrase kSpeedupOverSingle = {"$2 is $1 times as fast as one process ($0 $3/s).",
                                              "$2 的速度是一个进程（每秒 $0 个$3）的 $1倍。"};
// $0 link rate or range, $1 workers, $2 kOneCoreEach if they were oversubscribed, $3 kFromInterval if a
// range.
inline constexpr Phrase kDistributeFrom = {
    "Distribute this model only on links of at least $0 with $1 workers$2 (derived$3).",
    "$1 个 worker $2时，链路达到 $0（推导$3）才值得对该模型做分布式训练。"};
inline constexpr Phrase kOneCoreEach = {", one core each", "各有一核"};
inline constexpr Phrase kFromInterval = {" from the 95% interval of single", "，由 single 的 95% 区间得出"};
// If one process may be so fast that no rate suffices. $0 the lowest rate.
inline constexpr Phrase kIfAtAll = {"$0, if at all,", "$0（也可能任何速率都不够）"};

// $0 workers.
inline constexpr Phrase kNoRateSuffices = {
    "Faster links would not change this here: even without communication (none), $0 workers are not faster "
    "than one process.",
    "在这里更快的链路也无济于事：即使不通信（none），$0 个 worker 也不比一个进程快。"};

inline constexpr Phrase kOneProcess = {"one process", "一个进程"};
// $0 the asynchronous strategy, $1 the factor and its interval, $2 the best synchronous one, or kOneProcess,
// $3 kSeeAccuracy or kCompareAccuracy.
inline constexpr Phrase kAsynchronousIsFaster = {
    "$0 is $1 times as fast as $2, but its gradients are late: $3.",
    "$0 的速度是 $2 的 $1倍，但它的梯度是迟到的：$3。"};
// $0 its accuracy, $1 the best synchronous strategy, $2 its accuracy, $3 workers, $4 kOneSeed or kSeeds.
inline constexpr Phrase kSeeAccuracy = {"see its accuracy ($0, $1 $2; $3 workers, $4)",
                                        "请看其准确率（$0，$1 为 $2；$3 个 worker，$4）"};
inline constexpr Phrase kCompareAccuracy = {"compare accuracy, too", "请同时比较准确率"};
inline constexpr Phrase kVerdictSimulated = {"Times are simulated.", "时间为模拟值。"};
inline constexpr Phrase kVerdictDisturbed = {"Not valid: other programs disturbed the rows marked !.",
                                             "无效：其他程序干扰了标有 ! 的行。"};

inline constexpr Phrase kGigabits = {"$0 Gbit/s", "$0 Gbit/s"};
inline constexpr Phrase kMegabits = {"$0 Mbit/s", "$0 Mbit/s"};

}  // namespace psring
