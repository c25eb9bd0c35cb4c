#include "common/cli/command_line.h"
#include "experiments/psring.h"

int main(int argc, char** argv) { return psring::FinishOutput("psring", psring::PsringMain(argc, argv)); }
