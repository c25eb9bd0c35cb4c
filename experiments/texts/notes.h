// The notes of a row of the summary, which become footnotes.
#pragma once

#include "experiments/texts/phrase.h"

namespace psring {

inline constexpr Phrase kNoteVirtual = {"times simulated, learning measured", "时间为模拟，学习为实测"};
inline constexpr Phrase kNoteScaled = {"times simulated: run $0 times slower and divided by $0",
                                       "时间为模拟：放慢 $0 倍运行，再除以 $0"};
inline constexpr Phrase kNoteTarget = {"$0 of $1 trainings reached an accuracy of $2",
                                       "$1 次训练中 $0 次达到准确率 $2"};
inline constexpr Phrase kNoteOversubscribed = {"oversubscribed", "核数不足"};
inline constexpr Phrase kNoteOneProcess = {"$0 ranks in one process$1", "一个进程中有 $0 个 rank$1"};
inline constexpr Phrase kNotePerProcess = {"$0 ranks per process$1", "每个进程 $0 个 rank$1"};
inline constexpr Phrase kNoteNoLink = {", which use no link", "，不用链路"};
inline constexpr Phrase kNoteOneLink = {", on one link", "，共用一条链路"};
inline constexpr Phrase kNoteAggregation = {"local aggregation: $0 workers push one sum",
                                            "本机聚合：$0 个 worker 推送一个和"};
inline constexpr Phrase kNoteSharedGpus = {"functional, not a measurement: $0 ranks share $1 GPU$2",
                                           "只验证功能，不是测量：$0 个 rank 共用 $1 块 GPU"};
inline constexpr Phrase kNoteDevice0 = {
    "bytes are device 0's; the others are idle for $0 ms of a step while it works; it holds $1 MB more$2",
    "字节数为设备 0 的；它工作时其他设备每步空闲 $0 毫秒；它多占 $1 MB$2"};
inline constexpr Phrase kNoteOneMachine = {"; one machine, no link used", "；同一台机器，不用链路"};
inline constexpr Phrase kNoteForeign = {"other programs used $0% of the processors",
                                        "其他程序占用了 $0% 的处理器"};
inline constexpr Phrase kNoteOtherPsring = {"another psring (process $0) was running",
                                            "另一个 psring（进程 $0）也在运行"};
inline constexpr Phrase kNoteUnbalanced = {"unbalanced shards: $0 to $1 bytes per step and server",
                                           "分片不均：每台服务器每步 $0 至 $1 字节"};
inline constexpr Phrase kNoteStraggler = {"straggler $0", "straggler $0"};
inline constexpr Phrase kNoteJitter = {"jitter $0 ms", "抖动 $0 毫秒"};
inline constexpr Phrase kNoteReplicas = {"replicas differ", "各副本不同"};

}  // namespace psring
