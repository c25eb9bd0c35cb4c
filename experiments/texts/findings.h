// The findings that `compare` and `train` print below their table.
#pragma once

#include "experiments/texts/phrase.h"

namespace psring {

inline constexpr Phrase kOnServers = {"$0 on $1 servers", "$0（$1 台服务器）"};
// $0 the strategy, $1 workers, $2 %, $3 the unit (unit.h).
inline constexpr Phrase kOneMakesMost = {"$0 (worker $1 makes $2% of the $3)", "$0（worker $1 占 $2% 的$3）"};
inline constexpr Phrase kSomeMakeMost = {"$0 (workers $1 make $2% of the $3)",
                                         "$0（worker $1 共占 $2% 的$3）"};
inline constexpr Phrase kRounds = {"$0 rounds", "$0 轮"};
inline constexpr Phrase kOneRound = {"1 round", "1 轮"};
inline constexpr Phrase kNoInterval = {"one round, so no interval", "只有一轮，没有区间"};
inline constexpr Phrase kInterval = {"95%: $0 to $1, $2", "95% 区间 $0 至 $1，$2"};
inline constexpr Phrase kBetween = {"$0 ($1 to $2)", "$0（$1 至 $2）"};
inline constexpr Phrase kRange = {"$0 to $1", "$0 至 $1"};

// Cost of synchronization and comparison of strategies.
inline constexpr Phrase kCosts = {
    "With $0 workers, a step without communication takes $1 ms. Synchronizing the replicas adds: $2.",
    "$0 个 worker 时，完全不通信的一步需要 $1 毫秒。让各副本保持同步的额外代价：$2。"};
inline constexpr Phrase kCost = {"$0 $1 ms", "$0 $1 毫秒"};
inline constexpr Phrase kPairWins = {"$0 times the $2/s ($1)", "每秒$2数为后者的 $0 倍（$1）"};
inline constexpr Phrase kPairUnclear = {
    "$0 times the $2/s ($1); the difference is too small or too uncertain to name a winner",
    "每秒$2数为后者的 $0 倍（$1）；差别太小或不够确定，不能判定胜者"};
inline constexpr Phrase kPairEven = {"no difference shown (ratio $0, $1)", "未显示出差别（比值 $0，$1）"};
inline constexpr Phrase kPair = {"$0 versus $1 with $2 workers: $3", "$2 个 worker 时 $0 对 $1：$3"};
inline constexpr Phrase kPairsOnLink = {"On $0: $1.", "在 $0 上：$1。"};
// Where servers are, and how they exchange.
inline constexpr Phrase kServerOnRank0 = {"one server on rank 0's host", "一台服务器在 rank 0 的主机上"};
inline constexpr Phrase kServersOnRank0 = {"$0 servers that share rank 0's link",
                                           "$0 台服务器共用 rank 0 的链路"};
inline constexpr Phrase kServerDedicated = {"one dedicated server", "一台独立服务器"};
inline constexpr Phrase kServersDedicated = {"$0 dedicated servers", "$0 台独立服务器"};
inline constexpr Phrase kServerColocated = {"one server on a worker's host",
                                            "一台服务器在某个 worker 的主机上"};
inline constexpr Phrase kServersColocated = {"$0 servers on the workers' hosts",
                                             "$0 台服务器在 worker 的主机上"};
inline constexpr Phrase kPipelinedServer = {"push and pull at the same time", "push 与 pull 同时进行"};
inline constexpr Phrase kSerialServer = {"push, then pull", "先 push 后 pull"};
inline constexpr Phrase kWayOfServers = {"$0 ($1)", "$0（$1）"};
inline constexpr Phrase kWayInParentheses = {"$0; $1", "$0；$1"};
inline constexpr Phrase kServerLaw = {"$0 ($1) $2 times $3 with $4 workers$5",
                                      "$4 个 worker 时 $0（$1）为 $3 的 $2 倍$5"};
// After kServerLaw.
inline constexpr Phrase kServerAsMeasured = {
    " ($0 with this run's buckets; measured, less waiting for other workers, $1; the step, with computing "
    "and "
    "waiting, $2)",
    "（按本次运行的分桶为 $0；测得的交换，减去等待其他 worker 的时间，为 $1；一步，含计算与等待，为 $2）"};
inline constexpr Phrase kServersInTheory = {
    "The time of one exchange in theory, for large gradients and one link per machine: $0. "
    "The busiest link decides.",
    "梯度大、每台机器各有一条链路时，理论上一次交换的时间：$0。由最忙的链路决定。"};
// $0 workers of a machine, $1 the server, $2 "N(N-$0)" or "N^2", $3 kOfOtherMachines or nothing.
inline constexpr Phrase kServerOfMachinesInTheory = {
    "Each machine has $0 workers on one link. For large gradients, $1 takes $2/(2(N-1)) times as long as a "
    "ring in "
    "theory (twice that with --ps_schedule serial), because its link carries the gradients of all workers$3, "
    "while a "
    "ring uses each link once.",
    "每台机器有 $0 个 worker 共用一条链路。理论上，梯度大时，$1用时是环的 $2/(2(N-1)) 倍（--ps_schedule "
    "serial "
    "时再乘 2）：它的链路要承载$3所有 worker 的梯度，而环只经过每条链路一次。"};
// The same; $4 twice the workers of a machine.
inline constexpr Phrase kServerOfSumsInTheory = {
    "Each machine has $0 workers on one link, which push one sum (--local_aggregation). For large gradients, "
    "$1 takes "
    "$2/($4(N-1)) times as long as a ring in theory (twice that with --ps_schedule serial), because its link "
    "carries "
    "one gradient of every machine$3.",
    "每台机器有 $0 个 worker "
    "共用一条链路，它们只推送一个和（--local_aggregation）。理论上，梯度大时，$1用时是环的 "
    "$2/($4(N-1)) 倍（--ps_schedule serial 时再乘 2）：它的链路承载$3每台机器的一个梯度。"};
inline constexpr Phrase kOfOtherMachines = {" but its own", "除自己之外"};
inline constexpr Phrase kNotTheLaw = {
    "$0 with $1 workers: $2 ms until the last worker has its weights, not $3 ms",
    "$1 个 worker 的 $0 到最后一个 worker 得到权重为 $2 毫秒，而非 $3 毫秒"};
inline constexpr Phrase kFewBuckets = {
    "For the actual buckets, theory predicts longer exchanges than the formula for large gradients ($0). "
    "The weights of a bucket cannot leave before its last gradient has arrived, "
    "so nothing overlaps with the first push and the last pull.",
    "按实际的分桶，理论预测的交换时间比大梯度公式的更长（$0）。"
    "一个桶的最后一份梯度到达之前，它的权重不能发出，所以第一次 push 与最后一次 pull 无可重叠。"};
inline constexpr Phrase kBeyondTheLaw = {
    "For the actual buckets, theory differs from the formula for large gradients ($0). "
    "The formula ignores the server's updates and the bursts that links carry at full speed after a pause.",
    "按实际的分桶，理论与大梯度公式不同（$0）。公式不计服务器的更新，也不计链路在停顿之后全速发送的部分。"};
inline constexpr Phrase kPairsOnLoopback = {
    "$0. This compares two programs and the processor time that they need on one machine.",
    "$0。这比较的是同一台机器上的两个程序及其所需的处理器时间。"};
inline constexpr Phrase kNoNetwork = {
    "It does not determine a winner for a network: all ranks shared one loopback$0, "
    "so a server could not saturate its own link and a ring could not spread over several links.",
    "不就网络判定胜者：所有 rank 共用一个回环接口$0，服务器没有自己的链路可占满，环也没有多条链路可分摊。"};
inline constexpr Phrase kLoopbackSpeed = {" ($0 GB/s in total, $1 us)", "（共 $0 GB/s，$1 微秒）"};

// Bytes.
inline constexpr Phrase kBytesDiffer = {"$0 sent $1 MB, theory predicts $2 MB",
                                        "$0 发送 $1 MB，理论为 $2 MB"};
inline constexpr Phrase kBytesOff = {"Bytes differ from theory: $0.", "字节数与理论不符：$0。"};
inline constexpr Phrase kBytesAgree = {"The bytes sent match theory. MB per worker and step: $0.",
                                       "发送的字节数与理论一致。每个 worker 每步的 MB 数：$0。"};
inline constexpr Phrase kBytesOfTablesDerived = {
    "The bytes of $0 are derived from the schedule, because external libraries do not count them.",
    "$0 的字节数由调度推导：外部的集合通信库不作计数。"};
inline constexpr Phrase kBytesDerived = {
    "The bytes of $0 are derived, 2(N-1)/N of the gradient, because external libraries do not count them.",
    "$0 的字节数为推导值，即梯度的 2(N-1)/N：外部的集合通信库不作计数。"};

// Staleness.
inline constexpr Phrase kBoundedOne = {"$0 $1 (at most $2; the bound is $3)", "$0 $1（最多 $2；上界 $3）"};
inline constexpr Phrase kBounded = {"Mean staleness (in updates) with a bound on the workers' lead: $0.",
                                    "限制 worker 领先步数时的平均陈旧度（更新数）：$0。"};
inline constexpr Phrase kStaleOne = {"$0 updates with $1 workers (at most $2)",
                                     "$1 个 worker 时 $0 次更新（最多 $2）"};
inline constexpr Phrase kStaleOneOnServers = {"$0 updates with $1 workers on $3 servers (at most $2)",
                                              "$1 个 worker、$3 台服务器时 $0 次更新（最多 $2）"};
inline constexpr Phrase kStale = {
    "The mean staleness of asynchronous gradients was $0; in theory it is N-1 while all workers push.",
    "异步梯度的平均陈旧度：$0；理论上所有 worker 持续推送时为 N-1。"};

// Accuracy.
inline constexpr Phrase kAccuracy = {"Test accuracy after $0 $3 over all workers, $1: $2.",
                                     "所有 worker 共训练 $0 个$3后的测试准确率（$1）：$2。"};
inline constexpr Phrase kOneSeed = {"one seed", "一个随机种子"};
inline constexpr Phrase kSeeds = {"mean of $0 seeds", "$0 个随机种子的平均"};
inline constexpr Phrase kSeedMoves = {" A different seed changes these values.",
                                      "换一个随机种子，这些值会变化。"};
inline constexpr Phrase kUpdateRule = {"$0 ($1, lr $2)", "$0（$1，学习率 $2）"};
inline constexpr Phrase kUpdateRules = {" The strategies update the weights by different rules.",
                                        "各策略更新权重的规则不同。"};
inline constexpr Phrase kFewerUpdates = {
    " With more workers, synchronous strategies make fewer updates with larger batches.",
    "worker 越多，同步策略的更新次数越少、每次所用的批越大。"};
inline constexpr Phrase kScaled = {
    "Times are simulated (--scale $0): links and replayed computing ran $0 times slower, "
    "and all times are divided by $0. The processor time of communication was not slowed, "
    "so it is underestimated on fast links.",
    "时间为模拟值（--scale $0）：链路与重放的计算都慢 $0 倍，所有时间再除以 $0。"
    "通信所用的处理器时间没有放慢，因此在快速链路上被低估。"};
inline constexpr Phrase kBestRate = {"$0 $1 (of $2)", "$0 $1（试过 $2）"};
inline constexpr Phrase kBestRates = {
    "Every row is compared at the best of the learning rates tried for it, "
    "by accuracy on held-out samples: $0.",
    "每行都以为它试过的学习率中（按留出样本上的准确率）最好的一个参与比较：$0。"};
inline constexpr Phrase kHighestRate = {
    " The best one is the highest tried for $0: a higher one may be better (--tune lr:1,2,4).",
    "$0 的最佳值是试过的最大值：更大的可能更好（--tune lr:1,2,4）。"};
inline constexpr Phrase kLowestRate = {
    " The best one is the lowest tried for $0: a lower one may be better (--tune lr:0.25,0.5,1).",
    "$0 的最佳值是试过的最小值：更小的可能更好（--tune lr:0.25,0.5,1）。"};
inline constexpr Phrase kEqualUpdates = {
    " With a fixed global batch, synchronous strategies make the same updates with any number of workers.",
    "全局批大小固定时，同步策略的更新与 worker 数无关。"};
inline constexpr Phrase kMoreUpdates = {" Asynchronous strategies make more updates with smaller batches.",
                                        "异步策略的更新更多、每次所用的批更小。"};
inline constexpr Phrase kTargetMissed = {"$0 ($1 of $2 trainings reached it)", "$0（$2 次训练中 $1 次达到）"};
inline constexpr Phrase kTargetOne = {"$0 $1 s", "$0 $1 秒"};
inline constexpr Phrase kTarget = {
    "Training time to a test accuracy of $0: $1$2. Accuracy is known only at evaluations, "
    "so a time is too long by at most the interval between two evaluations. Evaluation time is not included.",
    "达到测试准确率 $0 的训练时间：$1$2。准确率只在评估时得知，因此时间最多偏长两次评估之间的间隔。"
    "评估本身不计入。"};
inline constexpr Phrase kNoStrategy = {"none", "无"};
inline constexpr Phrase kNotReached = {"; not reached by $0", "；未达到：$0"};

// Simulated time.
inline constexpr Phrase kNoTime = {"no time", "零时间"};
inline constexpr Phrase kMilliseconds = {"$0 ms", "$0 毫秒"};
inline constexpr Phrase kAsLongAsIn = {"as long as in $0", "与 $0 中相同的时间"};
inline constexpr Phrase kHalfOfExchange = {"half of what an exchange took in $0",
                                           "$0 中一次交换所用时间的一半"};
inline constexpr Phrase kSimulatedTimes = {
    "Times are simulated: computing a step takes $0, sending a gradient or a set of weights over a worker's "
    "link takes $1, and the server handles pushes one at a time, $2 each. "
    "Learning is measured: the gradients are real, computed on the weights that result from this order.",
    "时间为模拟值：一步计算 $0；一份梯度或权重在 worker 的链路上用 $1；每次 push 在服务器上用 $2，依次进行。"
    "学习效果为实测：在这一次序得到的权重上计算真实梯度。"};

// DataParallel.
inline constexpr Phrase kDataParallelBytes = {
    "data-parallel with $0 workers: device 0 sends $1 MB per step (inputs $2, weights $3, "
    "gradients of the outputs $4) and receives $5 MB (outputs $6, gradients $7). "
    "The model crosses its link N-1 = $8 times in each direction. ",
    "$0 个 worker 的 dp：设备 0 每步发送 $1 MB（输入 $2、权重 $3、输出的梯度 $4），接收 $5 MB（输出 $6、"
    "梯度 $7）。模型在每个方向上经过它的链路 N-1 = $8 次。"};
inline constexpr Phrase kDataParallelRing = {
    "In a ring each worker sends $0 MB, always less than twice the model. ",
    "环的每个 worker 发送 $0 MB，永远不到模型的两倍。"};
inline constexpr Phrase kDataParallelAlone = {
    "The other devices are idle for $0 of $1 ms while device 0 works (copies and additions $2, loss $3, "
    "update $4). Device 0 holds $5 MB more than the others.",
    "每步 $1 毫秒中，设备 0 独自工作 $0 毫秒（拷贝与相加 $2、损失 $3、更新 $4），并比其他设备多占 $5 MB。"};

// Transports, recording, caveats.
inline constexpr Phrase kWithinMachines = {
    "With --local_aggregation this is the exchange with the servers. Within a machine the workers use shared "
    "memory, and the bytes sent include 3(g-1)/g of the gradient per worker, for g workers on a machine.",
    "使用 --local_aggregation 时，以上指与服务器的交换。机器内的 worker "
    "经由共享内存交换；发送的字节数包括每个 "
    "worker 在机器内的 3(g-1)/g 个梯度，g 为一台机器上的 worker 数。"};
inline constexpr Phrase kOneWire = {"All payload went over $0.", "所有数据都经由 $0 传输。"};
inline constexpr Phrase kOneWireBetween = {"Between machines, all payload went over $0.",
                                           "机器之间的所有数据都经由 $0 传输。"};
inline constexpr Phrase kOverWire = {"$0 over $1", "$0 经由 $1"};
inline constexpr Phrase kWiresDiffer = {
    "The transports differ: $0. Differences between these rows come from the transport as well as the "
    "strategy. With --transport tcp, and nccl-tcp in place of nccl, all use TCP.",
    "传输方式不同：$0。这些行之间的差别既来自策略，也来自传输方式。"
    "用 --transport tcp，并以 nccl-tcp 代替 nccl，可使它们都经由 TCP。"};
inline constexpr Phrase kRecording = {
    "Recording took at most $0% of a step ($1: $2 ms, not included in the step's time, measured)$3",
    "记录的开销最多为一步的 $0%（$1：$2 毫秒，不计入该步时间，测量）$3"};
inline constexpr Phrase kRecordingDear = {", above the target of 1%; use longer steps.",
                                          "：超过预定的 1%；请用更长的步。"};
inline constexpr Phrase kRecordingFine = {".", "。"};
inline constexpr Phrase kAnd = {" and ", " 与 "};
inline constexpr Phrase kTakeTurns = {
    "$0 workers share $1 $2: their bytes and staleness are valid, but their times do not apply to machines "
    "with one core per worker.",
    "$0 个 worker 共用 $1 个核：字节数与陈旧度有效，时间不能推广到每个 worker 各有一核的机器。"};
inline constexpr Phrase kForeign = {
    "Other programs used more than a third of the processors during $0. "
    "Repeat the measurement on an idle machine.",
    "$0 期间，其他程序占用了三分之一以上的处理器。请在空闲的机器上重新测量。"};
inline constexpr Phrase kEveryRow = {"every row", "所有行"};

}  // namespace psring
