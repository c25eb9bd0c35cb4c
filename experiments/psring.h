// The program psring: one subcommand per verb.
#pragma once

namespace psring {

// The exit code. Ends the process itself if the command line is invalid or asks for help.
int PsringMain(int argc, char** argv);

}  // namespace psring
