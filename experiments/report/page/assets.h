// The page's files, as constants.
#pragma once

namespace psring {

extern const char* const kPageHtml;
extern const char* const kPageCss;
extern const char* const kPageScript;  // all *.js of this folder in their order
extern const char* const kLiveHtml;    // all of the page that --live serves
extern const char* const kD3;
extern const char* const kD3Notice;  // its licence

}  // namespace psring
