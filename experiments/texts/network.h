// The network between machines, as `bench --nnodes` measures it. Lines of tables begin with #.
#pragma once

#include "experiments/texts/phrase.h"

namespace psring {

inline constexpr Phrase kNetworkRates = {
    "# Network between $0 machines (measured): Gbit/s from the node of a row to that of a column, one pair "
    "at a "
    "time",
    "# $0 台机器之间的网络（实测）：从行的节点到列的节点，Gbit/s，每次只测一对"};
inline constexpr Phrase kNetworkShared = {
    "# into: into the node from all others at once; ring: to the next node, while all nodes send",
    "# into：所有其他节点同时发往该节点；ring：所有节点同时发往下一个节点时"};
inline constexpr Phrase kNetworkRing = {"# ring: to the next node, while all nodes send",
                                        "# ring：所有节点同时发往下一个节点时"};
inline constexpr Phrase kNetworkLatencies = {"# Latency in us (half a round trip of 4 bytes, measured)",
                                             "# 延迟，微秒（4 字节往返的一半，实测）"};
inline constexpr Phrase kNetworkTooWide = {"# the figures of all pairs of $0 nodes are in network.csv",
                                           "# $0 个节点的两两数据在 network.csv 中"};
// Of a node or link that is slower than the others.
inline constexpr Phrase kSlowNode = {
    "the slowest node is $0: it $1 at most $2 Gbit/s, while the others reach $3 (median)",
    "最慢的节点是 $0：它最多$1 $2 Gbit/s，其他节点达到 $3（中位数）"};
inline constexpr Phrase kSends = {"sends", "发送"};
inline constexpr Phrase kReceives = {"receives", "接收"};
inline constexpr Phrase kSendsAndReceives = {"sends and receives", "收发"};
inline constexpr Phrase kSlowLink = {
    "the slowest link is from $0 to $1: $2 Gbit/s, while the others reach $3 (median)",
    "最慢的链路是从 $0 到 $1：$2 Gbit/s，其他链路达到 $3（中位数）"};
inline constexpr Phrase kLateNode = {
    "the slowest node is $0: its latency is $1 us or more, that of the others $2 (median)",
    "最慢的节点是 $0：它的延迟至少 $1 微秒，其他节点为 $2（中位数）"};
inline constexpr Phrase kLateLink = {
    "the slowest link is between $0 and $1: its latency is $2 us, the median is $3",
    "最慢的链路在 $0 与 $1 之间：延迟 $2 微秒，中位数为 $3"};
inline constexpr Phrase kNoSlowLink = {
    "no node or link is much slower than the others; the slowest link is from $0 to $1: $2 Gbit/s (median "
    "$3)",
    "没有明显较慢的节点或链路；最慢的链路是从 $0 到 $1：$2 Gbit/s（中位数 $3）"};

}  // namespace psring
