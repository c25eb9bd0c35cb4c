// Output of `compare` and `train` before and while they run.
#pragma once

#include "experiments/texts/phrase.h"

namespace psring {

// Lines begin with a label of 11 columns.
inline constexpr Phrase kNoteLine = {"note:      ", "说明：     "};
inline constexpr Phrase kTrainingsLine = {"trainings: $0 of each in simulated time, about $1",
                                          "训练：     模拟时间，各 $0 次，约 $1"};
inline constexpr Phrase kCostLine = {
    "cost:      $0 of $1 launches, $2 + $3 steps each (warm-up + measured), about $4",
    "代价：     $0，每轮 $1 次启动，每次 $2 + $3 步（预热 + 测量），约 $4"};
inline constexpr Phrase kAccuracyLine = {"accuracy:  $0 of $1 over all workers, about $2",
                                         "准确率：   $0，所有 worker 共 $1，约 $2"};
inline constexpr Phrase kOneTraining = {"1 training", "1 次训练"};
inline constexpr Phrase kTrainings = {"$0 trainings", "$0 次训练"};
inline constexpr Phrase kSamplesBudget = {"$0 $1", "$0 个$1"};
inline constexpr Phrase kEpochsBudget = {"$0 epochs", "$0 个 epoch"};
inline constexpr Phrase kExpectedLine = {"expected:  $0", "预计：     $0"};
inline constexpr Phrase kTrainingLine = {"training:  $0, $1 on $2, $3, lr $4, expected $5",
                                         "训练：     $0，$1，数据 $2，$3，lr $4，预计 $5"};
inline constexpr Phrase kReplayLine = {"training:  $0, $1, expected $2", "训练：     $0，$1，预计 $2"};
inline constexpr Phrase kNetworkBetween = {
    "network:   between the machines: latency $0 us, one pair at a time $1 Mbit/s, all at once $2 Mbit/s",
    "网络：     机器之间：延迟 $0 微秒，每次一对 $1 Mbit/s，全部同时 $2 Mbit/s"};
inline constexpr Phrase kNetworkLine = {"network:   $0", "网络：     $0"};
inline constexpr Phrase kDisturbed = {
    "other programs used $1% of the processors during $0; psring repeats it",
    "$0 运行期间其他程序占用了 $1% 的处理器；将重跑该项"};
inline constexpr Phrase kStartQuestion = {"start it, about $0? [y/N] ", "要开始吗（约 $0）？[y/N] "};
inline constexpr Phrase kYesWords = {"y,yes", "y,yes,是"};  // the answers that are accepted in both languages
inline constexpr Phrase kOtherPsring = {"another psring (process $0) is running; times will not be valid",
                                        "另一个 psring（进程 $0）正在运行；时间将无效"};
inline constexpr Phrase kLinkText = {"$0 links", "$0 链路"};
inline constexpr Phrase kLinkUnlimited = {"links without a limit", "不限速的链路"};
inline constexpr Phrase kLinkLatency = {" with $0 ms of latency", "、延迟 $0 毫秒"};
inline constexpr Phrase kLinkNamespaces = {" between network namespaces of this machine",
                                           "，在本机的网络命名空间之间"};
inline constexpr Phrase kLinkTransports = {", limited by psring's own transports on this machine",
                                           "，在本机上由 psring 自己的传输层限速"};
inline constexpr Phrase kLinkScale = {", at 1/$0 of the speed", "，以 1/$0 的速度运行"};
inline constexpr Phrase kLoopbackText = {"this machine's loopback", "本机回环接口"};

// Notes while processes run.
inline constexpr Phrase kProcessRestarts = {"$0; it is restarted and continues", "$0；将重新启动并继续"};
inline constexpr Phrase kOthersContinue = {"$0; the others continue", "$0；其他进程继续"};
inline constexpr Phrase kEndedLost = {"$0 no longer responded: the others ended the job without it",
                                      "$0 不再响应：其他进程已在没有它的情况下完成任务"};
inline constexpr Phrase kEndedAfterAll = {"$0 after all ranks had ended", "$0，此时所有 rank 均已结束"};
inline constexpr Phrase kJobRestarts = {"all ranks are restarted from $0; $1",
                                        "所有 rank 从 $0 重新启动；$1"};
inline constexpr Phrase kTheBeginning = {"the beginning", "起点"};
inline constexpr Phrase kOneRestartLeft = {"1 restart is left", "还可重启 1 次"};
inline constexpr Phrase kRestartsLeft = {"$0 restarts are left", "还可重启 $0 次"};
inline constexpr Phrase kIgnored = {"ignored $0: $1", "忽略 $0：$1"};
inline constexpr Phrase kNodeRestarts = {"$0; node 0 restarts the launch", "$0；节点 0 将重新启动这次运行"};
inline constexpr Phrase kNoNamespaces = {
    "no network namespaces, so psring's own transports limit the rate: $0",
    "没有网络命名空间，由 psring 自己的传输层限速：$0"};
inline constexpr Phrase kLinksNotMeasured = {
    "--dry_run does not measure whether this machine carries these links; the run does",
    "--dry_run 不测量本机能否承载这些链路；运行时才测量"};
inline constexpr Phrase kNoVirtualCluster = {"no virtual cluster: $0", "没有虚拟集群：$0"};
inline constexpr Phrase kNetworkNotMeasured = {
    "no predictions: the network between the machines was not measured", "没有预测：没有测量机器之间的网络"};
inline constexpr Phrase kNoPredictions = {"no predictions: $0", "没有预测：$0"};

// Notes of a plan.
inline constexpr Phrase kOnMachines = {"on $0 machines: $1", "在 $0 台机器上：$1"};
inline constexpr Phrase kFewGpus = {
    "$0 are fewer than the workers, so all run on the CPU; to share GPUs, use --device cuda --oversubscribe",
    "$0 少于 worker 数，因此全部在 CPU 上运行；要共用 GPU，请用 --device cuda --oversubscribe"};
inline constexpr Phrase kOneGpuHere = {"1 GPU", "1 块 GPU"};
inline constexpr Phrase kGpusHere = {"$0 GPUs", "$0 块 GPU"};
inline constexpr Phrase kNoteOnErrors = {"note: $0", "说明：$0"};
inline constexpr Phrase kPlanOf = {"rounds, steps and samples are those of $0", "轮数、步数与样本数取自 $0"};
inline constexpr Phrase kComputingAsOf = {"$0: computing times as measured for $1",
                                          "$0：计算时间取自 $1 的测量"};
inline constexpr Phrase kExchangesAsOf = {"$0: exchange times as measured for $1",
                                          "$0：交换时间取自 $1 的测量"};
inline constexpr Phrase kReferencesAdded = {
    "$0 added: speed-up is relative to single, cost is relative to none",
    "已加入 $0：加速比以 single 为准，代价以 none 为准"};
inline constexpr Phrase kSingleAdded = {"single added: speed-up is relative to it",
                                        "已加入 single：加速比以它为准"};
inline constexpr Phrase kOversubscribedNote = {
    "$0 workers share $1 $2 (oversubscribed): their speeds are compared, but the table gives no speed-up "
    "or scaling efficiency for them",
    "$0 个 worker 共用 $1 个核（核数不足）：会比较它们的速度，但表中不给出加速比与扩展效率"};
inline constexpr Phrase kOversubscribedTraining = {"$0 workers share $1 $2 (oversubscribed)",
                                                   "$0 个 worker 共用 $1 个核（核数不足）"};
inline constexpr Phrase kOverBudget = {
    "this takes longer than --time_budget (2m by default), because the given settings are kept and at "
    "least three rounds are run",
    "这将超过 --time_budget（默认 2m），因为指定的设置不变，且至少运行三轮"};
inline constexpr Phrase kOverBudgetSimulated = {
    "this takes longer than --time_budget, because the given settings are kept",
    "这将超过 --time_budget，因为指定的设置不变"};
inline constexpr Phrase kShortened = {
    "shortened to fit into --time_budget $0: $1 of $2 measured steps; "
    "a longer budget gives narrower intervals",
    "为符合 --time_budget $0 已缩短：$1，每次 $2 个测量步；预算更长则区间更窄"};
inline constexpr Phrase kShortenedWithoutAccuracy = {
    "shortened to fit into --time_budget $0: $1 of $2 measured steps, no accuracy trainings; "
    "a longer budget adds them",
    "为符合 --time_budget $0 已缩短：$1，每次 $2 个测量步，不做准确率训练；预算更长则会加上"};
inline constexpr Phrase kClippingNote = {
    "--clip_norm: a server needs the entire gradient before it updates, "
    "so no weights return during the backward pass",
    "--clip_norm：服务器要收齐整个梯度才更新并回复，因此反向传播期间不会有任何桶的权重返回"};
inline constexpr Phrase kClocksAgree = {"the machines' clocks agree within $0 ms",
                                        "各机器的时钟相差不超过 $0 毫秒"};
inline constexpr Phrase kClocksApart = {
    "the machines' clocks agree only within $0 ms, which is too imprecise to determine which rank waited",
    "各机器的时钟相差可达 $0 毫秒，不足以判断哪个 rank 在等待"};
inline constexpr Phrase kLayoutNote = {"each process runs $0 workers as threads",
                                       "一个进程带 $0 个 worker，每个 worker 一个线程"};
inline constexpr Phrase kBesideWorkerNote = {
    "servers are on worker 0's machine (--server_placement rank0), so worker 0 uses no link and is faster "
    "than the "
    "others where workers do not wait for each other",
    "服务器在 worker 0 的机器上（--server_placement rank0），因此 worker 0 不用链路；worker "
    "互不等待时它比其他 worker 快"};
inline constexpr Phrase kUndisturbedReference = {"$0; single, the reference, is undisturbed",
                                                 "$0；作为参照的 single 不受干扰"};
inline constexpr Phrase kStragglerText = {"worker $0 takes $1 times as long to compute",
                                          "worker $0 的计算时间为 $1 倍"};
inline constexpr Phrase kJitterText = {"every step of every worker is delayed by $0 ms ($1 ms on average)",
                                       "每个 worker 的每一步延迟 $0 毫秒（平均 $1 毫秒）"};
inline constexpr Phrase kComputeMeasured = {
    "computing a step takes $0 ms (just measured); set --compute_ms to make times repeatable",
    "一步的计算需 $0 毫秒（刚刚测得）；给出 --compute_ms 可使时间可重复"};

// While it runs, and at the end.
inline constexpr Phrase kSecondsLeft = {", about $0 s left", "，约剩 $0 秒"};
inline constexpr Phrase kMinutesLeft = {", about $0 min left", "，约剩 $0 分钟"};
inline constexpr Phrase kEvaluating = {"evaluating $0 $1", "正在评估 $0 个$1"};
inline constexpr Phrase kRoundLabel = {"round $0/$1  ", "第 $0/$1 轮  "};
inline constexpr Phrase kAccuracyLabel = {"accuracy  ", "准确率  "};
inline constexpr Phrase kSeedLabel = {"seed $0  ", "种子 $0  "};
inline constexpr Phrase kLaunchLine = {"$0$1: $2 $4/s, $3 ms a step", "$0$1：每秒 $2 个$4，每步 $3 毫秒"};
inline constexpr Phrase kLaunchAccuracy = {", test accuracy $0", "，测试准确率 $0"};
inline constexpr Phrase kRoundsCut = {
    "$0 of $1 rounds: another round does not fit into the time budget of $2",
    "完成 $0 轮，计划 $1 轮：时间预算 $2 不足以再进行一轮"};
inline constexpr Phrase kTrainingsCut = {
    "$0 and the trainings after it were not run: another training does not fit into the time budget of $1",
    "未进行 $0 及其后的训练：时间预算 $1 不足以再进行一次训练"};
inline constexpr Phrase kBudgetEnded = {
    "the time budget of $0 ended during a launch; the results include only finished rounds and trainings",
    "时间预算 $0 在一次启动期间用尽；结果为已完成的各轮与各次训练"};
inline constexpr Phrase kTrainingsShortened = {
    "each training uses $0 $3 instead of $1, to fit into the time budget of $2",
    "为符合时间预算 $2，每次训练由 $1 个$3改为 $0 个"};
inline constexpr Phrase kRatesPicked = {
    "learning rates selected on $0 held-out validation samples (all results: rates.csv): $1",
    "在 $0 个不参与训练的验证样本上选定学习率（全部试验见 rates.csv）：$1"};
inline constexpr Phrase kAllOfIt = {"$0; results: $1/report.html, and in the same folder $2",
                                    "$0；全部结果：$1/report.html，同一目录下还有 $2"};
inline constexpr Phrase kMoreFindings = {"$0 findings: $1/$2; all columns: summary.csv",
                                         "$0 条发现：$1/$2；所有列：summary.csv"};
inline constexpr Phrase kContinueLine = {"continue: $0 compare --resume $1",
                                         "继续运行：$0 compare --resume $1"};
inline constexpr Phrase kResumed = {"resumed after $0 of $1 and $2 accuracy trainings",
                                    "在完成 $0（共 $1 轮）与 $2 次准确率训练之后继续"};
inline constexpr Phrase kRepeated = {"$0 is repeated, because its records cannot be read: $1",
                                     "$0 将重做，因为无法读取其记录：$1"};
inline constexpr Phrase kThisRound = {"round $0", "第 $0 轮"};
inline constexpr Phrase kAllRounds = {"every round", "每一轮"};
inline constexpr Phrase kRepeatLine = {"repeat: $0 $1 --config $2/config.toml",
                                       "重复运行：$0 $1 --config $2/config.toml"};

}  // namespace psring
