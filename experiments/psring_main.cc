#include "experiments/psring.h"

int main(int argc, char** argv) { return psring::PsringMain(argc, argv); }
