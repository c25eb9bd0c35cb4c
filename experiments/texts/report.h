// Texts of `report`.
#pragma once

#include "experiments/texts/phrase.h"

namespace psring {

// Below the answer, for readers without JavaScript.
inline constexpr Phrase kNeedsJavaScript = {
    "This page draws its figures with JavaScript; the same figures are in summary.csv in its folder.",
    "本页的图由 JavaScript 绘制；同样的数字在其文件夹的 summary.csv 中。"};

// The first finding about the records of one launch.
inline constexpr Phrase kLaunchRecords = {
    "This page shows one launch of $0 from the records that `trainer --record` wrote. They do not say on "
    "which "
    "machines and network it ran, and one launch has no intervals and nothing to compare with, so the page "
    "has "
    "no theory for this network and names no winner; psring compare and psring train record all of this.",
    "本页展示 $0 的一次启动，来自 `trainer --record` "
    "的记录。其中没有运行所用的机器与网络；只有一次启动，没有区间，"
    "也没有比较对象，因此本页不给出该网络的理论值，也不判定胜者。psring compare 与 psring train "
    "会记录这些。"};
inline constexpr Phrase kNoServerRecords = {
    "The records of the parameter server are missing, so its bytes and staleness are not shown; start "
    "ps_server "
    "with --record, too.",
    "缺少参数服务器的记录，因此没有它的字节数与陈旧度；请给 ps_server 也加上 --record。"};

}  // namespace psring
