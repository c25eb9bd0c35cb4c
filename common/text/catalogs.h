// The catalogs, as constants.
#pragma once

namespace psring {

extern const char* const kChineseCatalog;  // zh_CN.po

}  // namespace psring
