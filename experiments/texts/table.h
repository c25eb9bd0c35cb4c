// The table of `compare` and `train`: two-line headings, and the legend.
#pragma once

#include "experiments/texts/phrase.h"

namespace psring {

struct Heading {
  Phrase first, second;
};

inline constexpr Heading kHeadStrategy = {{"", ""}, {"strategy", "策略"}};
inline constexpr Heading kHeadWorkers = {{"wor-", "worker"}, {"kers", "数"}};
inline constexpr Heading kHeadServers = {{"ser-", "服务"}, {"vers", "器数"}};
inline constexpr Heading kHeadSamples = {{"samples", "样本"}, {"/s", "/秒"}};
inline constexpr Heading kHeadTokens = {{"tokens", "token"}, {"/s", "/秒"}};
inline constexpr Heading kHeadInterval = {{"95%", "95%"}, {"interval", "区间"}};
inline constexpr Heading kHeadSpeedup = {{"speed-", "加速"}, {"up", "比"}};
inline constexpr Heading kHeadStep = {{"step", "一步"}, {"ms", "毫秒"}};
inline constexpr Heading kHeadSimulated = {{"simu-", "模拟"}, {"lated", "毫秒"}};
inline constexpr Heading kHeadOff = {{"off", "偏差"}, {"%", "%"}};
inline constexpr Heading kHeadAgainst = {{"against", "相对"}, {"none", "none"}};
inline constexpr Heading kHeadCompute = {{"com-", "计算"}, {"pute", ""}};
inline constexpr Heading kHeadExposed = {{"ex-", "暴露"}, {"posed", "通信"}};
inline constexpr Heading kHeadBusy = {{"comm.", "通信"}, {"busy", ""}};
inline constexpr Heading kHeadWait = {{"of it", "其中"}, {"wait", "等待"}};
inline constexpr Heading kHeadTheory = {{"comm.", "通信"}, {"theory", "理论"}};
inline constexpr Heading kHeadSent = {{"MB", "发送"}, {"sent", "MB"}};
inline constexpr Heading kHeadSentTheory = {{"MB", "理论"}, {"theory", "MB"}};
inline constexpr Heading kHeadStale = {{"stale", "平均"}, {"mean", "陈旧度"}};
inline constexpr Heading kHeadDropped = {{"drop-", "丢弃"}, {"ped %", "%"}};
inline constexpr Heading kHeadAccuracy = {{"test", "测试"}, {"acc.", "准确率"}};
inline constexpr Heading kHeadRate = {{"best", "最佳"}, {"lr", "学习率"}};
inline constexpr Heading kHeadPerPush = {{"workers", "每次"}, {"/push", "推送"}};
inline constexpr Heading kHeadWire = {{"", ""}, {"wire", "传输"}};
inline constexpr Heading kHeadTarget = {{"target", "达标"}, {"s", "秒"}};

// The short table, without abbreviations.
inline constexpr Heading kShortWorkers = {{"", ""}, {"workers", "worker 数"}};
inline constexpr Heading kShortSamples = {{"samples", "每秒"}, {"per second", "样本数"}};
inline constexpr Heading kShortTokens = {{"tokens", "每秒"}, {"per second", "token 数"}};
inline constexpr Heading kShortInterval = {{"95%", "95%"}, {"interval", "区间"}};
inline constexpr Heading kShortEfficiency = {{"scaling", "扩展"}, {"efficiency", "效率"}};
inline constexpr Heading kShortExposed = {{"exposed,", "暴露通信"}, {"ms", "毫秒"}};
inline constexpr Heading kShortHidden = {{"hidden,", "隐藏通信"}, {"ms", "毫秒"}};
inline constexpr Heading kShortAccuracy = {{"test", "测试"}, {"accuracy", "准确率"}};
inline constexpr Phrase kMeasuredWord = {"measured", "测量"};
inline constexpr Phrase kDerivedWord = {"derived", "推导"};
inline constexpr Phrase kSimulatedWord = {"simulated", "模拟"};
// Below every table.
inline constexpr Phrase kBasis = {
    "Measured: by a clock or a counter. Derived: computed from measured values. $0",
    "测量：来自时钟或计数器。推导：由测量值算出。$0"};
inline constexpr Phrase kNothingSimulated = {"Nothing is simulated.", "没有模拟值。"};
inline constexpr Phrase kSimulatedElsewhere = {
    "Nothing in this table is simulated; the simulated steps (--predict) are in report.html and "
    "residuals.csv.",
    "此表没有模拟值；模拟的一步时间（--predict）见 report.html 与 residuals.csv。"};
inline constexpr Phrase kBySimulator = {"Simulated: by psring's simulator (--predict).",
                                        "模拟：由 psring 的模拟器得出（--predict）。"};
// $0 how.
inline constexpr Phrase kSimulatedBasis = {
    "Measured: by a clock or a counter. Simulated: $0. Derived: computed from measured and simulated values.",
    "测量：来自时钟或计数器。模拟：$0。推导：由测量值与模拟值算出。"};
inline constexpr Phrase kByVirtualClock = {"times of the virtual clock", "虚拟时钟的时间"};
// $0: the factor of --scale.
inline constexpr Phrase kBySlowing = {
    "measured with links and computing $0 times slower, then divided by $0 (--scale)",
    "在链路与计算都慢 $0 倍时测得，再除以 $0（--scale）"};
inline constexpr Phrase kShortColumns = {
    "Scaling efficiency: the speed over that of a single worker, divided by the number of workers. "
    "Exposed: communication of a step that computing does not hide; hidden: the rest.",
    "扩展效率：与单个 worker 的速度之比，再除以 worker 数。"
    "暴露通信：一步中没有被计算掩盖的通信；其余为隐藏通信。"};

// The line above the table. $0 the model, $1 parameters, $2 MB.
inline constexpr Phrase kModelLine = {"Model: $0, $1 parameters ($2 MB of float32 gradients).",
                                      "模型：$0，$1 个参数（float32 梯度 $2 MB）。"};
inline constexpr Phrase kModelWithTablesLine = {
    "Model: $0, with tables, of which a step exchanges only the rows that it touches, and $1 other "
    "parameters "
    "($2 MB of float32 gradients).",
    "模型：$0，其中的表每步只交换用到的行；此外有 $1 个参数（float32 梯度 $2 MB）。"};
inline constexpr Phrase kNoneRow = {"none: the same workers without communication.",
                                    "none：同样的 worker，但不通信。"};

inline constexpr Phrase kHeadNote = {"note", "备注"};

// $0 the unit (unit.h).
inline constexpr Phrase kMarks = {
    "m measured, d derived. $0/s and step are geometric means over rounds, "
    "with a 95% interval by Student's t. Times are ms per step.",
    "m 测量，d 推导。$0/秒与一步为各轮的几何平均，95% 区间用学生 t 分布。时间为每步毫秒数。"};
inline constexpr Phrase kMarksSimulated = {
    "m measured, d derived, s simulated. $0/s and step are geometric means over rounds, "
    "with a 95% interval by Student's t. Times are ms per step.",
    "m 测量，d 推导，s 模拟。$0/秒与一步为各轮的几何平均，95% 区间用学生 t 分布。时间为每步毫秒数。"};
// Lines below a row: classes of its workers. $0 workers, $1 their part of the samples in %.
inline constexpr Phrase kThisWorker = {"- worker $0: $1%", "- worker $0：$1%"};
inline constexpr Phrase kTheseWorkers = {"- workers $0: $1%", "- worker $0：$1%"};
inline constexpr Phrase kOtherWorkers = {"- others: $1%", "- 其余：$1%"};
inline constexpr Phrase kClassLines = {
    "Lines that begin with -: workers with unequal shares of the samples; times are means of these workers.",
    "以 - 开头的行：样本份额不等的 worker；时间为这些 worker 的平均。"};
// What a batch has. $1 of the next two.
inline constexpr Phrase kBatchSamples = {"samples", "个样本"};
inline constexpr Phrase kBatchTexts = {"texts", "段文本"};
inline constexpr Phrase kWeakScaling = {"Weak scaling (--batch): every worker computes $0 $1 per step.",
                                        "弱扩展（--batch）：每个 worker 每步计算 $0 $1。"};
inline constexpr Phrase kStrongScaling = {
    "Strong scaling (--global_batch): the workers share $0 $1 per step.",
    "强扩展（--global_batch）：所有 worker 每步分摊 $0 $1。"};
inline constexpr Phrase kPredictedColumns = {
    "simulated: the step that psring predict computes for this configuration; "
    "off: how much longer the measured step is.",
    "模拟：psring predict 为同一配置给出的一步时间；偏差：实测比它长多少。"};
inline constexpr Phrase kColumnsSimulated = {
    "exposed: communication that is not hidden behind computation. "
    "MB: payload that a worker sends per step, in 10^6 bytes.",
    "暴露通信：没有被计算掩盖的通信。MB：每个 worker 每步发送的数据，单位 10^6 字节。"};
inline constexpr Phrase kColumns = {
    "against none: the step minus a step of the same rounds without communication. "
    "exposed: communication that is not hidden behind computation. "
    "theory: an exchange of the actual buckets, mean over workers, at the speeds measured at the start, "
    "without processor time. MB: payload that a worker sends per step, in 10^6 bytes.",
    "相对 none：一步的时间减去同一轮中完全不通信的一步。暴露通信：没有被计算掩盖的通信。"
    "理论：按开始时测得的速度和实际的分桶计算一次交换，取各 worker 的平均，不计处理器时间。"
    "MB：每个 worker 每步发送的数据，单位 10^6 字节。"};
inline constexpr Phrase kRowsColumn = {
    "Communication, theory and MB include the rows of tables that a step touched.",
    "通信、理论与 MB 包括一步用到的表中的行。"};
inline constexpr Phrase kTargetColumn = {
    "target: seconds of training until the first evaluation with a test accuracy of $0; "
    "empty if a training did not reach it.",
    "达标：训练到首次评估达到测试准确率 $0 所用的秒数；没有达到则为空。"};
inline constexpr Phrase kRateColumn = {
    "best lr: of $0 learning rates tried for the row (rates.csv), the one with the highest accuracy on $1 "
    "held-out samples.",
    "最佳学习率：该行试过的 $0 个学习率（rates.csv）中，在 $1 个留出样本上准确率最高者。"};
inline constexpr Phrase kPerPushColumn = {
    "workers/push: --local_aggregation; so many workers of a machine add up their gradients and push one "
    "sum.",
    "每次推送的 worker 数：--local_aggregation，一台机器上这么多 worker 先把梯度相加，再推送一次。"};
inline constexpr Phrase kOversubscribed = {
    "* oversubscribed: more workers than cores, so computing takes longer than on machines of their own.",
    "* 核数不足：worker 数多于核数，因此计算比每个 worker 独占一台机器时慢。"};
inline constexpr Phrase kNotValid = {
    "! not valid: other programs used too much of the processors, or ranks shared a GPU; "
    "see the note in summary.csv.",
    "! 无效：期间其他程序占用处理器过多，或多个 rank 共用 GPU；见 summary.csv 的 note 列。"};

}  // namespace psring
