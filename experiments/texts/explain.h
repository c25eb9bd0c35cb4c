// What `psring explain` says.
#pragma once

#include "experiments/texts/phrase.h"

namespace psring {

inline constexpr Phrase kWorkersPhrase = {"$0 workers", "$0 个 worker"};
inline constexpr Phrase kOneWorkerPhrase = {"1 worker", "1 个 worker"};
inline constexpr Phrase kBufferPhrase = {
    "The buffer of M = $0 MB is cut into $1. $2 A sum is written as the ranks whose values are in it. All "
    "transfers of a round are under way together; what is sent is what stood there before the round.",
    "M = $0 MB 的缓冲区分成 $1。$2和用其中已含有的 rank "
    "编号来写。一轮中的所有传输同时进行；发送的是该轮开始之前的内容。"};
inline constexpr Phrase kChunksOfBuffer = {"$0 equal chunks", "$0 个相等的块"};
inline constexpr Phrase kChunkOfBuffer = {"1 chunk", "1 个块"};
inline constexpr Phrase kGoalAllReduce = {
    "Every rank begins with its own values in all chunks and shall end with the sum over all ranks in all of "
    "them.",
    "开始时每个 rank 在所有块中都是自己的值；结束时每个 rank 的每一块都应是所有 rank 之和。"};
inline constexpr Phrase kGoalReduceScatter = {
    "Every rank begins with its own values in all chunks; rank r shall end with the sum over all ranks in "
    "chunk r. "
    "What its other chunks hold then counts for nothing.",
    "开始时每个 rank 在所有块中都是自己的值；结束时 rank r 的第 r 块应是所有 rank "
    "之和，其余各块的内容不再有意义。"};
inline constexpr Phrase kGoalAllGather = {
    "Rank r begins with its values in chunk r alone; every rank shall end with all chunks.",
    "开始时 rank r 只有第 r 块；结束时每个 rank 都应有全部的块。"};
inline constexpr Phrase kGoalBroadcast = {"Rank $0 begins with its values; every rank shall end with them.",
                                          "开始时只有 rank $0 有值；结束时每个 rank 都应有这些值。"};
inline constexpr Phrase kNoRounds = {"One rank has nothing to exchange: no rounds.",
                                     "只有一个 rank，没有什么可交换：没有轮次。"};
inline constexpr Phrase kRoundPhrase = {"round $0 of $1", "第 $0 轮，共 $1 轮"};
inline constexpr Phrase kChunkPhrase = {"chunk $0", "块 $0"};
inline constexpr Phrase kChunksPhrase = {"chunks $0 to $1", "块 $0 至 $1"};
inline constexpr Phrase kAdded = {"added to what is there; then $0", "加到原有的值上；之后为 $0"};
inline constexpr Phrase kReplaced = {"put in its place; then $0", "取代原有的值；之后为 $0"};
inline constexpr Phrase kAll = {"all", "全部"};
inline constexpr Phrase kChunkHead = {"chunk", "块"};
inline constexpr Phrase kSent = {"sent so far: $0", "至此已发送：$0"};
inline constexpr Phrase kReceived = {"received: $0", "共接收：$0"};
inline constexpr Phrase kEach = {"each $0 ($1)", "每个 $0（$1）"};
inline constexpr Phrase kFulfilled = {"At the end every rank has what was promised.",
                                      "结束时每个 rank 都得到了应得的结果。"};
inline constexpr Phrase kBroken = {"At the end some rank does NOT have what was promised: a bug.",
                                   "结束时有 rank 没有得到应得的结果：这是程序的错误。"};
inline constexpr Phrase kCostHead = {
    "What it costs, with a seconds for a message, B bytes/s of a link in each direction, g seconds to add a "
    "byte:",
    "代价（a：一条消息的秒数；B：链路每个方向每秒的字节数；g：加一个字节的秒数）："};
inline constexpr Phrase kCounted = {"counted from these rounds", "由以上各轮数出"};
inline constexpr Phrase kTheory = {"theory", "理论"};
inline constexpr Phrase kTermsNote = {
    "a: rounds follow each other, so each costs a message's latency. B: in each round the busiest link "
    "decides. g: "
    "in each round the rank that adds most decides.",
    "a：各轮依次进行，每轮付出一条消息的延迟。B：每轮由最忙的链路决定。g：每轮由相加最多的 rank 决定。"};
// `psring explain words`: the words that all of psring's texts use.
struct Word {
  const char* word;
  Phrase meaning;
};
inline constexpr Word kWords[] = {
    {"rank", {"the number of a process of the job", "任务中一个进程的编号"}},
    {"worker", {"a rank that trains", "参与训练的 rank"}},
    {"server",
     {"a process that holds weights, adds up the gradients that workers push, and updates",
      "保存权重的进程：把各 worker 送来的梯度相加并更新权重"}},
    {"shard", {"the part of the weights that one server holds", "一台服务器保存的那部分权重"}},
    {"bucket",
     {"a slice of the gradient that is exchanged while the backward pass goes on",
      "梯度的一段，反向传播继续时它已在交换"}},
    {"chunk", {"a slice that a schedule moves in one go", "调度一次移动的一段"}},
    {"round", {"transfers that are in flight together", "同时进行的一组传输"}},
    {"step", {"one update of the weights", "一次权重更新"}},
    {"push, pull", {"a gradient to the server; weights back", "把梯度送到服务器；取回权重"}},
    {"version", {"how many updates a shard has seen", "一片权重已经历的更新次数"}},
    {"staleness",
     {"updates that were applied between reading the weights and applying the gradient computed on them",
      "从读取权重到应用由它算出的梯度之间发生的更新次数"}},
    {"exposed",
     {"communication for which computing stands still: what the user pays",
      "计算停下来等待的那部分通信：用户真正付出的代价"}},
    {"all-reduce",
     {"every rank begins with its own values and ends with the sum of all",
      "每个 rank 从自己的值开始，以所有值之和结束"}},
};

}  // namespace psring
