// Runs of one plan on several machines: `report A.html B.html ...`.
#pragma once

#include "experiments/texts/phrase.h"

namespace psring {

inline constexpr Phrase kPoolTitle = {
    "$0 machines ran the same plan. Median over machines (lowest to highest):",
    "$0 台机器运行了同一计划。各机器的中位数（最低至最高）："};
inline constexpr Phrase kPoolStrategy = {"strategy", "策略"};
inline constexpr Phrase kPoolWorkers = {"workers", "worker 数"};
inline constexpr Phrase kPoolSamples = {"samples/s", "每秒样本数"};
inline constexpr Phrase kPoolEfficiency = {"efficiency", "扩展效率"};
inline constexpr Phrase kPoolRatio = {"relative to its own", "相对于自己的"};
// $0 the factor and its range, $1 the row that it refers to.
inline constexpr Phrase kPoolTimes = {"$0 × $1", "$0 × $1"};
// An asynchronous strategy with unequal workers. $0 the strategy, $1 %.
inline constexpr Phrase kPoolUneven = {"$0, one worker $1%", "$0，一个 worker $1%"};
inline constexpr Phrase kPoolFewer = {"$0 of $1 machines; other programs disturbed the others",
                                      "$1 台机器中的 $0 台；其余受到其他程序干扰"};
inline constexpr Phrase kPoolRecommends = {"$0: recommended on $1 of $2 machines.",
                                           "$0：$2 台机器中有 $1 台推荐。"};
inline constexpr Phrase kPoolShowsNone = {"No strategy is shown to be faster on $0 of $1 machines.",
                                          "$1 台机器中有 $0 台未显示出更快的策略。"};
inline constexpr Phrase kPoolUnknown = {
    "$0 of $1 machines used a version that did not record its recommendation.",
    "$1 台机器中有 $0 台所用的版本没有记录其推荐。"};

// Why a run is not pooled. $0 the name of the run to which it is compared.
inline constexpr Phrase kPoolNoRows = {"it has no rows of a comparison or training",
                                       "其中没有比较或训练的行"};
inline constexpr Phrase kPoolSameRun = {"it is the same run as $0", "与 $0 是同一次运行"};
// $1 the column, $2 the value, $3 the value in $0, $4 the row.
inline constexpr Phrase kPoolOtherPlan = {"$1$4 is $2, but $3 in $0", "$4$1 为 $2，而 $0 中为 $3"};
inline constexpr Phrase kPoolOfRow = {" of $0 x $1", "$0 × $1 的 "};
inline constexpr Phrase kPoolMissingRow = {"it has no row $1 x $2, unlike $0",
                                           "其中没有 $1 × $2 的行，而 $0 中有"};
inline constexpr Phrase kPoolExtraRow = {"it has a row $1 x $2, unlike $0",
                                         "其中有 $1 × $2 的行，而 $0 中没有"};
inline constexpr Phrase kPoolLeftOut = {"not pooled: $0: $1", "未合并：$0：$1"};

}  // namespace psring
