#pragma once

#include <string>

namespace psring {

// A field of a CSV file: quoted if it contains a comma, a quote or a newline.
std::string CsvField(const std::string& text);

}  // namespace psring
