// The program psring: one subcommand per verb.
#pragma once

namespace psring {

// The exit code. Ends the process itself if the command line is invalid or asks for help, and `rerun`
// replaces it.
int PsringMain(int argc, char** argv);

}  // namespace psring
