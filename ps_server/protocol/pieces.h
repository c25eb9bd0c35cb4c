// Copies and adds payload straight out of the pieces in which it was received.
#pragma once

#include <cstddef>
#include <optional>

#include "common/device/device.h"
#include "ps_server/protocol/messages.h"

namespace psring {

// `to` has room for all bytes of `pieces`. A piece that stands where it is to go stays.
void CopyPieces(Pieces pieces, std::byte* to);

enum class Finite { kAny, kRequired };

// to[i] = and to[i] += the i-th element of the pieces put together, which hold whole elements of `type`.
// kRequired: returns which is the first that is NaN or infinite, where there is one; it and what follows are
// not taken, and some of what is before it is. Looking costs no pass over memory of its own: a block is
// looked at, and then taken while it is in the first cache.
std::optional<size_t> SetPieces(DType type, Pieces pieces, float* to, Finite finite = Finite::kAny);
std::optional<size_t> AddPieces(DType type, Pieces pieces, float* to, Finite finite = Finite::kAny);

// Which element of the pieces put together is the first that is NaN or infinite; nothing where none is. One
// fast pass over memory.
std::optional<size_t> FirstNotFinite(DType type, Pieces pieces);

}  // namespace psring
