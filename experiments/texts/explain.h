// Output of `explain`.
#pragma once

#include "experiments/texts/phrase.h"

namespace psring {

inline constexpr Phrase kWorkersPhrase = {"$0 workers", "$0 个 worker"};
inline constexpr Phrase kOneWorkerPhrase = {"1 worker", "1 个 worker"};
inline constexpr Phrase kBufferPhrase = {
    "The buffer of M = $0 MB is divided into $1. $2 A sum is written as the ranks whose values it contains. "
    "All transfers of a round run at the same time and send the values as they were before the round.",
    "M = $0 MB 的缓冲区分成 $1。$2每个和写成它所包含的 rank 的编号。一轮中的所有传输同时进行；"
    "发送的是该轮开始之前的内容。"};
inline constexpr Phrase kChunksOfBuffer = {"$0 equal chunks", "$0 个相等的块"};
inline constexpr Phrase kChunkOfBuffer = {"1 chunk", "1 个块"};
inline constexpr Phrase kGoalAllReduce = {
    "Every rank starts with its own values in all chunks and must end with the sum over all ranks in every "
    "chunk.",
    "开始时每个 rank 在所有块中都是自己的值；结束时每个 rank 的每一块都应是所有 rank 之和。"};
inline constexpr Phrase kGoalReduceScatter = {
    "Every rank starts with its own values in all chunks; "
    "rank r must end with the sum over all ranks in chunk r. Its other chunks are then unspecified.",
    "开始时每个 rank 在所有块中都是自己的值；结束时 rank r 的第 r 块应是所有 rank 之和，"
    "其余各块的内容不再有意义。"};
inline constexpr Phrase kGoalAllGather = {
    "Rank r starts with only chunk r; every rank must end with all chunks.",
    "开始时 rank r 只有第 r 块；结束时每个 rank 都应有全部的块。"};
inline constexpr Phrase kGoalBroadcast = {"Only rank $0 starts with values; every rank must end with them.",
                                          "开始时只有 rank $0 有值；结束时每个 rank 都应有这些值。"};
inline constexpr Phrase kNoRounds = {"A single rank has nothing to exchange, so there are no rounds.",
                                     "只有一个 rank，没有什么可交换，因此没有轮次。"};
inline constexpr Phrase kRoundPhrase = {"round $0 of $1", "第 $0 轮，共 $1 轮"};
inline constexpr Phrase kChunkPhrase = {"chunk $0", "块 $0"};
inline constexpr Phrase kChunksPhrase = {"chunks $0 to $1", "块 $0 至 $1"};
inline constexpr Phrase kAdded = {"added; the sum is now $0", "加到原有的值上；之后为 $0"};
inline constexpr Phrase kReplaced = {"replaces the value; it is now $0", "取代原有的值；之后为 $0"};
inline constexpr Phrase kAll = {"all", "全部"};
inline constexpr Phrase kChunkHead = {"chunk", "块"};
inline constexpr Phrase kSent = {"sent so far: $0", "至此已发送：$0"};
inline constexpr Phrase kReceived = {"received: $0", "共接收：$0"};
inline constexpr Phrase kEach = {"each $0 ($1)", "每个 $0（$1）"};
inline constexpr Phrase kFulfilled = {"At the end every rank has the required result.",
                                      "结束时每个 rank 都得到了应得的结果。"};
inline constexpr Phrase kBroken = {
    "At the end at least one rank does NOT have the required result. This is a bug.",
    "结束时至少有一个 rank 没有得到应得的结果。这是程序的错误。"};
inline constexpr Phrase kCostHead = {
    "Cost, with a seconds per message, B bytes/s per link and direction, and g seconds to add a byte:",
    "代价（a：一条消息的秒数；B：链路每个方向每秒的字节数；g：加一个字节的秒数）："};
inline constexpr Phrase kCounted = {"counted in these rounds", "由以上各轮数出"};
inline constexpr Phrase kTheory = {"theory", "理论"};
inline constexpr Phrase kTermsNote = {
    "a: one message latency per round. B: the bytes on the busiest link of each round. "
    "g: the bytes added by the rank that adds most in each round.",
    "a：每轮一条消息的延迟。B：每轮中最忙的链路上的字节数。g：每轮中相加最多的 rank 所加的字节数。"};
// A step of a strategy; the sentences are numbered.
inline constexpr Phrase kOneStep = {"One step with $0:", "一步，$0："};
inline constexpr Phrase kComputesAlone = {"The process computes the gradient of its samples.",
                                          "该进程计算它那些样本的梯度。"};
inline constexpr Phrase kEachComputes = {"Each worker computes the gradient of its own samples.",
                                         "每个 worker 计算自己样本的梯度。"};
inline constexpr Phrase kDeviceComputes = {
    "Device 0 sends the weights and a share of the inputs to the other replicas, and all compute.",
    "设备 0 把权重和各份输入发给其余副本，所有副本计算。"};
inline constexpr Phrase kDeviceAdds = {"Device 0 receives all gradients and adds them.",
                                       "设备 0 接收全部梯度并相加。"};
inline constexpr Phrase kGroupAdds = {
    "The workers exchange each bucket as soon as backward has finished it; all end with the sum ($0).",
    "反向传播每完成一个桶，各 worker 就交换它；结束时都得到总和（$0）。"};
inline constexpr Phrase kPushes = {
    "Each worker pushes each bucket of its gradient to the server as soon as backward has finished it.",
    "反向传播每完成一个桶，worker 就把它送到服务器。"};
inline constexpr Phrase kServerAddsAll = {
    "The server adds the gradients of all $0 workers, then updates the weights once.",
    "服务器把 $0 个 worker 的梯度全部相加，然后更新一次权重。"};
inline constexpr Phrase kServerAddsFirst = {
    "The server adds the first $0 gradients of a step and updates the weights once; it drops the last $1.",
    "服务器把一步中最先到达的 $0 个梯度相加并更新一次权重；最后的 $1 个被丢弃。"};
inline constexpr Phrase kServerAddsEach = {
    "The server updates the weights with each gradient as it arrives, without waiting for other workers. The "
    "gradient is "
    "stale: other updates came between reading the weights and applying it.",
    "每个梯度一到，服务器就用它更新权重，不等其他 worker。梯度是陈旧的：在读取权重和应用它之间有其他更新。"};
inline constexpr Phrase kWaitsIfAhead = {"A worker that is $0 steps ahead of the slowest waits for it.",
                                         "比最慢者领先 $0 步的 worker 会等它。"};
inline constexpr Phrase kPulls = {"The worker pulls the new weights and begins its next step with them.",
                                  "worker 取回新权重，用它们开始下一步。"};
inline constexpr Phrase kAllUpdate = {"All workers make the same update, so their weights stay equal.",
                                      "所有 worker 做相同的更新，因此权重始终相同。"};
// hybrid: dense parameters by a process group, rows of tables by servers.
inline constexpr Phrase kPullsRows = {
    "Each worker pulls the rows of the tables that its samples look up; row r is on server r modulo S.",
    "每个 worker 取来它的样本在各表中查找的行；第 r 行在服务器 r mod S 上。"};
inline constexpr Phrase kGroupAddsDense = {
    "The workers exchange each bucket of the gradient of the dense parameters, those outside of the tables, "
    "as "
    "soon as backward has finished it; all end with the sum ($0), make the same update, and keep equal "
    "weights.",
    "表之外的参数是稠密的：反向传播每完成其梯度的一个桶，各 worker 就交换它；结束时都得到总和（$0），"
    "做相同的更新，权重始终相同。"};
inline constexpr Phrase kPushesRows = {
    "Each worker pushes the gradients of its rows to the servers, meanwhile.",
    "同时，每个 worker 把它那些行的梯度送到服务器。"};
inline constexpr Phrase kServerAddsRows = {
    "A server adds the gradients of all $0 workers row by row, in the order of workers, then updates these "
    "rows "
    "once. The next pull waits for that.",
    "服务器按 worker 的顺序逐行相加 $0 个 worker 的梯度，然后更新这些行一次；下一次取行等待它完成。"};
inline constexpr Phrase kRowBytes = {
    "Of a dense gradient of M bytes, each worker sends 2(N-1)/N M and receives as much. With C rows of W "
    "values, "
    "it receives 4 C W bytes from the servers and sends them 4 C (2 + W), because row numbers travel with "
    "both.",
    "稠密梯度有 M 字节时，每个 worker 发送 2(N-1)/N M，接收同样多。用到 C 行、每行 W 个值时，它从服务器接收 "
    "4 C W 字节，向服务器发送 4 C (2 + W) 字节，因为取与送都带有行号。"};
inline constexpr Phrase kEachUpdates = {
    "Each worker updates its own weights with its own gradient, so the replicas diverge.",
    "每个 worker 用自己的梯度更新自己的权重，因此各副本逐渐不同。"};
inline constexpr Phrase kOneUpdates = {"It updates the weights.", "它更新权重。"};
inline constexpr Phrase kServerBytes = {
    "Each worker sends M and receives M bytes of a step's gradient of M bytes; one server receives $0 M and "
    "sends $0 M. "
    "Several servers divide this equally.",
    "梯度有 M 字节时，每个 worker 每步发送 M、接收 M；一台服务器接收 $0 M、发送 $0 M。多台服务器平分。"};
inline constexpr Phrase kSeeSchedule = {"For the rounds of its all-reduce: psring explain $0",
                                        "其 all-reduce 的各轮：psring explain $0"};
inline constexpr Phrase kTryStrategy = {"To run it: psring train --strategy $0 --workers $1",
                                        "运行它：psring train --strategy $0 --workers $1"};

// The glossary: `psring explain words`, and the page of a run.
struct Word {
  const char* word;
  Phrase meaning;
};
inline constexpr Word kWords[] = {
    {"rank", {"the number of a process in the job", "作业中一个进程的编号"}},
    {"worker", {"a rank that trains", "参与训练的 rank"}},
    {"server",
     {"a process that stores weights, sums the gradients that workers push, and updates the weights",
      "保存权重的进程：把各 worker 送来的梯度相加并更新权重"}},
    {"shard", {"the part of the weights that one server holds", "一台服务器保存的那部分权重"}},
    {"bucket",
     {"a slice of the gradient, exchanged while the backward pass continues",
      "梯度的一段，反向传播继续时它已在交换"}},
    {"chunk",
     {"a slice of the buffer that a schedule sends as one unit", "缓冲区的一段，调度把它作为一个单位发送"}},
    {"round",
     {"in a schedule: transfers that run at the same time; in a comparison: one launch of every "
      "configuration",
      "调度的一轮：同时进行的一组传输；比较的一轮：每种配置各启动一次"}},
    {"step", {"one update of the weights", "一次权重更新"}},
    {"push, pull",
     {"push: send a gradient to the server; pull: receive the weights",
      "push：把梯度送到服务器；pull：取回权重"}},
    {"version", {"the number of updates applied to a shard", "一片权重已经历的更新次数"}},
    {"staleness",
     {"the number of updates applied between reading the weights and applying the gradient computed from "
      "them",
      "从读取权重到应用由它算出的梯度之间发生的更新次数"}},
    {"hidden", {"communication that runs while the worker computes", "与计算同时进行的通信"}},
    {"exposed",
     {"communication that is not hidden behind computation: it makes the step longer",
      "没有被计算掩盖的通信：它使一步变长"}},
    {"measured, derived, simulated",
     {"measured: a clock or a counter of this run; derived: computed from measured values, such as an "
      "interval or the time in theory; simulated: the result of psring's simulator",
      "测量：由本次运行的时钟或计数器得到；推导：由测量值算出，如区间与理论时间；模拟：由 psring "
      "的模拟器得到"}},
    {"all-reduce",
     {"every rank starts with its own values and ends with the sum over all ranks",
      "每个 rank 从自己的值开始，以所有值之和结束"}},
    {"reduce-scatter, all-gather",
     {"the two phases of a ring: each rank gets the sum of one chunk; then every rank gets all chunks",
      "环的两个阶段：每个 rank 得到一个块之和；然后每个 rank 得到所有块"}},
    {"replica", {"a worker's own copy of the weights", "一个 worker 自己的一份权重"}},
    {"straggler", {"a worker that computes more slowly than the others", "比其他 worker 计算得慢的 worker"}},
};

}  // namespace psring
