// Copies and adds payload straight out of the pieces in which it was received.
#pragma once

#include <cstddef>
#include <optional>

#include "common/device.h"
#include "ps_server/messages.h"

namespace psring {

// `to` has room for all bytes of `pieces`. A piece that stands where it is to go stays.
void CopyPieces(Pieces pieces, std::byte* to);

// to[i] = and to[i] += the i-th element of the pieces put together, which hold whole elements of `type`.
void SetPieces(DType type, Pieces pieces, float* to);
void AddPieces(DType type, Pieces pieces, float* to);

// Which element of the pieces put together is the first that is NaN or infinite; nothing where none is. One
// fast pass over memory.
std::optional<size_t> FirstNotFinite(DType type, Pieces pieces);

}  // namespace psring
