// The findings about waiting, and about the difference between measurement and simulation.
#pragma once

#include "experiments/texts/phrase.h"

namespace psring {

// Waiting.
inline constexpr Phrase kSamplesPerSecond = {"$0 $1 $2/s", "$0 每秒 $1 个$2"};
inline constexpr Phrase kWaitsShare = {", each worker waits $0% of its time for others",
                                       "，每个 worker 有 $0% 的时间在等待其他 worker"};
inline constexpr Phrase kLate = {"$0: mean $1; by worker ($2): $3", "$0：平均 $1；各 worker（$2）：$3"};
inline constexpr Phrase kLateByRates = {
    " (in parentheses the theory: the sum of the other workers' rates divided by the worker's own rate)",
    "（括号内为理论值：其他 worker 的速率之和除以该 worker 的速率）"};
inline constexpr Phrase kAgainst = {"$0 reaches $1 times the $3/s of $2", "$0 的每秒$3数是 $2 的 $1 倍"};
inline constexpr Phrase kAgainstAccuracy = {", test accuracy $0 versus $1", "，测试准确率 $0 对 $1"};
inline constexpr Phrase kAgainstRule = {" (with $0, lr $1, versus $2, lr $3)",
                                        "（$0、学习率 $1，对 $2、学习率 $3）"};
inline constexpr Phrase kAgainstDropped = {", $0% of the gradients dropped", "，$0% 的梯度被丢弃"};
inline constexpr Phrase kSynchronyCosts = {
    "Cost of synchrony with $0 workers ($1): $2$3. Every step takes as long as that of its slowest worker.",
    "$0 个 worker、$1 时，同步的代价：$2$3。每一步都要等最慢的 worker。"};
inline constexpr Phrase kWithoutCommunication = {"; without communication $0 $1/s",
                                                 "；完全不通信时每秒 $0 个$1"};
inline constexpr Phrase kNotWaiting = {"Effect of not waiting for slow workers, with $0 workers: $1$2",
                                       "$0 个 worker 时，不等待慢 worker 的效果：$1$2"};
inline constexpr Phrase kSentenceEnd = {". ", "。"};
inline constexpr Phrase kLateBy = {"Staleness of the gradients in updates: $0.",
                                   "梯度的陈旧度（更新次数）：$0。"};

// Measurement and prediction.
inline constexpr Phrase kCases = {"$0 cases", "$0 例"};
inline constexpr Phrase kOneCase = {"1 case", "1 例"};
inline constexpr Phrase kAgainstSimulator = {
    "Compared with the simulator ($0): measured steps differ by $1% in the median and $2% at most ($3); "
    "residuals.csv lists the parts.",
    "与模拟器对照（$0）：实测的一步时间偏差的中位数为 $1%，最大 $2%（$3）；各部分见 residuals.csv。"};
inline constexpr Phrase kResidual = {
    "$0: a step took $1 ms, the simulator predicts $2 ms. The difference of $3 ms consists of: $4.",
    "$0：一步实测 $1 毫秒，模拟为 $2 毫秒。相差的 $3 毫秒包括：$4。"};
inline constexpr Phrase kNotPredicted = {"Not predicted: $0.", "未作预测：$0。"};
// In the order of kResidualParts.
inline constexpr Phrase kResidualPartNames[] = {{"computing", "计算"},
                                                {"waiting for a peer", "等待同伴"},
                                                {"updates", "参数更新"},
                                                {"retransmission (at most)", "重传（至多）"},
                                                {"waiting for a processor (at most)", "等待处理器（至多）"},
                                                {"unexplained", "未解释"}};

}  // namespace psring
