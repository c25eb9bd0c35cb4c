#include "common/cli/finish_output.h"
#include "experiments/psring.h"

int main(int argc, char** argv) { return psring::FinishOutput("psring", psring::PsringMain(argc, argv)); }
