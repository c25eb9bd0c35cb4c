// The page's files, as constants.
#pragma once

namespace psring {

extern const char* const kPageHtml;
extern const char* const kPageCss;
extern const char* const kPageScript;  // all *.js of this folder in the order of CMakeLists.txt
extern const char* const kD3;
extern const char* const kD3Notice;  // its licence

}  // namespace psring
