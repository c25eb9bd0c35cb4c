// Copies and adds payload straight out of the pieces in which it was received.
#pragma once

#include <cstddef>
#include <optional>

#include "ps_server/messages.h"

namespace psring {

// `to` has room for all bytes of `pieces`. A piece that stands where it is to go stays.
void CopyPieces(Pieces pieces, std::byte* to);

// to[i] += the i-th float of the pieces put together. Their total is a multiple of four bytes.
void AddPieces(Pieces pieces, float* to);

// Which float of the pieces put together is the first that is NaN or infinite; nothing where none is. One
// fast pass over memory.
std::optional<size_t> FirstNotFinite(Pieces pieces);

}  // namespace psring
